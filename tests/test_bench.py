"""The bench without a GPU: shapes, arithmetic, tables, options."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from fa3.contract import Key
from fa3.runtime import Bundle, launcher, load_bundle, reference

from fa3gen.bench import bound, data, html, meter, peers, report, shapes, timing
from fa3gen.bench.meter import Meter, Reading
from fa3gen.bench.peers import Contender
from fa3gen.bench.report import Columns, Layout, Result, Row
from fa3gen.bench.shapes import Shape
from fa3gen.bench.timing import Times
from fa3gen.cli import bench
from fa3gen.errors import ExitCode, MachineError, UsageError
from fa3gen.model import parse_name
from fa3gen.plan import resolve
from tests import runtime_bundle
from tests.runtime_bundle import FakeLauncher, inputs, write_bundle

COLUMNS = Columns(("ours",), ("fa3", "fa4"))
FULL = Shape("bf16", 128, "full", 2, 8192, 8192, 16, 16)
CAUSAL = Shape("bf16", 64, "causal", 1, 1024, 1024, 2, 2)
MIXED = Shape("fp16", 128, "causal", 1, 512, 4096, 8, 2)


def _row(shape: Shape, errors: dict[str, str] | None = None, kind: str = "normal", **ms: float) -> Row:
    return Row(shape, Times(ms, errors or {}), kind)


# --- shapes


def test_paper_shapes() -> None:
    grid = shapes.paper()
    assert len(set(grid)) == 36
    assert {shape.batch * shape.seqlen_q for shape in grid} == {16384}
    assert {shape.heads_q * shape.head_dim for shape in grid} == {2048}
    assert {(shape.dtype, shape.mask) for shape in grid} == {("bf16", "full"), ("bf16", "causal")}
    assert all(shape.seqlen_q == shape.seqlen_k and shape.heads_q == shape.heads_k for shape in grid)


@pytest.mark.parametrize(("head_dim", "seqlen", "option"), [(96, 512, "--width"), (64, 1000, "--tokens")])
def test_grid_of_no_whole_shapes(head_dim: int, seqlen: int, option: str) -> None:
    with pytest.raises(UsageError, match=option):
        shapes.grid("bf16", [head_dim], ["full"], [seqlen])


def test_odd_shapes_are_what_the_paper_leaves_out() -> None:
    odd = shapes.odd()
    assert 24 <= len(set(odd)) == len(odd) <= 30
    assert {(shape.head_dim, shape.mask) for shape in odd} == {(d, m) for d in (64, 128, 256) for m in shapes.MASKS}
    assert {shape.seqlen_q for shape in odd} >= {1000, 3000, 5000, 7777}
    assert {shape.heads_q for shape in odd} >= {7, 24}
    assert {shape.heads_q // shape.heads_k for shape in odd} == {1, 4, 8}
    assert any(shape.seqlen_q < shape.seqlen_k for shape in odd)
    assert {shape.mask for shape in odd if shape.seqlen_q > shape.seqlen_k} == set(shapes.MASKS)
    halves = {replace(shape, dtype="bf16") for shape in odd if shape.dtype == "fp16"}
    assert len(halves) == 6
    assert halves <= {*shapes.paper()}


def test_shapes_of_models() -> None:
    llama = shapes.llama()
    assert len(set(llama)) == len(llama)
    assert {shape.head_dim for shape in llama} == {64, 128, 256}
    assert all(shape.heads_q % shape.heads_k == 0 for shape in llama)
    assert "Llama-3-70B TP8 b1 q2048 k16384 h8/1" in {shape.label for shape in llama}


def test_flops_count_what_is_seen() -> None:
    assert FULL.flops == 4 * 2 * 16 * 8192 * 8192 * 128
    assert CAUSAL.flops == 2 * 2 * 1024 * 1024 * 64
    assert FULL.tflops(1.0) == pytest.approx(FULL.flops / 1e-3 / 1e12)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(64, 64), (64, 1000), (1000, 64), (1, 100)])
def test_a_causal_mask_counts_as_the_area_that_it_leaves(seqlen_q: int, seqlen_k: int) -> None:
    shape = Shape("bf16", 64, "causal", 1, seqlen_q, seqlen_k, 1, 1)
    exact = sum(max(0, min(seqlen_k, row + 1 + seqlen_k - seqlen_q)) for row in range(seqlen_q))
    assert shape.pairs == pytest.approx(exact, abs=min(seqlen_q, seqlen_k))  # the diagonal counts as half
    assert Shape("bf16", 64, "full", 1, seqlen_q, seqlen_k, 1, 1).pairs == seqlen_q * seqlen_k


def test_shapes_of_a_file(tmp_path: Path) -> None:
    yaml, lines = tmp_path / "a.yaml", tmp_path / "a.jsonl"
    yaml.write_text(
        "- {seqlen_q: 4096, heads_q: 32, head_dim: 128}\n"
        "- {seqlen_q: 5, seqlen_k: 7, heads_q: 8, heads_k: 2, head_dim: 64, batch: 3, mask: causal,"
        " dtype: fp16, name: x}\n"
    )
    expected = (
        Shape("bf16", 128, "full", 1, 4096, 4096, 32, 32),
        Shape("fp16", 64, "causal", 3, 5, 7, 8, 2, "x"),
    )
    assert shapes.named(str(yaml)) == expected
    lines.write_text(
        '{"seqlen_q": 4096, "heads_q": 32, "head_dim": 128}\n\n'
        '{"seqlen_q": 5, "seqlen_k": 7, "heads_q": 8, "heads_k": 2, "head_dim": 64, "batch": 3, "mask": "causal",'
        ' "dtype": "fp16", "name": "x"}\n'
    )
    assert shapes.named(str(lines)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {seqlen_q: 4096, heads_q: 32}", "shape 1 lacks head_dim"),
        ("- {seqlen_q: 1, heads_q: 1, head_dim: 64, width: 3}", "shape 1 has no field width"),
        ("- {seqlen_q: 0, heads_q: 1, head_dim: 64}", "seqlen_q is 0"),
        ("- {seqlen_q: true, heads_q: 1, head_dim: 64}", "seqlen_q is True"),
        ("- {seqlen_q: 1, heads_q: 1, head_dim: 64, mask: window}", "mask is 'window'"),
        ("- {seqlen_q: 1, heads_q: 3, heads_k: 2, head_dim: 64}", "heads_q is no multiple"),
        ("- 3", "shape 1 is no mapping"),
        ("seqlen_q: 4096", "no list of shapes"),
        ("[", "expected"),
        ('{"seqlen_q": 4096', "Expecting"),
    ],
)
def test_a_wrong_shape_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(message)):
        shapes.named(str(file))


def test_head_dims_that_differ(tmp_path: Path) -> None:
    both = Shape("bf16", 192, "full", 1, 512, 512, 16, 16, head_dim_v=128)
    assert (both.dims, both.group, both.v_dim) == ("192x128", "bf16 d192x128 full", 128)
    assert both.flops == 2 * 16 * 512 * 512 * (192 + 128)
    assert {shape.dims for shape in shapes.dims()} == {"96", "192", "192x128", "64x256"}
    assert len(set(shapes.dims())) == 32
    file = tmp_path / "shapes.yaml"
    file.write_text(
        "- {seqlen_q: 512, heads_q: 16, head_dim: 192, head_dim_v: 128}\n"
        "- {seqlen_q: 512, heads_q: 16, head_dim: 192, head_dim_v: 192}\n"
    )
    assert shapes.read(file) == (both, replace(both, head_dim_v=0))
    q, k, v = data.make(both, device="cpu")
    assert (q.shape[3], k.shape[3], v.shape[3]) == (192, 192, 128)


def test_no_set_and_no_file() -> None:
    with pytest.raises(UsageError, match="no set and no file 'papre'"):
        shapes.named("papre")


def test_groups_stay_together_and_shapes_come_once() -> None:
    other = replace(FULL, batch=1)
    assert shapes.grouped([FULL, CAUSAL, other, FULL]) == (FULL, other, CAUSAL)


def test_selection() -> None:
    assert shapes.only([FULL, CAUSAL], masks=["causal"]) == (CAUSAL,)
    assert shapes.only([FULL, CAUSAL], seqlens=[8192], head_dims=[128]) == (FULL,)
    with pytest.raises(UsageError, match="no shape is left"):
        shapes.only([FULL, CAUSAL], masks=["causal"], head_dims=[128])


# --- data


@pytest.mark.parametrize("kind", data.KINDS)
def test_data_is_the_same_in_every_run_and_finite(kind: str) -> None:
    first, second = (data.make(MIXED, kind, "cpu") for _ in range(2))
    assert [tensor.shape for tensor in first] == [(1, 512, 8, 128), *[(1, 4096, 2, 128)] * 2]
    for a, b in zip(first, second, strict=True):
        assert a.dtype == torch.float16
        assert a.isfinite().all()
        assert torch.equal(a, b)


@pytest.mark.parametrize("tile", [80, 96, 128, 176])
@pytest.mark.parametrize(("dtype", "limit"), [("bf16", 60), ("fp16", 15)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_growing_data_raises_the_maximum_of_each_row_in_each_tile(
    tile: int, dtype: str, limit: float, head_dim: int
) -> None:
    shape = Shape(dtype, head_dim, "causal", 1, 300, 16384, 1, 1)
    q, k, _ = (tensor[0, :, 0].double() for tensor in data.make(shape, "growing", "cpu"))
    scores = q @ k.T / math.sqrt(head_dim) / math.log(2.0)
    rows, keys = torch.arange(300)[:, None], torch.arange(16384)[None, :]
    scores = scores.masked_fill(keys > rows + 16384 - 300, -torch.inf)
    maxima = [scores[:, first : first + tile].amax(dim=1) for first in range(0, 16384, tile)]
    for left, right in pairwise(maxima):  # tiles are visited from right to left
        seen = right > -torch.inf
        assert ((left - right)[seen] > limit).all()


@pytest.mark.parametrize("kind", data.KINDS)
def test_every_kind_of_data_has_a_result(kind: str) -> None:
    out, lse = reference.attention(*data.make(shapes.TINY, kind, "cpu"), causal=True, return_lse=True)
    assert out.isfinite().all()
    assert lse.isfinite().all()


# --- report


def test_geomean() -> None:
    assert report.geomean([2.0, 8.0]) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="no values"):
        report.geomean([])


def test_everyone_follows_everyone() -> None:
    for names in ("ab", "abc", "abcd", "abcde"):
        turns = ["".join(timing.shuffled([*names], turn)) for turn in range(2 * len(names))]
        assert all(sorted(turn) == [*names] for turn in turns)
        followed = {pair for turn in turns for pair in pairwise(turn)}
        assert len(followed) == len(names) * (len(names) - 1)  # everyone follows everyone
    assert timing.shuffled([], 1) == []


def test_ratio_is_to_the_fastest_peer_with_a_time() -> None:
    row = _row(FULL, ours=2.0, fa3=4.0, fa4=3.0)
    assert COLUMNS.ratio(row, "ours") == 1.5
    assert COLUMNS.ratio(row, "ours", "fa3") == 2.0
    assert COLUMNS.ratio(_row(FULL, {"fa4": "E"}, ours=2.0, fa3=4.0), "ours") == 2.0
    assert COLUMNS.ratio(_row(FULL, ours=2.0), "ours") is None
    assert COLUMNS.ratio(_row(FULL, fa3=2.0), "ours") is None


def test_line_fits_its_heading() -> None:
    columns = Columns(("ours", "another-bundle"), ("fa3",))
    times = Times({"ours": 4.0}, {"fa3": "E"}, clock_mhz={"ours": 1500.0}, power_w=699.6)
    layout = Layout.of(columns, [FULL, MIXED], ["normal"], metered=True)
    row = Row(FULL, times)
    heading, line = layout.heading(FULL.group).splitlines()[-1], layout.line(Result(columns, [row]), row)
    assert len(heading) == len(line)
    assert line.split() == ["b2", "s8192", "h16", f"{FULL.tflops(4.0):.0f}", *["-"] * 6, "1500", "700"]
    assert MIXED.label == "b1 q512 k4096 h8/2"


def test_share_of_the_bound() -> None:
    plan = resolve(parse_name("fwd_bf16_d128_full_sm90a")).to_json()
    entry = replace(runtime_bundle.entry(Key("fwd", "bf16", "128", "full", "dense")), plan=plan)
    most = bound.tflops(entry, FULL, 1500.0)
    assert most == pytest.approx(4096 * 132 * 1.5e-3, rel=0.1)  # the tensor pipe's peak, less the tiles' remainder
    assert bound.tflops(replace(entry, plan={}), FULL, 1500.0) is None
    row = Row(FULL, Times({"ours": 4.0}, clock_mhz={"ours": 1500.0}), bounds={"ours": most or 0.0})
    assert row.share("ours") == pytest.approx(FULL.tflops(4.0) / (most or 0.0))
    assert row.share("fa3") is None
    layout, result = Layout.of(COLUMNS, [FULL], ["normal"], metered=True), Result(COLUMNS, [row])
    assert layout.line(result, row).split()[-3:] == [f"{row.share('ours'):.2f}", "1500", "-"]
    assert report.record(result, row)["bound_tflops"] == {"ours": most}


def test_data_is_compared_with_normal_data() -> None:
    normal, growing = _row(FULL, ours=2.0, fa3=3.0), _row(FULL, kind="growing", ours=3.0)
    result = Result(COLUMNS, [normal, growing])
    layout = Layout.of(COLUMNS, [FULL], ["normal", "growing"], metered=False)
    assert layout.line(result, growing).split()[-2:] == ["-", "1.500"]
    assert layout.line(result, normal).split()[-2:] == ["1.500", "-"]
    assert len(layout.heading("g").splitlines()[-1]) == len(layout.line(result, growing))
    assert result.slowdowns("growing") == {"ours": pytest.approx({FULL.group: 1.5, "all": 1.5})}
    assert report.record(result, growing)["slowdown"] == {"ours": 1.5}
    assert report.summary_record(result)["slowdown"] == {"growing": {"ours": {FULL.group: 1.5, "all": 1.5}}}


def test_means_of_groups_and_all() -> None:
    rows = [_row(FULL, ours=1.0, fa3=2.0), _row(CAUSAL, ours=1.0, fa4=8.0), _row(CAUSAL, ours=1.0)]
    result = Result(COLUMNS, rows)
    assert {group: values["best"] for group, values in result.means("normal")["ours"].items()} == pytest.approx(
        {"bf16 d128 full": 2.0, "bf16 d64 causal": 8.0, "all": 4.0}
    )
    assert result.means("normal")["ours"]["all"]["fa3"] == pytest.approx(2.0)
    lines = report.summary(result)
    assert lines[0] == "ours, how many times as fast with normal data (2 of 3 shapes)"
    assert lines[-1].split() == ["all", "4.000", "2.000", "8.000"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_slowdowns_without_peers() -> None:
    result = Result(Columns(("ours",), ()), [_row(FULL, ours=2.0), _row(FULL, kind="growing", ours=3.0)])
    assert report.summary(result)[-1].split() == ["all", "1.500"]


def test_markdown_tables_are_rectangular() -> None:
    rows = [_row(shape, kind=kind, ours=1.0, fa3=2.0) for shape in (FULL, CAUSAL) for kind in ("normal", "growing")]
    text = report.markdown(Result(COLUMNS, rows), "a GPU")
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 4  # means of both kinds, both groups
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "| b2 s8192 h16 | growing |" in text
    assert text.startswith("a GPU.\n")


def test_tables_say_which_plan_served_and_how_near_the_bound_it_came() -> None:
    names = ("fwd_bf16_d64_full_sm90a__m256n64s4", "fwd_bf16_d64_full_sm90a")
    rows = [
        replace(_row(replace(FULL, batch=batch), ours=1.0), kernels={"ours": name}, bounds={"ours": 1e4})
        for batch, name in enumerate(names, 1)
    ]
    ((_, (head, *lines)),) = report.shape_tables(Result(COLUMNS, rows))
    assert head[-2:] == ["ours / bound", "ours: plan"]
    assert [line[-1] for line in lines] == ["m256n64s4", "general"]
    assert [float(line[-2]) for line in lines] == [round(row.share("ours") or 0, 2) for row in rows]
    plain = Result(COLUMNS, [_row(FULL, ours=1.0)])
    assert not {"ours / bound", "ours: plan"} & set(report.shape_tables(plain)[0][1][0])


class _Tags(HTMLParser):
    """Checks that tags close, and collects what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.loads += [name for name, _ in attrs if name in ("src", "href")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_one_file_with_a_plot_for_each_group() -> None:
    columns = Columns(("ours", "<b>"), ("fa3",))
    rows = [_row(FULL, ours=1.0, fa3=2.0), _row(CAUSAL, ours=1.0), _row(MIXED, {"ours": "E"})]
    text = html.page(Result(columns, rows), "a <GPU>", ["note & more"])
    tags = _Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.loads == []
    assert tags.count["svg"] == 3
    assert tags.count["rect"] == 3
    assert "a &lt;GPU&gt;" in text
    assert "://" not in text
    assert "<b>" not in text


def test_host_lines() -> None:
    lines = report.host_lines(COLUMNS, {"no_grad": {"ours": 15.0, "fa4": 60.0, "fa3": "ImportError: x"}})
    assert lines[1].split() == ["no_grad", "15.0", "-", "60.0", "0.250"]
    assert lines[2:] == ["fa3 failed: ImportError: x"]


# --- peers


def test_bundle_columns() -> None:
    assert peers.bundle_names([Path("build/bundle"), Path("old/slow")]) == ("ours", "slow")
    with pytest.raises(UsageError, match="one name"):
        peers.bundle_names([Path("a"), Path("b/x"), Path("c/x")])


@pytest.mark.parametrize(
    ("missing", "error"),
    [("flash_attn", peers.NotInstalled), ("flash_attn.cute", peers.NotInstalled), ("x", ImportError)],
)
def test_a_peer_is_missing_or_lacks_something(
    missing: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_module(_name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(peers, "import_module", import_module)
    with pytest.raises(error, match=missing):
        peers.peer("fa4")


def test_cudnn_is_asked_for_what_torch_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", lambda *_, **options: calls.append(options))
    cudnn = peers.peer("cudnn")
    assert cudnn.why_not(FULL) == ""
    assert "top left" in cudnn.why_not(MIXED)
    assert cudnn.why_not(replace(MIXED, mask="full")) == ""
    cudnn.prepare(*data.make(MIXED, device="cpu"), True)(2)
    assert calls == [{"is_causal": True, "enable_gqa": True}] * 2


# --- which plan served

SMALL = replace(FULL, head_dim=64, seqlen_q=1024, seqlen_k=1024)
LONG = replace(SMALL, seqlen_q=8192, seqlen_k=8192)
KERNEL = "fwd_bf16_d64_full_sm90a"


@pytest.fixture
def bundle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bundle:
    monkeypatch.setattr(launcher, "native", FakeLauncher)
    write_bundle(tmp_path, further=[("__n64", {"max_seqlen_k": 2047})])
    return load_bundle(tmp_path, default=False)


def test_the_plan_that_serves_a_shape_is_named(bundle: Bundle) -> None:
    ours = peers.ours("ours", bundle)
    assert [ours.kernel(shape) for shape in (SMALL, LONG)] == [f"{KERNEL}__n64", KERNEL]
    assert ours.kernel(replace(FULL, head_dim=256)) is None
    assert ours.takes(replace(FULL, head_dim=256))  # and fails, which is told
    row = Row(SMALL, Times({"ours": 4.0, "slow": 5.0}, {}), kernels={"ours": f"{KERNEL}__n64", "slow": KERNEL})
    columns = Columns(("ours", "slow"), ())
    result, layout = Result(columns, [row]), Layout.of(columns, [SMALL], ["normal"], metered=False)
    assert report.record(result, row)["kernels"] == {"ours": f"{KERNEL}__n64", "slow": KERNEL}
    assert layout.line(result, row) == layout.line(result, replace(row, kernels={})) + "  ours: n64"


def test_kernels_are_timed_by_name_whatever_their_bounds(bundle: Bundle) -> None:
    general, further = peers.plans(bundle, [f"{KERNEL}*", "fwd_bf16_d64_causal*", KERNEL])
    assert [general.name, further.name] == ["general", "n64"]
    for shape in (SMALL, LONG, replace(SMALL, mask="causal")):
        name = KERNEL.replace("full", shape.mask)
        assert (general.kernel(shape), further.kernel(shape)) == (name, f"{name}__n64")
        assert further.takes(shape)
        further.prepare(*inputs(seqlen_k=3000), shape.causal)(2)
    assert not further.takes(FULL)
    with pytest.raises(UsageError, match="--kernel: 'fwd_fp8\\*' matches none of the bundle"):
        peers.plans(bundle, ["fwd_fp8*"])


# --- timing, on a device of which only the clock is there


class _Clock:
    """Milliseconds of GPU time so far; an event reads it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heats = 0

    def heat(self) -> None:
        self.heats += 1

    def event(self, enable_timing: bool) -> _Event:
        assert enable_timing
        return _Event(self)

    def contender(self, name: str, ms: float) -> Contender:
        def run(calls: int) -> None:
            self.now += ms * calls

        return Contender(name, False, lambda *_: run)


class _Event:
    def __init__(self, clock: _Clock) -> None:
        self.clock, self.at = clock, 0.0

    def record(self) -> None:
        self.at = self.clock.now

    def elapsed_time(self, end: _Event) -> float:
        return end.at - self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    found = _Clock()

    def spin(cycles: int) -> None:
        found.now += cycles / timing.SPIN_CYCLES_PER_MS

    monkeypatch.setattr("torch.cuda.Event", found.event)
    monkeypatch.setattr("torch.cuda._sleep", spin)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr(data, "make", lambda *_: (None, None, None))
    monkeypatch.setattr(timing, "heat", found.heat)
    return found


def _broken(*_: object) -> peers.Run:
    raise RuntimeError("no such kernel\nmore")


def test_times_are_those_of_a_call_without_the_spin(clock: _Clock) -> None:
    contenders = [clock.contender("a", 0.5), Contender("b", False, _broken), clock.contender("c", 20.0)]
    times = timing.shape(FULL, contenders, rounds=3)["normal"]
    assert times.ms == pytest.approx({"a": 0.5, "c": 20.0})
    assert times.errors == {"b": "RuntimeError: no such kernel"}
    assert {name: len(samples) for name, samples in times.samples.items()} == {"a": 3, "c": 3}


def _calls(clock: _Clock, ms: float) -> int:
    none: Any = None
    return timing._plan(clock.contender("a", ms).prepare(none, none, none, True)).calls


def test_samples_last_equally_long(clock: _Clock) -> None:
    for ms in (0.1, 1.0, 7.0):
        assert _calls(clock, ms) * ms == pytest.approx(timing.SAMPLE_MS, rel=0.1)
    assert _calls(clock, 1e-3) == timing.MAX_CALLS


def test_kinds_of_data_take_turns(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def make(_shape: Shape, kind: str) -> tuple[str, None, None]:
        return kind, None, None

    def prepare(q: Any, *_: Any) -> peers.Run:
        def run(calls: int) -> None:
            asked.append(q)
            clock.now += calls * {"normal": 1.0, "growing": 1.5}[q]

        return run

    monkeypatch.setattr(data, "make", make)
    found = timing.shape(FULL, [Contender("a", True, prepare)], rounds=2, kinds=("normal", "growing"))
    assert {kind: times.ms["a"] for kind, times in found.items()} == pytest.approx({"normal": 1.0, "growing": 1.5})
    # each sample warms up first, and the first turn does not count
    order = ("normal", "growing", "growing", "normal", "normal", "growing")
    assert asked[6:] == [kind for kind in order for _ in range(2)]


def test_who_does_not_support_a_shape_is_not_asked(clock: _Clock) -> None:
    refused = Contender("b", False, _broken, lambda _shape: "no GQA")
    times = timing.shape(FULL, [clock.contender("a", 0.5), refused], rounds=1)["normal"]
    assert times.unsupported == {"b": "no GQA"}
    assert times.errors == {}
    assert [*times.ms] == ["a"]


def test_the_card_is_heated_unless_it_is_hot(clock: _Clock) -> None:
    contenders = [clock.contender("a", 0.5)]
    timing.shape(FULL, contenders, rounds=1)
    assert clock.heats == 1
    timing.shape(FULL, contenders, rounds=1, hot=True)
    assert clock.heats == 1
    timing.shape(FULL, [], rounds=1)
    assert clock.heats == 1


class _FixedMeter(Meter):
    """Has a reading in the middle of every window."""

    def between(self, begin: float, end: float) -> list[Reading]:
        assert begin < end
        return [Reading((begin + end) / 2, 1500.0, 650.0)]


def test_clock_and_power_are_recorded_where_they_can_be_read(clock: _Clock) -> None:
    contenders = [clock.contender("a", 0.5), clock.contender("b", 0.5)]
    times = timing.shape(FULL, contenders, 3, meter=_FixedMeter("fixed", None))["normal"]
    assert (times.clock_mhz, times.power_w) == ({"a": 1500.0, "b": 1500.0}, 650.0)
    record = report.record(Result(Columns(("a",), ("b",)), []), Row(FULL, times))
    assert (record["clock_mhz"], record["power_w"]) == ({"a": 1500.0, "b": 1500.0}, 650.0)
    assert json.loads(json.dumps(record)) == record
    times = timing.shape(FULL, contenders, 3, meter=Meter("none", None))["normal"]
    assert (times.clock_mhz, times.power_w) == ({}, None)


def test_a_meter_reads_until_it_cannot() -> None:
    readings = iter([(1500.0, 600.0), (1600.0, 610.0)])
    with Meter("test", lambda: next(readings)) as reader:
        assert reader._thread is not None
        reader._thread.join(timeout=10)  # the end of the readings is an error
    found = reader.between(0.0, math.inf)
    assert [(reading.mhz, reading.watts) for reading in found] == [(1500.0, 600.0), (1600.0, 610.0)]
    assert reader.between(0.0, 0.0) == []


def test_a_machine_without_nvml_has_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "NVML", "libno-such-library.so.1")
    found = meter.find()
    assert not found.works
    assert found.source.startswith("not recorded (NVML: libno-such-library")
    with found:
        assert found.between(0.0, math.inf) == []


class _Nvml:
    """The driver's library with a GPU that it knows by its UUID."""

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        return 0 if uuid == b"GPU-12-34" else 6

    def nvmlDeviceGetClockInfo(self, _handle: Any, kind: int, value: Any) -> int:  # noqa: N802
        value._obj.value = {1: 1755}[kind]
        return 0

    def nvmlDeviceGetPowerUsage(self, _handle: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = 698_500
        return 0


def test_nvml_is_asked_for_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        uuid = "12-34"

    monkeypatch.setattr("ctypes.CDLL", lambda _name: _Nvml())
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _device: Properties)
    assert meter._nvml()() == (1755.0, 698.5)
    assert meter.find().source == "NVML"
    Properties.uuid = "56"
    assert "NVML: error 6" in meter.find().source


def test_an_error_after_the_first_calls_is_reported(clock: _Clock) -> None:
    calls = []

    def run(count: int) -> None:
        clock.now += count
        calls.append(count)
        if len(calls) > 4:
            raise RuntimeError("illegal memory access")

    times = timing.shape(FULL, [clock.contender("a", 1.0), Contender("b", True, lambda *_: run)], rounds=2)["normal"]
    assert not times.ms
    assert times.errors == dict.fromkeys("ab", "while all are timed: RuntimeError: illegal memory access")


def test_host_times_each_mode_and_reports_failures(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "HOST_BATCHES", 3)
    found = timing.host(shapes.TINY, [clock.contender("a", 0.1), Contender("b", False, _broken)])
    assert [*found] == ["no_grad", "inference_mode", "grad"]
    for times in found.values():
        assert times["b"] == "RuntimeError: no such kernel"
        assert isinstance(times["a"], float)
        assert times["a"] > 0


# --- the command


def test_help_lists_the_options() -> None:
    result = CliRunner().invoke(bench.command, ["--help"])
    assert result.exit_code == 0
    options = (
        "--bundle",
        "--against",
        "--shapes",
        "--data",
        "--kernel",
        "--host",
        "--json",
        "--rounds",
        "--markdown",
        "--html",
    )
    assert all(option in result.stdout for option in options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--against", "fa3,fa9"], "fa9"),
        (["--data", "normal,odd"], "--data: unknown kind 'odd'"),
        (["--shapes", "papre"], "papre"),
        (["--seqlen", "17"], "no shape is left"),
        (["--markdown", "--json", "-"], "both write to stdout"),
    ],
)
def test_wrong_words_are_named(options: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bench.command.main(options, standalone_mode=False)


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(MachineError, match="no CUDA device"):
        bench.command.main([], standalone_mode=False)


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Times by contender instead of a GPU; one that is not listed fails.  fa3 is not there."""
    times = {"ours": 1.0, "fa4": 2.0}

    def peer(name: str) -> Contender:
        if name == "fa3":
            raise peers.NotInstalled("no module")
        return Contender(name, False, lambda *_: lambda _calls: None)

    def shape(
        _problem: Shape, contenders: Sequence[Contender], _rounds: int, kinds: Sequence[str], *_: Any
    ) -> dict[str, Times]:
        names = [contender.name for contender in contenders]
        errors = {name: "E: broken" for name in names if name not in times}
        slow = {"normal": 1.0, "growing": 1.5}
        return {kind: Times({n: times[n] * slow[kind] for n in names if n in times}, errors) for kind in kinds}

    facts = dict.fromkeys(("gpu", "driver", "torch", "cuda", "cudnn", "date"), "?")
    monkeypatch.setattr(timing, "machine", lambda: facts)
    monkeypatch.setattr(timing, "heat", lambda: None)
    monkeypatch.setattr(timing, "ceiling", lambda: 700.0)
    monkeypatch.setattr(timing, "shape", shape)
    monkeypatch.setattr(meter, "find", lambda: Meter("not recorded", None))
    monkeypatch.setattr(peers, "load_bundle", lambda _folder: None)
    monkeypatch.setattr(peers, "kernels", lambda _folder: {})
    monkeypatch.setattr(peers, "ours", lambda name, _: Contender(name, True, lambda *_: lambda _calls: None))
    monkeypatch.setattr(peers, "peer", peer)
    return times


def test_run_reports_every_failure(
    fake_gpu: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.jsonl"
    code = bench.command.main(["--head-dim", "64", "--json", str(file)], standalone_mode=False)
    out = capsys.readouterr().out
    assert code == ExitCode.OK
    assert "fa3 is not installed, skipped: no module" in out
    assert out.count("cudnn failed: E: broken") == 1
    assert "SM clock and power: not recorded" in out
    records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    kinds = [record["kind"] for record in records]
    assert kinds == ["machine", "skipped", "meter", "ceiling", *["shape"] * 12, "ceiling", "summary"]
    rows = [record for record in records if record["kind"] == "shape"]
    assert all(r["errors"] == {"cudnn": "E: broken"} and r["ratio"] == {"ours": 2.0} for r in rows)
    assert records[-1]["geomean"]["normal"]["ours"]["all"]["best"] == pytest.approx(2.0)


def test_a_peer_that_cannot_be_imported_is_a_failure(
    fake_gpu: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_name: str) -> Contender:
        raise ImportError("undefined symbol")

    monkeypatch.setattr(peers, "peer", broken)
    result = CliRunner().invoke(bench.command, ["--seqlen", "512", "--against", "fa4"])
    assert "fa4 failed: cannot be imported: ImportError: undefined symbol" in result.stdout
    assert "ours/best" not in result.stdout


def test_data_kinds_and_files(fake_gpu: dict[str, float], tmp_path: Path) -> None:
    file = tmp_path / "shapes.yaml"
    file.write_text("- {seqlen_q: 640, heads_q: 8, heads_k: 2, head_dim: 128, name: mine}\n")
    page = tmp_path / "report.html"
    options = ["--shapes", f"{file},llama", "--dtype", "fp16", "--data", "normal,growing", "--against", ""]
    result = CliRunner().invoke(bench.command, [*options, "--html", str(page)])
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("mine ")]
    assert [line[4] for line in lines] == ["normal", "growing"]
    assert lines[1][-1] == "1.500"
    assert "fp16 d128 full, TFLOP/s" in result.stdout
    assert "bf16 d" not in result.stdout
    assert re.search(r"^all +1\.500$", result.stdout, re.MULTILINE)
    assert page.read_text("utf-8").count("<svg") == 4


def test_columns_of_kernels(fake_gpu: dict[str, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def kernel(shape: Shape) -> str | None:
        return KERNEL if (shape.head_dim, shape.mask) == (64, "full") else None

    picked = Contender("n64", True, lambda *_: lambda _calls: None, kernel=kernel, picked=True)
    monkeypatch.setattr(peers, "plans", lambda _bundle, patterns: [picked] if patterns == ("x*",) else [])
    fake_gpu["n64"] = 0.5
    file = tmp_path / "bench.jsonl"
    words = ["--kernel", "x*", "--head-dim", "64", "--seqlen", "512", "--json", str(file)]
    assert bench.command.main(words, standalone_mode=False) == ExitCode.OK
    full, causal = (r for r in map(json.loads, file.read_text("utf-8").splitlines()) if r["kind"] == "shape")
    assert full["ratio"] == {"ours": 2.0, "n64": 4.0}
    assert full["kernels"] == {"n64": KERNEL}
    assert causal["ratio"] == {"ours": 2.0, "n64": None}
    assert "n64" not in causal["errors"]


def test_json_to_stdout_keeps_text_out_of_it(fake_gpu: dict[str, float]) -> None:
    result = CliRunner().invoke(bench.command, ["--head-dim", "64", "--seqlen", "512", "--json", "-"])
    assert [json.loads(line)["kind"] for line in result.stdout.splitlines()].count("shape") == 2
    assert "TFLOP/s" in result.stderr


def test_markdown_to_stdout_keeps_text_out_of_it(fake_gpu: dict[str, float]) -> None:
    result = CliRunner().invoke(bench.command, ["--head-dim", "64", "--markdown"])
    assert "| b32 s512 h32 |" in result.stdout
    assert "fa3 is not installed" in result.stderr
    assert "fa3 is not installed" not in result.stdout


def test_nothing_timed_is_a_finding(fake_gpu: dict[str, float]) -> None:
    fake_gpu.clear()
    assert bench.command.main(["--seqlen", "512"], standalone_mode=False) == ExitCode.FINDINGS

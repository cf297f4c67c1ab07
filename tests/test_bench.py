"""The bench without a GPU: shapes, arithmetic, tables, options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fa3.contract import Key

from fa3gen.bench import bound, peers, report, shapes, timing
from fa3gen.bench.peers import Contender
from fa3gen.bench.report import Columns, Row
from fa3gen.bench.shapes import Shape
from fa3gen.bench.timing import Times
from fa3gen.cli import bench
from fa3gen.errors import ExitCode, MachineError, UsageError
from fa3gen.model import parse_name
from fa3gen.plan import resolve
from tests import runtime_bundle

COLUMNS = Columns(("ours",), ("fa3", "fa4"))
FULL = Shape("bf16", 128, "full", batch=2, seqlen=8192, heads=16)
CAUSAL = Shape("bf16", 64, "causal", batch=1, seqlen=1024, heads=2)


def _row(shape: Shape, errors: dict[str, str] | None = None, **ms: float) -> Row:
    return Row(shape, Times(ms, errors or {}))


def test_default_grid() -> None:
    grid = shapes.grid("bf16", shapes.HEAD_DIMS, shapes.MASKS, shapes.SEQLENS, 16384, 2048)
    assert len(set(grid)) == 36
    assert {shape.batch * shape.seqlen for shape in grid} == {16384}
    assert {shape.heads * shape.head_dim for shape in grid} == {2048}


@pytest.mark.parametrize(("head_dim", "seqlen", "option"), [(96, 512, "--width"), (64, 1000, "--tokens")])
def test_grid_of_no_whole_shapes(head_dim: int, seqlen: int, option: str) -> None:
    with pytest.raises(UsageError, match=option):
        shapes.grid("bf16", [head_dim], ["full"], [seqlen], 16384, 2048)


def test_flops() -> None:
    assert FULL.flops == 4 * 2 * 16 * 8192 * 8192 * 128
    assert CAUSAL.flops == 2 * 2 * 1024 * 1024 * 64
    assert FULL.tflops(1.0) == pytest.approx(FULL.flops / 1e-3 / 1e12)


def test_geomean() -> None:
    assert report.geomean([2.0, 8.0]) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="no values"):
        report.geomean([])


def test_rotation_gives_each_the_first_turn() -> None:
    turns = [timing.rotated(["a", "b", "c"], turn) for turn in range(4)]
    assert turns == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
    assert timing.rotated([], 1) == []


def test_ratio_is_to_the_fastest_peer_with_a_time() -> None:
    assert COLUMNS.ratio(_row(FULL, ours=2.0, fa3=4.0, fa4=3.0), "ours") == 1.5
    assert COLUMNS.ratio(_row(FULL, {"fa4": "E"}, ours=2.0, fa3=4.0), "ours") == 2.0
    assert COLUMNS.ratio(_row(FULL, ours=2.0), "ours") is None
    assert COLUMNS.ratio(_row(FULL, fa3=2.0), "ours") is None


def test_line_fits_its_heading() -> None:
    columns = Columns(("ours", "another-bundle"), ("fa3",))
    row = _row(FULL, {"fa3": "E"}, ours=4.0)
    heading, line = report.heading(columns, FULL).splitlines()[-1], report.line(columns, row)
    assert len(heading) == len(line)
    assert line.split() == ["8192", f"{FULL.tflops(4.0):.0f}", "-", "-", "-", "-", "-", "-"]


def test_share_of_the_bound() -> None:
    plan = resolve(parse_name("fwd_bf16_d128_full_sm90a")).to_json()
    entry = replace(runtime_bundle.entry(Key("fwd", "bf16", "128", "full", "dense")), plan=plan)
    most = bound.tflops([entry], FULL, 1500.0)
    assert most == pytest.approx(4096 * 132 * 1.5e-3, rel=0.1)  # the tensor pipe's peak, less the tiles' remainder
    assert bound.tflops([entry], CAUSAL, 1500.0) is None
    assert bound.tflops([replace(entry, plan={})], FULL, 1500.0) is None
    row = Row(FULL, Times({"ours": 4.0}, {}, 1500.0), {"ours": most or 0.0})
    assert row.share("ours") == pytest.approx(FULL.tflops(4.0) / (most or 0.0))
    assert row.share("fa3") is None
    assert report.line(COLUMNS, row).split()[-1] == f"{row.share('ours'):.2f}"


def test_summary_means_groups_and_all() -> None:
    rows = [_row(FULL, ours=1.0, fa3=2.0), _row(CAUSAL, ours=1.0, fa4=8.0), _row(CAUSAL, ours=1.0)]
    assert report.means(COLUMNS, rows)["ours"] == pytest.approx({"d128 full": 2.0, "all": 4.0, "d64 causal": 8.0})
    assert report.summary(COLUMNS, rows)[-1] == "ours against the best peer, all: 4.000  (2 of 3 shapes)"


def test_host_lines() -> None:
    lines = report.host_lines(COLUMNS, {"no_grad": {"ours": 15.0, "fa4": 60.0, "fa3": "ImportError: x"}})
    assert lines[1].split() == ["no_grad", "15.0", "-", "60.0", "0.250"]
    assert lines[2:] == ["fa3 failed: ImportError: x"]


def test_bundle_columns() -> None:
    assert peers.bundle_names([Path("build/bundle"), Path("old/slow")]) == ("ours", "slow")
    with pytest.raises(UsageError, match="one name"):
        peers.bundle_names([Path("a"), Path("b/x"), Path("c/x")])


# --- timing, on a device of which only the clock is there


class _Clock:
    """Milliseconds of GPU time so far; an event reads it."""

    def __init__(self) -> None:
        self.now = 0.0

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
    monkeypatch.setattr(timing, "inputs", lambda _shape: (None, None, None))
    return found


def _broken(*_: object) -> peers.Run:
    raise RuntimeError("no such kernel\nmore")


def test_times_are_those_of_a_call_without_the_spin(clock: _Clock) -> None:
    contenders = [clock.contender("a", 0.5), Contender("b", False, _broken), clock.contender("c", 20.0)]
    times = timing.shape(FULL, contenders, rounds=3)
    assert times.ms == pytest.approx({"a": 0.5, "c": 20.0})
    assert times.errors == {"b": "RuntimeError: no such kernel"}


def test_the_clock_is_recorded_where_it_can_be_read(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([1500, 1600, 1400])
    monkeypatch.setattr("torch.cuda.clock_rate", lambda: next(readings))
    times = timing.shape(FULL, [clock.contender("a", 0.5)], rounds=3)
    assert times.clock_mhz == 1500
    assert report.record(Columns(("a",), ()), Row(FULL, times))["clock_mhz"] == 1500
    # the readings are at an end, which raises
    assert timing.shape(FULL, [clock.contender("a", 0.5)], rounds=3).clock_mhz is None


def test_an_error_after_the_first_calls_is_reported(clock: _Clock) -> None:
    calls = []

    def run(count: int) -> None:
        clock.now += count
        calls.append(count)
        if len(calls) > 3:
            raise RuntimeError("illegal memory access")

    times = timing.shape(FULL, [clock.contender("a", 1.0), Contender("b", True, lambda *_: run)], rounds=2)
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
    assert all(option in result.stdout for option in ("--bundle", "--against", "--host", "--json", "--rounds"))


def test_unknown_peer() -> None:
    with pytest.raises(UsageError, match="fa9"):
        bench.command.main(["--against", "fa3,fa9"], standalone_mode=False)


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(MachineError, match="no CUDA device"):
        bench.command.main([], standalone_mode=False)


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Times by contender instead of a GPU; one that is not listed fails.  fa3 cannot be imported."""
    times = {"ours": 1.0, "fa4": 2.0}

    def peer(name: str) -> Contender:
        if name == "fa3":
            raise ImportError("no module")
        return Contender(name, False, lambda *_: lambda _calls: None)

    def shape(_problem: Shape, contenders: Sequence[Contender], _rounds: int) -> Times:
        names = [contender.name for contender in contenders]
        return Times({n: times[n] for n in names if n in times}, {n: "E: broken" for n in names if n not in times})

    facts = dict.fromkeys(("gpu", "driver", "torch", "cuda", "cudnn", "date"), "?")
    monkeypatch.setattr(timing, "machine", lambda: facts)
    monkeypatch.setattr(timing, "ceiling", lambda heat: 700.0 + heat)
    monkeypatch.setattr(timing, "shape", shape)
    monkeypatch.setattr(peers, "load_bundle", lambda _folder: None)
    monkeypatch.setattr(peers, "kernels", lambda _folder: ())
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
    assert "fa3 failed: cannot be imported: ImportError: no module" in out
    assert out.count("cudnn failed: E: broken") == 1
    records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    kinds = [record["kind"] for record in records]
    assert kinds == ["machine", "failure", "ceiling", *["shape"] * 12, "ceiling", "summary"]
    assert all(r["errors"] == {"cudnn": "E: broken"} and r["ratio"] == {"ours": 2.0} for r in records[3:15])
    assert records[-1]["geomean"]["ours"]["all"] == pytest.approx(2.0)


def test_json_to_stdout_keeps_text_out_of_it(fake_gpu: dict[str, float]) -> None:
    result = CliRunner().invoke(bench.command, ["--head-dim", "64", "--seqlen", "512", "--json", "-"])
    assert [json.loads(line)["kind"] for line in result.stdout.splitlines()].count("shape") == 2
    assert "TFLOP/s" in result.stderr


def test_nothing_timed_is_a_finding(fake_gpu: dict[str, float]) -> None:
    fake_gpu.clear()
    assert bench.command.main(["--seqlen", "512"], standalone_mode=False) == ExitCode.FINDINGS

"""Tuning without a GPU: candidates and their bundle, checks and times with a stub device, rules from times."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from fa3 import contract
from fa3.contract import CUBIN_DIR, INDEX, MANIFEST, Key, Manifest

from fa3gen.arch import ARCHS, sm90
from fa3gen.bench import data, meter, timing
from fa3gen.bench.meter import Meter
from fa3gen.bench.peers import Contender
from fa3gen.bench.shapes import Shape
from fa3gen.bench.timing import Times
from fa3gen.cli import tune_choose, tune_run
from fa3gen.cli.tune import command
from fa3gen.errors import ConfigError, ExitCode, Fa3genError, MachineError, PlanError, UsageError
from fa3gen.model import Arch, Bounds, DType, Mask, Scheduler, parse_name
from fa3gen.plan import PLAN_FIELDS, RULES_DIR, load_rules, resolve, resolve_all
from fa3gen.tune import candidates, choose, record, rules, run
from fa3gen.tune.record import Check, Records, Time
from fa3gen.verify import cases
from tests import runtime_bundle
from tests.built_kernels import REPO

D64 = "fwd_bf16_d64_full_sm90a"
D128 = "fwd_bf16_d128_causal_sm90a"
DATE = "2026-02-03"


# --- candidates


@pytest.mark.parametrize("name", [D64, D128, "fwd_fp16_d256_full_sm90a"])
def test_candidates_are_legal_and_named_apart(name: str) -> None:
    variant = parse_name(name)
    found = candidates.search(variant, 0.1, 40)
    names = [candidate.name for candidate in found.candidates]
    assert found.combinations >= found.legal >= found.near >= len(names)
    assert len(set(names)) == len(names) <= 40
    assert names[0] == name
    assert all(other.startswith(f"{name}__") and other.isidentifier() for other in names[1:])
    assert [candidate.current for candidate in found.candidates] == [True] + [False] * (len(names) - 1)
    best = min(c.budget.predicted / (c.plan.tile_m * c.plan.tile_n) for c in found.candidates)
    for candidate in found.candidates:
        assert ARCHS[variant.arch].check(candidate.plan) == []
        assert candidate.budget.predicted / (candidate.plan.tile_m * candidate.plan.tile_n) <= 1.1 * best
        plan = resolve(variant, {field: getattr(candidate.plan, field) for field in PLAN_FIELDS})
        assert replace(plan, reasons=()) == replace(candidate.plan, variant=variant, reasons=())


def test_every_field_is_an_axis_or_fitted_or_fixed_on_purpose() -> None:
    """A field that plans gain is tried, or this test asks why not."""
    axes = candidates._axes(resolve(parse_name(D64)))
    assert set(PLAN_FIELDS) == {*axes, *candidates.FITTED}


def test_registers_are_the_most_that_fit() -> None:
    assert [candidates.registers(rows) for rows in (128, 192, 256)] == [(24, 240), (32, 160), (32, 112)]
    for rows in (64, 128, 192, 256):
        producer, consumer = candidates.registers(rows)
        warpgroups = rows // 64
        pool = sm90.launch_registers(128 * (warpgroups + 1)) * (warpgroups + 1)
        assert producer + warpgroups * consumer <= pool


def test_the_names_say_what_differs() -> None:
    plan = resolve(parse_name(D128))
    changed = replace(plan, tile_n=96, q_stages=1, scheduler=Scheduler.STATIC, pin_pv_wait=True)
    assert candidates._named(changed, plan).name == f"{D128}__n96_q1_static_pin"
    assert candidates.pointless(replace(plan, scheduler=Scheduler.STATIC)) is not None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A bundle of the first candidates of a kernel, and what the command said."""
    folder = tmp_path_factory.mktemp("candidates") / "bundle"
    words = ["candidates", D64, "--limit", "3", "--json", "-q", "--out", str(folder)]
    files = ["--config", str(REPO / "variants.yaml"), "--build-dir", str(REPO / "build")]
    result = CliRunner().invoke(command, [*words, *files], standalone_mode=False)
    assert result.return_value == ExitCode.OK, result.output
    return folder, json.loads(result.stdout)


def test_the_bundle_holds_kernels_of_one_key(built: tuple[Path, dict[str, Any]]) -> None:
    folder, said = built
    manifest = contract.manifest_from_json(json.loads((folder / MANIFEST).read_text("utf-8")))
    assert [entry.name for entry in manifest.kernels] == sorted(row["name"] for row in said["candidates"])
    assert len(manifest.kernels) == 3
    assert len({entry.key for entry in manifest.kernels}) == 1
    assert len({entry.cubin_sha256 for entry in manifest.kernels}) == 3
    assert all(entry.symbol == f"{entry.name}_0" for entry in manifest.kernels)
    assert {row["status"] for row in said["candidates"]} <= {"compiled", "up to date"}


def test_plans_of_ones_own() -> None:
    words = ["candidates", "fwd_bf16_d128_full_sm90a", "--config", str(REPO / "variants.yaml"), "--dry-run", "--json"]
    own = ["--plan", "pin_pv_wait=true", "--plan", "tile_m=192,tile_n=80", "--plan", "stages=2"]
    result = CliRunner().invoke(command, [*words, *own], standalone_mode=False)
    found = [(row["name"], row["plan"]["consumer_regs"]) for row in json.loads(result.stdout)["candidates"]]
    name = "fwd_bf16_d128_full_sm90a"
    assert found == [(name, 240), (f"{name}__pin", 240), (f"{name}__m192n80_pr32_cr160", 160)]
    assert CliRunner().invoke(command, [*words, "--plan", "tile_n"]).exit_code == ExitCode.USAGE
    with pytest.raises(PlanError, match="tile_n 65"):
        CliRunner().invoke(command, [*words, "--plan", "tile_n=65"], standalone_mode=False, catch_exceptions=False)


def test_a_candidate_that_fails_is_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fa3gen import build
    from fa3gen.build import KernelBuild, Report, Status

    def failing(builds: list[KernelBuild], *_: object, **__: object) -> Report:
        for kernel in builds[1:]:
            kernel.status, kernel.reason = Status.FAILED, "8 bytes of spills: fewer registers\nare needed"
        return Report(builds)

    monkeypatch.setattr(build, "run", failing)
    words = ["candidates", D64, "--limit", "2", "--config", str(REPO / "variants.yaml"), "--build-dir", str(tmp_path)]
    result = CliRunner().invoke(command, words, standalone_mode=False)
    assert result.return_value == ExitCode.FINDINGS  # no bundle was written
    assert "failed: 8 bytes of spills: fewer registers; are needed" in result.output
    assert "1 candidate left out: they failed to build" in result.output


# --- runs, on a device of which only what is asked for is there

KEY = Key("fwd", "bf16", "64", "full", "dense")


class _Device(runtime_bundle.FakeLauncher):
    """Runs the reference; kernels whose names say so are wrong or raise."""

    def prepare(self, bundle: Any, name: str, device: int) -> Callable[..., None]:
        good = super().prepare(bundle, name, device)

        def launch(*arguments: Any) -> None:
            if name.endswith("raises"):
                raise RuntimeError("launch failed")
            good(*arguments)
            if name.endswith("wrong"):
                arguments[5].mul_(2)

        return launch


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Four candidates of one key."""
    entries = []
    (tmp_path / "bundle" / CUBIN_DIR).mkdir(parents=True)
    for ending in ("", "__n96", "__raises", "__wrong"):
        data = f"cubin{ending}".encode()
        entry = runtime_bundle.entry(KEY, data)
        entry = replace(entry, name=entry.name + ending, cubin=f"{CUBIN_DIR}/{entry.name}{ending}.cubin", plan=_plan())
        (tmp_path / "bundle" / entry.cubin).write_bytes(data)
        entries.append(entry)
    manifest = Manifest(runtime_bundle.ARCH, {}, tuple(entries))
    (tmp_path / "bundle" / MANIFEST).write_text(json.dumps(contract.manifest_to_json(manifest)))
    (tmp_path / "bundle" / INDEX).write_text(contract.index_text(manifest))
    return tmp_path / "bundle"


def _plan(name: str = D64, **changes: Any) -> dict[str, Any]:
    return resolve(parse_name(name), changes).to_json()


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Times instead of a GPU, the first contender the fastest; gives the rotations."""
    rotations: list[list[str]] = []

    def shape(_shape: Shape, contenders: Sequence[Contender], _rounds: int, meter: Meter | None) -> dict[str, Times]:
        names = [contender.name for contender in contenders]
        rotations.append(names)
        ms = {name: 1.0 + i for i, name in enumerate(names)}
        return {"normal": Times(ms, clock_mhz=dict.fromkeys(names, 1600.0))}

    q = runtime_bundle.inputs(1, 4, 4, 2, 2)
    monkeypatch.setattr(timing, "shape", shape)
    monkeypatch.setattr(data, "make", lambda _shape: q)
    monkeypatch.setattr(timing, "machine", lambda: {"gpu": "H200", "date": DATE})
    monkeypatch.setattr(timing, "heat", lambda: None)
    monkeypatch.setattr(timing, "ceiling", lambda: 700.0)
    monkeypatch.setattr(meter, "find", lambda: Meter("not recorded", None))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(run, "CASES", (cases.Case(5, 7, 1, 2, 1),))
    return rotations


def _all(folder: Path, out: Path, shapes: Sequence[Shape] = (), others: Sequence[Contender] = ()) -> list[str]:
    said: list[str] = []
    known, options = record.read(out), run.Options(3, 60.0, out)
    found = run.load(folder, (), _Device())
    run.check_all(found, torch.device("cpu"), options, known, said.append)
    run.time_all(found, shapes, others, options, known, said.append)
    return said


SHAPES = tuple(Shape("bf16", 64, "full", 16384 // seqlen, seqlen, seqlen, 32, 32) for seqlen in (512, 1024))


def test_wrong_candidates_are_listed_and_not_timed(bundle: Path, stub: list[list[str]], tmp_path: Path) -> None:
    out = tmp_path / "tune.jsonl"
    said = _all(bundle, out, SHAPES, [Contender("fa3", False, lambda *_: lambda _calls: None)])
    assert [line.rpartition("sm90a")[2][:14] for line in said[:2]] == [": right", "__n96: right"]
    assert "raised RuntimeError('launch failed')" in said[2]
    assert "__wrong: b1 h2/1 sq5 sk7: out:" in said[3]
    assert stub == [[D64, f"{D64}__n96", "fa3"]] * 2
    known = record.read(out)
    assert {name: bool(check.problems) for name, check in known.checks.items()} == {
        D64: False,
        f"{D64}__n96": False,
        f"{D64}__raises": True,
        f"{D64}__wrong": True,
    }
    time = known.times[f"{D64}__n96", SHAPES[0]]
    assert (time.ms, time.current_ms, time.ratio, time.clock_mhz) == (2.0, 1.0, 0.5, 1600.0)
    assert (time.peers, time.machine, time.date) == ({"fa3": 3.0}, "H200", DATE)


def test_a_run_goes_on_where_it_ended(bundle: Path, stub: list[list[str]], tmp_path: Path) -> None:
    out = tmp_path / "tune.jsonl"
    _all(bundle, out, SHAPES[:1])
    assert len(stub) == 1
    assert _all(bundle, out, SHAPES[:1]) == []
    assert len(stub) == 1
    lines = [line for line in out.read_text("utf-8").splitlines(keepends=True) if "__n96" not in line]
    out.write_text("".join(lines), "utf-8")
    said = _all(bundle, out, SHAPES)
    assert len(said) == 3  # a check and two shapes
    # the present plan is timed again beside what was missing, but has its record already
    assert stub[1:] == [[D64, f"{D64}__n96"]] * 2
    assert sum('"time"' in line for line in out.read_text("utf-8").splitlines()) == 4


def test_another_cubin_is_measured_again(bundle: Path, stub: list[list[str]], tmp_path: Path) -> None:
    out = tmp_path / "tune.jsonl"
    _all(bundle, out, SHAPES[:1])
    known = record.read(out)
    known.add(replace(known.checks[D64], cubin_sha256="other"))
    assert [name for name, _ in known.times] == [f"{D64}__n96"]
    assert known.check(D64, "other") is not None
    assert known.check(D64, "third") is None


def test_one_that_hangs_is_passed_over(bundle: Path, stub: list[list[str]], tmp_path: Path) -> None:
    out = tmp_path / "tune.jsonl"
    (hanging, *_) = (c for c in run.load(bundle, ["*__n96"], _Device()))
    run._hangs(hanging, run.Options(1, 1.0, out), "at seqlen 512")  # what the deadline does last
    _all(bundle, out, SHAPES[:1])
    assert stub == [[D64]]
    assert record.read(out).checks[f"{D64}__n96"].problems == ("hangs at seqlen 512",)


def test_a_lost_device_ends_the_run(
    bundle: Path, stub: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    with pytest.raises(Fa3genError, match=f"{D64} failed, and with it the device: RuntimeError: illegal memory"):
        _all(bundle, tmp_path / "tune.jsonl")


def test_what_is_loaded(bundle: Path, tmp_path: Path) -> None:
    assert [c.current for c in run.load(bundle, ["*"], _Device())] == [True, False, False, False]
    assert len(run.load(bundle, [D64], _Device())) == 4  # a variant's name selects its candidates
    with pytest.raises(UsageError, match="matches no candidate"):
        run.load(bundle, ["fwd_fp16*"], _Device())
    with pytest.raises(MachineError, match="no bundle"):
        run.load(tmp_path / "none", (), _Device())
    (bundle / CUBIN_DIR / f"{D64}.cubin").write_bytes(b"other")
    with pytest.raises(UsageError, match="copy the bundle again"):
        run.load(bundle, (), _Device())


def test_damaged_records(tmp_path: Path) -> None:
    for text in ("{", '{"kind": "check"}', "[]", '{"kind": "time", "shape": 3}'):
        (tmp_path / "tune.jsonl").write_text(text)
        with pytest.raises(UsageError, match=r"tune.jsonl:1: no record"):
            record.read(tmp_path / "tune.jsonl")


def test_the_command_runs(bundle: Path, stub: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fa3.runtime.launcher.native", _Device)
    monkeypatch.setattr("fa3gen.verify.run.device", lambda: torch.device("cpu"))
    words = ["--bundle", str(bundle), "--out", str(tmp_path / "t.jsonl"), "--seqlen", "512", "--seqlen", "1024"]
    result = CliRunner().invoke(tune_run.command, words, standalone_mode=False)
    assert result.return_value == ExitCode.OK, result.output
    assert "4 candidates, 2 of them wrong" in result.stdout
    assert len(stub) == 2


def test_the_command_names_unknown_peers_and_missing_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="fa9"):
        tune_run.command.main(["--against", "fa9"], standalone_mode=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(MachineError, match="no CUDA device"):
        tune_run.command.main([], standalone_mode=False)


# --- choosing

SEQLENS = (512, 1024, 2048, 4096)


def _records(variant: str, times: dict[str, Sequence[float] | str], plans: dict[str, dict[str, Any]]) -> Records:
    """Milliseconds by candidate (its name's end) and seqlen; a problem instead of them."""
    found = Records()
    mine = parse_name(variant)
    for ending, values in times.items():
        name = variant + ending
        problems = (values,) if isinstance(values, str) else ()
        plan = _plan(variant, **plans.get(ending, {}))
        found.add(Check(name, variant, "sha", plan, problems))
        for i, ms in enumerate(() if isinstance(values, str) else values):
            shape = Shape(
                mine.dtype.value, mine.head_dim.qk, mine.mask.value, 16384 // SEQLENS[i], SEQLENS[i], SEQLENS[i], 16, 16
            )
            now = times.get("", (1.0,) * 4)
            assert not isinstance(now, str)
            found.add(Time(name, "sha", shape, ms, now[i], "NVIDIA H200", DATE, 1500.0, {"fa3": 1.2}))
    return found


PLANS: dict[str, dict[str, Any]] = {"__n96": {"tile_n": 96}, "__n64": {"tile_n": 64}, "__pin": {"pin_pv_wait": True}}
TIMES: dict[str, Sequence[float] | str] = {
    "": (1.0, 1.0, 1.0, 1.0),
    "__n96": (0.9, 0.9, 0.9, 0.9),
    "__n64": (0.7, 0.8, 1.0, 0.89),
    "__pin": "wrong",
}


def _decision(times: dict[str, Sequence[float] | str]) -> choose.Decision:
    (found,) = choose.decide(_records(D128, times, PLANS))
    return found


def test_the_best_in_general_and_a_range_for_another() -> None:
    found = _decision(TIMES)
    # 0.7 * 0.8 * 1 * 0.89 is less than 0.9 ** 4
    assert found.general.name == f"{D128}__n64"
    assert [(r.chosen.name, choose.bounds(r)) for r in found.ranges] == [
        (f"{D128}__n96", {"min_seqlen_k": 2048, "max_seqlen_k": 2048})
    ]
    assert [found.at(s).name.rpartition("_")[2] for s in SEQLENS] == ["n64", "n64", "n96", "n64"]
    assert [tried.name for tried in found.tried] == [f"{D128}{end}" for end in ("__n64", "__n96", "", "__pin")]


def test_ranges_at_the_ends_have_one_bound() -> None:
    found = _decision({"": (1.0, 1.0, 1.0, 1.0), "__n96": (0.9, 0.97, 1.5, 1.5), "__n64": (2, 2, 1, 0.9)})
    assert found.general.name == D128
    assert [(r.chosen.name, choose.bounds(r)) for r in found.ranges] == [
        (f"{D128}__n96", {"max_seqlen_k": 1024}),
        (f"{D128}__n64", {"min_seqlen_k": 4096}),
    ]


def test_noise_changes_nothing() -> None:
    found = _decision({"": (1.0, 1.0, 1.0, 1.0), "__n96": (0.992, 0.992, 0.985, 0.999)})
    assert (found.general.name, found.ranges, found.changed) == (D128, (), False)


def test_a_candidate_without_all_times_is_not_chosen() -> None:
    found = _decision({"": (1.0, 1.0), "__n96": (0.5,)})
    assert (found.general.name, found.seqlens) == (D128, (512, 1024))
    assert choose.decide(_records(D128, {"": "wrong"}, {})) == []


def test_the_table_shows_winners_and_losers() -> None:
    header, rows = choose.table(_decision(TIMES), 1500.0)
    assert header == ("CANDIDATE", "BOUND", "512", "1024", "2048", "4096", "OF PRESENT", "")
    by_name = {row[0].removeprefix(D128): row[1:] for row in rows}
    assert by_name["__n64"][-1] == "chosen"
    assert by_name["__n96"][-1] == "chosen for min_seqlen_k: 2048, max_seqlen_k: 2048"
    assert by_name[""][-2:] == ("1.000", "now")
    assert by_name["__pin"] == ("-", "-", "-", "-", "-", "-", "wrong")
    assert by_name["fa3"][-1] == "another implementation"
    bound = float(by_name[""][0].split()[0])
    assert by_name[""][0].split()[1] == "tensor"
    assert 0.8 * 811 < bound < 811  # of the tensor pipe's peak at that clock


def _written(tmp_path: Path, decision: choose.Decision, dtypes: Sequence[str]) -> str:
    """The shipped rules with those of ``decision``, as they are written."""
    source = (RULES_DIR / "sm90a.yaml").read_text("utf-8")
    file = tmp_path / "sm90a.yaml"
    file.write_text(source, "utf-8")
    texts = {decision.variant: rules.text_of(decision, dtypes)}
    text = rules.updated(source, file, Arch.SM90A, texts, rules.covered(decision, dtypes))
    rules.write(file, text, Arch.SM90A)
    return file.read_text("utf-8")


def test_rules_are_written_before_those_that_stay(tmp_path: Path) -> None:
    found = _decision({"": (1.0, 1.0, 1.0, 1.0), "__n96": (0.9, 0.8, 0.9, 0.8)})
    before = (RULES_DIR / "sm90a.yaml").read_text("utf-8")
    after = _written(tmp_path, found, ("bf16",))
    head = before[: before.index("\nrules:\n") + len("\nrules:\n")]
    assert after.startswith(head)
    assert after.endswith(before.removeprefix(head))
    loaded = load_rules(tmp_path / "sm90a.yaml")
    variant = parse_name(D128)
    assert resolve(variant, rules=loaded).tile_n == 96
    assert resolve(replace(variant, dtype=DType.FP16), rules=loaded) == resolve(replace(variant, dtype=DType.FP16))
    assert loaded[0].date == DATE
    assert "at seqlen 512 to 4096, 1.18 of the plan before (NVIDIA H200)" in loaded[0].figure


def test_rules_that_nothing_reaches_any_more_go(tmp_path: Path) -> None:
    found = _decision({"": (1.0, 1.0, 1.0, 1.0), "__n96": (0.9, 0.8, 0.9, 0.8)})
    file = tmp_path / "sm90a.yaml"
    rule = "    tile_n: {}\n    q_stages: 1\n    figure: some\n    date: 2026-01-31\n"
    mine = "  - match: {family: fwd, head_dim: 128, mask: causal}\n" + rule.format(64)
    other = "  - match: {family: fwd, head_dim: 128}\n" + rule.format(80)
    file.write_text(f"# why\nschema: 1\nrules:\n{mine}{other}")
    texts = {D128: rules.text_of(found, ())}
    text = rules.updated(file.read_text(), file, Arch.SM90A, texts, rules.covered(found, ()))
    assert text == f"# why\nschema: 1\nrules:\n{texts[D128]}{other}"
    rules.write(file, text, Arch.SM90A)
    full = replace(parse_name(D128), mask=Mask.FULL)
    assert resolve(full, rules=load_rules(file)).tile_n == 80


def test_what_does_not_read_as_rules_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "sm90a.yaml"
    file.write_text("as it was")
    with pytest.raises(ConfigError):
        rules.write(file, "schema: 1\nrules: 3\n", Arch.SM90A)
    assert file.read_text() == "as it was"


def test_rules_of_ranges_come_first_with_their_bounds() -> None:
    text = rules.text_of(_decision(TIMES), ())
    first, second = text.split("  - match: ")[1:]
    assert first.startswith("{family: fwd, head_dim: 128, mask: causal}\n    when: {min_seqlen_k: 2048")
    assert "tile_n: 96" in first
    assert "1.11 of the general plan" in first
    assert "when" not in second
    assert "tile_n: 64" in second


def test_rules_of_ranges_are_read_as_they_were_chosen(tmp_path: Path) -> None:
    _written(tmp_path, _decision(TIMES), ())
    loaded = load_rules(tmp_path / "sm90a.yaml")
    for dtype in DType:
        variant = replace(parse_name(D128), dtype=dtype)
        further, general = resolve_all(variant, rules=loaded)
        assert (general.name, general.when, general.tile_n) == (variant.name, None, 64)
        assert (further.name, further.tile_n) == (f"{variant.name}__n96", 96)
        assert further.when == Bounds.of({"min_seqlen_k": 2048, "max_seqlen_k": 2048})


def test_dtypes_that_were_measured_keep_their_own_rules() -> None:
    bf16, fp16 = _decision(TIMES), replace(_decision(TIMES), variant=D128.replace("bf16", "fp16"))
    assert rules.dtypes(bf16, [bf16], every=True) == ()
    assert rules.dtypes(bf16, [bf16], every=False) == ("bf16",)
    assert rules.dtypes(fp16, [bf16, fp16], every=True) == ("fp16",)
    assert [v.dtype for v in rules.covered(bf16, ())] == [DType.BF16, DType.FP16]


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    file = tmp_path / "tune.jsonl"
    known = _records(D128, {"": (1.0, 1.0, 1.0, 1.0), "__n96": (0.9, 0.8, 0.9, 0.8)}, PLANS)
    for check in known.checks.values():
        record.append(file, check)
    for time in known.times.values():
        record.append(file, time)
    return file


def test_choose_prints_and_writes(measured: Path, tmp_path: Path) -> None:
    plans = tmp_path / "plans"
    plans.mkdir()
    source = (RULES_DIR / "sm90a.yaml").read_text("utf-8")
    (plans / "sm90a.yaml").write_text(source, "utf-8")
    words = [str(measured), "--plans", str(plans)]
    dry = CliRunner().invoke(tune_choose.command, [*words, "--dry-run", "--markdown"], standalone_mode=False)
    assert dry.exception is None
    assert f"| {D128}__n96 | " in dry.stdout
    assert "  - match: {family: fwd, head_dim: 128, mask: causal, dtype: bf16}" in dry.stdout
    assert (plans / "sm90a.yaml").read_text("utf-8") == source
    done = CliRunner().invoke(tune_choose.command, [*words, "--json", "--every-dtype"], standalone_mode=False)
    assert done.exception is None
    assert json.loads(done.stdout)[0]["general"] == f"{D128}__n96"
    loaded = load_rules(plans / "sm90a.yaml")
    assert resolve(parse_name(D128.replace("bf16", "fp16")), rules=loaded).tile_n == 96


def test_nothing_to_choose_from(tmp_path: Path) -> None:
    (tmp_path / "tune.jsonl").write_text("")
    with pytest.raises(UsageError, match="no candidate has its times"):
        tune_choose.command.main([str(tmp_path / "tune.jsonl")], standalone_mode=False)

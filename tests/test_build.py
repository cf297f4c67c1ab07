"""Whole builds: what is compiled and why, failures, and equal bytes from builds that share nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fa3.contract import Bounds, manifest_from_json

from fa3gen import build, matrix, toolchain, worker
from fa3gen import compile as compiler
from fa3gen.build import CUBIN, KernelBuild, Paths, Report, Status
from fa3gen.bundle import BundleError
from fa3gen.compile import Resources
from fa3gen.errors import MachineError
from fa3gen.store import Store, StoredObject
from fa3gen.witness import Trace
from fa3gen.worker import Compiled, Failed, Job
from tests.built_kernels import (
    FURTHER,
    FURTHER_RULES,
    NAME,
    built,
    plan_of,
    shipped,
    use_further_rules,
    use_general_rules,
)
from tests.test_compile import trace_of

GOOD, OTHER = NAME, "fwd_bf16_d64_causal_sm90a"


class FakeCompiler:
    """Stands in for the worker processes: gives cubins that were compiled before, or what it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.results: dict[str, Compiled | Failed] = {}
        self.workers = 0

    def run(self, jobs: Sequence[Job], workers: int) -> Iterator[Compiled | Failed]:
        self.workers = workers
        for job in jobs:
            assert Path(job.path).read_text().startswith(f"# {job.name}")
            self.jobs.append(job)
            yield self.results.get(job.name) or compiled(job.name)


def compiled(name: str, trace: Trace | None = None, cuda_version: str = "12.9") -> Compiled:
    kernel = built()[name]
    return Compiled(
        name, kernel.cubin, kernel.ptx, tuple(kernel.remarks), trace or trace_of(kernel.plan), cuda_version, 0.1
    )


@pytest.fixture(autouse=True)
def _general_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    use_general_rules(monkeypatch)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    built()  # which compiles what the store lacks: with the real compiler, so before it is replaced
    fake = FakeCompiler()
    monkeypatch.setattr(compiler, "run", fake.run)
    return fake


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.under(tmp_path / "build")


def prepare(paths: Paths, *names: str, force: bool = False) -> list[KernelBuild]:
    return build.prepare(matrix.select_plans(shipped(), names or (GOOD, OTHER)), paths, "cu12", force)


def run(paths: Paths, *names: str, force: bool = False, keep_going: bool = False) -> Report:
    return build.run(prepare(paths, *names, force=force), paths, "cu12", keep_going=keep_going)


def statuses(kernels: Sequence[KernelBuild]) -> dict[str, tuple[str, str]]:
    return {kernel.name: (kernel.status.value, kernel.reason) for kernel in kernels}


def test_what_was_compiled_is_not_compiled_again(fake: FakeCompiler, paths: Paths) -> None:
    assert statuses(prepare(paths)) == {GOOD: ("pending", "new"), OTHER: ("pending", "new")}
    assert not paths.store.exists()  # looking writes nothing
    assert not paths.generated.exists()

    shown: list[str] = []
    report = build.run(prepare(paths), paths, "cu12", workers=3, progress=lambda kernel: shown.append(kernel.name))
    assert sorted(shown) == sorted((GOOD, OTHER))
    assert fake.workers == 3
    assert report.ok
    assert report.count(Status.COMPILED) == 2
    assert report.bundle is not None
    assert report.bundle.changed
    assert (paths.generated / "sm90a" / f"{GOOD}.py").is_file()

    again = run(paths)
    assert again.count(Status.UP_TO_DATE) == 2
    assert again.bundle is not None
    assert not again.bundle.changed
    assert len(fake.jobs) == 2


def test_no_compiler_is_needed_where_nothing_changed(
    fake: FakeCompiler, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(paths)
    monkeypatch.setattr(toolchain, "require", lambda _name: pytest.fail("asked for the compiler"))
    assert run(paths).count(Status.UP_TO_DATE) == 2


def test_reasons_name_what_changed(fake: FakeCompiler, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    run(paths)
    path = paths.store / prepare(paths, GOOD)[0].digest / CUBIN
    path.write_bytes(path.read_bytes()[:1000])
    assert statuses(prepare(paths)) == {GOOD: ("pending", "the stored object is damaged"), OTHER: ("up to date", "")}
    assert run(paths).count(Status.COMPILED) == 1
    assert statuses(prepare(paths, GOOD)) == {GOOD: ("up to date", "")}

    assert statuses(prepare(paths, GOOD, force=True)) == {GOOD: ("pending", "forced")}
    assert run(paths, GOOD, force=True).count(Status.COMPILED) == 1

    monkeypatch.setattr(toolchain, "installed", lambda: {"nvidia-cutlass-dsl": "4.9.0"})
    assert statuses(prepare(paths, GOOD)) == {GOOD: ("pending", "changed: distributions")}


def test_a_stored_kernel_must_pass_the_checks_of_today(
    fake: FakeCompiler, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compiled(GOOD)
    fake.results[GOOD] = replace(result, remarks=(*result.remarks, "ptxas info : (C7519) warpgroup.arrive is injected"))
    run(paths, GOOD)
    monkeypatch.setitem(compiler.FATAL_ADVISORIES, "C7519", "arrives are injected")
    (kernel,) = prepare(paths, GOOD)
    assert (kernel.status, kernel.reason) == (Status.PENDING, "the stored kernel fails a check")
    report = run(paths, GOOD)
    assert statuses(report.kernels) == {kernel.name: ("failed", "C7519: arrives are injected")}


def test_a_failing_kernel_hides_no_other(fake: FakeCompiler, paths: Paths) -> None:
    fake.results[GOOD] = Failed(GOOD, "no")
    report = run(paths)
    assert statuses(report.kernels)[GOOD] == ("failed", "no")
    assert statuses(report.kernels)[OTHER][0] == "compiled"
    assert not report.ok
    assert report.bundle is None
    assert not paths.bundle.exists()

    report = run(paths, keep_going=True)
    assert statuses(report.kernels)[OTHER][0] == "up to date"
    assert not report.ok
    assert report.bundle is not None
    assert [path.name for path in (paths.bundle / "cubins").iterdir()] == [f"{OTHER}.cubin"]


def test_nothing_is_bundled_where_everything_fails(fake: FakeCompiler, paths: Paths) -> None:
    fake.results[GOOD] = Failed(GOOD, "no")
    assert run(paths, GOOD, keep_going=True).bundle is None
    assert not paths.bundle.exists()


def test_a_kernel_that_is_not_as_abi_says_fails_and_is_not_stored(fake: FakeCompiler, paths: Paths) -> None:
    trace = trace_of(plan_of())
    fake.results[GOOD] = compiled(GOOD, trace=replace(trace, smem_bytes=trace.smem_bytes + 8))
    report = run(paths)
    problem = f"shared memory: abi says {trace.smem_bytes}, the kernel has {trace.smem_bytes + 8}"
    assert statuses(report.kernels)[GOOD] == ("failed", problem)
    assert len(list(Store(paths.store).objects())) == 1


def test_another_kernels_cubin_fails(fake: FakeCompiler, paths: Paths) -> None:
    fake.results[GOOD] = replace(compiled(OTHER, trace=trace_of(plan_of())), name=GOOD)
    reason = statuses(run(paths).kernels)[GOOD][1]
    assert f"symbol: abi says {GOOD}_0, the cubin has {OTHER}_0" in reason
    fake.results[GOOD] = replace(compiled(GOOD), cubin=compiled(GOOD).cubin[:-1000])
    reason = statuses(run(paths).kernels)[GOOD][1]
    assert "cut off" in reason


def test_a_compiler_of_another_toolchain_is_the_machines_fault(fake: FakeCompiler, paths: Paths) -> None:
    fake.results[GOOD] = compiled(GOOD, cuda_version="13.4")
    with pytest.raises(MachineError, match="toolchain cu12 is asked for, and the kernel compiler loaded its cu13"):
        run(paths, GOOD)
    with pytest.raises(MachineError, match="toolchain cu13 is asked for"):
        build.run(build.prepare(matrix.select_plans(shipped(), (OTHER,)), paths, "cu13"), paths, "cu13")


def test_a_compiler_that_cannot_be_loaded_is_the_machines_fault(fake: FakeCompiler, paths: Paths) -> None:
    fake.results[GOOD] = Failed(GOOD, "cannot be loaded", machine=True)
    with pytest.raises(MachineError, match="cannot be loaded"):
        run(paths, GOOD)


def test_a_forced_kernel_that_comes_out_otherwise_replaces_the_stored_one(fake: FakeCompiler, paths: Paths) -> None:
    run(paths, GOOD)
    other = bytearray(built()[GOOD].cubin)
    other[-1] ^= 1  # the last byte belongs to no section that is read
    fake.results[GOOD] = replace(compiled(GOOD), cubin=bytes(other))
    run(paths, GOOD, force=True)
    assert (paths.bundle / "cubins" / f"{GOOD}.cubin").read_bytes() == bytes(other)


def test_builds_that_share_nothing_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder, another process, another hash seed, and settings of the compiler in the environment."""
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    paths = Paths.under(tmp_path / "elsewhere" / "build")
    report = run(paths, GOOD)
    assert report.ok, report.kernels[0].reason
    (kernel,) = report.kernels
    shared = built()[GOOD].kernel
    assert kernel.digest == shared.digest
    assert kernel.stored is not None
    assert shared.stored is not None
    assert dict(kernel.stored.meta) == dict(shared.stored.meta)  # with the digests of cubin and PTX
    assert kernel.status is Status.COMPILED


def test_worker_modules_load_no_compiler_by_themselves() -> None:
    assert not hasattr(worker, "cutlass")


# --- several plans of a variant


def test_all_plans_of_a_variant_are_built_into_the_bundle(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the real compiler: a plan's name is its symbol."""
    use_further_rules(monkeypatch, paths.store.parents[1])
    report = run(paths, GOOD)
    assert statuses(report.kernels) == {FURTHER: ("compiled", "new"), GOOD: ("compiled", "new")}
    manifest = manifest_from_json(json.loads((paths.bundle / "manifest.json").read_text()))
    general, further = manifest.kernels
    assert (general.name, general.when, general.priority) == (GOOD, None, 1)
    assert (further.name, further.when, further.priority) == (FURTHER, Bounds.of({"max_seqlen_k": 2047}), 0)
    assert further.symbol == f"{FURTHER}_0"
    assert f"{FURTHER}_0".encode() in (paths.bundle / further.cubin).read_bytes()

    use_further_rules(monkeypatch, paths.store.parents[1], FURTHER_RULES.replace("2047", "511"))
    moved = run(paths, GOOD)
    assert moved.count(Status.UP_TO_DATE) == 2  # bounds are the dispatch's business
    after = manifest_from_json(json.loads((paths.bundle / "manifest.json").read_text()))
    assert [entry.cubin_sha256 for entry in after.kernels] == [entry.cubin_sha256 for entry in manifest.kernels]
    assert after.kernels[1].when == Bounds.of({"max_seqlen_k": 511})


@pytest.mark.parametrize(
    ("failing", "kept"),
    [(GOOD, [OTHER, f"{OTHER}__n64"]), (FURTHER, [OTHER, f"{OTHER}__n64", GOOD])],
)
def test_a_general_plan_that_fails_takes_the_others_with_it(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, failing: str, kept: list[str]
) -> None:
    use_further_rules(monkeypatch, paths.store.parents[1])
    builds = prepare(paths)
    for kernel in builds:
        fails = kernel.name == failing
        kernel.status = Status.FAILED if fails else Status.UP_TO_DATE
        kernel.stored = None if fails else StoredObject("", paths.store, {})
    bundled: list[str] = []
    monkeypatch.setattr(build, "_bundle", lambda kernels, *_: bundled.extend(kernel.name for kernel in kernels))
    build.run(builds, paths, "cu12", keep_going=True)
    assert sorted(bundled) == kept


def test_one_plan_alone_makes_no_bundle(fake: FakeCompiler, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    use_further_rules(monkeypatch, paths.store.parents[1])
    (kernel,) = prepare(paths, FURTHER)
    kernel.status = Status.UP_TO_DATE
    kernel.stored = StoredObject("", paths.store, {"cuda_version": "12.9"})
    kernel.resources = Resources(1, 1, 1, 0, 0, 1, ())
    monkeypatch.setattr(StoredObject, "read", lambda *_: b"cubin")
    with pytest.raises(BundleError, match=r"no kernel serves other calls.*\n.*all plans of a variant together"):
        build.run([kernel], paths, "cu12")

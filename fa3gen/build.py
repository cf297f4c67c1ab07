"""A whole build: plans to sources, sources to cubins in the store, cubins to a bundle.

Each step is skipped where its result is there.  :func:`prepare` says what would be done, :func:`run` does it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from fa3gen import bundle, render, toolchain
from fa3gen import compile as compiler
from fa3gen.bundle import BuiltKernel, Evidence, WrittenBundle
from fa3gen.compile import Resources
from fa3gen.cubin import CubinError
from fa3gen.digest import canonical, sha256
from fa3gen.errors import MachineError
from fa3gen.model import ForwardPlan
from fa3gen.store import Store, StoredObject
from fa3gen.worker import Compiled, Failed, Job

CUBIN = "kernel.cubin"
PTX = "kernel.ptx"


@dataclass(frozen=True)
class Paths:
    """Where a build keeps its things."""

    generated: Path
    store: Path
    bundle: Path

    @classmethod
    def under(cls, root: Path, out: Path | None = None) -> Paths:
        return cls(root / "generated", root / "store", out or root / "bundle")


class Status(str, Enum):
    COMPILED = "compiled"
    UP_TO_DATE = "up to date"
    FAILED = "failed"
    PENDING = "pending"  # to be compiled


@dataclass
class KernelBuild:
    """One kernel of a build, and how far it is."""

    plan: ForwardPlan
    source: str
    inputs: Mapping[str, Any]
    digest: str
    status: Status
    reason: str  # why it is compiled, or why it failed
    stored: StoredObject | None = None
    resources: Resources | None = None
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return self.plan.name


@dataclass
class Report:
    """What a build did."""

    kernels: list[KernelBuild]
    bundle: WrittenBundle | None = None
    seconds: float = 0.0

    def count(self, status: Status) -> int:
        return sum(kernel.status is status for kernel in self.kernels)

    @property
    def ok(self) -> bool:
        return self.count(Status.FAILED) == 0


Progress = Callable[[KernelBuild], None]


def prepare(plans: Iterable[ForwardPlan], paths: Paths, toolchain_name: str, force: bool = False) -> list[KernelBuild]:
    """Renders every kernel and looks it up; writes nothing."""
    store = Store(paths.store)
    builds = [_look_up(plan, store, toolchain_name, force) for plan in plans]
    _explain(builds, store)
    return builds


def run(
    builds: Sequence[KernelBuild],
    paths: Paths,
    toolchain_name: str,
    *,
    workers: int | None = None,
    keep_going: bool = False,
    candidates: bool = False,
    evidence: Evidence | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compiles what is pending and writes the bundle.

    A kernel that fails hides no other; with ``keep_going`` the bundle is written without it, else left as it was.
    Where it is the general plan of its variant, the other plans are left out, too: they do not serve every call.
    Kernels that are ``candidates`` may answer the same calls; `fa3gen tune` tells them by name.
    Raises MachineError where the compiler is missing or not the one asked for.
    """
    started = time.perf_counter()
    progress = progress or _silent
    for build in builds:
        render.write_source(render.generated_path(paths.generated, build.plan), build.source)
    for build in builds:
        if build.status is Status.UP_TO_DATE:
            progress(build)
    _compile(builds, paths, toolchain_name, workers or compiler.usable_cores(), progress)
    report = Report(list(builds))
    general = [build for build in builds if build.plan.when is None and not candidates]
    lost = {build.plan.variant for build in general if build.status is Status.FAILED}
    built = [build for build in builds if build.stored is not None and build.plan.variant not in lost]
    if built and (report.ok or keep_going):
        report.bundle = _bundle(built, paths.bundle, toolchain_name, evidence, candidates)
    report.seconds = time.perf_counter() - started
    return report


def _silent(_build: KernelBuild) -> None:
    pass


def _look_up(plan: ForwardPlan, store: Store, toolchain_name: str, force: bool) -> KernelBuild:
    source = render.render(plan)
    inputs = compiler.digest_inputs(plan, source, toolchain_name)
    build = KernelBuild(plan, source, inputs, sha256(canonical(inputs).encode()), Status.PENDING, "")
    stored = store.get(build.digest)
    if force:
        build.reason = "forced"
    elif stored is not None:
        _accept(build, stored)
    return build


def _accept(build: KernelBuild, stored: StoredObject) -> None:
    """Takes a stored kernel, if it passes the checks that are in force now."""
    try:
        resources, problems = compiler.check(build.plan, stored.read(CUBIN), stored.meta["remarks"])
    except CubinError as error:
        problems, resources = [str(error)], None
    if problems:
        build.reason = "the stored kernel fails a check"
        return
    build.status, build.stored, build.resources = Status.UP_TO_DATE, stored, resources


def _explain(builds: Sequence[KernelBuild], store: Store) -> None:
    """Says why pending kernels are compiled: what changed since one of the same name was stored last."""
    pending = [build for build in builds if build.status is Status.PENDING and not build.reason]
    if not pending:
        return
    latest: dict[str, Mapping[str, Any]] = {}
    for stored in sorted(store.objects(), key=lambda item: item.path.stat().st_mtime_ns):
        latest[stored.meta["inputs"]["name"]] = stored.meta["inputs"]
    for build in pending:
        before = latest.get(build.name)
        if (store.root / build.digest).exists():
            build.reason = "the stored object is damaged"
        elif before is None:
            build.reason = "new"
        else:
            changed = [key for key in build.inputs if before.get(key) != build.inputs[key]]
            build.reason = f"changed: {', '.join(changed)}"


def _compile(
    builds: Sequence[KernelBuild], paths: Paths, toolchain_name: str, workers: int, progress: Progress
) -> None:
    pending = {build.name: build for build in builds if build.status is Status.PENDING}
    if not pending:
        return
    toolchain.require(toolchain_name)
    store = Store(paths.store)
    jobs = [
        Job(name, str(render.generated_path(paths.generated, build.plan)), build.inputs["options"])
        for name, build in pending.items()
    ]
    for result in compiler.run(jobs, workers):
        build = pending[result.name]
        if isinstance(result, Failed):
            if result.machine:
                raise MachineError(result.message)
            build.status, build.reason = Status.FAILED, result.message
        else:
            _keep(build, result, store, toolchain_name)
        progress(build)


def _keep(build: KernelBuild, result: Compiled, store: Store, toolchain_name: str) -> None:
    """Checks a compiled kernel and stores it."""
    wrong_compiler = toolchain.check_loaded(toolchain_name, result.cuda_version)
    if wrong_compiler is not None:
        raise MachineError(wrong_compiler)
    build.seconds = result.seconds
    try:
        build.resources, problems = compiler.check_compiled(build.plan, result)
    except CubinError as error:
        problems = [str(error)]
    if problems:
        build.status, build.reason = Status.FAILED, "\n".join(problems)
        return
    meta = {"inputs": build.inputs, "remarks": list(result.remarks), "cuda_version": result.cuda_version}
    files = {CUBIN: result.cubin, PTX: result.ptx.encode()}
    stored = store.get(build.digest)
    if stored is not None and stored.read(CUBIN) != result.cubin:
        store.discard(build.digest)  # forced, and the compiler made something else of the same input
    build.stored = store.put(build.digest, files, meta)
    build.status = Status.COMPILED


def _bundle(
    builds: Sequence[KernelBuild], path: Path, toolchain_name: str, evidence: Evidence | None, candidates: bool
) -> WrittenBundle:
    kernels = []
    versions = set()
    for build in builds:
        assert build.stored is not None
        assert build.resources is not None
        kernels.append(BuiltKernel(build.plan, build.stored.read(CUBIN), build.resources))
        versions.add(build.stored.meta["cuda_version"])
    record = toolchain.record(toolchain_name, ", ".join(sorted(versions)))
    if not candidates:
        return bundle.write(path, kernels, bundle.make_manifest(kernels, record, evidence))
    alone = [bundle.make_manifest([kernel], record, evidence) for kernel in kernels]
    entries = sorted((entry for manifest in alone for entry in manifest.kernels), key=lambda entry: entry.name)
    return bundle.write(path, kernels, replace(alone[0], kernels=tuple(entries)))

"""Sources to checked cubins: what a kernel's digest covers, the worker processes, and what makes a kernel fail."""

from __future__ import annotations

import ast
import multiprocessing
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fa3.contract import PARAM_SIZE

from fa3gen import abi, cubin, toolchain, witness
from fa3gen.digest import canonical, sha256
from fa3gen.errors import Fa3genError
from fa3gen.model import Arch, ForwardPlan
from fa3gen.worker import Compiled, Failed, Job, compile_job, prepare

#: Options of the compiler, by architecture; a part of every digest.
OPTIONS = {Arch.SM90A: "--gpu-arch sm_90a --keep-cubin --keep-ptx remarks{ptx}"}

#: Advisories of ptxas that make a kernel fail, and what each means.
FATAL_ADVISORIES = {
    "C7508": "setmaxnreg was dropped",
    "C7510": "wgmma is serialised",
    "C7511": "wgmma is serialised",
    "C7512": "wgmma is serialised",
    "C7514": "wgmma is serialised: in flight over a loop's back edge or into a branch",
}

_DEVICE = "fa3gen.device"
_DEVICE_DIR = Path(__file__).parent / "device"


@dataclass(frozen=True)
class Resources:
    """What a kernel takes, as read from its cubin and from ptxas."""

    registers: int  # a thread's, at entry
    threads: int
    smem_bytes: int  # dynamic
    frame_bytes: int
    spill_bytes: int  # stored and loaded
    code_bytes: int
    advisories: tuple[str, ...]  # codes, sorted, once for each time they were given

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"advisories": list(self.advisories)}


def digest_inputs(plan: ForwardPlan, source: str, toolchain_name: str) -> dict[str, Any]:
    """Everything that a kernel's cubin depends on."""
    signature, launch = abi.signature(plan), abi.launch(plan)
    return {
        "name": plan.name,
        "source": sha256(source.encode()),
        "device": {name: sha256(text.encode()) for name, text in device_sources(source).items()},
        "abi": sha256(canonical([asdict(signature), asdict(launch)]).encode()),
        "options": OPTIONS[plan.variant.arch],
        "toolchain": toolchain_name,
        "distributions": dict(toolchain.installed()),
    }


def device_sources(source: str) -> dict[str, str]:
    """The modules of fa3gen.device that ``source`` imports, those they import and so on, with their text."""
    found: dict[str, str] = {}
    pending = _imports(source, _DEVICE)
    while pending:
        name = pending.pop()
        if name not in found:
            text, imports = _device_module(name)
            found[name] = text
            pending += imports
    return dict(sorted(found.items()))


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(jobs: Sequence[Job], workers: int) -> Iterator[Compiled | Failed]:
    """Compiles ``jobs`` in up to ``workers`` processes, results as they come.

    A job that takes its process down is found by running those that were lost with it one by one.
    """
    lost = []
    for result in _run_together(jobs, workers):
        if isinstance(result, Job):
            lost.append(result)
        else:
            yield result
    for job in lost:
        (alone,) = _run_together([job], 1)
        yield Failed(job.name, "the compiler crashed") if isinstance(alone, Job) else alone


def check(plan: ForwardPlan, data: bytes, remarks: Sequence[str]) -> tuple[Resources, list[str]]:
    """What the kernel takes, and what is wrong with it; raises CubinError where ``data`` is no cubin of one kernel."""
    found = cubin.parse(data)
    launch = abi.launch(plan)
    text = "\n".join(remarks)
    resources = Resources(
        registers=found.registers,
        threads=found.threads,
        smem_bytes=launch.smem_bytes,
        frame_bytes=found.frame_bytes,
        spill_bytes=sum(int(number) for number in re.findall(r"(\d+) bytes spill", text)),
        code_bytes=found.code_bytes,
        advisories=tuple(sorted(re.findall(r"\((C\d{4})\)", text))),
    )
    problems = [*_wrong_resources(resources), *_wrong_cubin(plan, found)]
    if "bytes spill stores" not in text:
        problems.append("ptxas did not say what the kernel takes")
    return resources, problems


def check_compiled(plan: ForwardPlan, compiled: Compiled) -> tuple[Resources, list[str]]:
    """As :func:`check`, and also holds the traced kernel against abi.py."""
    resources, problems = check(plan, compiled.cubin, compiled.remarks)
    return resources, [*problems, *witness.differences(plan, compiled.trace)]


def _wrong_resources(resources: Resources) -> list[str]:
    problems = []
    if resources.spill_bytes:
        problems.append(f"{resources.spill_bytes} bytes of spills: fewer registers are needed, or more given")
    if resources.frame_bytes:
        problems.append(f"a stack frame of {resources.frame_bytes} bytes: something is indexed that has no address")
    if resources.registers * resources.threads > 65536:
        problems.append(f"{resources.threads} threads with {resources.registers} registers do not fit in an SM")
    fatal = sorted(FATAL_ADVISORIES.keys() & set(resources.advisories))
    return problems + [f"{code}: {FATAL_ADVISORIES[code]}" for code in fatal]


def _wrong_cubin(plan: ForwardPlan, found: cubin.Cubin) -> list[str]:
    """Where the cubin is not what abi.py says."""
    problems = [
        f"{what}: abi says {ours}, the cubin has {theirs}"
        for what, ours, theirs in (
            ("symbol", witness.symbol(plan), found.symbol),
            ("threads", abi.launch(plan).threads, found.threads),
        )
        if ours != theirs
    ]
    params = abi.signature(plan).params
    ours = [(ordinal, PARAM_SIZE[param.kind]) for ordinal, param in enumerate(params)]
    theirs = [(param.ordinal, param.size) for param in found.params]
    if len(ours) != len(theirs):
        problems.append(f"abi lists {len(ours)} parameters, the cubin has {len(theirs)}")
    for param, our, their in zip(params, ours, theirs, strict=False):
        if our != their:
            problems.append(
                f"parameter {param.name}: abi says ordinal {our[0]} of {our[1]} bytes,"
                f" the cubin has ordinal {their[0]} of {their[1]} bytes"
            )
    return problems


def _run_together(jobs: Sequence[Job], workers: int) -> Iterator[Compiled | Failed | Job]:
    """Results as they come; a job itself where its process died."""
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")  # a fork would inherit threads and modules
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=prepare) as pool:
        futures: Mapping[Future[Compiled | Failed], Job] = {pool.submit(compile_job, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future] if isinstance(future.exception(), BrokenProcessPool) else future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@cache
def _device_module(name: str) -> tuple[str, tuple[str, ...]]:
    """Text and imports of a module of fa3gen.device; the package itself is ``""``."""
    path = _DEVICE_DIR / (f"{name}.py" if name else "__init__.py")
    text = path.read_text(encoding="utf-8")
    return text, tuple(_imports(text, _DEVICE))


def _imports(source: str, package: str) -> list[str]:
    """Modules of ``package`` that ``source`` imports, by their names in it; Fa3genError for others of fa3gen."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: in a module of the package
                base = f"{package}.{base}".rstrip(".")
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        found += [name for name in names if name.split(".")[0] == "fa3gen"]
    modules = {_module_in(name, package) for name in found}
    return sorted(modules)


def _module_in(name: str, package: str) -> str:
    if name == package:
        return ""
    if not name.startswith(f"{package}."):
        raise Fa3genError(f"generated kernels may import {package} and nothing else of fa3gen, not {name}")
    module = name.removeprefix(f"{package}.").split(".")[0]
    return module if (_DEVICE_DIR / f"{module}.py").is_file() else ""

"""Compiles one generated kernel; runs in a process of its own, because the compiler is not thread-safe.

The only module of the generator that loads the compiler.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fa3gen.witness import Trace, WitnessError, read

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Job:
    """A source file to compile with ``options``; ``name`` is the kernel's."""

    name: str
    path: str
    options: str


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a job."""

    name: str
    cubin: bytes
    ptx: str
    remarks: tuple[str, ...]  # lines of ptxas, without those that differ from run to run
    trace: Trace
    cuda_version: str
    seconds: float


@dataclass(frozen=True)
class Failed:
    """Why a job could not be compiled; ``machine`` where it is this machine's fault."""

    name: str
    message: str
    machine: bool = False


def prepare() -> None:
    """Sets up the process: the compiler neither finds torch nor takes options from the environment.

    An interrupt is the parent's business, which lets a compilation under way end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.modules["torch"] = None  # type: ignore[assignment]  # an import of it fails
    for name in [name for name in os.environ if name.startswith("CUTE_DSL_")]:
        del os.environ[name]


def compile_job(job: Job) -> Compiled | Failed:
    """Compiles ``job``; whatever goes wrong is its result, so that no job hides another."""
    started = time.perf_counter()
    try:
        cutlass: Any = importlib.import_module("cutlass")
    except Exception as error:
        return Failed(job.name, f"the kernel compiler cannot be loaded: {_plain(str(error))}", machine=True)
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages), tempfile.TemporaryDirectory() as folder:
            compiled, trace = _compile(_load(job), f"{job.options} --dump-dir {folder}")
    except Exception as error:
        text = f"{type(error).__name__}: {error}" if not isinstance(error, WitnessError) else str(error)
        return Failed(job.name, _plain(f"{text}\n{messages.getvalue()}").strip())
    version = cutlass.CUDA_VERSION
    return Compiled(
        name=job.name,
        cubin=bytes(compiled.__cubin__),
        ptx=str(compiled.__ptx__),
        remarks=_remarks(messages.getvalue()),
        trace=trace,
        cuda_version=f"{version.major}.{version.minor}",
        seconds=time.perf_counter() - started,
    )


def _load(job: Job) -> ModuleType:
    """The generated module, always under the kernel's name: names of modules are part of what the compiler makes."""
    spec = importlib.util.spec_from_file_location(job.name, job.path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{job.path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[job.name] = module
    spec.loader.exec_module(module)
    return module


def _compile(module: ModuleType, options: str) -> tuple[Any, Trace]:
    import cutlass.cute as cute

    kernel_names = _parameters(module.kernel)
    argument_names = _parameters(module.launch)
    traces: list[Trace] = []
    problems: list[WitnessError] = []

    def witness(_dsl: object, traced: object, _name: str) -> None:
        try:
            traces.append(read(traced, kernel_names, argument_names))
        except WitnessError as error:  # raised here it would be reported as an error inside the compiler
            problems.append(error)

    compiled = cute.compile(module.launch, *module.fake_arguments(), options=options, trace_finalize_hooks=witness)
    if problems:
        raise problems[0]
    if not isinstance(compiled.__cubin__, bytes):
        raise RuntimeError("the compiler kept no cubin")
    return compiled, traces[0]


def _parameters(function: Any) -> Sequence[str]:
    return list(inspect.signature(function).parameters)


def _remarks(text: str) -> tuple[str, ...]:
    lines = [line.rpartition("ptxas output: ")[2].strip() for line in _plain(text).splitlines()]
    return tuple(line for line in lines if line.startswith("ptxas ") and "Compile time" not in line)


def _plain(text: str) -> str:
    return _COLOURS.sub("", text)

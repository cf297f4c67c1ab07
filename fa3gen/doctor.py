"""What this machine has and what it can therefore do: build kernels, verify (and run) them, or both.

Nothing here raises; what is missing is a check that failed, with the next step.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from fa3.contract import Manifest

from fa3gen import evidence, toolchain
from fa3gen.bench import timing
from fa3gen.evidence import State
from fa3gen.verify import cases

COMPILERS = ("c++", "g++", "clang++")
#: What a machine may be for: ``build`` makes bundles, ``verify`` runs their kernels.
TASKS = ("build", "verify")


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    found: str  # "" where it is missing
    ok: bool
    tasks: tuple[str, ...] = ()  # that cannot do without it
    hint: str = ""


def checks(bundle: Path, evidence_folder: Path) -> tuple[Check, ...]:
    """Everything, in the order in which one thing needs the other."""
    return (
        Check("python", platform.python_version(), ok=True, tasks=TASKS),
        _own("fa3gen", "fa3gen", "pip install .", TASKS),
        _own("fa3-runtime", "fa3", "pip install runtime/", ("verify",)),
        _distribution("torch", "install torch for your CUDA version", ("verify",)),
        _distribution("apache-tvm-ffi", "pip install apache-tvm-ffi", ("verify",)),
        _guarded("native launcher", _launcher, "build it with pip install runtime/", ("verify",)),
        _driver(),
        _guarded("gpu", _gpu, "use a machine with a Hopper GPU", ("verify",)),
        *_dsl(),
        _distribution("jinja2", "pip install jinja2", ("build",)),
        _compiler(),
        _guarded("bundle", lambda: _bundle(bundle), "run `fa3gen build`, or name one with --bundle"),
        _guarded("evidence", lambda: _evidence(bundle, evidence_folder), "it is compared with a bundle's kernels"),
    )


def missing(found: Iterable[Check], task: str) -> tuple[str, ...]:
    """What keeps the machine from ``task``."""
    return tuple(check.name for check in found if task in check.tasks and not check.ok)


def _distribution(name: str, hint: str, tasks: tuple[str, ...] = ()) -> Check:
    try:
        return Check(name, metadata.version(name), ok=True, tasks=tasks)
    except metadata.PackageNotFoundError:
        return Check(name, "", ok=False, tasks=tasks, hint=hint)


def _guarded(name: str, find: Callable[[], str], hint: str, tasks: tuple[str, ...] = ()) -> Check:
    try:
        return Check(name, find(), ok=True, tasks=tasks)
    except Exception as error:  # loading libraries can raise anything
        return Check(name, "", ok=False, tasks=tasks, hint=f"{timing.first_line(error)}; {hint}")


def _own(name: str, package: str, hint: str, tasks: tuple[str, ...]) -> Check:
    """One of this repository's two distributions, which also work from a checkout."""
    installed = _distribution(name, hint, tasks)
    if not installed.ok and find_spec(package) is not None:
        return Check(name, "not installed, found as source", ok=True, tasks=tasks)
    return installed


def _launcher() -> str:
    from fa3.runtime import launcher

    launcher.NativeLauncher()
    return launcher.LIBRARY.name


def _driver() -> Check:
    version = timing.driver()
    ok = version != "unknown"
    return Check("driver", version if ok else "", ok=ok, hint="" if ok else "nvidia-smi gives none")


def _gpu() -> str:
    """The current GPU; raises RuntimeError where no kernel of this runtime runs on it."""
    import torch
    from fa3.runtime.launcher import CAPABILITIES

    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device")
    found = torch.cuda.get_device_capability()
    name = f"{torch.cuda.get_device_name()}, compute capability {found[0]}.{found[1]}"
    if found not in CAPABILITIES.values():
        allowed = ", ".join(f"{major}.{minor}" for major, minor in CAPABILITIES.values())
        raise RuntimeError(f"{name}; the runtime serves {allowed}")
    return f"{name}, CUDA {torch.version.cuda}"


def _manifest(folder: Path) -> Manifest:
    """Read and checked as calls do."""
    from fa3 import runtime

    return runtime.load_bundle(folder, default=False).manifest


def _bundle(folder: Path) -> str:
    manifest = _manifest(folder)
    made = [f"{name} {manifest.toolchain[name]}" for name in ("cuda", toolchain.DSL) if name in manifest.toolchain]
    by = f", compiled with {' and '.join(made)}" if made else ""
    return f"{folder}: {len(manifest.kernels)} kernels for {manifest.arch}{by}"


def _evidence(folder: Path, records: Path) -> str:
    """How many of the bundle's kernels are verified, and what the others lack."""
    kernels = _manifest(folder).kernels
    rows = evidence.read(records)
    states = [
        evidence.state(rows.get(entry.name), entry.cubin_sha256, [case.id for case in cases.for_kernel(entry.key)])
        for entry in kernels
    ]
    text = f"verified {states.count(State.VERIFIED)} of {len(kernels)}"
    others = [f"{states.count(state)} {state.value}" for state in State if state is not State.VERIFIED]
    return ", ".join((text, *(other for other in others if not other.startswith("0 "))))


def _compiler() -> Check:
    path = next(filter(None, map(shutil.which, COMPILERS)), None)
    hint = "" if path else "only building the launcher needs a C++17 compiler"
    return Check("c++ compiler", path or "", ok=path is not None, hint=hint)


def _dsl() -> list[Check]:
    found = toolchain.installed()
    if toolchain.DSL not in found:
        hint = f"pip install {toolchain.DSL}, in the version that pyproject.toml names"
        return [Check(toolchain.DSL, "", ok=False, tasks=("build",), hint=hint)]
    return [Check(name, version, ok=True, tasks=("build",)) for name, version in found.items()]

"""What this machine has: versions, the native launcher, the GPU, a compiler, a bundle.

Nothing here raises; what is missing is a check that failed, with the next step.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from fa3gen import toolchain
from fa3gen.bench import timing

COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    found: str  # "" where it is missing
    needed: bool  # the runtime cannot run without it
    ok: bool
    hint: str = ""

    @property
    def fatal(self) -> bool:
        return self.needed and not self.ok


def checks(bundle: Path) -> tuple[Check, ...]:
    """Everything, in the order in which one thing needs the other."""
    return (
        Check("python", platform.python_version(), needed=True, ok=True),
        _runtime(),
        _distribution("torch", "install torch for your CUDA version", needed=True),
        _distribution("apache-tvm-ffi", "pip install apache-tvm-ffi", needed=True),
        _guarded("native launcher", _launcher, "build it with pip install runtime/", needed=True),
        _driver(),
        _guarded("gpu", _gpu, "use a machine with a Hopper GPU", needed=True),
        _guarded("bundle", lambda: _bundle(bundle), "run `fa3gen build`, or name one with --bundle", needed=False),
        _compiler(),
        *_dsl(),
    )


def _distribution(name: str, hint: str, needed: bool) -> Check:
    try:
        return Check(name, metadata.version(name), needed, ok=True)
    except metadata.PackageNotFoundError:
        return Check(name, "", needed, ok=False, hint=hint)


def _guarded(name: str, find: Callable[[], str], hint: str, needed: bool) -> Check:
    try:
        return Check(name, find(), needed, ok=True)
    except Exception as error:  # loading libraries can raise anything
        return Check(name, "", needed, ok=False, hint=f"{timing.first_line(error)}; {hint}")


def _runtime() -> Check:
    installed = _distribution("fa3-runtime", "pip install fa3-runtime", needed=True)
    if not installed.ok and find_spec("fa3") is not None:
        return Check(installed.name, "not installed, found as source", needed=True, ok=True)
    return installed


def _launcher() -> str:
    from fa3.runtime import launcher

    launcher.NativeLauncher()
    return launcher.LIBRARY.name


def _driver() -> Check:
    version = timing.driver()
    ok = version != "unknown"
    return Check("driver", version if ok else "", needed=False, ok=ok, hint="" if ok else "nvidia-smi gives none")


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


def _bundle(folder: Path) -> str:
    from fa3 import runtime

    manifest = runtime.load_bundle(folder, default=False).manifest
    return f"{folder}: {len(manifest.kernels)} kernels for {manifest.arch}"


def _compiler() -> Check:
    path = next(filter(None, map(shutil.which, COMPILERS)), None)
    hint = "" if path else "only building the launcher needs a C++17 compiler"
    return Check("c++ compiler", path or "", needed=False, ok=path is not None, hint=hint)


def _dsl() -> list[Check]:
    found = toolchain.installed()
    if not found:
        return [Check(toolchain.DSL, "", needed=False, ok=False, hint="only `fa3gen build` needs it")]
    return [Check(name, version, needed=False, ok=True) for name, version in found.items()]

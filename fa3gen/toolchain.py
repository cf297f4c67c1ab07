"""The kernel compiler: which distributions are installed, and whose CUDA libraries it loaded.

Looking at what is installed imports nothing of the compiler, so that a build with nothing to do stays quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata

from fa3gen.errors import MachineError
from fa3gen.model import Toolchain

DSL = "nvidia-cutlass-dsl"
_LIBS = "nvidia-cutlass-dsl-libs-"


@cache
def installed() -> Mapping[str, str]:
    """The compiler's distributions and their versions, sorted by name; empty where it is not installed."""
    found = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(DSL):
            found[name] = distribution.version
    return dict(sorted(found.items()))


def require(toolchain: str) -> Mapping[str, str]:
    """The distributions, checked to offer the CUDA libraries of ``toolchain``; MachineError where they do not."""
    found = installed()
    if DSL not in found:
        raise MachineError("the kernel compiler is not installed", hint=f"pip install '{_install(toolchain)}'")
    wanted = f"{_LIBS}{toolchain}"
    if wanted not in found:
        flavours = [name.removeprefix(_LIBS) for name in found if name.startswith(f"{_LIBS}cu")]
        raise MachineError(
            f"toolchain {toolchain} is asked for, and the kernel compiler has {', '.join(flavours) or 'no'} libraries",
            hint=f"pip install '{_install(toolchain)}', or set `toolchain:` in the configuration",
        )
    return found


def check_loaded(toolchain: str, cuda_version: str) -> str | None:
    """Why the compiler that was loaded (with CUDA ``cuda_version``) is not ``toolchain``; ``None`` where it is."""
    loaded = f"cu{cuda_version.partition('.')[0]}"
    if loaded == toolchain:
        return None
    return (
        f"toolchain {toolchain} is asked for, and the kernel compiler loaded its {loaded} libraries"
        f" (CUDA {cuda_version}); uninstall {_LIBS}{loaded}: the compiler takes the newest that the driver allows"
    )


def record(toolchain: str, cuda_version: str) -> dict[str, str]:
    """The toolchain as the manifest names it."""
    return {"toolchain": toolchain, "cuda": cuda_version, **installed()}


def _install(toolchain: str) -> str:
    extra = "" if toolchain == Toolchain.CU12.value else f"[{toolchain}]"
    version = installed().get(DSL)
    return f"{DSL}{extra}" + (f"=={version}" if version else "")

"""Machine code of a cubin, through NVIDIA's disassembler where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from fa3gen.errors import MachineError

TOOL = "nvdisasm"
WHEEL = "nvidia-cuda-nvdisasm"


@dataclass(frozen=True)
class SassCounts:
    """Instructions of a kernel that tell how it was compiled."""

    instructions: int
    hgmma: int
    local: int  # loads and stores of local memory: spills
    setmaxreg: tuple[int, ...]  # registers asked for, in the order of the code


def disassemble(cubin: bytes) -> str:
    """The machine code of ``cubin`` as text; MachineError where there is no disassembler."""
    tool = find_tool()
    if tool is None:
        raise MachineError(f"there is no {TOOL}", hint=f"pip install {WHEEL}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"{TOOL} failed: {done.stderr.strip()}")
    return done.stdout


def count(text: str) -> SassCounts:
    """Counts the instructions of disassembled ``text``."""
    names = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)([^;]*);", text)
    return SassCounts(
        instructions=len(names),
        hgmma=sum(name == "HGMMA" for name, _ in names),
        local=sum(name in ("LDL", "STL") for name, _ in names),
        setmaxreg=tuple(int(found[1], 16) for name, rest in names if name == "USETMAXREG" for found in [_last(rest)]),
    )


def _last(operands: str) -> re.Match[str]:
    found = re.search(r"(0x[0-9a-f]+)\s*$", operands)
    if found is None:
        raise ValueError(f"USETMAXREG without a number: {operands!r}")
    return found


@cache
def find_tool() -> str | None:
    """The disassembler: of the wheel where that is installed, else on the path."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == TOOL:
            return str(file.locate())
    return shutil.which(TOOL)

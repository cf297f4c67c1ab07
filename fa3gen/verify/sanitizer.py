"""Runs the small cases of kernels under compute-sanitizer, in a process of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fa3gen.errors import MachineError

TOOLS = ("memcheck", "synccheck", "racecheck")
_TOOLKIT = Path("/usr/local/cuda/bin/compute-sanitizer")
_ERROR_EXIT = 86


def find() -> str:
    """The program; raises MachineError where this machine has none."""
    found = shutil.which("compute-sanitizer") or (str(_TOOLKIT) if _TOOLKIT.is_file() else None)
    if found is None:
        raise MachineError("compute-sanitizer is not on PATH", hint="install the CUDA toolkit's compute-sanitizer")
    return found


def run(tool: str, bundle: Path, names: Sequence[str]) -> tuple[bool, str]:
    """Whether ``tool`` found nothing in the kernels' small cases, and what it and they printed."""
    command = [find(), "--tool", tool, "--error-exitcode", str(_ERROR_EXIT), "--kernel-regex", "kns=fwd_"]
    command += [sys.executable, "-m", "fa3gen.cli", "verify", "--bundle", str(bundle), "--small", *names]
    done = subprocess.run(command, capture_output=True, text=True)
    output = done.stdout + done.stderr
    return done.returncode == 0 and bool(_CLEAN.search(output)), output


_CLEAN = re.compile(r"(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards displayed)")

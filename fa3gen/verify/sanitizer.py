"""Runs the small cases of kernels under compute-sanitizer, in a process of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from fa3gen.errors import MachineError

TOOLS = ("memcheck", "synccheck", "racecheck")
_TOOLKIT = Path("/usr/local/cuda/bin/compute-sanitizer")
_ERROR_EXIT = 86
_TOOL_ERROR = "Internal Sanitizer Error"
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (?=\d+ error)|RACECHECK SUMMARY: (?=\d+ hazard))(\d+)")


class Outcome(str, Enum):
    CLEAN = "clean"
    FOUND = "found errors"
    CASES_FAILED = "the cases failed, the tool found nothing"
    TOOL_FAILED = "the tool failed, which says nothing of the kernels"


class Result(NamedTuple):
    outcome: Outcome
    output: str  # of the tool and of the cases


def find() -> str:
    """The program; raises MachineError where this machine has none."""
    found = shutil.which("compute-sanitizer") or (str(_TOOLKIT) if _TOOLKIT.is_file() else None)
    if found is None:
        raise MachineError("compute-sanitizer is not on PATH", hint="install the CUDA toolkit's compute-sanitizer")
    return found


def run(tool: str, bundle: Path, names: Sequence[str]) -> Result:
    """Runs the kernels' small cases under ``tool``.

    Nothing is filtered: a filter that matches no kernel would look clean.  The cases end with 0 only if each kernel ran
    and gave the right results.
    """
    command = [find(), "--tool", tool, "--error-exitcode", str(_ERROR_EXIT)]
    command += [sys.executable, "-m", "fa3gen.cli", "verify", "--bundle", str(bundle), "--small", *names]
    done = subprocess.run(command, capture_output=True, text=True)
    output = done.stdout + done.stderr
    return Result(judge(done.returncode, output), output)


def judge(code: int, output: str) -> Outcome:
    """What the exit code and the text of compute-sanitizer mean."""
    summary = _SUMMARY.search(output)
    if _TOOL_ERROR in output or summary is None:
        return Outcome.TOOL_FAILED
    if int(summary[1]) or code == _ERROR_EXIT:
        return Outcome.FOUND
    return Outcome.CLEAN if code == 0 else Outcome.CASES_FAILED

"""Goes through kernels and cases on the GPU, and makes the rows of evidence."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from fa3.contract import KernelEntry
from fa3.runtime import Bundle

from fa3gen import evidence
from fa3gen.errors import ExitCode, MachineError
from fa3gen.verify import behaviour, numerics
from fa3gen.verify.cases import Case
from fa3gen.verify.numerics import Verdict
from fa3gen.verify.target import Target

CHECKS: dict[str, Callable[[Target, Case], Verdict]] = {
    "numerics": numerics.check,
    "graphs": behaviour.check_graphs,
    "streams": behaviour.check_streams,
    "threads": behaviour.check_threads,
}


@dataclass
class KernelResult:
    """What came of a kernel's cases."""

    name: str
    passed: list[Case] = field(default_factory=list)
    failed: list[tuple[Case, tuple[str, ...]]] = field(default_factory=list)
    worst: tuple[float, str] = (0.0, "")


def device() -> torch.device:
    """The current GPU; raises MachineError where there is none."""
    if not torch.cuda.is_available():
        raise MachineError("no CUDA device", hint="run `fa3gen verify` on a Hopper machine; `--check` needs no GPU")
    return torch.device("cuda", torch.cuda.current_device())


def kernel(
    bundle: Bundle, entry: KernelEntry, cases: Sequence[Case], where: torch.device, timeout: float | None = None
) -> KernelResult:
    """Runs ``cases`` on one kernel.

    A case that raises has failed; one that takes longer than ``timeout`` seconds ends the process.
    """
    # of a variant's plans this one alone, so that the public call takes it for cases beyond its bounds, too
    target = Target(entry, bundle.only(entry.name), where)
    result = KernelResult(entry.name)
    for case in cases:
        try:
            with deadline(timeout, f"{entry.name}: case {case.id} ({case.label})"):
                verdict = CHECKS[case.check](target, case)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            verdict = Verdict(float("inf"), (f"raised {error!r}",))
        if verdict.problems:
            result.failed.append((case, verdict.problems))
        else:
            result.passed.append(case)
        result.worst = max(result.worst, (verdict.ratio, case.label))
    return result


@contextmanager
def deadline(seconds: float | None, what: str, last: Callable[[], object] | None = None) -> Iterator[None]:
    """Ends the process where the block takes longer than ``seconds``: nothing else stops a kernel that hangs.

    ``last`` is called before.
    """
    done = threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            print(f"error: {what} hangs: not done within {seconds:g} s", file=sys.stderr, flush=True)
            if last is not None:
                last()
            os._exit(int(ExitCode.FINDINGS))

    if seconds is not None:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def row(entry: KernelEntry, result: KernelResult, where: torch.device) -> evidence.Row:
    """The evidence of a kernel none of whose cases failed."""
    checks = {case.check for case in result.passed}
    return {
        "schema": evidence.SCHEMA,
        "kernel": entry.name,
        "cubin_sha256": entry.cubin_sha256,
        "cases": sorted(case.id for case in result.passed),
        **machine(where),
        "numerics": {
            "cases": sum(case.check == "numerics" for case in result.passed),
            "worst_ratio": round(result.worst[0], 3),
            "worst_case": result.worst[1],
            "bitwise_repeat": True,
        },
        "cuda_graph": "graphs" in checks,
        "sanitizer": [],
    }


def machine(where: torch.device) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(where),
        "driver": _driver(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"

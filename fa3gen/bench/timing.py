"""Times on the GPU's clock (throughput) and on the host's (cost of an eager call).

The card's clock follows its power and heat, so only times taken in turn, for equally long, compare.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fa3gen.bench.peers import Contender, Run
from fa3gen.bench.shapes import Shape
from fa3gen.errors import MachineError

if TYPE_CHECKING:
    from torch import Tensor

SAMPLE_MS = 8.0
MAX_CALLS = 400  # fewer than the launches that the driver queues
SPIN_CYCLES_PER_MS = 2_000_000  # at the highest clock
HEAT_SECONDS = 2.0
GEMM = 8192
HOST_BATCHES, HOST_CALLS = 20, 200


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of a call by contender, the error of each that has no time, and the SM clock under this load."""

    ms: Mapping[str, float]
    errors: Mapping[str, str]
    clock_mhz: float | None = None


def machine() -> dict[str, str]:
    """GPU and versions; raises MachineError without CUDA."""
    try:
        import torch
    except ImportError as error:
        raise MachineError(f"torch cannot be imported: {error}", hint="install torch with CUDA") from error
    if not torch.cuda.is_available():
        raise MachineError("no CUDA device", hint="run `fa3gen bench` on a Hopper machine")
    cudnn: Any = torch.backends.cudnn  # untyped
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "cudnn": str(cudnn.version()),
        "date": time.strftime("%Y-%m-%d"),
    }


def driver() -> str:
    """The version of the NVIDIA driver, or ``unknown``."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found[0] if found else "unknown"


def inputs(shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v: normal, contiguous (batch, seqlen, heads, head_dim)."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[shape.dtype]
    size = (shape.batch, shape.seqlen, shape.heads, shape.head_dim)
    q, k, v = (torch.randn(size, device="cuda", dtype=dtype) for _ in range(3))
    return q, k, v


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


# --- throughput


@dataclass(frozen=True, slots=True)
class _Plan:
    """A contender's sample: how many calls, and how long the GPU spins first so that the host stays ahead."""

    run: Run
    calls: int
    warm: int
    spin: int  # cycles


def shape(problem: Shape, contenders: Sequence[Contender], rounds: int) -> Times:
    """Medians over ``rounds`` samples of each contender, in an order that rotates."""
    import torch

    errors: dict[str, str] = {}
    plans: dict[str, _Plan] = {}
    samples: dict[str, list[float]] = {}
    clocks: list[float] = []
    with torch.no_grad():
        try:
            q, k, v = inputs(problem)
            for contender in contenders:
                try:
                    plans[contender.name] = _plan(contender.prepare(q, k, v, problem.causal))
                except Exception as error:  # whatever it is, the others are still timed
                    errors[contender.name] = first_line(error)
            samples = _samples(plans, rounds, clocks)
        except Exception as error:  # whose fault it is cannot be told
            for contender in contenders:
                errors.setdefault(contender.name, f"while all are timed: {first_line(error)}")
    clock = statistics.median(clocks) if clocks else None
    return Times({name: statistics.median(values) for name, values in samples.items()}, errors, clock)


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """``names`` starting one later each turn, so that none always follows the same pause."""
    start = turn % len(names) if names else 0
    return [*names[start:], *names[:start]]


def _plan(run: Run) -> _Plan:
    import torch

    run(3)  # compiles, loads, picks
    torch.cuda.synchronize()
    begin, end = _event(), _event()
    start = time.perf_counter()
    begin.record()
    run(5)
    end.record()
    host = (time.perf_counter() - start) * 1e3 / 5
    torch.cuda.synchronize()
    gpu = begin.elapsed_time(end) / 5
    calls = max(2, min(MAX_CALLS, round(SAMPLE_MS / gpu)))
    warm = max(1, calls // 4)
    behind = (calls + warm) * max(0.0, 1.2 * host - 0.8 * gpu)
    return _Plan(run, calls, warm, round((0.2 + behind) * SPIN_CYCLES_PER_MS))


def _samples(plans: Mapping[str, _Plan], rounds: int, clocks: list[float] | None = None) -> dict[str, list[float]]:
    """Milliseconds of a call, a list for each contender; adds the SM clock of each round to ``clocks``."""
    import torch

    cuda: Any = torch.cuda  # _sleep is untyped
    samples: dict[str, list[float]] = {name: [] for name in plans}
    for turn in range(rounds):
        events = []
        for name in rotated([*plans], turn):
            plan = plans[name]
            begin, end = _event(), _event()
            cuda._sleep(plan.spin)
            plan.run(plan.warm)
            begin.record()
            plan.run(plan.calls)
            end.record()
            events.append((name, begin, end))
        if clocks is not None:  # while the GPU still works on what is queued
            clocks += _sm_clock()
        cuda.synchronize()
        for name, begin, end in events:
            samples[name].append(begin.elapsed_time(end) / plans[name].calls)
    return samples


def _sm_clock() -> list[float]:
    """The SM clock in MHz; empty where it cannot be read (torch needs nvidia-ml-py for that)."""
    import torch

    try:
        return [float(torch.cuda.clock_rate())]
    except Exception:  # the library, the driver or the device: times are good without it
        return []


def sms() -> int:
    """SMs of the card."""
    import torch

    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)


def _event() -> Any:
    import torch

    event: Any = torch.cuda.Event  # untyped
    return event(enable_timing=True)


def ceiling(heat: bool) -> float:
    """TFLOP/s of a bf16 matmul of 8192³; ``heat`` runs it for two seconds first, so that the card is warm."""
    import torch

    a, b = (torch.randn(GEMM, GEMM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def run(calls: int) -> None:
        for _ in range(calls):
            torch.matmul(a, b, out=out)

    start = time.monotonic()
    while heat and time.monotonic() - start < HEAT_SECONDS:
        run(50)
        torch.cuda.synchronize()
    (values,) = _samples({"gemm": _plan(run)}, 5).values()
    return 2.0 * GEMM**3 / statistics.median(values) / 1e9


# --- host


def first_call(contender: Contender, problem: Shape) -> float:
    """Milliseconds of the process's first call, until its result is there; the CUDA context exists already."""
    import torch

    with torch.no_grad():
        run = contender.prepare(*inputs(problem), problem.causal)
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(1)
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def host(problem: Shape, contenders: Sequence[Contender]) -> dict[str, dict[str, float | str]]:
    """By grad mode and contender: microseconds of an eager call, or the error."""
    import torch

    modes: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "grad": torch.enable_grad,
    }
    found: dict[str, dict[str, float | str]] = {}
    for mode, context in modes.items():
        with context():
            found[mode] = _host(problem, contenders)
    return found


def _host(problem: Shape, contenders: Sequence[Contender]) -> dict[str, float | str]:
    import torch

    q, k, v = inputs(problem)
    runs: dict[str, Run] = {}
    found: dict[str, float | str] = {}
    for contender in contenders:
        try:
            runs[contender.name] = contender.prepare(q, k, v, problem.causal)
            runs[contender.name](HOST_CALLS)
            torch.cuda.synchronize()
        except Exception as error:  # whatever it is, the others are still timed
            runs.pop(contender.name, None)
            found[contender.name] = first_line(error)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(HOST_BATCHES):
        for name in rotated([*runs], turn):
            start = time.perf_counter()
            runs[name](HOST_CALLS)
            samples[name].append((time.perf_counter() - start) * 1e6 / HOST_CALLS)
            torch.cuda.synchronize()
    return {**found, **{name: statistics.median(values) for name, values in samples.items()}}

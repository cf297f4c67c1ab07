"""Times on the GPU's clock (throughput) and on the host's (cost of an eager call).

The card's clock follows its power and heat, so only times taken in turn, for equally long, compare.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fa3gen.bench import data
from fa3gen.bench.meter import Meter, median
from fa3gen.bench.peers import Contender, Run
from fa3gen.bench.shapes import Shape
from fa3gen.errors import MachineError

_T = TypeVar("_T")

SAMPLE_MS = 40.0
MAX_CALLS = 800  # fewer than the launches that the driver queues
SPIN_CYCLES_PER_MS = 2_000_000  # at the highest clock
HEAT_SECONDS = 2.0  # after which the card is at its power limit
COLD_SECONDS = 1.5  # of preparation (of compiling, that is), after which it no longer is
GEMM = 8192
HOST_BATCHES, HOST_CALLS = 20, 200


@dataclass(frozen=True, slots=True)
class Times:
    """Of one shape and kind of data, by contender.

    ``ms`` holds medians of ``samples``; who has no time has an error or a reason why it was not asked.
    """

    ms: Mapping[str, float]
    errors: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    clock_mhz: Mapping[str, float] = field(default_factory=dict)  # of the SMs, while it ran
    power_w: float | None = None  # of all together, as the driver averages over more than a sample


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


@dataclass(frozen=True, slots=True)
class _Sample:
    ms: float  # of a call
    begin: float  # the time of what was measured, of time.perf_counter
    end: float


def shape(
    problem: Shape,
    contenders: Sequence[Contender],
    rounds: int,
    kinds: Sequence[str] = ("normal",),
    meter: Meter | None = None,
    hot: bool = False,
) -> dict[str, Times]:
    """By kind of data, medians over ``rounds`` samples of each contender; contenders and kinds take turns.

    The card is heated first, unless it is ``hot`` and stays so.
    """
    import torch

    unsupported = {contender.name: contender.why_not(problem) for contender in contenders}
    unsupported = {name: reason for name, reason in unsupported.items() if reason}
    asked = [contender for contender in contenders if contender.name not in unsupported]
    errors: dict[str, dict[str, str]] = {kind: {} for kind in kinds}
    plans: dict[tuple[str, str], _Plan] = {}
    samples: dict[tuple[str, str], list[_Sample]] = {}
    with torch.no_grad():
        try:
            start = time.monotonic()
            for kind in kinds:
                tensors = data.make(problem, kind)
                for contender in asked:
                    try:
                        plans[kind, contender.name] = _plan(contender.prepare(*tensors, problem.causal))
                    except Exception as error:  # whatever it is, the others are still timed
                        errors[kind][contender.name] = first_line(error)
            if plans and (not hot or time.monotonic() - start > COLD_SECONDS):
                heat()
            samples = _samples(plans, rounds)
        except Exception as error:  # whose fault it is cannot be told
            for kind in kinds:
                for contender in asked:
                    errors[kind].setdefault(contender.name, f"while all are timed: {first_line(error)}")
    return {kind: _times(kind, samples, errors[kind], unsupported, meter) for kind in kinds}


def _times(
    kind: str,
    samples: Mapping[tuple[str, str], Sequence[_Sample]],
    errors: Mapping[str, str],
    unsupported: Mapping[str, str],
    meter: Meter | None,
) -> Times:
    mine = {name: taken for (of, name), taken in samples.items() if of == kind and taken}
    read = {
        name: [r for sample in taken for r in meter.between(sample.begin, sample.end)] if meter is not None else []
        for name, taken in mine.items()
    }
    return Times(
        ms={name: statistics.median(sample.ms for sample in taken) for name, taken in mine.items()},
        errors=errors,
        unsupported=unsupported,
        samples={name: [sample.ms for sample in taken] for name, taken in mine.items()},
        clock_mhz={name: statistics.median(r.mhz for r in found) for name, found in read.items() if found},
        power_w=median(r.watts for found in read.values() for r in found),
    )


def shuffled(names: Sequence[_T], turn: int) -> list[_T]:
    """``names`` in an order of each turn's own, so that none always follows the same one, whose power it inherits."""
    count = len(names)
    side = -1 if count % 2 and turn % 2 else 1  # zigzag: the steps of a turn differ; of an odd number, only to one side
    return [names[(turn + side * ((i + 1) // 2 if i % 2 else -(i // 2))) % count] for i in range(count)]


def _plan(run: Run) -> _Plan:
    import torch

    cuda: Any = torch.cuda  # _sleep is untyped
    run(3)  # compiles, loads, picks
    cuda.synchronize()
    start = time.perf_counter()
    run(5)
    host = (time.perf_counter() - start) * 1e3 / 5
    cuda.synchronize()
    begin, end = _event(), _event()
    cuda._sleep(round((0.2 + 6 * host) * SPIN_CYCLES_PER_MS))  # so that the GPU does not wait for the host
    begin.record()
    run(5)
    end.record()
    cuda.synchronize()
    gpu = begin.elapsed_time(end) / 5
    calls = max(2, min(MAX_CALLS, round(SAMPLE_MS / gpu)))
    warm = max(1, calls // 2)  # until the power is that of this contender
    behind = (calls + warm) * max(0.0, 1.2 * host - 0.8 * gpu)
    return _Plan(run, calls, warm, round((0.2 + behind) * SPIN_CYCLES_PER_MS))


def _samples(plans: Mapping[_T, _Plan], rounds: int) -> dict[_T, list[_Sample]]:
    """``rounds`` samples of each plan, after one that does not count: whoever is first finds the card rested."""
    import torch

    cuda: Any = torch.cuda  # _sleep is untyped
    samples: dict[_T, list[_Sample]] = {name: [] for name in plans}
    for turn in range(rounds + 1):
        for name in shuffled([*plans], turn):
            plan = plans[name]
            begin, end = _event(), _event()
            cuda._sleep(plan.spin)
            plan.run(plan.warm)
            begin.record()
            plan.run(plan.calls)
            end.record()
            cuda.synchronize()
            now = time.perf_counter()
            took = begin.elapsed_time(end)
            if turn > 0:
                samples[name].append(_Sample(took / plan.calls, now - took / 1e3, now))
    return samples


def sms() -> int:
    """SMs of the card."""
    import torch

    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)


def _event() -> Any:
    import torch

    event: Any = torch.cuda.Event  # untyped
    return event(enable_timing=True)


def _matmul() -> Run:
    import torch

    a, b = (torch.randn(GEMM, GEMM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def run(calls: int) -> None:
        for _ in range(calls):
            torch.matmul(a, b, out=out)

    return run


def heat(seconds: float = HEAT_SECONDS) -> None:
    """Works until the card is as warm as under lasting load."""
    import torch

    run = _matmul()
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        run(50)
        torch.cuda.synchronize()


def ceiling() -> float:
    """TFLOP/s of a bf16 matmul of 8192³: what the card can do now."""
    (taken,) = _samples({"gemm": _plan(_matmul())}, 5).values()
    return 2.0 * GEMM**3 / statistics.median(sample.ms for sample in taken) / 1e9


# --- host


def first_call(contender: Contender, problem: Shape) -> float:
    """Milliseconds of the process's first call, until its result is there; the CUDA context exists already."""
    import torch

    with torch.no_grad():
        run = contender.prepare(*data.make(problem), problem.causal)
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

    q, k, v = data.make(problem)
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
        for name in shuffled([*runs], turn):
            start = time.perf_counter()
            runs[name](HOST_CALLS)
            samples[name].append((time.perf_counter() - start) * 1e6 / HOST_CALLS)
            torch.cuda.synchronize()
    return {**found, **{name: statistics.median(values) for name, values in samples.items()}}

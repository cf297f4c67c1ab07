"""The SM clock and the power of the GPU while it works, read by a thread."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

INTERVAL = 0.01  # seconds
NVML = "libnvidia-ml.so.1"  # comes with the driver
_SM_CLOCK = 1

#: MHz and W at this moment.
Read = Callable[[], "tuple[float, float]"]


@dataclass(frozen=True, slots=True)
class Reading:
    at: float  # of time.perf_counter
    mhz: float
    watts: float  # the driver averages it over about a second


class Meter:
    """Reads from :meth:`start` to :meth:`stop`; without ``read`` there is nothing to read."""

    def __init__(self, source: str, read: Read | None) -> None:
        self.source = source
        self._read = read
        self._readings: list[Reading] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def works(self) -> bool:
        return self._read is not None

    def __enter__(self) -> Meter:
        if self._read is not None:
            self._thread = threading.Thread(target=self._run, args=(self._read,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def between(self, begin: float, end: float) -> list[Reading]:
        """What was read from ``begin`` to ``end``."""
        return [reading for reading in self._readings if begin <= reading.at <= end]

    def _run(self, read: Read) -> None:
        while not self._done.wait(INTERVAL):
            try:
                self._readings.append(Reading(time.perf_counter(), *read()))
            except Exception:  # one that cannot be read any more leaves the times as they are
                return


def median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def find() -> Meter:
    """A meter of torch's current GPU: through the driver's library, else through torch, else one that reads nothing."""
    reasons = []
    for source, make in (("NVML", _nvml), ("torch", _torch)):
        try:
            read = make()
            read()
        except Exception as error:  # the library, the driver or the device
            reasons.append(f"{source}: {error}")
        else:
            return Meter(source, read)
    return Meter(f"not recorded ({'; '.join(reasons)})", None)


def _nvml() -> Read:
    import torch

    library = ctypes.CDLL(NVML)
    _check(library.nvmlInit_v2())
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = f"GPU-{str(properties.uuid).removeprefix('GPU-')}"
    handle = ctypes.c_void_p()
    _check(library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)))

    def read() -> tuple[float, float]:
        clock, power = ctypes.c_uint(), ctypes.c_uint()
        _check(library.nvmlDeviceGetClockInfo(handle, _SM_CLOCK, ctypes.byref(clock)))
        _check(library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power)))
        return float(clock.value), power.value / 1000

    return read


def _check(code: int) -> None:
    if code != 0:
        raise OSError(f"error {code}")


def _torch() -> Read:
    """Needs nvidia-ml-py."""
    import torch

    return lambda: (float(torch.cuda.clock_rate()), torch.cuda.power_draw() / 1000)

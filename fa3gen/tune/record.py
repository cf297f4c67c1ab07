"""What `fa3gen tune run` writes and `fa3gen tune choose` reads: a file of JSON lines, one a check or a time.

Appended as they come, so that a run that was cut off goes on where it ended.  Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fa3gen.bench.shapes import Shape
from fa3gen.errors import UsageError


@dataclass(frozen=True)
class Check:
    """Whether a candidate's results are right; ``problems`` is empty where they are."""

    candidate: str
    variant: str
    cubin_sha256: str
    plan: Mapping[str, Any]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Time:
    """A candidate on a shape: milliseconds of a call, with those of the variant's present plan in the same rotation."""

    candidate: str
    cubin_sha256: str
    shape: Shape
    ms: float
    current_ms: float | None
    machine: str
    date: str
    clock_mhz: float | None = None
    peers: Mapping[str, float] = field(default_factory=dict)  # milliseconds of other implementations

    @property
    def tflops(self) -> float:
        return self.shape.tflops(self.ms)

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the present plan."""
        return None if self.current_ms is None else self.current_ms / self.ms


@dataclass
class Records:
    """The latest check of each candidate, and the times of the cubin that it is about."""

    checks: dict[str, Check] = field(default_factory=dict)
    times: dict[tuple[str, Shape], Time] = field(default_factory=dict)

    def add(self, record: Check | Time) -> None:
        if isinstance(record, Check):
            old = self.checks.get(record.candidate)
            if old is not None and old.cubin_sha256 != record.cubin_sha256:
                self.times = {key: time for key, time in self.times.items() if key[0] != record.candidate}
            self.checks[record.candidate] = record
        elif record.candidate in self.checks and self._of_its_cubin(record):
            self.times[record.candidate, record.shape] = record

    def check(self, candidate: str, cubin_sha256: str) -> Check | None:
        """The check of exactly this cubin."""
        found = self.checks.get(candidate)
        return found if found is not None and found.cubin_sha256 == cubin_sha256 else None

    def _of_its_cubin(self, time: Time) -> bool:
        return self.checks[time.candidate].cubin_sha256 == time.cubin_sha256


def read(file: Path) -> Records:
    """The records of ``file``, none where there is no file; raises UsageError."""
    found = Records()
    for record in _read(file):
        found.add(record)
    return found


def append(file: Path, record: Check | Time) -> None:
    kind = "check" if isinstance(record, Check) else "time"
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"kind": kind, **asdict(record)}) + "\n")


def _read(file: Path) -> Iterator[Check | Time]:
    lines: Iterable[str] = file.read_text("utf-8").splitlines() if file.is_file() else ()
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            if data.pop("kind") == "check":
                yield Check(**data | {"problems": tuple(data["problems"])})
            else:
                yield Time(**data | {"shape": Shape(**data["shape"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            hint = "take the line out; the next run measures it again"
            raise UsageError(f"{file}:{number}: no record of `fa3gen tune run` ({error!r})", hint=hint) from error

"""Times as people and programs read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fa3gen.bench.shapes import Shape
from fa3gen.bench.timing import Times

WIDTH = 9  # of a column


def geomean(values: Iterable[float]) -> float:
    """The geometric mean; raises ValueError where there are no values."""
    logs = [math.log(value) for value in values]
    if not logs:
        raise ValueError("no values")
    return math.exp(sum(logs) / len(logs))


@dataclass(frozen=True, slots=True)
class Row:
    shape: Shape
    times: Times
    bounds: Mapping[str, float] = field(default_factory=dict)  # TFLOP/s at most, by contender: see bound.py

    def tflops(self, name: str) -> float | None:
        ms = self.times.ms.get(name)
        return None if ms is None else self.shape.tflops(ms)

    def share(self, name: str) -> float | None:
        """Of the bound; None where there is none, or no time."""
        found, most = self.tflops(name), self.bounds.get(name)
        return None if found is None or most is None else found / most


@dataclass(frozen=True, slots=True)
class Columns:
    ours: tuple[str, ...]
    peers: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return self.ours + self.peers

    @property
    def derived(self) -> tuple[str, ...]:
        """How ours compare with the best peer, and with what the hardware allows at the clock that it had."""
        return tuple(f"{name}/{what}" for what in ("best", "bound") for name in self.ours)

    def ratio(self, row: Row, name: str) -> float | None:
        """How many times as fast as the best peer; None where one of the two has no time."""
        mine = row.times.ms.get(name)
        peers = [row.times.ms[peer] for peer in self.peers if peer in row.times.ms]
        return min(peers) / mine if mine is not None and peers else None


# --- text


def heading(columns: Columns, shape: Shape) -> str:
    """What goes above the lines of one (head_dim, mask)."""
    names = [*columns.all, *columns.derived]
    return f"{shape.dtype} d{shape.head_dim} {shape.mask}, TFLOP/s\n{'seqlen':>{WIDTH}}" + "".join(
        f" {name:>{WIDTH}}" for name in names
    )


def line(columns: Columns, row: Row) -> str:
    cells = [_cell(row.tflops(name), 0) for name in columns.all]
    cells += [_cell(columns.ratio(row, name), 3) for name in columns.ours]
    cells += [_cell(row.share(name), 2) for name in columns.ours]
    widths = [max(WIDTH, len(name)) for name in (*columns.all, *columns.derived)]
    return f"{row.shape.seqlen:>{WIDTH}}" + "".join(f" {c:>{w}}" for c, w in zip(cells, widths, strict=True))


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def means(columns: Columns, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Geometric means of the ratios: by contender, by ``d64 full`` and so on, and ``all``."""
    found: dict[str, dict[str, float]] = {}
    for name in columns.ours:
        groups: dict[str, list[float]] = {}
        for row in rows:
            ratio = columns.ratio(row, name)
            if ratio is not None:
                groups.setdefault(f"d{row.shape.head_dim} {row.shape.mask}", []).append(ratio)
                groups.setdefault("all", []).append(ratio)
        found[name] = {group: geomean(ratios) for group, ratios in groups.items()}
    return found


def summary(columns: Columns, rows: Sequence[Row]) -> list[str]:
    """A line for each group, ``all`` last, with how many shapes have a ratio."""
    lines = []
    for name, groups in means(columns, rows).items():
        counted = sum(columns.ratio(row, name) is not None for row in rows)
        for group in sorted(groups, key="all".__eq__):
            note = f"  ({counted} of {len(rows)} shapes)" if group == "all" else ""
            lines.append(f"{name} against the best peer, {group}: {groups[group]:.3f}{note}")
    return lines


def host_lines(columns: Columns, found: Mapping[str, Mapping[str, float | str]]) -> list[str]:
    """Microseconds of an eager call in each grad mode; errors follow the table."""
    ratios = columns.ours if "fa4" in columns.peers else ()
    names = [*columns.all, *(f"{name}/fa4" for name in ratios)]
    lines = [f"{'us a call':<14}" + "".join(f" {name:>{WIDTH}}" for name in names)]
    for mode, times in found.items():
        values = [(_number(times.get(name)), 1) for name in columns.all]
        values += [(_quotient(times, name, "fa4"), 3) for name in ratios]
        cells = [f" {_cell(v, digits):>{max(WIDTH, len(n))}}" for n, (v, digits) in zip(names, values, strict=True)]
        lines.append(f"{mode:<14}" + "".join(cells))
    errors = {(name, value) for times in found.values() for name, value in times.items() if isinstance(value, str)}
    return lines + [f"{name} failed: {error}" for name, error in sorted(errors)]


def _number(value: float | str | None) -> float | None:
    return None if isinstance(value, str) else value


def _quotient(times: Mapping[str, float | str], name: str, other: str) -> float | None:
    a, b = _number(times.get(name)), _number(times.get(other))
    return a / b if a is not None and b is not None else None


# --- JSON


def record(columns: Columns, row: Row) -> dict[str, Any]:
    shape = row.shape
    return {
        "kind": "shape",
        **{field: getattr(shape, field) for field in ("dtype", "head_dim", "mask", "batch", "seqlen", "heads")},
        "ms": dict(row.times.ms),
        "tflops": {name: shape.tflops(ms) for name, ms in row.times.ms.items()},
        "ratio": {name: columns.ratio(row, name) for name in columns.ours},
        "bound_tflops": dict(row.bounds),
        "errors": dict(row.times.errors),
        "clock_mhz": row.times.clock_mhz,
    }

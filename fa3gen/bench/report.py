"""Times as people and programs read them: lines as they come, tables of means, Markdown, JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fa3.choice import GENERAL, plan_label

from fa3gen.bench.shapes import Shape
from fa3gen.bench.timing import Times

WIDTH = 9  # of a column
BEST = "best"  # stands for the fastest peer
NORMAL = "normal"
ALL = "all"


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
    kind: str = NORMAL  # of data
    kernels: Mapping[str, str] = field(default_factory=dict)  # ours, by contender: which plan served the shape
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

    def ratio(self, row: Row, name: str, peer: str = BEST) -> float | None:
        """How many times as fast as a peer, or as the best; None where one of the two has no time."""
        mine = row.times.ms.get(name)
        wanted = self.peers if peer == BEST else (peer,)
        theirs = [row.times.ms[peer] for peer in wanted if peer in row.times.ms]
        return min(theirs) / mine if mine is not None and theirs else None


@dataclass(frozen=True, slots=True)
class Result:
    """All rows of a run."""

    columns: Columns
    rows: Sequence[Row]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.kind for row in self.rows))

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.shape.group for row in self.rows))

    def slowdown(self, row: Row, name: str) -> float | None:
        """The time over that with normal data; None for normal data, and where there is no such time."""
        if row.kind == NORMAL:
            return None
        mine = row.times.ms.get(name)
        normal = next((r.times.ms.get(name) for r in self.rows if r.shape == row.shape and r.kind == NORMAL), None)
        return mine / normal if mine is not None and normal is not None else None

    def means(self, kind: str) -> dict[str, dict[str, dict[str, float]]]:
        """Geometric means of the ratios: by contender, group (and ``all``), and peer (and ``best``)."""
        rows = [row for row in self.rows if row.kind == kind]
        found: dict[str, dict[str, dict[str, float]]] = {}
        for name in self.columns.ours:
            by_group = {}
            for group in (*self.groups, ALL):
                of_group = [row for row in rows if group in (ALL, row.shape.group)]
                ratios = {p: [self.columns.ratio(r, name, p) for r in of_group] for p in (BEST, *self.columns.peers)}
                by_group[group] = {p: geomean(r for r in rs if r is not None) for p, rs in ratios.items() if any(rs)}
            found[name] = {group: values for group, values in by_group.items() if values}
        return found

    def slowdowns(self, kind: str) -> dict[str, dict[str, float]]:
        """Geometric means of the slowdowns: by contender, and group (and ``all``)."""
        found: dict[str, dict[str, float]] = {}
        for name in self.columns.ours:
            for group in (*self.groups, ALL):
                rows = [row for row in self.rows if row.kind == kind and group in (ALL, row.shape.group)]
                ratios = [ratio for row in rows if (ratio := self.slowdown(row, name)) is not None]
                if ratios:
                    found.setdefault(name, {})[group] = geomean(ratios)
        return found

    def compared(self, kind: str, name: str) -> tuple[int, int]:
        """How many shapes have a ratio to the best peer, and how many there are."""
        rows = [row for row in self.rows if row.kind == kind]
        return sum(self.columns.ratio(row, name) is not None for row in rows), len(rows)


# --- lines as the times come


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of the table that is printed while the bench runs."""

    columns: Columns
    label: int  # its width
    kinds: tuple[str, ...]
    metered: bool

    @classmethod
    def of(cls, columns: Columns, shapes: Iterable[Shape], kinds: Sequence[str], metered: bool) -> Layout:
        return cls(columns, max([5, *(len(shape.label) for shape in shapes)]), tuple(kinds), metered)

    @property
    def names(self) -> list[str]:
        ours = self.columns.ours
        names = [*self.columns.all, *(f"{name}/best" for name in ours if self.columns.peers)]
        names += [f"{name}/normal" for name in ours if self._compares]
        names += [f"{name}/bound" for name in ours if self.metered]
        return names + ["MHz", "W"] * self.metered

    @property
    def _compares(self) -> bool:
        return NORMAL in self.kinds and len(self.kinds) > 1

    def heading(self, group: str) -> str:
        """What goes above the lines of a group."""
        title = f"{group}, TFLOP/s"
        if self.metered:
            title += "; /bound: share of what the budget allows at the clock"
        if self._compares:
            title += "; /normal: time over that with normal data"
        return f"{title}\n{'shape':<{self.label}}{self._kind('data')}" + self._line(self.names)

    def line(self, result: Result, row: Row) -> str:
        """Figures in the order of the heading; behind them the plan that served, where it is not the general one."""
        ours, columns = self.columns.ours, self.columns
        cells = [cell(row.tflops(name), 0) for name in columns.all]
        cells += [cell(columns.ratio(row, name), 3) for name in ours if columns.peers]
        cells += [cell(result.slowdown(row, name), 3) for name in ours if self._compares]
        if self.metered:
            cells += [cell(row.share(name), 2) for name in ours]
            clocks = [row.times.clock_mhz[name] for name in ours if name in row.times.clock_mhz]
            cells += [cell(clocks[0] if clocks else None, 0), cell(row.times.power_w, 0)]
        plans = [f"  {name}: {plan_label(row.kernels[name])}" for name in ours if _further(row, name)]
        return f"{row.shape.label:<{self.label}}{self._kind(row.kind)}" + self._line(cells) + "".join(plans)

    def _kind(self, kind: str) -> str:
        return f" {kind:<8}" if len(self.kinds) > 1 else ""

    def _line(self, cells: Sequence[str]) -> str:
        return "".join(f" {c:>{max(WIDTH, len(name))}}" for c, name in zip(cells, self.names, strict=True))


def cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


# --- tables of means

Table = list[list[str]]


def mean_tables(result: Result) -> list[tuple[str, Table]]:
    """A title and a table, whose first row is its head, for each of ours and each kind of data."""
    found = []
    for kind in result.kinds:
        for name, groups in result.means(kind).items():
            if not groups:
                continue
            counted, total = result.compared(kind, name)
            title = f"{name}, how many times as fast with {kind} data ({counted} of {total} shapes)"
            slow = result.slowdowns(kind).get(name, {})
            peers = [BEST, *(peer for peer in result.columns.peers if peer in groups[ALL])]
            head = ["geometric mean", *(f"{peer} peer" if peer == BEST else peer for peer in peers)]
            table = [head + ["time/normal"] * bool(slow)]
            for group, values in groups.items():
                cells = [cell(values.get(peer), 3) for peer in peers]
                table.append([group, *cells, *[cell(slow.get(group), 3)] * bool(slow)])
            found.append((title, table))
    found += _slow_alone(result)
    return found


def _slow_alone(result: Result) -> list[tuple[str, Table]]:
    """Slowdowns where there is no peer to compare with."""
    if result.columns.peers:
        return []
    return [
        (f"{name}, time with {kind} data over normal", [["geometric mean", "time/normal"], *_pairs(groups)])
        for kind in result.kinds
        for name, groups in result.slowdowns(kind).items()
    ]


def _pairs(groups: Mapping[str, float]) -> Table:
    return [[group, cell(value, 3)] for group, value in groups.items()]


def shape_tables(result: Result) -> list[tuple[str, Table]]:
    """A title and a table, whose first row is its head, for each group: TFLOP/s of each shape."""
    columns, kinds = result.columns, result.kinds
    compares = NORMAL in kinds and len(kinds) > 1
    found = []
    for group in result.groups:
        head = ["shape", *["data"] * (len(kinds) > 1), *columns.all]
        head += [f"{name} / best" for name in columns.ours if columns.peers]
        head += [f"{name}: time / normal" for name in columns.ours if compares]
        rows = [row for row in result.rows if row.shape.group == group]
        bounded = [name for name in columns.ours if any(row.share(name) is not None for row in rows)]
        planned = [name for name in columns.ours if any(_further(row, name) for row in rows)]
        head += [*(f"{name} / bound" for name in bounded), *(f"{name}: plan" for name in planned)]
        table = [head]
        for row in rows:
            cells = [row.shape.label, *[row.kind] * (len(kinds) > 1)]
            cells += [cell(row.tflops(name), 0) for name in columns.all]
            cells += [cell(columns.ratio(row, name), 3) for name in columns.ours if columns.peers]
            cells += [cell(result.slowdown(row, name), 3) for name in columns.ours if compares]
            cells += [cell(row.share(name), 2) for name in bounded]
            cells += [plan_label(row.kernels[name]) if name in row.kernels else "-" for name in planned]
            table.append(cells)
        found.append((f"{group}, TFLOP/s", table))
    return found


def _further(row: Row, name: str) -> bool:
    """Whether a plan for some sizes only served the shape."""
    return name in row.kernels and plan_label(row.kernels[name]) not in (GENERAL, name)


def summary(result: Result) -> list[str]:
    """The tables of means as text."""
    lines: list[str] = []
    for title, table in mean_tables(result):
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines += ["", title]
        for first, *rest in table:
            numbers = "".join(f"  {c:>{max(WIDTH, w)}}" for c, w in zip(rest, widths[1:], strict=True))
            lines.append(f"{first:<{widths[0]}}{numbers}")
    return lines[1:]


def markdown(result: Result, machine: str) -> str:
    """Tables for a README: the means, then every shape."""
    parts = [f"{machine}."]
    for title, table in (*mean_tables(result), *shape_tables(result)):
        rule = ["---", *["---:"] * (len(table[0]) - 1)]
        lines = [f"| {' | '.join(cells)} |" for cells in (table[0], rule, *table[1:])]
        parts.append("\n".join((f"{title}:", "", *lines)))
    return "\n\n".join(parts) + "\n"


# --- the host's part


def host_lines(columns: Columns, found: Mapping[str, Mapping[str, float | str]]) -> list[str]:
    """Microseconds of an eager call in each grad mode; errors follow the table."""
    ratios = columns.ours if "fa4" in columns.peers else ()
    names = [*columns.all, *(f"{name}/fa4" for name in ratios)]
    lines = [f"{'us a call':<14}" + "".join(f" {name:>{WIDTH}}" for name in names)]
    for mode, times in found.items():
        values = [(_number(times.get(name)), 1) for name in columns.all]
        values += [(_quotient(times, name, "fa4"), 3) for name in ratios]
        cells = [f" {cell(v, digits):>{max(WIDTH, len(n))}}" for n, (v, digits) in zip(names, values, strict=True)]
        lines.append(f"{mode:<14}" + "".join(cells))
    errors = {(name, value) for times in found.values() for name, value in times.items() if isinstance(value, str)}
    return lines + [f"{name} failed: {error}" for name, error in sorted(errors)]


def _number(value: float | str | None) -> float | None:
    return None if isinstance(value, str) else value


def _quotient(times: Mapping[str, float | str], name: str, other: str) -> float | None:
    a, b = _number(times.get(name)), _number(times.get(other))
    return a / b if a is not None and b is not None else None


# --- JSON


def record(result: Result, row: Row) -> dict[str, Any]:
    """Everything of a row."""
    shape, times = row.shape, row.times
    return {
        "kind": "shape",
        "group": shape.group,
        "label": shape.label,
        **asdict(shape),
        "data": row.kind,
        "ms": dict(times.ms),
        "samples_ms": {name: list(samples) for name, samples in times.samples.items()},
        "tflops": {name: shape.tflops(ms) for name, ms in times.ms.items()},
        "ratio": {name: result.columns.ratio(row, name) for name in result.columns.ours},
        "slowdown": {name: result.slowdown(row, name) for name in result.columns.ours},
        "kernels": dict(row.kernels),
        "bound_tflops": dict(row.bounds),
        "errors": dict(times.errors),
        "unsupported": dict(times.unsupported),
        "clock_mhz": dict(times.clock_mhz),
        "power_w": times.power_w,
    }


def summary_record(result: Result) -> dict[str, Any]:
    """The means by kind of data."""
    return {
        "kind": "summary",
        "geomean": {kind: result.means(kind) for kind in result.kinds},
        "slowdown": {kind: result.slowdowns(kind) for kind in result.kinds if kind != NORMAL},
    }

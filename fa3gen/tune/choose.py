"""From times to plans: of each variant the best plan in general, and others for lengths at which they are faster."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from fa3gen.arch import ARCHS
from fa3gen.arch.budget import Call, milliseconds
from fa3gen.bench.shapes import Shape
from fa3gen.model import ForwardPlan, parse_name
from fa3gen.plan import PLAN_FIELDS, resolve
from fa3gen.tune.record import Check, Records, Time

#: By how much another plan must be faster than the present one to replace it in general: less is noise.
KEEP = 0.01
#: By how much another plan must be faster, at every length of a range, to have the range.
GAIN = 0.02
#: Ranges of a variant at most: each is one more kernel in a bundle.
RANGES = 2


@dataclass(frozen=True)
class Tried:
    """A candidate, with its times by seqlen; none where its results are wrong."""

    check: Check
    times: Mapping[int, Time]

    @property
    def name(self) -> str:
        return self.check.candidate

    @property
    def plan(self) -> ForwardPlan:
        values = {name: value for name, value in self.check.plan.items() if name in PLAN_FIELDS}
        return resolve(parse_name(self.check.variant), values)


@dataclass(frozen=True)
class Range:
    """Lengths at which ``chosen`` is faster; None: no bound on that side."""

    chosen: Tried
    least: int | None
    greatest: int | None

    def holds(self, seqlen: int) -> bool:
        return (self.least or 0) <= seqlen and (self.greatest is None or seqlen <= self.greatest)


@dataclass(frozen=True)
class Decision:
    variant: str
    seqlens: tuple[int, ...]
    tried: tuple[Tried, ...]  # the fastest first, those without all times behind, the wrong ones last
    general: Tried
    ranges: tuple[Range, ...]  # in the order in which a call is held against them

    def at(self, seqlen: int) -> Tried:
        """The plan of a call."""
        return next((r.chosen for r in self.ranges if r.holds(seqlen)), self.general)

    @property
    def changed(self) -> bool:
        return self.general.name != self.variant or bool(self.ranges)


def decide(records: Records) -> list[Decision]:
    """A decision for each variant of which a candidate has all times."""
    variants = sorted({check.variant for check in records.checks.values()})
    return [found for variant in variants for found in [_decide(variant, records)] if found is not None]


def speed(tried: Tried, seqlens: Sequence[int], relative: bool) -> float:
    """The geometric mean of TFLOP/s, or of the ratios to the present plan."""
    return geometric_mean(_speed(tried.times[seqlen], relative) for seqlen in seqlens)


def predicted(tried: Tried, seqlen: int, clock_mhz: float) -> float:
    """TFLOP/s that the budget allows at most on the shape of this length."""
    shape, plan = tried.times[seqlen].shape, tried.plan
    call = Call(shape.batch, shape.heads_q, shape.seqlen_q, shape.seqlen_k)
    budget = ARCHS[plan.variant.arch].budget(plan)
    return shape.tflops(milliseconds(plan, budget, call, clock_mhz=clock_mhz))


def clock_of(decision: Decision) -> float | None:
    """The median of the SM clocks that were read."""
    clocks = [time.clock_mhz for tried in decision.tried for time in tried.times.values() if time.clock_mhz]
    return statistics.median(clocks) if clocks else None


def _decide(variant: str, records: Records) -> Decision | None:
    checks = [check for check in records.checks.values() if check.variant == variant]
    tried = [Tried(check, {} if check.problems else _times(check, records)) for check in checks]
    seqlens = tuple(sorted({seqlen for one in tried for seqlen in one.times}))
    complete = [one for one in tried if seqlens and set(one.times) == set(seqlens)]
    if not complete:
        return None
    relative = all(time.ratio is not None for one in complete for time in one.times.values())
    ordered = sorted(complete, key=lambda one: speed(one, seqlens, relative), reverse=True)
    general = ordered[0]
    present = next((one for one in complete if one.name == variant), None)
    if present is not None:
        gained = speed(general, seqlens, relative) / speed(present, seqlens, relative) - 1
        general = general if gained > KEEP else present
    rest = sorted((one for one in tried if one not in complete), key=lambda one: (bool(one.check.problems), one.name))
    ranges = _ranges(ordered, general, seqlens, relative)
    return Decision(variant, seqlens, (*ordered, *rest), general, tuple(ranges))


def _times(check: Check, records: Records) -> dict[int, Time]:
    """By seqlen; of several shapes of one length the one with most tokens."""
    mine = [time for (name, _), time in records.times.items() if name == check.candidate]
    return {time.shape.seqlen_k: time for time in sorted(mine, key=lambda time: _tokens(time.shape))}


def _tokens(shape: Shape) -> int:
    return shape.batch * shape.seqlen_q


def _speed(time: Time, relative: bool) -> float:
    return time.ratio if relative and time.ratio is not None else time.tflops


def _ranges(complete: Sequence[Tried], general: Tried, seqlens: Sequence[int], relative: bool) -> list[Range]:
    """Up to :data:`RANGES` ranges, the one that gains most first; each only over lengths that none has yet."""
    found: list[Range] = []
    while len(found) < RANGES:
        taken = {seqlen for seqlen in seqlens for r in found if r.holds(seqlen)}
        options = [
            (gain, first, last, one)
            for one in complete
            for gain, first, last in _runs(one, general, seqlens, taken, relative)
        ]
        if not options:
            break
        _, first, last, one = max(options, key=lambda option: option[0])
        least = None if first == 0 else seqlens[first]
        greatest = None if last == len(seqlens) - 1 else seqlens[last]
        if least is None and greatest is None:
            break  # faster everywhere, which `general` would be, but for lengths that it lacks
        found.append(Range(one, least, greatest))
    return found


def _runs(
    one: Tried, general: Tried, seqlens: Sequence[int], taken: set[int], relative: bool
) -> Iterator[tuple[float, int, int]]:
    """(gain, first, last) of the longest ranges, by index, over which ``one`` beats ``general`` at every length."""
    run: list[float] = []
    for index, seqlen in enumerate([*seqlens, None]):
        ratio = 0.0
        if seqlen is not None and seqlen not in taken:
            ratio = _speed(one.times[seqlen], relative) / _speed(general.times[seqlen], relative)
        if ratio > 1 + GAIN:
            run.append(ratio)
        elif run:
            yield geometric_mean(run) ** len(run), index - len(run), index - 1
            run = []


# --- the table


def table(decision: Decision, clock_mhz: float) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What was tried: header and rows, TFLOP/s by seqlen, the losers too."""
    header = ("CANDIDATE", "BOUND", *map(str, decision.seqlens), "OF PRESENT", "")
    rows = [_row(decision, tried, clock_mhz) for tried in decision.tried]
    return header, [*rows, *_peer_rows(decision)]


def _peer_rows(decision: Decision) -> list[tuple[str, ...]]:
    """The others in the same rotations: medians, as each was timed in several."""
    times = [time for tried in decision.tried for time in tried.times.values()]
    rows = []
    for name in sorted({name for time in times for name in time.peers}):
        cells = []
        for seqlen in decision.seqlens:
            found = [t.shape.tflops(t.peers[name]) for t in times if t.shape.seqlen_k == seqlen and name in t.peers]
            cells.append(f"{statistics.median(found):.0f}" if found else "-")
        rows.append((name, "-", *cells, "-", "another implementation"))
    return rows


def _row(decision: Decision, tried: Tried, clock_mhz: float) -> tuple[str, ...]:
    cells = [f"{tried.times[s].tflops:.0f}" if s in tried.times else "-" for s in decision.seqlens]
    longest = max(tried.times, default=None)
    bound = "-" if longest is None else f"{predicted(tried, longest, clock_mhz):.0f} {_binding(tried)}"
    ratios = [time.ratio for time in tried.times.values() if time.ratio is not None]
    mean = f"{geometric_mean(ratios):.3f}" if ratios and len(tried.times) == len(decision.seqlens) else "-"
    return (tried.name, bound, *cells, mean, "; ".join(_notes(decision, tried)))


def _binding(tried: Tried) -> str:
    return ARCHS[tried.plan.variant.arch].budget(tried.plan).binding


def _notes(decision: Decision, tried: Tried) -> list[str]:
    notes = ["now"] if tried.name == decision.variant else []
    notes += ["chosen"] if tried is decision.general else []
    notes += [f"chosen for {spelled(bounds(r))}" for r in decision.ranges if r.chosen is tried]
    return notes + list(tried.check.problems[:1])


def bounds(found: Range) -> dict[str, int]:
    """The range as a rule's ``when`` spells it."""
    values = {"min_seqlen_k": found.least, "max_seqlen_k": found.greatest}
    return {name: value for name, value in values.items() if value is not None}


def spelled(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in values.items())

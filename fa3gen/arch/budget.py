"""What a kernel needs of an SM at least: clocks of each unit for a step of the mainloop, and for a whole call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa3gen.model import ForwardPlan

#: SMs of an H100 or H200 (SXM).
SMS = 132
#: The SM clock that predictions are for where none is known, in MHz: what an H200 keeps without its power limit.
CLOCK_MHZ = 1755.0


@dataclass(frozen=True)
class Budget:
    """A step: tile_m x tile_n scores of the mainloop, none of them masked."""

    clocks: Mapping[str, float]  # of each unit, if it alone counted
    instructions: Mapping[str, int]  # of a warp, by kind
    flops: float

    @property
    def binding(self) -> str:
        """The unit that needs most."""
        return max(self.clocks, key=self.clocks.__getitem__)

    @property
    def predicted(self) -> float:
        """Clocks of a step at the least."""
        return self.clocks[self.binding]

    @property
    def issue_slots(self) -> int:
        """Instructions of a warp."""
        return sum(self.instructions.values())

    def tflops(self, clock_mhz: float = CLOCK_MHZ, sms: int = SMS) -> float:
        """At most, where every SM does nothing but such steps."""
        return self.flops / self.predicted * clock_mhz * 1e6 * sms / 1e12


@dataclass(frozen=True)
class Call:
    """A whole call: (batch, heads) problems of seqlen_q rows over seqlen_k keys."""

    batch: int
    heads: int
    seqlen_q: int
    seqlen_k: int


def milliseconds(
    plan: ForwardPlan, budget: Budget, call: Call, *, clock_mhz: float = CLOCK_MHZ, sms: int = SMS
) -> float:
    """How long ``call`` takes at least: its tiles on ``sms`` SMs, a tile on one of them, each step as predicted."""
    return _spread(_tile_steps(plan, call), call.batch * call.heads, sms) * budget.predicted / clock_mhz / 1e3


def _tile_steps(plan: ForwardPlan, call: Call) -> list[float]:
    """Steps of each tile of a head, most first; a warpgroup takes part in those that its rows see."""
    found = []
    rows = plan.tile_m // plan.warpgroups
    for first in range(0, call.seqlen_q, plan.tile_m):
        starts = range(first, min(first + plan.tile_m, call.seqlen_q), rows)
        steps = sum(-(-_visible(plan, call, min(start + rows, call.seqlen_q)) // plan.tile_n) for start in starts)
        found.append(steps / plan.warpgroups)
    return sorted(found, reverse=True)


def _visible(plan: ForwardPlan, call: Call, row_end: int) -> int:
    """Keys that the rows before ``row_end`` see."""
    return min(max(row_end + call.seqlen_k - call.seqlen_q, 0), call.seqlen_k) if plan.variant.causal else call.seqlen_k


def _spread(tiles: Sequence[float], times: int, sms: int) -> float:
    """Steps of the busiest SM at the least, of ``tiles`` (most first) that are there ``times`` times each.

    The mean; and, for every k, some SM has k + 1 of the k * sms + 1 longest tiles.
    """
    count = len(tiles) * times
    mean = sum(tiles) * times / sms
    return max([mean, *((k // sms + 1) * tiles[k // times] for k in range(0, count, sms))])

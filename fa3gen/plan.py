"""How a variant is computed: tiles, stages, registers, scheduler; chosen with reasons and checked against the hardware's limits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from fa3gen.model import Variant


class Scheduler(str, Enum):
    STATIC = "static"  # one tile a CTA
    DYNAMIC = "dynamic"  # persistent CTAs that draw tiles from an atomic counter


class Softmax(str, Enum):
    EXACT = "exact"  # O is rescaled in every step
    LAZY = "lazy"  # O is rescaled only when a row maximum of the warp grew by more than 2^8


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """The plan of a ``fwd`` kernel."""

    variant: Variant
    tile_m: int  # query rows of a CTA: 64 per consumer warpgroup
    tile_n: int  # keys of a step
    stages: int  # K and V blocks in flight
    q_stages: int  # Q tiles in shared memory; O is staged over its own Q
    producer_regs: int
    consumer_regs: int
    scheduler: Scheduler
    softmax: Softmax
    pin_pv_wait: bool  # keep the exponentials above the wait for PV (ptxas hoists that wait over arithmetic)
    reasons: tuple[str, ...] = ()

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups, 64 rows each."""
        return self.tile_m // 64

    @property
    def threads(self) -> int:
        return 128 * (self.warpgroups + 1)

    @property
    def name(self) -> str:
        return self.variant.name

    def to_json(self) -> dict[str, Any]:
        """Plan fields as plain JSON types, for the manifest."""
        out: dict[str, Any] = {}
        for f in fields(self):
            if f.name != "variant":
                value = getattr(self, f.name)
                out[f.name] = value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value
        return out

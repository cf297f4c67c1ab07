"""Forward attention: a producer warpgroup, and consumer warpgroups of 64 query rows each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from fa3gen.axes import AxisValue, spelled
from fa3gen.model import Arch, DType, Family, ForwardPlan, HeadDim, Layout, Mask, Scheduler, Softmax, Variant

#: The values of each axis that the family has; any combination works.
SUPPORTED: dict[str, tuple[AxisValue, ...]] = {
    "dtype": (DType.BF16, DType.FP16),
    "head_dim": (
        HeadDim(64, 64),
        HeadDim(96, 96),
        HeadDim(128, 128),
        HeadDim(192, 192),
        HeadDim(256, 256),
        HeadDim(192, 128),
        HeadDim(64, 256),
    ),
    "mask": (Mask.FULL, Mask.CAUSAL),
    "layout": (Layout.DENSE,),
    "features": ((),),
}

_NEXT_Q = "the next tile's Q loads while this one is worked on"
_POWER = "no faster: the card is at its power limit, and less waiting is a lower clock"
_UNMEASURED = "no measurement speaks for it"
_THREE_CONSUMERS = "32 + 3 x 160 = 512 of the 4 x 128 registers a lane that the CTA is launched with"
_TWO_CONSUMERS = "24 + 2 x 240 = 504 of the 3 x 168 registers a lane that the CTA is launched with"

#: Plan fields with their reasons, by head dim.
_DEFAULTS: dict[HeadDim, dict[str, tuple[int | bool, str]]] = {
    HeadDim(64, 64): {
        "tile_m": (192, "O takes only 32 registers a thread, so three consumer warpgroups fit and share K and V"),
        "tile_n": (128, "S, P and O take 128 registers, all that are usable; 144 would take 140"),
        "stages": (2, "the next block loads while one is worked on"),
        "q_stages": (2, _NEXT_Q),
        "producer_regs": (32, "three consumers at 160 leave no more"),
        "consumer_regs": (160, _THREE_CONSUMERS),
        "pin_pv_wait": (True, "3 % faster; without it ptxas moves the wait for PV above the exponentials"),
        "overlap_tiles": (False, _POWER),
    },
    HeadDim(96, 96): {
        "tile_m": (192, "O takes only 48 registers a thread, so three consumer warpgroups fit and share K and V"),
        "tile_n": (96, "S, P and O take 120 registers, and 128 are usable; 112 would take 132"),
        "stages": (3, "three stages of K and V and two Q tiles take 180 KB"),
        "q_stages": (2, _NEXT_Q),
        "producer_regs": (32, "three consumers at 160 leave no more"),
        "consumer_regs": (160, _THREE_CONSUMERS),
        "pin_pv_wait": (False, _UNMEASURED),
        "overlap_tiles": (False, _UNMEASURED),
    },
    HeadDim(128, 128): {
        "tile_m": (128, "S, P and O take 160 registers a thread; three consumer warpgroups would have 128 to use"),
        "tile_n": (128, "two stages of K and V and two Q tiles take 192 KB"),
        "stages": (2, "3 would need 256 KB"),
        "q_stages": (2, _NEXT_Q),
        "producer_regs": (24, "the least that setmaxnreg gives"),
        "consumer_regs": (240, _TWO_CONSUMERS),
        "pin_pv_wait": (False, "the pin costs 6 % here"),
        "overlap_tiles": (False, _POWER),
    },
    HeadDim(192, 192): {
        "tile_m": (128, "O takes 96 registers a thread; three consumer warpgroups would have 128 to use"),
        "tile_n": (112, "two stages of K and V and a Q tile take 216 KB; 128 would need 240 KB"),
        "stages": (2, "3 would need 300 KB"),
        "q_stages": (1, "2 would need 264 KB"),
        "producer_regs": (24, "the least that setmaxnreg gives"),
        "consumer_regs": (240, _TWO_CONSUMERS),
        "pin_pv_wait": (False, _UNMEASURED),
        "overlap_tiles": (False, _UNMEASURED),
    },
    HeadDim(192, 128): {
        "tile_m": (128, "S, P and O take 160 registers a thread; three consumer warpgroups would have 128 to use"),
        "tile_n": (128, "two stages of K and V and a Q tile take 208 KB; 144 would need 228 KB"),
        "stages": (2, "3 would need 288 KB"),
        "q_stages": (1, "2 would need 256 KB"),
        "producer_regs": (24, "the least that setmaxnreg gives"),
        "consumer_regs": (240, _TWO_CONSUMERS),
        "pin_pv_wait": (False, _UNMEASURED),
        "overlap_tiles": (False, _UNMEASURED),
    },
    HeadDim(64, 256): {
        "tile_m": (128, "O alone takes 128 registers a thread, all that three consumer warpgroups could use"),
        "tile_n": (96, "S, P and O take 200 registers a thread, and 216 are usable; 112 would take 212"),
        "stages": (2, "the next block loads while one is worked on"),
        "q_stages": (2, _NEXT_Q),
        "producer_regs": (24, "the least that setmaxnreg gives"),
        "consumer_regs": (240, _TWO_CONSUMERS),
        "pin_pv_wait": (False, _UNMEASURED),
        "overlap_tiles": (False, _UNMEASURED),
    },
    HeadDim(256, 256): {
        "tile_m": (128, "O alone takes 128 registers a thread, all that three consumer warpgroups could use"),
        "tile_n": (80, "96 would need 256 KB"),
        "stages": (2, "3 would need 304 KB"),
        "q_stages": (1, "2 would need 288 KB"),
        "producer_regs": (24, "the least that setmaxnreg gives"),
        "consumer_regs": (240, _TWO_CONSUMERS),
        "pin_pv_wait": (False, "no measurement speaks for the pin"),
        "overlap_tiles": (False, _POWER),
    },
}

_EVERYWHERE: dict[str, tuple[int | Scheduler | Softmax, str]] = {
    "scheduler": (
        Scheduler.DYNAMIC,
        "persistent CTAs load a tile while they work on the one before, and share uneven work",
    ),
    "softmax": (Softmax.OPTIMISTIC, "1.12 to 1.16 times as fast as exact at head_dim 64 and 128 (docs/tried.md)"),
}


def variants(arch: Arch) -> Iterator[Variant]:
    """Every variant that the family supports on ``arch``."""
    for combination in product(*SUPPORTED.values()):
        values: dict[str, Any] = dict(zip(SUPPORTED, combination, strict=True))
        yield Variant(family=Family.FWD, arch=arch, **values)


def supports(variant: Variant) -> str | None:
    """Why the family cannot do ``variant``; ``None`` where it can."""
    for axis, values in SUPPORTED.items():
        value = getattr(variant, axis)
        if value not in values:
            return f"{axis} {spelled(value)}: {variant.family.value} has {', '.join(map(spelled, values))}"
    return None


def default_plan(variant: Variant) -> ForwardPlan:
    """The plan of a supported variant that no rule is tuned for, with reasons."""
    chosen = {**_DEFAULTS[variant.head_dim], **_EVERYWHERE}
    values: dict[str, Any] = {name: value for name, (value, _) in chosen.items()}
    reasons = tuple(f"{name} {spelled(value)}: {why}" for name, (value, why) in chosen.items())
    return ForwardPlan(variant=variant, reasons=reasons, **values)

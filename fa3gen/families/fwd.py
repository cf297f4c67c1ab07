"""Forward attention: a producer warpgroup, and consumer warpgroups of 64 query rows each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from fa3gen.model import Arch, DType, Family, ForwardPlan, HeadDim, Layout, Mask, Scheduler, Softmax, Variant

DTYPES = (DType.BF16, DType.FP16)
HEAD_DIMS = (HeadDim(64, 64), HeadDim(128, 128), HeadDim(256, 256))
MASKS = (Mask.FULL, Mask.CAUSAL)
LAYOUTS = (Layout.DENSE,)

_SCHEDULER_REASON = (
    "scheduler dynamic: persistent CTAs overlap a tile's store with the next one's loads, in any mix of work"
)
_SOFTMAX_REASON = "softmax exact: no measurement speaks for another"

#: Plan fields and reasons by head dim.
_DEFAULTS: dict[HeadDim, tuple[dict[str, int | bool], tuple[str, ...]]] = {
    HeadDim(64, 64): (
        {
            "tile_m": 192,
            "tile_n": 128,
            "stages": 2,
            "q_stages": 2,
            "producer_regs": 32,
            "consumer_regs": 160,
            "pin_pv_wait": True,
        },
        (
            "tile_m 192: O takes only 32 registers a thread, so three consumer warpgroups fit and share K and V",
            "tile_n 128: S, P and O fill the 128 usable of 160 registers; 144 would need 140",
            "stages 2: the next block loads while one is worked on",
            "q_stages 2: the next tile's Q loads while this one's O is stored",
            "consumer_regs 160: 32 + 3 x 160 is what four warpgroups are launched with",
            "pin_pv_wait true: without it ptxas waits for PV before the exponentials and the tensor cores idle",
        ),
    ),
    HeadDim(128, 128): (
        {
            "tile_m": 128,
            "tile_n": 128,
            "stages": 2,
            "q_stages": 2,
            "producer_regs": 24,
            "consumer_regs": 240,
            "pin_pv_wait": False,
        },
        (
            "tile_m 128: S, P and O take 160 registers a thread; three consumer warpgroups would have 128 to use",
            "tile_n 128: two stages of K and V and two Q tiles are 192 KB",
            "stages 2: 3 would need 256 KB",
            "q_stages 2: the next tile's Q loads while this one's O is stored",
            "consumer_regs 240: 24 + 2 x 240 is what three warpgroups are launched with",
            "pin_pv_wait false: ptxas leaves the wait where it is",
        ),
    ),
    HeadDim(256, 256): (
        {
            "tile_m": 128,
            "tile_n": 80,
            "stages": 2,
            "q_stages": 1,
            "producer_regs": 24,
            "consumer_regs": 240,
            "pin_pv_wait": False,
        },
        (
            "tile_m 128: O takes 128 registers a thread, all that three consumer warpgroups would have",
            "tile_n 80: 96 would need 256 KB",
            "stages 2: 3 would need 304 KB",
            "q_stages 1: 2 would need 288 KB",
            "consumer_regs 240: 24 + 2 x 240 is what three warpgroups are launched with",
            "pin_pv_wait false: ptxas leaves the wait where it is",
        ),
    ),
}


def variants(arch: Arch) -> Iterator[Variant]:
    """Every variant that the family supports on ``arch``."""
    for dtype, head_dim, mask, layout in product(DTYPES, HEAD_DIMS, MASKS, LAYOUTS):
        yield Variant(Family.FWD, arch, dtype, head_dim, mask, layout)


def supports(variant: Variant) -> str | None:
    """Why the family cannot do ``variant``; ``None`` where it can."""
    if variant.dtype not in DTYPES:
        return f"dtype {variant.dtype.value}: fwd takes {_spelled(DTYPES)}"
    if variant.head_dim not in HEAD_DIMS:
        return f"head_dim {variant.head_dim}: fwd has {', '.join(map(str, HEAD_DIMS))}"
    if variant.mask not in MASKS:
        return f"mask {variant.mask.value}: fwd has {_spelled(MASKS)}"
    if variant.layout not in LAYOUTS:
        return f"layout {variant.layout.value}: fwd reads {_spelled(LAYOUTS)}"
    if variant.features:
        return f"features {'+'.join(variant.features)}: fwd has none"
    return None


def default_plan(variant: Variant) -> ForwardPlan:
    """The plan of a supported variant that no rule is tuned for, with reasons."""
    numbers, reasons = _DEFAULTS[variant.head_dim]
    return ForwardPlan(
        variant=variant,
        tile_m=numbers["tile_m"],
        tile_n=numbers["tile_n"],
        stages=numbers["stages"],
        q_stages=numbers["q_stages"],
        producer_regs=numbers["producer_regs"],
        consumer_regs=numbers["consumer_regs"],
        scheduler=Scheduler.DYNAMIC,
        softmax=Softmax.EXACT,
        pin_pv_wait=bool(numbers["pin_pv_wait"]),
        reasons=(*reasons, _SCHEDULER_REASON, _SOFTMAX_REASON),
    )


def _spelled(values: tuple[DType, ...] | tuple[Mask, ...] | tuple[Layout, ...]) -> str:
    return ", ".join(value.value for value in values)

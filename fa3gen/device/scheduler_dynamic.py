"""Scheduler: persistent CTAs that draw tiles from an atomic counter.  A CTA's first tile is its own number."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from fa3gen.device import index


@dataclass(frozen=True)
class Dynamic:
    """``tile_counter`` is one int32 in global memory, 0 before and after the launch."""

    num_tiles: Int32
    tile_counter: cute.Pointer


@cute.jit
def draw(scheduler: Dynamic, tile: Int32):
    """The tile after ``tile``, -1 where none is left; the load warp calls it, after -1 no more.

    The grid draws ``num_tiles`` times in all, once for each tile that was no CTA's first and once more for each CTA, so
    the counter ends at 0, ready for the next launch.
    """
    drawn = Int32(0)
    if cute.arch.lane_idx() == 0:
        drawn = _increment(scheduler.tile_counter.toint(), scheduler.num_tiles - 1)
    return index.later_tile(cute.arch.shuffle_sync(drawn, 0), cute.arch.grid_dim()[0], scheduler.num_tiles)


@dsl_user_op
def _increment(address: Int64, last: Int32, *, loc=None, ip=None) -> Int32:
    """What a counter in global memory held; then it holds one more, 0 after ``last``."""
    held = llvm.inline_asm(
        T.i32(),
        [Int64(address).ir_value(loc=loc, ip=ip), Int32(last).ir_value(loc=loc, ip=ip)],
        "atom.relaxed.gpu.global.inc.u32 $0, [$1], $2;",
        "=r,l,r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    return Int32(held)

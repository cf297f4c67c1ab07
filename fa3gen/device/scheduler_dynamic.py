"""Scheduler: persistent CTAs that draw tiles from an atomic counter.  A CTA's first tile is its own number."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

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
    the draw that yields ``num_tiles - 1`` is the last, and sets the counter back to 0 for the next launch.
    """
    drawn = Int32(0)
    if cute.arch.lane_idx() == 0:
        drawn = cute.arch.atomic_add(scheduler.tile_counter, Int32(1), sem="relaxed", scope="gpu")
        if drawn == scheduler.num_tiles - 1:
            cute.arch.store(scheduler.tile_counter, Int32(0), sem="relaxed", scope="gpu")
    return index.later_tile(cute.arch.shuffle_sync(drawn, 0), cute.arch.grid_dim()[0], scheduler.num_tiles)

"""Scheduler: persistent CTAs that draw tiles from an atomic counter.

A CTA's first tile is its own number.  Its load warp draws every further one and tells the other warps through two
message slots; a tile is a number, -1 ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, range_constexpr

SLOTS = 2
BARRIERS = 2 * SLOTS


@dataclass(frozen=True)
class Work:
    """``messages`` are int32 words in shared memory; ``full`` and ``empty`` point at an mbarrier a slot."""

    messages: cute.Tensor
    full: cute.Pointer
    empty: cute.Pointer
    num_tiles: Int32
    tile_counter: cute.Pointer


def make(messages, barriers, num_tiles, tile_counter) -> Work:
    return Work(messages, barriers, barriers + SLOTS, num_tiles, tile_counter)


@cute.jit
def init(work: Work, receivers: cutlass.Constexpr):
    """Sets up the barriers for so many receiving warps.  One thread calls it."""
    for i in range_constexpr(SLOTS):
        cute.arch.mbarrier_init(work.full + i, 1)
        cute.arch.mbarrier_init(work.empty + i, receivers)


@cute.jit
def draw(work: Work, count):
    """The next tile, which is also sent to the other warps; the load warp calls it, ``count`` times before.

    The grid draws ``num_tiles`` times in all, once for each tile that was no CTA's first and once more for each CTA, so
    the draw that yields ``num_tiles - 1`` is the last, and sets the counter back to 0 for the next launch.
    """
    drawn = Int32(0)
    if cute.arch.lane_idx() == 0:
        drawn = cute.arch.atomic_add(work.tile_counter, Int32(1), sem="relaxed", scope="gpu")
        if drawn == work.num_tiles - 1:
            cute.arch.store(work.tile_counter, Int32(0), sem="relaxed", scope="gpu")
    tile = cute.arch.shuffle_sync(drawn, 0) + cute.arch.grid_dim()[0]
    tile = tile if tile < work.num_tiles else Int32(-1)
    slot, lap = count & 1, count >> 1
    cute.arch.mbarrier_wait(work.empty + slot, (lap & 1) ^ 1)
    with cute.arch.elect_one():
        work.messages[slot] = tile
        cute.arch.mbarrier_arrive(work.full + slot)
    return tile


@cute.jit
def receive(work: Work, count):
    """The next tile; every warp but the load warp calls it, ``count`` times before."""
    slot, lap = count & 1, count >> 1
    cute.arch.mbarrier_wait(work.full + slot, lap & 1)
    tile = work.messages[slot]
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(work.empty + slot)
    return tile

"""The load warp tells the other warps which tile comes next: two slots of shared memory, guarded by mbarriers.

A message is the number of a tile, with :data:`index.AGAIN` added where the tile is to be computed again; -1 ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import range_constexpr

SLOTS = 2
BARRIERS = 2 * SLOTS


@dataclass(frozen=True)
class Messages:
    """``words`` are int32 in shared memory; ``full`` and ``empty`` point at an mbarrier a slot."""

    words: cute.Tensor
    full: cute.Pointer
    empty: cute.Pointer


def make(words: cute.Tensor, barriers: cute.Pointer) -> Messages:
    return Messages(words, barriers, barriers + SLOTS)


@cute.jit
def init(messages: Messages, receivers: cutlass.Constexpr):
    """Sets up the barriers for so many receiving warps.  One thread calls it."""
    for i in range_constexpr(SLOTS):
        cute.arch.mbarrier_init(messages.full + i, 1)
        cute.arch.mbarrier_init(messages.empty + i, receivers)


@cute.jit
def send(messages: Messages, count, tile):
    """Sends ``tile``; the load warp calls it, ``count`` times before."""
    slot, lap = count & 1, count >> 1
    cute.arch.mbarrier_wait(messages.empty + slot, (lap & 1) ^ 1)
    with cute.arch.elect_one():
        messages.words[slot] = tile
        cute.arch.mbarrier_arrive(messages.full + slot)


@cute.jit
def receive(messages: Messages, count):
    """The next tile; every warp but the load warp calls it, ``count`` times before."""
    slot, lap = count & 1, count >> 1
    cute.arch.mbarrier_wait(messages.full + slot, lap & 1)
    tile = messages.words[slot]
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(messages.empty + slot)
    return tile

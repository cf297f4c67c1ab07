"""Tiles that must be computed again: an int32 word for each slot of messages, -1 or the number of the tile that failed.

A consumer warp marks its tile before it gives the tile's message back; the load warp looks when it has the slot, so it
learns of every tile that failed.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32


@cute.jit
def mark(failed: cute.Tensor, slot, tile):
    """Says that ``tile`` failed; any warp calls it."""
    with cute.arch.elect_one():
        failed[slot] = tile


@cute.jit
def take(failed: cute.Tensor, slot):
    """The tile that failed in ``slot``, or -1, and forgets it; the load warp calls it, which has the slot."""
    tile = failed[slot]
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        failed[slot] = Int32(-1)
    return tile

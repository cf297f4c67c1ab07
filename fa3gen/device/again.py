"""Tiles that must be computed again: an int32 word for each stage of Q, -1 or the number of the tile that failed there.

A consumer warp marks the tile of its stage before it hands the stage's O over; the load warp looks when it has got the
stage back, so it learns of every tile that failed.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32

from fa3gen.device import cluster


@cute.jit
def mark(failed: cute.Tensor, stage, tile):
    """Says that ``tile`` failed; any warp calls it."""
    with cute.arch.elect_one():
        failed[stage] = tile


@cute.jit
def mark_in_cluster(failed: cute.Tensor, stage, tile):
    """As :func:`mark`, in CTA 0, whose load warp says what both do: what failed in one CTA is done again by both."""
    with cute.arch.elect_one():
        cluster.store(failed.iterator + stage, tile, 0)
        cute.arch.fence_acq_rel_cluster()  # it is there before what follows, a barrier and the store warp's arrival


@cute.jit
def take(failed: cute.Tensor, stage):
    """The tile that failed in ``stage``, or -1, and forgets it; the load warp calls it, which has the stage."""
    tile = failed[stage]
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        failed[stage] = Int32(-1)
    return tile

"""Clusters of two CTAs that share K and V: CTA 0 takes the first row tile of a pair, CTA 1 the second.

What one CTA does to the other's shared memory, at the place that the same pointer has in its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

CTAS = 2
BARRIERS = 2
_BARRIER_BYTES = 8
_MESSAGE_BYTES = 4


def rank():
    """Which of the cluster's CTAs this is."""
    return cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())


def other(rank):
    return rank ^ 1


def number():
    """Which cluster of the grid this is."""
    return cute.arch.cluster_idx()[0]


def sync() -> None:
    """Waits for every thread of the cluster, and sees what they wrote; all warps call it, none of them diverged."""
    cute.arch.cluster_arrive(aligned=True)
    cute.arch.cluster_wait()


@cute.jit
def arrive(barriers: cute.Pointer, i, thread):
    """Arrives at barrier ``i`` of both CTAs; a warp or more calls it, whose threads 0 and 1 do so, one for each CTA."""
    # not cute.arch.mbarrier_arrive: the address of the first barrier stays in a register, 4 instructions less a step
    first = cute.arch.map_dsmem_ptr(barriers, thread).toint()
    if thread < CTAS:
        text = "mbarrier.arrive.shared::cluster.b64 _, [{$r0}];"
        cute.arch.inline_ptx(text, read_only_args=[first + i * _BARRIER_BYTES])


def store(word: cute.Pointer, value, to) -> None:
    """Writes an int32 of CTA ``to``."""
    # cute.arch.store takes no pointer to another CTA
    text = "st.relaxed.cluster.shared::cluster.s32 [{$r0}], {$r1};"
    cute.arch.inline_ptx(text, read_only_args=[cute.arch.map_dsmem_ptr(word, to).toint(), Int32(value)])


@dataclass(frozen=True)
class Channel:
    """Tells CTA 1 what CTA 0 draws: an int32 word and its mbarrier ``full`` in CTA 1, ``empty`` in CTA 0."""

    word: cute.Pointer
    full: cute.Pointer
    empty: cute.Pointer


def make_channel(word: cute.Pointer, barriers: cute.Pointer) -> Channel:
    return Channel(word, barriers, barriers + 1)


@cute.jit
def init(channel: Channel):
    """Sets up the barriers.  One thread of each CTA calls it."""
    cute.arch.mbarrier_init(channel.full, 1)
    cute.arch.mbarrier_init(channel.empty, 1)


@cute.jit
def send(channel: Channel, count, tile):
    """Sends ``tile`` to CTA 1; a warp of CTA 0 calls it, ``count`` times before."""
    cute.arch.mbarrier_wait(channel.empty, (count & 1) ^ 1)
    with cute.arch.elect_one():
        cute.arch.store_async_dsmem(channel.word, tile, channel.full, 1)


@cute.jit
def receive(channel: Channel, count):
    """What CTA 0 has sent; a warp of CTA 1 calls it, ``count`` times before."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(channel.full, _MESSAGE_BYTES)
    cute.arch.mbarrier_wait(channel.full, count & 1)
    tile = cute.make_tensor(channel.word, cute.make_layout((1,)))[0]
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(channel.empty, Int32(0))
    return tile

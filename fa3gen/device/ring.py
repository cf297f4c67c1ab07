"""Stages of shared memory that TMA fills and consumers hand back: a full and an empty barrier each."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int16, const_expr, range_constexpr
from cutlass.pipeline import PipelineState, PipelineUserType, make_pipeline_state

from fa3gen.device import cluster


@dataclass(frozen=True)
class Ring:
    """``full`` and ``empty`` point at ``stages`` mbarriers each; ``stage_bytes`` is what a full stage has received.

    The rings of ``ctas`` CTAs of a cluster go together: consumers hand a stage back to each, so that none is filled
    before it has been handed back in all.
    """

    full: cute.Pointer
    empty: cute.Pointer
    stages: int
    stage_bytes: int
    ctas: int = 1


def make(barriers: cute.Pointer, stages: int, stage_bytes: int, ctas: int = 1) -> Ring:
    """A ring over ``2 * stages`` barriers."""
    return Ring(barriers, barriers + stages, stages, stage_bytes, ctas)


@cute.jit
def init(ring: Ring, consumers: cutlass.Constexpr):
    """Sets up the barriers; ``consumers`` arrivals from each CTA hand a stage back.  One thread calls it."""
    for i in range_constexpr(ring.stages):
        cute.arch.mbarrier_init(ring.full + i, 1)
        cute.arch.mbarrier_init(ring.empty + i, consumers * ring.ctas)


def producer_state(ring: Ring) -> PipelineState:
    return make_pipeline_state(PipelineUserType.Producer, ring.stages)


def consumer_state(ring: Ring) -> PipelineState:
    return make_pipeline_state(PipelineUserType.Consumer, ring.stages)


def wait_full(ring: Ring, state: PipelineState) -> None:
    cute.arch.mbarrier_wait(ring.full + state.index, state.phase)


def wait_empty(ring: Ring, state: PipelineState) -> None:
    cute.arch.mbarrier_wait(ring.empty + state.index, state.phase)


def expect(ring: Ring, state: PipelineState) -> None:
    """Announces a stage's bytes; one warp calls it."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(ring.full + state.index, ring.stage_bytes)


def skip(ring: Ring, state: PipelineState) -> None:
    """Makes a stage full without loading it; one warp calls it."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(ring.full + state.index)


def release(ring: Ring, state: PipelineState) -> None:
    """Hands a stage back; one warp calls it, and counts once."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(ring.empty + state.index)
        if const_expr(ring.ctas > 1):
            # after the own: the other CTA may then fill its stage and hand it back again, which is the next phase here
            cute.arch.mbarrier_arrive(ring.empty + state.index, cluster.other(cluster.rank()))


@cute.jit
def release_of_group(ring: Ring, state: PipelineState, thread):
    """Hands a stage back; the threads of a group call it, which are numbered from 0, and count once."""
    if const_expr(ring.ctas > 1):
        cluster.arrive(ring.empty, state.index, thread)
    else:
        if thread == 0:
            cute.arch.mbarrier_arrive(ring.empty + state.index)


@cute.jit
def load(ring: Ring, state: PipelineState, tma: cute.CopyAtom, source: cute.Tensor, stages: cute.Tensor):
    """Waits for the stage and loads ``source`` (a tile of a tensor map) into it; one warp calls it.

    In a cluster ``source`` is this CTA's share of a tile.  It goes to every CTA; all shares make a stage full.
    """
    wait_empty(ring, state)
    expect(ring, state)
    stage, full = stages[None, state.index], ring.full + state.index
    if const_expr(ring.ctas > 1):
        cute.copy(tma, source, stage, tma_bar_ptr=full, mcast_mask=Int16((1 << ring.ctas) - 1))
    else:
        cute.copy(tma, source, stage, tma_bar_ptr=full)

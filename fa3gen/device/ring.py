"""Stages of shared memory that TMA fills and consumers hand back: a full and an empty barrier each."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import range_constexpr
from cutlass.pipeline import PipelineState, PipelineUserType, make_pipeline_state


@dataclass(frozen=True)
class Ring:
    """``full`` and ``empty`` point at ``stages`` mbarriers each; ``stage_bytes`` is what a full stage has received."""

    full: cute.Pointer
    empty: cute.Pointer
    stages: int
    stage_bytes: int


def make(barriers: cute.Pointer, stages: int, stage_bytes: int) -> Ring:
    """A ring over ``2 * stages`` barriers."""
    return Ring(barriers, barriers + stages, stages, stage_bytes)


@cute.jit
def init(ring: Ring, consumers: cutlass.Constexpr):
    """Sets up the barriers; ``consumers`` arrivals hand a stage back.  One thread calls it."""
    for i in range_constexpr(ring.stages):
        cute.arch.mbarrier_init(ring.full + i, 1)
        cute.arch.mbarrier_init(ring.empty + i, consumers)


def producer_state(ring: Ring) -> PipelineState:
    return make_pipeline_state(PipelineUserType.Producer, ring.stages)


def consumer_state(ring: Ring) -> PipelineState:
    return make_pipeline_state(PipelineUserType.Consumer, ring.stages)


def wait_full(ring: Ring, state: PipelineState) -> None:
    cute.arch.mbarrier_wait(ring.full + state.index, state.phase)


def wait_empty(ring: Ring, state: PipelineState) -> None:
    cute.arch.mbarrier_wait(ring.empty + state.index, state.phase)


def is_full(ring: Ring, state: PipelineState):
    """Whether the stage has been loaded, now."""
    return cute.arch.mbarrier_test_wait(ring.full + state.index, state.phase)


def is_empty(ring: Ring, state: PipelineState):
    """Whether the stage has been handed back, now."""
    return cute.arch.mbarrier_test_wait(ring.empty + state.index, state.phase)


def expect(ring: Ring, state: PipelineState) -> None:
    """Announces a stage's bytes; one warp calls it."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(ring.full + state.index, ring.stage_bytes)


def skip(ring: Ring, state: PipelineState) -> None:
    """Makes a stage full without loading it; one warp calls it."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(ring.full + state.index)


@cute.jit
def release(ring: Ring, state: PipelineState, thread):
    """Hands a stage back; the threads of a group call it, which are numbered from 0, and count once."""
    if thread == 0:
        cute.arch.mbarrier_arrive(ring.empty + state.index)


def load(ring: Ring, state: PipelineState, tma: cute.CopyAtom, source: cute.Tensor, stages: cute.Tensor) -> None:
    """Waits for the stage and loads ``source`` (a tile of a tensor map) into it; one warp calls it."""
    wait_empty(ring, state)
    expect(ring, state)
    cute.copy(tma, source, stages[None, state.index], tma_bar_ptr=ring.full + state.index)

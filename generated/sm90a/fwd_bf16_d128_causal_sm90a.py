# fwd_bf16_d128_causal_sm90a: rendered by `fa3gen render` from templates/sm90a/fwd.py.jinja; do not edit.
#
#   tile_m 128: S, P and O take 160 registers a thread; three consumer warpgroups would have 128 to use
#   tile_n 128: two stages of K and V and two Q tiles take 192 KB
#   stages 2: 3 would need 256 KB
#   q_stages 2: the next tile's Q loads while this one's O is stored
#   producer_regs 24: the least that setmaxnreg gives
#   consumer_regs 240: 24 + 2 x 240 = 504 of the 3 x 168 registers a lane that the CTA is launched with
#   pin_pv_wait false: the pin costs 6 % here
#   cluster 1: no measurement speaks for CTAs that share K and V
#   scheduler dynamic: persistent CTAs overlap a tile's store with the next one's loads, and share uneven work
#   softmax optimistic: 16k tokens, seqlen 512 to 16k, 1.13 full and 1.09 causal of the best of FA3, FA4 and cuDNN;
#       exact 0.97 (H200) (2026-12-03)
"""Attention forward for Hopper: out = softmax(scale * q k^T) v, and LSE.

A CTA has a producer warpgroup, whose warp 0 loads with TMA and whose warp 1 stores, and consumer warpgroups of 64 query
rows each.  Consumers walk the keys in blocks from right to left, so that the blocks that need a mask come first.  QK of
a block and PV of the block before it are issued together; the block's softmax runs under that PV, which takes P from
registers (FlashAttention-3, algorithm 2).

    Q    Q_STAGES tiles; O is staged over its own Q and stored while the next tile's Q, K and V load
    K, V STAGES blocks each; K runs a block ahead of V
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.memory import SmemAllocator
from cutlass.pipeline import PipelineState

from fa3gen.device import (
    again,
    index,
    mask,
    messages,
    ring,
    softmax,
    tiles,
    wgmma,
)
from fa3gen.device.messages import Messages
from fa3gen.device.ring import Ring

from fa3gen.device.scheduler_dynamic import Dynamic as Scheduler
from fa3gen.device.scheduler_dynamic import draw

NAME = "fwd_bf16_d128_causal_sm90a"

Element = cutlass.BFloat16
HEAD_DIM = 128
TILE_M = 128
TILE_N = 128
CLUSTER = 1
SHARE_N = TILE_N // CLUSTER
STAGES = 2
Q_STAGES = 2
WARPGROUPS = 2
THREADS = 384
PRODUCER_REGS = 24
CONSUMER_REGS = 240

LOAD_WARP = 0
STORE_WARP = 1
Q_BOXES = WARPGROUPS * Q_STAGES
ROW_BYTES = HEAD_DIM * Element.width // 8
RINGS_BARRIERS = 2 * (Q_STAGES + 2 * STAGES)
BARRIERS = RINGS_BARRIERS + Q_BOXES + messages.BARRIERS
WORDS = messages.SLOTS + 1 + Q_STAGES
#: Named barriers: 8 + i is the consumer warpgroup's own.
WARPGROUP_BARRIER = 8


@dataclass(frozen=True)
class Problem:
    """Sizes that every role needs."""

    seqlen_q: Int32
    seqlen_k: Int32
    heads_q: Int32
    heads_per_kv: Int32
    head_section: Int32
    m_tiles: Int32
    num_tiles: Int32


@dataclass(frozen=True)
class Shared:
    """Shared memory: tiles, the rings that guard them, and the barriers that say that a warpgroup's O is staged."""

    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    out: cute.Tensor
    q_ring: Ring
    k_ring: Ring
    v_ring: Ring
    out_full: cute.Pointer
    next_tile: Messages
    failed: cute.Tensor  # the tile that failed in each stage of Q, see again.py
    never: cute.Tensor  # a word that is never written


@dataclass(frozen=True)
class Warpgroup:
    """What a consumer thread works with."""

    number: Int32
    thread: Int32
    qk: cute.TiledMma
    pv: cute.TiledMma
    q: cute.Tensor  # operands: descriptors of shared memory
    k: cute.Tensor
    v: cute.Tensor
    p: cute.Tensor
    out: cute.Tensor
    coords: cute.Tensor
    rows: softmax.Rows
    softmax_scale_log2: Float32


@dataclass(frozen=True)
class Tile:
    """64 rows of a warpgroup: the first row, the blocks of keys that they see, and where their Q lies."""

    row: Int32
    n_blocks: Int32
    again: Int32  # whether the tile failed before
    q_box: Int32


@cute.jit
def locate(problem: Problem, tile: Int32):
    """(m_block, head, batch) of a tile."""
    tile = index.tile_number(tile)
    where = index.longest_first(tile, problem.m_tiles, problem.num_tiles, problem.heads_q, problem.head_section)
    return where


@cute.jit
def visible_keys(problem: Problem, row: Int32):
    """Keys that a query row sees: 0 .. visible_keys - 1."""
    keys = problem.seqlen_k
    keys = index.visible_keys(row, problem.seqlen_q, problem.seqlen_k)
    return keys


@cute.jit
def count_blocks(problem: Problem, first_row: Int32, row_count: cutlass.Constexpr):
    """Blocks of keys that some of the rows see; none where the rows lie past the sequence."""
    last_row = cutlass.min(first_row + row_count, problem.seqlen_q) - 1
    blocks = index.ceil_div(visible_keys(problem, last_row), TILE_N)
    return blocks if last_row >= first_row else Int32(0)


@cute.jit
def count_loaded(problem: Problem, m_block: Int32):
    """Blocks of keys that are loaded for a tile."""
    blocks = count_blocks(problem, m_block * TILE_M, TILE_M)
    return blocks


@cute.jit
def first_tile():
    """The tile that this CTA begins with."""
    tile = cute.arch.block_idx()[0]
    return tile


@cute.kernel
def kernel(
    tma_q: cute.CopyAtom,
    tma_k: cute.CopyAtom,
    tma_v: cute.CopyAtom,
    tma_out: cute.CopyAtom,
    lse: cute.Pointer,
    lse_stride_batch: Int64,
    lse_stride_head: Int64,
    seqlen_q: Int32,
    seqlen_k: Int32,
    heads_q: Int32,
    heads_per_kv: Int32,
    softmax_scale_log2: Float32,
    m_tiles: Int32,
    num_tiles: Int32,
    head_section: Int32,
    tile_counter: cute.Pointer,
):
    smem = tiles.layouts(Element, TILE_N, HEAD_DIM, Q_BOXES, STAGES)

    @cute.struct
    class Storage:
        f_q: cute.struct.Align[cute.struct.MemRange[Element, cute.cosize(smem.q)], 1024]
        f_k: cute.struct.Align[cute.struct.MemRange[Element, cute.cosize(smem.k)], 1024]
        f_v: cute.struct.Align[cute.struct.MemRange[Element, cute.cosize(smem.v)], 1024]
        f_barriers: cute.struct.MemRange[Int64, BARRIERS]
        f_words: cute.struct.MemRange[Int32, WORDS]

    storage = SmemAllocator().allocate(Storage)
    barriers = storage.f_barriers.data_ptr()
    words = storage.f_words.get_tensor(cute.make_layout((WORDS,)))
    k_barriers = barriers + 2 * Q_STAGES
    shared = Shared(
        q=storage.f_q.get_tensor(smem.q.outer, swizzle=smem.q.inner),
        k=storage.f_k.get_tensor(smem.k.outer, swizzle=smem.k.inner),
        v=storage.f_v.get_tensor(smem.v.outer, swizzle=smem.v.inner),
        out=storage.f_q.get_tensor(smem.out.outer, swizzle=smem.out.inner),
        q_ring=ring.make(barriers, Q_STAGES, TILE_M * ROW_BYTES, CLUSTER),
        k_ring=ring.make(k_barriers, STAGES, TILE_N * ROW_BYTES, CLUSTER),
        v_ring=ring.make(k_barriers + 2 * STAGES, STAGES, TILE_N * ROW_BYTES, CLUSTER),
        out_full=barriers + RINGS_BARRIERS,
        next_tile=messages.make(words, barriers + (RINGS_BARRIERS + Q_BOXES)),
        never=cute.make_tensor(words.iterator + messages.SLOTS, cute.make_layout((1,))),
        failed=cute.make_tensor(words.iterator + (messages.SLOTS + 1), cute.make_layout((Q_STAGES,))),
    )
    scheduler = Scheduler(num_tiles, CLUSTER, tile_counter)
    problem = Problem(
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        heads_q=heads_q,
        heads_per_kv=heads_per_kv,
        head_section=head_section,
        m_tiles=m_tiles,
        num_tiles=num_tiles,
    )
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp == 0:
        for atom in (tma_q, tma_k, tma_v, tma_out):
            cpasync.prefetch_descriptor(atom)
        with cute.arch.elect_one():
            ring.init(shared.q_ring, 1)  # the store warp hands Q's stages back
            ring.init(shared.k_ring, WARPGROUPS)
            ring.init(shared.v_ring, WARPGROUPS)
            for i in range_constexpr(Q_BOXES):
                cute.arch.mbarrier_init(shared.out_full + i, 1)
            messages.init(shared.next_tile, 4 * WARPGROUPS + 1)
            shared.failed.fill(-1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()

    if warp < 4:
        cute.arch.setmaxregister_decrease(PRODUCER_REGS)
        if warp == LOAD_WARP:
            load(problem, shared, scheduler, tma_q, tma_k, tma_v)
        if warp == STORE_WARP:
            store(problem, shared, tma_out)
    else:
        cute.arch.setmaxregister_increase(CONSUMER_REGS)
        consume(problem, shared, thread - 128, lse, lse_stride_batch, lse_stride_head, softmax_scale_log2)


@cute.jit
def load(
    problem: Problem,
    shared: Shared,
    scheduler: Scheduler,
    tma_q: cute.CopyAtom,
    tma_k: cute.CopyAtom,
    tma_v: cute.CopyAtom,
):
    """Q, K and V of every tile."""
    q_coords = tiles.coordinates(HEAD_DIM, problem.seqlen_q, problem.heads_q)
    k_coords = tiles.coordinates(HEAD_DIM, problem.seqlen_k, problem.heads_q)
    v_coords = tiles.coordinates_transposed(HEAD_DIM, problem.seqlen_k, problem.heads_q)
    q_state = ring.producer_state(shared.q_ring)
    k_state = ring.producer_state(shared.k_ring)
    v_state = ring.producer_state(shared.v_ring)
    tile, count = first_tile(), Int32(0)
    drawn = tile
    while tile >= 0:
        m_block, head, batch = locate(problem, tile)
        n_blocks = count_loaded(problem, m_block)
        kv_head = index.quotient(head, problem.heads_per_kv)
        q_tiles = cute.local_tile(q_coords[None, None, head, batch], (tiles.WARPGROUP_ROWS, HEAD_DIM), (None, 0))
        k_tiles = cute.local_tile(k_coords[None, None, kv_head, batch], (TILE_N, HEAD_DIM), (None, 0))
        v_tiles = cute.local_tile(v_coords[None, None, kv_head, batch], (HEAD_DIM, TILE_N), (0, None))
        q_smem, q_global = tiles.partition(tma_q, shared.q, q_tiles)
        k_smem, k_global = tiles.partition(tma_k, shared.k, k_tiles)
        v_smem, v_global = tiles.partition(tma_v, shared.v, v_tiles)
        if n_blocks > 0:
            ring.load(shared.k_ring, k_state, tma_k, k_global[None, n_blocks - 1], k_smem)
            k_state.advance()
        ring.wait_empty(shared.q_ring, q_state)
        if n_blocks > 0:
            ring.expect(shared.q_ring, q_state)
            for i in range_constexpr(WARPGROUPS):
                cute.copy(
                    tma_q,
                    q_global[None, m_block * WARPGROUPS + i],
                    q_smem[None, q_state.index * WARPGROUPS + i],
                    tma_bar_ptr=shared.q_ring.full + q_state.index,
                )
        else:
            ring.skip(shared.q_ring, q_state)
        failed = again.take(shared.failed, q_state.index)
        q_state.advance()
        for i in cutlass.range(1, n_blocks, unroll=1):
            ring.load(shared.k_ring, k_state, tma_k, k_global[None, n_blocks - 1 - i], k_smem)
            k_state.advance()
            ring.load(shared.v_ring, v_state, tma_v, v_global[None, n_blocks - i], v_smem)
            v_state.advance()
        if n_blocks > 0:
            ring.load(shared.v_ring, v_state, tma_v, v_global[None, 0], v_smem)
            v_state.advance()
        # not earlier: the tile that a CTA takes while it has another to do may be one that a free CTA waits for
        tile, drawn = choose(shared, scheduler, q_state, failed, drawn)
        messages.send(shared.next_tile, count, tile)
        count += 1


@cute.jit
def choose(shared: Shared, scheduler: Scheduler, q_state: PipelineState, failed, drawn):
    """(next tile, last tile drawn): the tile that failed, else the next one drawn, else one of the last that failed."""
    tile = failed
    if tile < 0:
        if drawn >= 0:
            drawn = draw(scheduler, drawn)
            tile = drawn
        if tile < 0:
            tile = last_failed(shared, q_state)
    else:
        tile += index.AGAIN
    return tile, drawn


@cute.jit
def last_failed(shared: Shared, q_state: PipelineState):
    """Waits for the tiles under way, up to the first that failed: its message, or -1 where none did."""
    state = q_state.clone()
    tile = Int32(-1)
    for _ in range_constexpr(Q_STAGES):
        if tile < 0:
            ring.wait_empty(shared.q_ring, state)
            tile = again.take(shared.failed, state.index)
            if tile >= 0:
                tile += index.AGAIN
        state.advance()
    return tile


@cute.jit
def store(problem: Problem, shared: Shared, tma_out: cute.CopyAtom):
    """O of every tile; hands Q's stage back when it has been read."""
    coords = tiles.coordinates(HEAD_DIM, problem.seqlen_q, problem.heads_q)
    state = ring.consumer_state(shared.q_ring)
    tile, count = first_tile(), Int32(0)
    while tile >= 0:
        m_block, head, batch = locate(problem, tile)
        out_tiles = cute.local_tile(coords[None, None, head, batch], (tiles.WARPGROUP_ROWS, HEAD_DIM), (None, 0))
        out_smem, out_global = tiles.partition(tma_out, shared.out, out_tiles)
        if tile >= index.AGAIN:  # the first O of the tile must not arrive after this one
            cute.arch.cp_async_bulk_wait_group(0)
        for i in range_constexpr(WARPGROUPS):
            box = state.index * WARPGROUPS + i
            cute.arch.mbarrier_wait(shared.out_full + box, state.phase)
            cute.copy(tma_out, out_smem[None, box], out_global[None, m_block * WARPGROUPS + i])
            cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        ring.release(shared.q_ring, state)
        state.advance()
        tile = messages.receive(shared.next_tile, count)
        count += 1


@cute.jit
def consume(
    problem: Problem,
    shared: Shared,
    thread: Int32,
    lse: cute.Pointer,
    lse_stride_batch: Int64,
    lse_stride_head: Int64,
    softmax_scale_log2: Float32,
):
    """O and LSE of this warpgroup's rows of every tile."""
    number = cute.arch.make_warp_uniform(thread // 128)
    wg = make_warpgroup(shared, number, thread % 128, softmax_scale_log2)
    q_state = ring.consumer_state(shared.q_ring)
    k_state = ring.consumer_state(shared.k_ring)
    v_state = ring.consumer_state(shared.v_ring)
    tile, count = first_tile(), Int32(0)
    while tile >= 0:
        m_block, head, batch = locate(problem, tile)
        row = m_block * TILE_M + number * tiles.WARPGROUP_ROWS
        # as a shuffle's result: the compiler would otherwise count the blocks again in every step
        n_blocks = cute.arch.make_warp_uniform(count_blocks(problem, row, tiles.WARPGROUP_ROWS))
        rows = Tile(
            row=row,
            n_blocks=n_blocks,
            again=Int32(tile >= index.AGAIN),
            q_box=q_state.index * WARPGROUPS + number,
        )
        others = count_loaded(problem, m_block) - n_blocks
        k_state, v_state = hand_back(shared, wg, others, k_state, v_state)
        ring.wait_full(shared.q_ring, q_state)
        softmax.reset(wg.rows)
        wg.out.fill(0.0)
        if n_blocks > 0:
            k_state, v_state = attend(problem, shared, wg, rows, k_state, v_state)
        if softmax.failed(wg.out, wg.rows):
            if rows.again == 0:
                again.mark(shared.failed, q_state.index, tile)
        row_lse = softmax.finish(wg.out, wg.rows)
        tiles.stage_out(wg.out, wg.pv, wg.thread, Element, shared.out[None, None, rows.q_box])
        cute.arch.barrier(barrier_id=WARPGROUP_BARRIER + number, number_of_threads=128)
        if wg.thread == 0:
            cute.arch.mbarrier_arrive(shared.out_full + rows.q_box)
        if lse.toint() != 0:
            to = cute.make_tensor(
                lse + (batch * lse_stride_batch + head * lse_stride_head), cute.make_layout((problem.seqlen_q,))
            )
            store_lse(to, wg, row, row_lse)
        q_state.advance()
        tile = messages.receive(shared.next_tile, count)
        count += 1


@cute.jit
def make_warpgroup(shared: Shared, number: Int32, thread: Int32, softmax_scale_log2: Float32):
    """The fragments of a consumer thread."""
    qk, pv = tiles.multiplies(Element, TILE_N, HEAD_DIM)
    qk_slice, pv_slice = qk.get_slice(0), pv.get_slice(0)
    scores = cute.make_rmem_tensor(qk.partition_shape_C((tiles.WARPGROUP_ROWS, TILE_N)), Float32)
    rows = softmax.make_rows(softmax.optimistic_range(Element))
    return Warpgroup(
        number=number,
        thread=thread,
        qk=qk,
        pv=pv,
        q=qk.make_fragment_A(qk_slice.partition_A(shared.q)),
        k=qk.make_fragment_B(qk_slice.partition_B(shared.k)),
        v=pv.make_fragment_B(pv_slice.partition_B(shared.v)),
        p=cute.make_rmem_tensor_like(scores, Element),
        out=cute.make_rmem_tensor(pv.partition_shape_C((tiles.WARPGROUP_ROWS, HEAD_DIM)), Float32),
        coords=qk.get_slice(thread).partition_C(cute.make_identity_tensor((tiles.WARPGROUP_ROWS, TILE_N))),
        rows=rows,
        softmax_scale_log2=softmax_scale_log2,
    )


@cute.jit
def hand_back(shared: Shared, wg: Warpgroup, n_blocks: Int32, k_state: PipelineState, v_state: PipelineState):
    """Blocks that only other warpgroups see."""
    k_state, v_state = k_state.clone(), v_state.clone()
    for _ in cutlass.range(n_blocks, unroll=1):
        ring.wait_full(shared.k_ring, k_state)
        ring.wait_full(shared.v_ring, v_state)
        # a warp that is late would miss the phase if another had handed the stage back for it
        cute.arch.barrier(barrier_id=WARPGROUP_BARRIER + wg.number, number_of_threads=128)
        release(shared.k_ring, wg, k_state)
        release(shared.v_ring, wg, v_state)
        k_state.advance()
        v_state.advance()
    return k_state, v_state


@cute.jit
def release(of: Ring, wg: Warpgroup, state: PipelineState):
    """Hands a stage back for the warpgroup, all of whose warps have passed the wgmma that read it."""
    ring.release_of_group(of, state, wg.thread)


@cute.jit
def attend(problem: Problem, shared: Shared, wg: Warpgroup, rows: Tile, k_state: PipelineState, v_state: PipelineState):
    """O and row sums over the ``rows.n_blocks`` leftmost blocks, at least one."""
    k_state, v_state = k_state.clone(), v_state.clone()
    # the last key of the first row counts as masked: so every row that sees a key has a maximum after those blocks
    unmasked = index.quotient(cutlass.max(visible_keys(problem, rows.row), 1) - 1, TILE_N)
    scores = cute.make_rmem_tensor(wg.qk.partition_shape_C((tiles.WARPGROUP_ROWS, TILE_N)), Float32)
    ring.wait_full(shared.k_ring, k_state)
    issue_qk(wg, scores, rows, k_state)
    warpgroup.wait_group(0)
    release(shared.k_ring, wg, k_state)
    apply_mask(problem, wg, scores, rows, rows.n_blocks - 1)
    softmax.first_block(scores, wg.rows, wg.softmax_scale_log2)
    wgmma.convert(scores, wg.p)

    masked = cutlass.min(cutlass.max(rows.n_blocks - unmasked, 1), rows.n_blocks)
    k_state, v_state = attend_blocks(problem, shared, wg, rows, 1, masked, True, k_state, v_state)
    frozen = rows.n_blocks if rows.again == 0 else masked
    if masked < frozen:
        softmax.freeze(wg.rows)
    k_state, v_state = attend_frozen(shared, wg, rows, masked, frozen, k_state, v_state)
    k_state, v_state = attend_blocks(problem, shared, wg, rows, frozen, rows.n_blocks, False, k_state, v_state)
    ring.wait_full(shared.v_ring, v_state)
    issue_pv(wg, v_state)
    warpgroup.wait_group(0)
    release(shared.v_ring, wg, v_state)
    k_state.advance()
    v_state.advance()
    return k_state, v_state


@cute.jit
def attend_blocks(
    problem: Problem,
    shared: Shared,
    wg: Warpgroup,
    rows: Tile,
    start,
    stop,
    masked: cutlass.Constexpr,
    k_state: PipelineState,
    v_state: PipelineState,
):
    """Blocks ``start`` to ``stop`` counted from the right: QK of each under way together with PV of the one before."""
    k_state, v_state = k_state.clone(), v_state.clone()
    for i in cutlass.range(start, stop, unroll=1):
        k_state.advance()
        scores = cute.make_rmem_tensor(wg.qk.partition_shape_C((tiles.WARPGROUP_ROWS, TILE_N)), Float32)
        ring.wait_full(shared.k_ring, k_state)
        issue_qk(wg, scores, rows, k_state)
        ring.wait_full(shared.v_ring, v_state)
        issue_pv(wg, v_state)
        warpgroup.wait_group(1)
        release(shared.k_ring, wg, k_state)
        if const_expr(masked):
            apply_mask(problem, wg, scores, rows, rows.n_blocks - 1 - i)
        softmax.next_block(scores, wg.rows, wg.softmax_scale_log2)
        softmax.add_block_total(wg.rows)
        warpgroup.wait_group(0)
        release(shared.v_ring, wg, v_state)
        wgmma.convert(scores, wg.p)
        softmax.rescale(wg.out, wg.rows)
        v_state.advance()
    return k_state, v_state


@cute.jit
def attend_frozen(
    shared: Shared, wg: Warpgroup, rows: Tile, start, stop, k_state: PipelineState, v_state: PipelineState
):
    """As :func:`attend_blocks` without masks and without maxima: the shift of the masked blocks serves for these too.

    It is raised when the block before has outgrown it.
    """
    k_state, v_state = k_state.clone(), v_state.clone()
    for _ in cutlass.range(start, stop, unroll=1):
        if softmax.outgrown(wg.rows):
            softmax.raise_shift(wg.out, wg.p, wg.rows)
        k_state.advance()
        scores = cute.make_rmem_tensor(wg.qk.partition_shape_C((tiles.WARPGROUP_ROWS, TILE_N)), Float32)
        ring.wait_full(shared.k_ring, k_state)
        issue_qk(wg, scores, rows, k_state)
        ring.wait_full(shared.v_ring, v_state)
        issue_pv(wg, v_state)
        warpgroup.wait_group(1)
        release(shared.k_ring, wg, k_state)
        softmax.next_block_frozen(scores, wg.rows, wg.softmax_scale_log2)
        softmax.add_block_total(wg.rows)
        warpgroup.wait_group(0)
        release(shared.v_ring, wg, v_state)
        wgmma.convert(scores, wg.p)
        v_state.advance()
    if softmax.outgrown(wg.rows):
        softmax.raise_shift(wg.out, wg.p, wg.rows)
    return k_state, v_state


def issue_qk(wg: Warpgroup, scores: cute.Tensor, rows: Tile, state: PipelineState) -> None:
    wgmma.issue(wg.qk, scores, wg.q[None, None, None, rows.q_box], wg.k[None, None, None, state.index], False)


def issue_pv(wg: Warpgroup, state: PipelineState) -> None:
    wgmma.issue(wg.pv, wg.out, wgmma.as_operand_a(wg.p), wg.v[None, None, None, state.index], True)


@cute.jit
def apply_mask(problem: Problem, wg: Warpgroup, scores: cute.Tensor, rows: Tile, n_block: Int32):
    """-inf for the scores of block ``n_block`` that do not count."""
    where = wgmma.rows_columns(wg.coords)
    for r in range_constexpr(softmax.ROWS):
        keys = visible_keys(problem, rows.row + where[r, 0][0])
        mask.below(scores, wg.coords, r, keys - n_block * TILE_N)


@cute.jit
def store_lse(lse: cute.Tensor, wg: Warpgroup, first_row: Int32, row_lse: cute.Tensor):
    """LSE of this warpgroup's rows that exist; the first of the 4 threads of a row writes it."""
    where = wgmma.rows_columns(wg.coords)
    for r in range_constexpr(softmax.ROWS):
        row = first_row + where[r, 0][0]
        if wg.thread % 4 == 0:
            if row < cute.size(lse):
                lse[row] = row_lse[r]


@cute.jit
def launch(
    q: cute.Tensor,
    k: cute.Tensor,
    v: cute.Tensor,
    out: cute.Tensor,
    lse: cute.Tensor,
    lse_stride_batch: Int64,
    lse_stride_head: Int64,
    seqlen_q: Int32,
    seqlen_k: Int32,
    heads_q: Int32,
    heads_per_kv: Int32,
    softmax_scale_log2: Float32,
    m_tiles: Int32,
    num_tiles: Int32,
    head_section: Int32,
    tile_counter: cute.Tensor,
    stream,
):
    """Only for the compiler, which learns the kernel's parameters from it; the launcher passes them itself."""
    boxes = tiles.layouts(Element, SHARE_N, HEAD_DIM, Q_BOXES, STAGES)
    tma_q, tma_k, tma_v, tma_out = tiles.tensor_maps(q, k, v, out, boxes, CLUSTER > 1)
    kernel.set_name_prefix(NAME, remove_cutlass_symbol=True, keep_mangled_name=False)
    kernel(
        tma_q,
        tma_k,
        tma_v,
        tma_out,
        lse.iterator,
        lse_stride_batch,
        lse_stride_head,
        seqlen_q,
        seqlen_k,
        heads_q,
        heads_per_kv,
        softmax_scale_log2,
        m_tiles,
        num_tiles,
        head_section,
        tile_counter.iterator,
    ).launch(
        grid=(num_tiles, 1, 1),
        block=(THREADS, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
    )


def fake_arguments():
    """Arguments of :func:`launch` to compile with."""
    batch, seqlen_q, seqlen_k, heads_q, heads_k = (cute.sym_int() for _ in range(5))

    def dense(seqlen, heads):
        strides = (*(cute.sym_int64(divisibility=16 * 8 // Element.width) for _ in range(3)), 1)
        return make_fake_tensor(Element, (batch, seqlen, heads, HEAD_DIM), strides, assumed_align=16)

    return (
        dense(seqlen_q, heads_q),
        dense(seqlen_k, heads_k),
        dense(seqlen_k, heads_k),
        dense(seqlen_q, heads_q),
        make_fake_tensor(Float32, (1,), (1,), assumed_align=4),
        Int64(0),
        Int64(0),
        Int32(1),
        Int32(1),
        Int32(1),
        Int32(1),
        Float32(1.0),
        Int32(1),
        Int32(1),
        Int32(1),
        make_fake_tensor(Int32, (1,), (1,), assumed_align=4),
        make_fake_stream(use_tvm_ffi_env_stream=True),
    )

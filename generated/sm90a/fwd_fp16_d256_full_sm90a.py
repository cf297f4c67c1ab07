# fwd_fp16_d256_full_sm90a
# Rendered by `fa3gen render` from templates/sm90a/fwd.py.jinja; do not edit.
#
#   tile_m 128: as in the default
#   stages 2: as in the default
#   q_stages 1: as in the default
#   producer_regs 24: as in the default
#   consumer_regs 240: as in the default
#   pin_pv_wait false: no measurement speaks for the pin
#   overlap_tiles false: no faster: the card is at its power limit, and less waiting is a lower clock
#   scheduler dynamic: persistent CTAs load a tile while they work on the one before, and share uneven work
#   tile_n 64: 16k tokens, seqlen 512 to 16k, 1.02 full and 1.02 causal of FA3; 80 keys 0.98 and 0.94 of that (H200)
#       (2026-12-03)
#   softmax optimistic: 16k tokens, seqlen 512 to 16k, 1.02 full and 1.02 causal of FA3; 80 keys 0.98 and 0.94 of that
#       (H200) (2026-12-03)
"""Attention forward for Hopper: out = softmax(scale * q k^T) v, and LSE.

A CTA has a warp that loads with TMA, and consumer warpgroups of 64 query rows each.  Consumers walk the keys in blocks
from right to left, so that the blocks that need a mask come first.  QK of a block and PV of the block before it are
issued together; the block's softmax runs under that PV, which takes P from registers (FlashAttention-3, algorithm 2).
    Q    Q_STAGES tiles
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
from fa3gen.device.messages import END, PAUSE, Messages
from fa3gen.device.ring import Ring

from fa3gen.device.scheduler_dynamic import Dynamic as Scheduler
from fa3gen.device.scheduler_dynamic import draw

NAME = "fwd_fp16_d256_full_sm90a"

Element = cutlass.Float16
HEAD_DIM = 256
HEAD_DIM_V = 256
TILE_M = 128
TILE_N = 64
STAGES = 2
Q_STAGES = 1
WARPGROUPS = 2
THREADS = 384
PRODUCER_REGS = 24
CONSUMER_REGS = 240

Q_BOXES = WARPGROUPS * Q_STAGES
ELEMENT_BYTES = Element.width // 8
RINGS_BARRIERS = 2 * (Q_STAGES + 2 * STAGES)
BARRIERS = RINGS_BARRIERS + messages.BARRIERS
#: Named barriers: 8 + i is the consumer warpgroup's own.
WARPGROUP_BARRIER = 8


@dataclass(frozen=True)
class Problem:
    """Sizes that every role needs."""

    seqlen_q: Int32
    seqlen_k: Int32
    heads_q: Int32
    heads_per_kv: Int32
    m_tiles: Int32
    num_tiles: Int32


@dataclass(frozen=True)
class Shared:
    """Shared memory: tiles, the rings that guard them, and words."""

    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    q_ring: Ring
    k_ring: Ring
    v_ring: Ring
    failed: cute.Tensor  # the tile that failed in each slot of messages, see again.py
    next_tile: Messages


@dataclass(frozen=True)
class Qk:
    """The product of Q with some of a block's keys."""

    mma: cute.TiledMma
    q: cute.Tensor  # operands: descriptors of shared memory
    k: cute.Tensor
    coords: cute.Tensor  # (row, key within the block) of a thread's scores


@dataclass(frozen=True)
class Warpgroup:
    """What a consumer thread works with."""

    number: Int32
    thread: Int32
    qk: Qk
    pv: cute.TiledMma
    v: cute.Tensor  # operand: descriptors of shared memory
    p: cute.Tensor
    out: cute.Tensor
    rows: softmax.Rows
    softmax_scale_log2: Float32


@dataclass(frozen=True)
class Tile:
    """64 rows of a warpgroup: the first row, the blocks of keys that they see, and where their Q lies."""

    row: Int32
    n_blocks: Int32
    others: Int32  # blocks further right, which only other warpgroups of the tile see
    again: Int32  # whether the tile failed before
    q_box: Int32


@dataclass(frozen=True)
class Output:
    """Where O and LSE go; ``lse`` may be null."""

    out: cute.Pointer
    out_stride_batch: Int64
    out_stride_seqlen: Int64
    out_stride_head: Int64
    lse: cute.Pointer
    lse_stride_batch: Int64
    lse_stride_head: Int64


@cute.jit
def locate(problem: Problem, tile: Int32):
    """(m_block, head, batch) of a tile."""
    tile = index.tile_number(tile)
    where = index.head_by_head(tile, problem.m_tiles, problem.heads_q)
    return where


@cute.jit
def visible_keys(problem: Problem, row: Int32):
    """Keys that a query row sees: 0 .. visible_keys - 1."""
    keys = problem.seqlen_k
    return keys


@cute.jit
def count_keys(problem: Problem, first_row: Int32, row_count: cutlass.Constexpr):
    """Keys that some of the rows see; none where the rows lie past the sequence."""
    last_row = cutlass.min(first_row + row_count, problem.seqlen_q) - 1
    keys = visible_keys(problem, last_row)
    return keys if last_row >= first_row else Int32(0)


@cute.jit
def count_blocks(problem: Problem, first_row: Int32, row_count: cutlass.Constexpr):
    """Blocks of those keys."""
    return index.ceil_div(count_keys(problem, first_row, row_count), TILE_N)


@cute.jit
def rows_of(problem: Problem, tile: Int32, m_block: Int32, number: Int32, q_stage: Int32):
    """The rows of warpgroup ``number`` of a tile."""
    row = m_block * TILE_M + number * tiles.WARPGROUP_ROWS
    # as a shuffle's result: the compiler would otherwise count the blocks again in every step
    n_blocks = cute.arch.make_warp_uniform(count_blocks(problem, row, tiles.WARPGROUP_ROWS))
    return Tile(
        row=row,
        n_blocks=n_blocks,
        others=count_blocks(problem, m_block * TILE_M, TILE_M) - n_blocks,
        again=Int32(tile >= index.AGAIN),
        q_box=q_stage * WARPGROUPS + number,
    )


@cute.kernel
def kernel(
    tma_q: cute.CopyAtom,
    tma_k: cute.CopyAtom,
    tma_v: cute.CopyAtom,
    out: cute.Pointer,
    out_stride_batch: Int64,
    out_stride_seqlen: Int64,
    out_stride_head: Int64,
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
    tile_counter: cute.Pointer,
):
    smem = tiles.layouts(Element, TILE_N, HEAD_DIM, HEAD_DIM_V, Q_BOXES, STAGES)

    @cute.struct
    class Storage:
        f_q: cute.struct.Align[cute.struct.MemRange[Element, cute.cosize(smem.q)], 1024]
        f_k: cute.struct.Align[cute.struct.MemRange[Element, cute.cosize(smem.k)], 1024]
        f_v: cute.struct.Align[cute.struct.MemRange[Element, cute.cosize(smem.v)], 1024]
        f_barriers: cute.struct.MemRange[Int64, BARRIERS]
        f_failed: cute.struct.MemRange[Int32, messages.SLOTS]
        f_messages: cute.struct.MemRange[Int32, messages.WORDS]

    storage = SmemAllocator().allocate(Storage)
    barriers = storage.f_barriers.data_ptr()
    k_barriers = barriers + 2 * Q_STAGES
    shared = Shared(
        q=storage.f_q.get_tensor(smem.q.outer, swizzle=smem.q.inner),
        k=storage.f_k.get_tensor(smem.k.outer, swizzle=smem.k.inner),
        v=storage.f_v.get_tensor(smem.v.outer, swizzle=smem.v.inner),
        q_ring=ring.make(barriers, Q_STAGES, TILE_M * HEAD_DIM * ELEMENT_BYTES),
        k_ring=ring.make(k_barriers, STAGES, TILE_N * HEAD_DIM * ELEMENT_BYTES),
        v_ring=ring.make(k_barriers + 2 * STAGES, STAGES, TILE_N * HEAD_DIM_V * ELEMENT_BYTES),
        next_tile=messages.make(storage.f_messages.data_ptr(), barriers + RINGS_BARRIERS),
        failed=storage.f_failed.get_tensor(cute.make_layout((messages.SLOTS,))),
    )
    scheduler = Scheduler(num_tiles, tile_counter)
    problem = Problem(
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        heads_q=heads_q,
        heads_per_kv=heads_per_kv,
        m_tiles=m_tiles,
        num_tiles=num_tiles,
    )
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp == 0:
        for atom in (tma_q, tma_k, tma_v):
            cpasync.prefetch_descriptor(atom)
        with cute.arch.elect_one():
            for each in (shared.q_ring, shared.k_ring, shared.v_ring):
                ring.init(each, WARPGROUPS)
            messages.init(shared.next_tile, 4 * WARPGROUPS)
            shared.failed.fill(-1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()

    if warp < 4:
        cute.arch.setmaxregister_decrease(PRODUCER_REGS)
        if warp == 0:
            load(problem, shared, scheduler, tma_q, tma_k, tma_v)
    else:
        cute.arch.setmaxregister_increase(CONSUMER_REGS)
        to = Output(out, out_stride_batch, out_stride_seqlen, out_stride_head, lse, lse_stride_batch, lse_stride_head)
        consume(problem, shared, to, thread - 128, softmax_scale_log2)


@cute.jit
def load(
    problem: Problem,
    shared: Shared,
    scheduler: Scheduler,
    tma_q: cute.CopyAtom,
    tma_k: cute.CopyAtom,
    tma_v: cute.CopyAtom,
):
    """Says which tile comes next, and loads its Q, K and V.

    K of a tile's first block comes before V of the last block of the tile before, where there is no room for V yet:
    consumers need them together.
    """
    q_coords = tiles.coordinates(HEAD_DIM, problem.seqlen_q, problem.heads_q)
    k_coords = tiles.coordinates(HEAD_DIM, problem.seqlen_k, problem.heads_q)
    v_coords = tiles.coordinates_transposed(HEAD_DIM_V, problem.seqlen_k, problem.heads_q)
    q_state = ring.producer_state(shared.q_ring)
    k_state = ring.producer_state(shared.k_ring)
    v_state = ring.producer_state(shared.v_ring)
    tile, count = cute.arch.block_idx()[0], Int32(0)
    drawn, pauses = tile, Int32(0)
    v_left, v_head, v_batch = Int32(0), Int32(0), Int32(0)  # the last V of the tile before: whether, and of what
    while tile != END:
        m_block, head, batch = locate(problem, tile)
        messages.send(shared.next_tile, count, tile, m_block, head, batch)
        kv_head = index.quotient(head, problem.heads_per_kv)
        n_blocks = count_blocks(problem, m_block * TILE_M, TILE_M) if tile >= 0 else Int32(0)
        k_tiles = cute.local_tile(k_coords[None, None, kv_head, batch], (TILE_N, HEAD_DIM), (None, 0))
        v_tiles = cute.local_tile(v_coords[None, None, kv_head, batch], (HEAD_DIM_V, TILE_N), (0, None))
        k_smem, k_global = tiles.partition(tma_k, shared.k, k_tiles)
        v_smem, v_global = tiles.partition(tma_v, shared.v, v_tiles)
        if n_blocks > 0:
            ring.load(shared.k_ring, k_state, tma_k, k_global[None, n_blocks - 1], k_smem)
            k_state.advance()
        if v_left > 0:
            v_state = load_leftmost_v(shared, tma_v, v_coords[None, None, v_head, v_batch], v_state)
        if tile >= 0:
            q_tiles = cute.local_tile(q_coords[None, None, head, batch], (tiles.WARPGROUP_ROWS, HEAD_DIM), (None, 0))
            q_smem, q_global = tiles.partition(tma_q, shared.q, q_tiles)
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
            q_state.advance()
        for i in cutlass.range(1, n_blocks, unroll=1):
            ring.load(shared.k_ring, k_state, tma_k, k_global[None, n_blocks - 1 - i], k_smem)
            k_state.advance()
            ring.load(shared.v_ring, v_state, tma_v, v_global[None, n_blocks - i], v_smem)
            v_state.advance()
        v_left, v_head, v_batch = n_blocks, kv_head, batch
        if n_blocks > 0:
            if ring.is_empty(shared.v_ring, v_state):  # consumers are not far behind, and may wait for it
                v_state = load_leftmost_v(shared, tma_v, v_coords[None, None, v_head, v_batch], v_state)
                v_left = Int32(0)
        count += 1
        messages.acquire(shared.next_tile, count)
        # not earlier: the tile that a CTA takes while it has another to do may be one that a free CTA waits for
        failed = again.take(shared.failed, messages.slot(count))
        tile, drawn, pauses = choose(scheduler, failed, drawn, pauses)
    # the last V came with the first pause
    messages.send(shared.next_tile, count, END, 0, 0, 0)


@cute.jit
def load_leftmost_v(shared: Shared, tma_v: cute.CopyAtom, coords: cute.Tensor, v_state: PipelineState):
    """V of a tile's last block."""
    v_state = v_state.clone()
    v_smem, v_global = tiles.partition(tma_v, shared.v, cute.local_tile(coords, (HEAD_DIM_V, TILE_N), (0, None)))
    ring.load(shared.v_ring, v_state, tma_v, v_global[None, 0], v_smem)
    v_state.advance()
    return v_state


@cute.jit
def choose(scheduler: Scheduler, failed, drawn, pauses):
    """(next message, last tile drawn, pauses so far): the tile that failed, else the next one, else a pause.

    With as many pauses as there are slots, every tile is done and none has failed.
    """
    tile = failed
    if tile >= 0:
        tile += index.AGAIN
    else:
        if drawn >= 0:
            drawn = draw(scheduler, drawn)
            tile = drawn
    if tile >= 0:
        pauses = Int32(0)
    else:
        pauses += 1
        tile = Int32(PAUSE) if pauses < messages.SLOTS else Int32(END)
    return tile, drawn, pauses


@cute.jit
def consume(problem: Problem, shared: Shared, to: Output, thread: Int32, softmax_scale_log2: Float32):
    """O and LSE of this warpgroup's rows of every tile."""
    number = cute.arch.make_warp_uniform(thread // 128)
    wg = make_warpgroup(shared, number, thread % 128, softmax_scale_log2)
    q_state = ring.consumer_state(shared.q_ring)
    k_state = ring.consumer_state(shared.k_ring)
    v_state = ring.consumer_state(shared.v_ring)
    count = Int32(0)
    tile, m_block, head, batch = messages.receive(shared.next_tile, count)
    wg.out.fill(0.0)
    while tile >= 0:
        rows = rows_of(problem, tile, m_block, number, q_state.index)
        k_state, v_state = begin(problem, shared, wg, rows, q_state, k_state, v_state)
        if rows.n_blocks > 1:
            k_state, v_state = attend(problem, shared, wg, rows, q_state, k_state, v_state)
        else:
            ring.release(shared.q_ring, q_state, wg.thread)
        q_state.advance()
        if rows.n_blocks > 0:
            v_state = end(shared, wg, v_state)
        if softmax.failed(wg.out, wg.rows):
            if rows.again == 0:
                again.mark(shared.failed, messages.slot(count), tile)
        row_lse = softmax.finish(wg.out, wg.rows)
        store(problem, wg, to, rows.row, head, batch, row_lse)
        messages.done(shared.next_tile, count)
        count += 1
        tile, m_block, head, batch = messages.receive(shared.next_tile, count)
        while tile == PAUSE:
            messages.done(shared.next_tile, count)
            count += 1
            tile, m_block, head, batch = messages.receive(shared.next_tile, count)
        wg.out.fill(0.0)


@cute.jit
def make_warpgroup(shared: Shared, number: Int32, thread: Int32, softmax_scale_log2: Float32):
    """The fragments of a consumer thread."""
    pv = tiles.multiply_pv(Element, HEAD_DIM_V)
    qk = make_qk(shared, thread, TILE_N)
    p = cute.make_rmem_tensor(qk.coords.shape, Element)
    allowed = softmax.optimistic_range(Element)
    return Warpgroup(
        number=number,
        thread=thread,
        qk=qk,
        pv=pv,
        v=pv.make_fragment_B(pv.get_slice(0).partition_B(shared.v)),
        p=p,
        out=cute.make_rmem_tensor(pv.partition_shape_C((tiles.WARPGROUP_ROWS, HEAD_DIM_V)), Float32),
        rows=softmax.make_rows(allowed),
        softmax_scale_log2=softmax_scale_log2,
    )


@cute.jit
def make_qk(shared: Shared, thread: Int32, keys: cutlass.Constexpr):
    """The product of Q with the first ``keys`` keys of a block."""
    mma = tiles.multiply_qk(Element, keys)
    k = cute.local_tile(shared.k, (keys, HEAD_DIM), (0, 0, None))
    return Qk(
        mma=mma,
        q=mma.make_fragment_A(mma.get_slice(0).partition_A(shared.q)),
        k=mma.make_fragment_B(mma.get_slice(0).partition_B(k)),
        coords=mma.get_slice(thread).partition_C(cute.make_identity_tensor((tiles.WARPGROUP_ROWS, keys))),
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
        ring.release(shared.k_ring, k_state, wg.thread)
        ring.release(shared.v_ring, v_state, wg.thread)
        k_state.advance()
        v_state.advance()
    return k_state, v_state


@cute.jit
def begin(
    problem: Problem,
    shared: Shared,
    wg: Warpgroup,
    rows: Tile,
    q_state: PipelineState,
    k_state: PipelineState,
    v_state: PipelineState,
):
    """P of a tile's first block, with nothing to run beside it."""
    k_state, v_state = hand_back(shared, wg, rows.others, k_state, v_state)
    ring.wait_full(shared.q_ring, q_state)
    softmax.reset(wg.rows)
    if rows.n_blocks > 0:
        ring.wait_full(shared.k_ring, k_state)
        first_p(problem, shared, wg, wg.qk, rows, k_state)
        k_state.advance()
    else:  # no multiply brings the warps together; one that is late would miss Q's phase
        cute.arch.barrier(barrier_id=WARPGROUP_BARRIER + wg.number, number_of_threads=128)
    return k_state, v_state


@cute.jit
def first_p(problem: Problem, shared: Shared, wg: Warpgroup, qk: Qk, rows: Tile, k_state: PipelineState):
    """P of a tile's first block, as far as ``qk`` reaches; the rest is 0."""
    scores = make_scores(qk)
    issue_qk(qk, scores, rows, k_state)
    warpgroup.wait_group(0)
    ring.release(shared.k_ring, k_state, wg.thread)
    apply_mask(problem, qk, scores, rows, rows.n_blocks - 1)
    softmax.first_block(scores, wg.rows, wg.softmax_scale_log2)
    wgmma.convert(scores, wg.p)


@cute.jit
def end(shared: Shared, wg: Warpgroup, v_state: PipelineState):
    """The last PV of a tile, with nothing to run beside it."""
    v_state = v_state.clone()
    ring.wait_full(shared.v_ring, v_state)
    issue_pv(wg, wg.p, v_state)
    warpgroup.wait_group(0)
    ring.release(shared.v_ring, v_state, wg.thread)
    v_state.advance()
    return v_state


@cute.jit
def attend(
    problem: Problem,
    shared: Shared,
    wg: Warpgroup,
    rows: Tile,
    q_state: PipelineState,
    k_state: PipelineState,
    v_state: PipelineState,
):
    """The ``rows.n_blocks`` leftmost blocks, at least two, from the first one's PV to the last one's QK and softmax."""
    # the last key of the first row counts as masked: so every row that sees a key has a maximum after those blocks
    unmasked = index.quotient(cutlass.max(visible_keys(problem, rows.row), 1) - 1, TILE_N)
    masked = cutlass.min(cutlass.max(rows.n_blocks - unmasked, 1), rows.n_blocks)
    k_state, v_state = attend_blocks(problem, shared, wg, rows, 1, masked, True, q_state, k_state, v_state)
    frozen = rows.n_blocks if rows.again == 0 else masked
    if masked < frozen:
        softmax.freeze(wg.rows)
    k_state, v_state = attend_frozen(shared, wg, rows, masked, frozen, q_state, k_state, v_state)
    k_state, v_state = attend_blocks(problem, shared, wg, rows, frozen, rows.n_blocks, False, q_state, k_state, v_state)
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
    q_state: PipelineState,
    k_state: PipelineState,
    v_state: PipelineState,
):
    """Blocks ``start`` to ``stop`` counted from the right: QK of each under way together with PV of the one before."""
    k_state, v_state = k_state.clone(), v_state.clone()
    for i in cutlass.range(start, stop, unroll=1):
        scores = make_scores(wg.qk)
        ring.wait_full(shared.k_ring, k_state)
        issue_qk(wg.qk, scores, rows, k_state)
        ring.wait_full(shared.v_ring, v_state)
        issue_pv(wg, wg.p, v_state)
        warpgroup.wait_group(1)
        ring.release(shared.k_ring, k_state, wg.thread)
        k_state.advance()
        if i == rows.n_blocks - 1:  # this early, the next tile's Q loads under a softmax
            ring.release(shared.q_ring, q_state, wg.thread)
        if const_expr(masked):
            apply_mask(problem, wg.qk, scores, rows, rows.n_blocks - 1 - i)
        softmax.next_block(scores, wg.rows, wg.softmax_scale_log2)
        softmax.add_block_total(wg.rows)
        warpgroup.wait_group(0)
        ring.release(shared.v_ring, v_state, wg.thread)
        wgmma.convert(scores, wg.p)
        softmax.rescale(wg.out, wg.rows)
        v_state.advance()
    return k_state, v_state


@cute.jit
def attend_frozen(
    shared: Shared,
    wg: Warpgroup,
    rows: Tile,
    start,
    stop,
    q_state: PipelineState,
    k_state: PipelineState,
    v_state: PipelineState,
):
    """As :func:`attend_blocks` without masks and without maxima: the shift of the masked blocks serves for these too.

    It is raised when the block before has outgrown it.
    """
    k_state, v_state = k_state.clone(), v_state.clone()
    left = rows.n_blocks - start
    for _ in cutlass.range(start, stop, unroll=1):
        softmax.raise_outgrown(wg.out, wg.p, wg.rows)
        scores = make_scores(wg.qk)
        ring.wait_full(shared.k_ring, k_state)
        issue_qk(wg.qk, scores, rows, k_state)
        ring.wait_full(shared.v_ring, v_state)
        issue_pv(wg, wg.p, v_state)
        warpgroup.wait_group(1)
        ring.release(shared.k_ring, k_state, wg.thread)
        k_state.advance()
        left -= 1
        if left == 0:
            ring.release(shared.q_ring, q_state, wg.thread)
        softmax.next_block_frozen(scores, wg.rows, wg.softmax_scale_log2)
        softmax.add_block_total(wg.rows)
        warpgroup.wait_group(0)
        ring.release(shared.v_ring, v_state, wg.thread)
        wgmma.convert(scores, wg.p)
        v_state.advance()
    softmax.raise_outgrown(wg.out, wg.p, wg.rows)
    return k_state, v_state


def make_scores(qk: Qk) -> cute.Tensor:
    return cute.make_rmem_tensor(qk.coords.shape, Float32)


def issue_qk(qk: Qk, scores: cute.Tensor, rows: Tile, state: PipelineState) -> None:
    wgmma.issue(qk.mma, scores, qk.q[None, None, None, rows.q_box], qk.k[None, None, None, state.index], False)


def issue_pv(wg: Warpgroup, p: cute.Tensor, state: PipelineState) -> None:
    wgmma.issue(wg.pv, wg.out, wgmma.as_operand_a(p), wg.v[None, None, None, state.index], True)


@cute.jit
def apply_mask(problem: Problem, qk: Qk, scores: cute.Tensor, rows: Tile, n_block: Int32):
    """-inf for the scores of block ``n_block`` that do not count."""
    where = wgmma.rows_columns(qk.coords)
    for r in range_constexpr(softmax.ROWS):
        keys = visible_keys(problem, rows.row + where[r, 0][0])
        mask.below(scores, qk.coords, r, keys - n_block * TILE_N)


@cute.jit
def store(
    problem: Problem, wg: Warpgroup, to: Output, first_row: Int32, head: Int32, batch: Int32, row_lse: cute.Tensor
):
    """O and LSE of this warpgroup's rows that exist."""
    count = problem.seqlen_q - first_row
    out = to.out + (batch * to.out_stride_batch + head * to.out_stride_head + first_row * to.out_stride_seqlen)
    layout = cute.make_layout((tiles.WARPGROUP_ROWS, HEAD_DIM_V), stride=(to.out_stride_seqlen, 1))
    tiles.store_out(wg.out, wg.thread, cute.make_tensor(out, layout), count)
    if to.lse.toint() != 0:
        lse = to.lse + (batch * to.lse_stride_batch + head * to.lse_stride_head + first_row)
        where = wgmma.rows_columns(wg.qk.coords)
        for r in range_constexpr(softmax.ROWS):
            row = where[r, 0][0]
            if wg.thread % 4 == 0:  # the first of a row's threads
                if row < count:
                    cute.make_tensor(lse, cute.make_layout((tiles.WARPGROUP_ROWS,)))[row] = row_lse[r]


@cute.jit
def launch(
    q: cute.Tensor,
    k: cute.Tensor,
    v: cute.Tensor,
    out: cute.Tensor,
    out_stride_batch: Int64,
    out_stride_seqlen: Int64,
    out_stride_head: Int64,
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
    tile_counter: cute.Tensor,
    stream,
):
    """Only for the compiler, which learns the kernel's parameters from it; the launcher passes them itself."""
    tma_q, tma_k, tma_v = tiles.tensor_maps(
        q, k, v, tiles.layouts(Element, TILE_N, HEAD_DIM, HEAD_DIM_V, Q_BOXES, STAGES)
    )
    kernel.set_name_prefix(NAME, remove_cutlass_symbol=True, keep_mangled_name=False)
    kernel(
        tma_q,
        tma_k,
        tma_v,
        out.iterator,
        out_stride_batch,
        out_stride_seqlen,
        out_stride_head,
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

    def dense(seqlen, heads, head_dim):
        strides = (*(cute.sym_int64(divisibility=16 * 8 // Element.width) for _ in range(3)), 1)
        return make_fake_tensor(Element, (batch, seqlen, heads, head_dim), strides, assumed_align=16)

    return (
        dense(seqlen_q, heads_q, HEAD_DIM),
        dense(seqlen_k, heads_k, HEAD_DIM),
        dense(seqlen_k, heads_k, HEAD_DIM_V),
        dense(seqlen_q, heads_q, HEAD_DIM_V),
        Int64(0),
        Int64(0),
        Int64(0),
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
        make_fake_tensor(Int32, (1,), (1,), assumed_align=4),
        make_fake_stream(use_tvm_ffi_env_stream=True),
    )

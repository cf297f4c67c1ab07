"""The forward kernel's walk in torch: tiles in the plan's order, blocks from right to left, online softmax in base 2.

It shares the index functions and the ranges of P with the kernels and none of the reference's code.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fa3gen.device import index, softmax
from fa3gen.model import DType, ForwardPlan

WARPGROUP_ROWS = 64
LAZY_GROWTH = 8.0
RANGES = {DType.BF16: softmax.BF16, DType.FP16: softmax.FP16}


def forward(
    plan: ForwardPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    head_section: int = 2,
    p_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, list[int]]:
    """out (batch, seqlen_q, heads_q, head_dim), LSE (batch, heads_q, seqlen_q) and the tiles that were done again.

    Rows never written stay NaN.
    """
    batch, seqlen_q, heads, _ = q.shape
    m_tiles = index.ceil_div(seqlen_q, plan.tile_m)
    num_tiles = m_tiles * heads * batch
    heads_per_kv = heads // k.shape[2]
    out = torch.full((*q.shape[:3], v.shape[-1]), torch.nan, dtype=q.dtype)
    lse = torch.full((batch, heads, seqlen_q), torch.nan, dtype=q.dtype)
    failed: list[int] = []
    messages = list(range(num_tiles))
    for message in messages:
        tile = index.tile_number(message)
        if plan.variant.causal:
            m_block, head, b = index.longest_first(tile, m_tiles, num_tiles, heads, head_section)
        else:
            m_block, head, b = index.head_by_head(tile, m_tiles, heads)
        kv_head = index.quotient(head, heads_per_kv)
        for first in range(m_block * plan.tile_m, (m_block + 1) * plan.tile_m, WARPGROUP_ROWS):
            rows = slice(first, min(first + WARPGROUP_ROWS, seqlen_q))
            if first < seqlen_q:
                keys, values, again = k[b, :, kv_head], v[b, :, kv_head], message >= index.AGAIN
                o, total, bad = _rows(
                    plan, q[b, rows, head], keys, values, scale, first, seqlen_q, again, p_dtype or q.dtype
                )
                out[b, rows, head], lse[b, head, rows] = o, total
                if bad and not again and tile not in failed:
                    failed.append(tile)
                    messages.append(tile + index.AGAIN)
    return out, lse, failed


def _rows(
    plan: ForwardPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    first: int,
    seqlen_q: int,
    again: bool,
    p_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, bool]:
    """A warpgroup's rows of one head, and whether they failed."""
    count, seqlen_k, scale_log2 = len(q), len(k), scale * math.log2(math.e)
    visible = torch.tensor([_visible(plan, first + r, seqlen_q, seqlen_k) for r in range(count)])
    n_blocks = index.ceil_div(int(visible[-1]), plan.tile_n)
    unmasked = index.quotient(max(int(visible[0]), 1) - 1, plan.tile_n)
    masked = min(max(n_blocks - unmasked, 1), n_blocks)
    allowed = RANGES[plan.variant.dtype] if plan.optimistic else softmax.FOLLOWING
    maximum = torch.full((count,), -torch.inf, dtype=q.dtype)
    state = _State(count, v.shape[-1], q.dtype)
    for i in range(n_blocks):
        start = (n_blocks - 1 - i) * plan.tile_n
        keys = torch.arange(start, start + plan.tile_n)
        block_k, block_v = _load(k, start, plan.tile_n), _load(v, start, plan.tile_n)
        scores = q @ block_k.T
        if i < masked:
            scores = torch.where(keys[None] < visible[:, None], scores, -torch.inf)
        frozen = plan.optimistic and i >= masked and not again
        if frozen:
            if i == masked:
                state.total = torch.where(maximum == -torch.inf, torch.inf, state.total)
            state.raise_shift(allowed)
            state.add_pending()
        else:
            state.add_pending()
            best = torch.maximum(maximum, scores.amax(1))
            if plan.lazy and i >= masked:
                grown = bool(((best - maximum) * scale_log2 > LAZY_GROWTH).any())
                best = best if grown else maximum
            unseen = best == -torch.inf
            correction = torch.exp2(torch.where(unseen, 0.0, maximum - best) * scale_log2)
            state.total, state.out = state.total * correction, state.out * correction[:, None]
            state.shift, maximum = torch.where(unseen, 0.0, best * scale_log2 - allowed.start), best
        state.add_block(torch.exp2(scores * scale_log2 - state.shift[:, None]), block_v, p_dtype)
    if plan.optimistic and n_blocks > masked and not again:
        state.raise_shift(allowed)
    state.add_pending()
    total, out = state.total, state.out
    failed = False
    if plan.optimistic and (state.raised or not bool((total <= 2.0**allowed.limit).all())):
        failed = not bool((total < torch.inf).all()) or not bool(out.isfinite().all())
    out = torch.where(total[:, None] > 0, out / total[:, None], torch.zeros_like(out))
    return out, (state.shift + torch.log2(total)) * math.log(2), failed


class _State:
    """O and sums of rows; what the latest block adds to O is pending, as its PV is."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype) -> None:
        self.shift, self.total, self.block, self.rounded, self.largest = torch.zeros(5, rows, dtype=dtype)
        self.out, self.pending = torch.zeros(2, rows, columns, dtype=dtype)
        self.raised = False

    def add_block(self, p: Tensor, block_v: Tensor, p_dtype: torch.dtype) -> None:
        rounded = p.to(p_dtype).to(p.dtype)
        self.block, self.rounded, self.pending = p.sum(1), rounded.sum(1), rounded @ block_v
        self.largest = p.view(len(p), -1, 4, 2).sum((1, 3)).amax(1)  # of the 4 threads of a row
        self.total = self.total + self.block

    def add_pending(self) -> None:
        self.out = self.out + self.pending
        self.pending = torch.zeros_like(self.pending)

    def raise_shift(self, allowed: softmax.Range) -> None:
        outgrown = self.largest > 2.0**allowed.limit
        steps = torch.where(outgrown, torch.log2(self.largest).clamp(max=1e4).trunc() - allowed.fresh, 0.0)
        gain = torch.where(outgrown, self.rounded / self.block, 1.0)
        factor = torch.exp2(-steps)
        self.shift = self.shift + (steps - torch.log2(gain))
        latest = torch.where(outgrown, self.rounded, self.block)
        total = (self.total - self.block) * (factor * gain) + latest * factor
        self.total = torch.where(outgrown & ~(self.largest < 2.0**allowed.overflow), torch.inf, total)
        self.out, self.pending = self.out * (factor * gain)[:, None], self.pending * factor[:, None]
        self.raised = self.raised or bool(outgrown.any())


def _visible(plan: ForwardPlan, row: int, seqlen_q: int, seqlen_k: int) -> int:
    return int(index.visible_keys(row, seqlen_q, seqlen_k)) if plan.variant.causal else seqlen_k


def _load(tensor: Tensor, start: int, rows: int) -> Tensor:
    """TMA: rows past the end are zeros."""
    block = torch.zeros(rows, tensor.shape[1], dtype=tensor.dtype)
    part = tensor[start : start + rows]
    block[: len(part)] = part
    return block

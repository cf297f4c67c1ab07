"""The forward kernel's walk in torch: tiles in the plan's order, blocks from right to left, online softmax in base 2.

It shares the index functions with the kernels and none of the reference's code.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fa3gen.device import index
from fa3gen.model import ForwardPlan, Softmax

WARPGROUP_ROWS = 64
LAZY_GROWTH = 8.0


def forward(
    plan: ForwardPlan, q: Tensor, k: Tensor, v: Tensor, scale: float, head_section: int = 2
) -> tuple[Tensor, Tensor]:
    """out (batch, seqlen_q, heads_q, head_dim) and LSE (batch, heads_q, seqlen_q); rows never written stay NaN."""
    batch, seqlen_q, heads, _ = q.shape
    m_tiles = index.ceil_div(seqlen_q, plan.tile_m)
    num_tiles = m_tiles * heads * batch
    heads_per_kv = heads // k.shape[2]
    out = torch.full((*q.shape[:3], v.shape[-1]), torch.nan, dtype=q.dtype)
    lse = torch.full((batch, heads, seqlen_q), torch.nan, dtype=q.dtype)
    for tile in range(num_tiles):
        if plan.variant.causal:
            m_block, head, b = index.longest_first(tile, m_tiles, num_tiles, heads, head_section)
        else:
            m_block, head, b = index.head_by_head(tile, m_tiles, heads)
        kv_head = index.quotient(head, heads_per_kv)
        for first in range(m_block * plan.tile_m, (m_block + 1) * plan.tile_m, WARPGROUP_ROWS):
            rows = slice(first, min(first + WARPGROUP_ROWS, seqlen_q))
            if first < seqlen_q:
                o, total = _rows(plan, q[b, rows, head], k[b, :, kv_head], v[b, :, kv_head], scale, first, seqlen_q)
                out[b, rows, head], lse[b, head, rows] = o, total
    return out, lse


def _rows(
    plan: ForwardPlan, q: Tensor, k: Tensor, v: Tensor, scale: float, first: int, seqlen_q: int
) -> tuple[Tensor, Tensor]:
    """A warpgroup's rows of one head."""
    count, seqlen_k, scale_log2 = len(q), len(k), scale * math.log2(math.e)
    visible = torch.tensor([_visible(plan, first + r, seqlen_q, seqlen_k) for r in range(count)])
    n_blocks = index.ceil_div(int(visible[-1]), plan.tile_n)
    unmasked = index.quotient(int(visible[0]), plan.tile_n)
    masked = min(max(n_blocks - unmasked, 1), n_blocks)
    maximum = torch.full((count,), -torch.inf, dtype=q.dtype)
    total, out = torch.zeros(count, dtype=q.dtype), torch.zeros(count, v.shape[-1], dtype=q.dtype)
    for i in range(n_blocks):
        start = (n_blocks - 1 - i) * plan.tile_n
        keys = torch.arange(start, start + plan.tile_n)
        block_k, block_v = _load(k, start, plan.tile_n), _load(v, start, plan.tile_n)
        scores = q @ block_k.T
        if i < masked:
            scores = torch.where(keys[None] < visible[:, None], scores, -torch.inf)
        best = torch.maximum(maximum, scores.amax(1))
        if plan.softmax is Softmax.LAZY and i >= masked:
            grown = bool(((best - maximum) * scale_log2 > LAZY_GROWTH).any())
            best = best if grown else maximum
        drop = torch.where(best == -torch.inf, torch.zeros_like(best), maximum - best)
        correction = torch.exp2(drop * scale_log2)
        shift = torch.where(best == -torch.inf, torch.zeros_like(best), best * scale_log2)
        p = torch.exp2(scores * scale_log2 - shift[:, None])
        total, out, maximum = total * correction + p.sum(1), out * correction[:, None] + p @ block_v, best
    out = torch.where(total[:, None] > 0, out / total[:, None], torch.zeros_like(out))
    return out, (maximum * scale_log2 + torch.log2(total)) * math.log(2)


def _visible(plan: ForwardPlan, row: int, seqlen_q: int, seqlen_k: int) -> int:
    return int(index.visible_keys(row, seqlen_q, seqlen_k)) if plan.variant.causal else seqlen_k


def _load(tensor: Tensor, start: int, rows: int) -> Tensor:
    """TMA: rows past the end are zeros."""
    block = torch.zeros(rows, tensor.shape[1], dtype=tensor.dtype)
    part = tensor[start : start + rows]
    block[: len(part)] = part
    return block

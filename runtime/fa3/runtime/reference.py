"""The attention call in plain torch: the judge of every kernel.

Written to be read and believed, for any device and any dtype, differentiable.  It works on slices of the scores, so
that long sequences fit in memory.
"""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor

#: Most scores that exist at one time.
SLICE_SCORES = 1 << 26


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: Literal[False] = False,
    compute_dtype: torch.dtype = torch.float32,
    out_dtype: torch.dtype | None = None,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: Literal[True],
    compute_dtype: torch.dtype = torch.float32,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool,
    compute_dtype: torch.dtype = torch.float32,
    out_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    compute_dtype: torch.dtype = torch.float32,
    out_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softmax_scale * q k^T) v for each head.

    q is (batch, seqlen_q, heads_q, head_dim), k (batch, seqlen_k, heads_k, head_dim), v (batch, seqlen_k, heads_k,
    head_dim_v); query head h reads key/value head ``h // (heads_q // heads_k)``.  With ``causal`` row i sees the keys j
    <= i + seqlen_k - seqlen_q (aligned bottom right).  A row that sees no key gives out 0 and LSE -inf.

    ``softmax_scale`` is 1/sqrt(head_dim) by default.  Scores, weights and products have ``compute_dtype``: float32 or
    float64 to judge by, the inputs' own to see what plain torch makes of them (each product is then rounded to that
    type; the softmax is taken in float32).  On CUDA, float32 is only that if ``torch.backends.cuda.matmul.allow_tf32``
    is off, as it is by default.

    Returns out, (batch, seqlen_q, heads_q, head_dim_v) of ``out_dtype`` (q's by default); with ``return_lse`` also the
    natural logarithm of the sum of exponentials, (batch, heads_q, seqlen_q), float32, or float64 where that is
    ``compute_dtype``.
    """
    batch, seqlen_q, heads_q, head_dim = q.shape
    _, _, heads_k, head_dim_v = v.shape
    scale = 1.0 / math.sqrt(head_dim) if softmax_scale is None else softmax_scale
    out_dtype = q.dtype if out_dtype is None else out_dtype
    lse_dtype = torch.promote_types(compute_dtype, torch.float32)
    if 0 in (batch, seqlen_q, heads_q):
        out = q.new_zeros((batch, seqlen_q, heads_q, head_dim_v), dtype=out_dtype)
        lse = q.new_zeros((batch, heads_q, seqlen_q), dtype=lse_dtype)
        return (out, lse) if return_lse else out

    group = heads_q // heads_k
    outs, lses = [], []
    for b in range(batch):
        for h in range(heads_k):
            heads = q[b, :, h * group : (h + 1) * group].transpose(0, 1)
            head_out, head_lse = _group(heads, k[b, :, h], v[b, :, h], causal, scale, compute_dtype)
            outs.append(head_out.to(out_dtype))
            lses.append(head_lse)
    out = torch.cat(outs).view(batch, heads_q, seqlen_q, head_dim_v).transpose(1, 2).contiguous()
    lse = torch.cat(lses).view(batch, heads_q, seqlen_q)
    return (out, lse) if return_lse else out


def _group(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, compute_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The query heads of one key/value head: q (group, seqlen_q, head_dim), k and v (seqlen_k, head_dim)."""
    group, seqlen_q, _ = q.shape
    seqlen_k = k.shape[0]
    rows = max(1, SLICE_SCORES // max(1, group * seqlen_k))
    k, v = k.to(compute_dtype), v.to(compute_dtype)
    outs, lses = [], []
    for first in range(0, seqlen_q, rows):
        last = min(first + rows, seqlen_q)
        scores = (q[:, first:last].to(compute_dtype) * scale) @ k.transpose(0, 1)
        if causal:
            row = torch.arange(first, last, device=q.device)[:, None]
            key = torch.arange(seqlen_k, device=q.device)[None, :]
            scores = scores.masked_fill(key > row + (seqlen_k - seqlen_q), -math.inf)
        scores = scores.to(torch.promote_types(compute_dtype, torch.float32))
        lse = torch.logsumexp(scores, dim=-1)
        # exp(-inf - 0) is the weight 0 that every key has for a row that sees none
        weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None])
        outs.append(weights.to(compute_dtype) @ v)
        lses.append(lse)
    return torch.cat(outs, dim=1), torch.cat(lses, dim=1)

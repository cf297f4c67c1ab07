"""The reference against the formula written out, torch's own attention and numerical gradients."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fa3.runtime import reference
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

SHAPES = [  # batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim
    (1, 1, 1, 1, 1, 8),
    (2, 5, 7, 4, 4, 16),
    (3, 9, 4, 6, 2, 8),
    (1, 4, 13, 7, 1, 24),
    (2, 3, 0, 2, 1, 8),
]


def tensors(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim = shape
    generator = torch.Generator().manual_seed(sum(shape))
    q = torch.randn(batch, seqlen_q, heads_q, head_dim, generator=generator, dtype=dtype)
    k = torch.randn(batch, seqlen_k, heads_k, head_dim, generator=generator, dtype=dtype)
    v = torch.randn(batch, seqlen_k, heads_k, head_dim, generator=generator, dtype=dtype)
    return q, k, v


def formula(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """One row at a time, in Python's own arithmetic as far as it goes."""
    batch, seqlen_q, heads_q, _ = q.shape
    seqlen_k, heads_k = k.shape[1:3]
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads_q, seqlen_q), -math.inf, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads_q):
            kv = h // (heads_q // heads_k)
            for i in range(seqlen_q):
                keys = [j for j in range(seqlen_k) if not causal or j <= i + seqlen_k - seqlen_q]
                if keys:
                    weights = [math.exp(scale * float(q[b, i, h] @ k[b, j, kv])) for j in keys]
                    total = math.fsum(weights)
                    lse[b, h, i] = math.log(total)
                    for j, weight in zip(keys, weights, strict=True):
                        out[b, i, h] += weight / total * v[b, j, kv]
    return out, lse


def run(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    out, lse = reference.attention(*args, return_lse=True, **kwargs)
    return out, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_formula(shape: tuple[int, ...], causal: bool) -> None:
    q, k, v = tensors(shape)
    out, lse = run(q, k, v, causal=causal, softmax_scale=0.3, compute_dtype=torch.float64)
    expected, expected_lse = formula(q, k, v, causal, 0.3)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)
    assert out.dtype == lse.dtype == torch.float64


@pytest.mark.parametrize("causal", [False, True])
def test_torch_sdpa(causal: bool) -> None:
    q, k, v = tensors((2, 33, 65, 6, 2, 32), torch.float32)
    mask = causal_lower_right(33, 65) if causal else None
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, enable_gqa=True
    )
    out = reference.attention(q, k, v, causal=causal)
    assert isinstance(out, Tensor)
    torch.testing.assert_close(out, expected.transpose(1, 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 3, 2, 1, 2), (1, 3, 2, 1, 1, 2)])
def test_gradients(shape: tuple[int, ...], causal: bool) -> None:
    """Of out and of the LSE of rows that see a key (it is constantly -inf for others)."""
    inputs = tuple(t.requires_grad_() for t in tensors(shape))

    def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = run(q, k, v, causal=causal, compute_dtype=torch.float64)
        return out, lse.masked_fill(lse == -math.inf, 0.0)

    assert torch.autograd.gradcheck(call, inputs)


@pytest.mark.parametrize("seqlens", [(5, 2), (300, 130)])
def test_rows_without_a_key(seqlens: tuple[int, int]) -> None:
    """Report T03: causal with more queries than keys."""
    seqlen_q, seqlen_k = seqlens
    q, k, v = tensors((1, seqlen_q, seqlen_k, 4, 1, 64), torch.float16)
    out, lse = run(q, k, v, causal=True)
    empty = seqlen_q - seqlen_k
    assert torch.equal(out[:, :empty], torch.zeros(1, empty, 4, 64, dtype=torch.float16))
    assert torch.equal(lse[..., :empty], torch.full((1, 4, empty), -math.inf))
    torch.testing.assert_close(out[0, empty], v[0, 0].expand(4, 64), rtol=1e-3, atol=0)
    assert torch.isfinite(lse[..., empty:]).all()


@pytest.mark.parametrize("shape", [(0, 3, 4, 2, 1, 8), (2, 0, 4, 2, 1, 8), (2, 3, 4, 0, 0, 8)])
def test_zero_size(shape: tuple[int, ...]) -> None:
    q, k, v = tensors(shape, torch.bfloat16)
    out, lse = run(q, k, v)
    assert (out.shape, out.dtype) == (q.shape, torch.bfloat16)
    assert (lse.shape, lse.dtype) == ((shape[0], shape[3], shape[1]), torch.float32)


def test_default_scale_and_head_dim_v() -> None:
    q, k, v = tensors((1, 4, 6, 2, 2, 16))
    out, lse = run(q, k, v[..., :5], compute_dtype=torch.float64)
    expected, expected_lse = formula(q, k, v[..., :5], False, 0.25)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)


def test_slices_change_nothing() -> None:
    q, k, v = tensors((2, 37, 29, 6, 3, 16))
    whole = run(q, k, v, causal=True, compute_dtype=torch.float64)
    with patch.object(reference, "SLICE_SCORES", 2 * 29 * 5):
        sliced = run(q, k, v, causal=True, compute_dtype=torch.float64)
    torch.testing.assert_close(sliced, whole, rtol=1e-13, atol=1e-13)


def test_precision() -> None:
    """float32 is far nearer to float64 than bfloat16 is, and only the output's type rounds by default."""
    q, k, v = tensors((2, 64, 96, 4, 2, 64), torch.bfloat16)
    exact, exact_lse = run(q, k, v, compute_dtype=torch.float64, out_dtype=torch.float64)
    single, single_lse = run(q, k, v, out_dtype=torch.float32)
    plain, _ = run(q, k, v, compute_dtype=torch.bfloat16)
    assert (exact.dtype, single.dtype, plain.dtype) == (torch.float64, torch.float32, torch.bfloat16)
    assert (exact - single).abs().max() < 1e-5
    assert (exact_lse - single_lse).abs().max() < 1e-5
    assert 1e-4 < (exact - plain).abs().max() < 3e-2
    rounded = reference.attention(q, k, v)
    assert isinstance(rounded, Tensor)
    assert torch.equal(rounded, single.to(torch.bfloat16))

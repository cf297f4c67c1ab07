"""The kernels' algorithm, walked in torch with their index functions, against the reference in float64."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from fa3.runtime import reference

from fa3gen.model import parse_name
from fa3gen.plan import resolve
from tests.emulator import forward

SHAPES = (
    *((1, 1), (1, 300), (300, 1), (63, 65), (65, 63), (129, 257), (257, 129), (300, 0), (128, 128), (200, 333)),
    *((400, 130), (64, 640), (193, 192)),
)


@pytest.mark.parametrize(
    ("name", "softmax", "values"),
    [
        *product(
            ("fwd_bf16_d64_full_sm90a", "fwd_bf16_d64_causal_sm90a", "fwd_fp16_d128_causal_sm90a"),
            ("exact", "lazy", "optimistic"),
            ("normal", "growing", "outlier"),
        )
    ],
)
def test_equals_the_reference(name: str, softmax: str, values: str) -> None:
    done_again = 0
    for i, (seqlen_q, seqlen_k) in enumerate(SHAPES):
        plan = resolve(parse_name(name), {"softmax": softmax, "cluster": 1 + i % 2})
        torch.manual_seed(i)
        heads_q, heads_k, batch = ((2, 1, 1), (3, 3, 1), (4, 2, 2))[i % 3]
        q = torch.randn(batch, seqlen_q, heads_q, 16, dtype=torch.float64)
        k, v = (torch.randn(batch, seqlen_k, heads_k, 16, dtype=torch.float64) for _ in "kv")
        if values == "growing" and seqlen_k:
            k = k * torch.linspace(20, 0.1, seqlen_k, dtype=torch.float64).view(1, -1, 1, 1)
        if values == "outlier":
            k[:, :1] *= 200
        out, lse, failed = forward(plan, q, k, v, 0.25)
        done_again += len(failed)
        exact, exact_lse = reference.attention(
            q,
            k,
            v,
            causal=plan.variant.causal,
            softmax_scale=0.25,
            return_lse=True,
            compute_dtype=torch.float64,
            out_dtype=torch.float64,
        )
        torch.testing.assert_close(out, exact, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(lse, exact_lse, rtol=1e-9, atol=1e-10, check_dtype=False)
    if values != "growing":
        assert bool(done_again) == (softmax == "optimistic" and values == "outlier")

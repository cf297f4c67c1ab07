"""The kernels' algorithm, walked in torch with their index functions, against the reference in float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from fa3.runtime import reference

from fa3gen.device import softmax as device_softmax
from fa3gen.model import DType, parse_name
from fa3gen.plan import resolve
from fa3gen.verify.cases import BF16_VALUES, Case
from fa3gen.verify.inputs import make
from fa3gen.verify.numerics import judge
from tests.built_kernels import plans
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
    plan = resolve(parse_name(name), {"softmax": softmax})
    done_again = 0
    for i, (seqlen_q, seqlen_k) in enumerate(SHAPES):
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


@pytest.mark.parametrize("allowed", [device_softmax.BF16, device_softmax.FP16], ids=["bf16", "fp16"])
def test_no_factor_of_a_raised_shift_is_flushed(allowed: device_softmax.Range) -> None:
    assert allowed.start <= allowed.limit < allowed.overflow
    assert allowed.overflow - allowed.fresh <= 126


def test_fp16_holds_the_sums_of_a_block() -> None:
    assert 2**device_softmax.FP16.overflow <= torch.finfo(torch.float16).max
    most = max(plan.tile_n // 4 for plan in plans())  # exponentials of a thread's row, each 2^start at the maximum
    assert most * 2**device_softmax.FP16.start <= 2**device_softmax.FP16.limit


@pytest.fixture
def _flushed() -> Iterator[None]:
    """As on the GPU: results below the least normal number are 0."""
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("_flushed")
@pytest.mark.parametrize(
    "values", ["rising", "soaring", "jump", "sink", "tower", "stairs", "leaps", "anchored", "hidden", "mixed", "heavy"]
)
@pytest.mark.parametrize("name", ["fwd_bf16_d64_causal_sm90a", "fwd_fp16_d64_full_sm90a"])
def test_is_as_precise_as_verify_asks(name: str, values: str) -> None:
    """In float32, with P rounded to 16 bits: what lies outside the ranges of P is seen and computed again."""
    plan = resolve(parse_name(name))
    assert plan.optimistic
    dtype = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16}[plan.variant.dtype]
    if values in BF16_VALUES and dtype is not torch.bfloat16:
        pytest.skip("fp16 does not hold such values")
    shapes = {"leaps": (20, 400, 9, 9), "anchored": (20, 4096, 1, 1)}
    seqlen_q, seqlen_k, heads_q, heads_k = shapes.get(values, (70, 500, 2, 2))
    case = Case(seqlen_q, seqlen_k, 1, heads_q, heads_k, values=values)
    inputs = make(case, dtype, 64, 64, torch.device("cpu"))
    q, k, v = (tensor.float() for tensor in inputs)
    out, lse, failed = forward(plan, q, k, v, 64**-0.5, p_dtype=dtype)
    ratio, problems = judge(case, inputs, out.to(dtype), lse, plan.variant.causal)
    assert problems == []
    assert ratio < 1
    if values in ("soaring", "jump", "hidden", "anchored"):
        assert bool(failed) == (values != "anchored")

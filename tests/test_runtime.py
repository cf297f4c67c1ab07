"""attention() on CPU tensors with a launcher that runs the reference."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fa3.contract import Key
from fa3.runtime import (
    Bundle,
    BundleError,
    GradientNotBuilt,
    Unsupported,
    VariantNotBuilt,
    attention,
    bundle,
    launcher,
    load_bundle,
    reference,
    request,
)
from torch import Tensor
from torch.autograd import forward_ad

from tests.runtime_bundle import ARCH, FakeLauncher, default_scale, inputs, write_bundle


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLauncher:
    """The launcher behind the default bundle."""
    fake = FakeLauncher()
    monkeypatch.setattr(launcher, "native", lambda: fake)
    monkeypatch.setattr(bundle, "_bundles", {})
    monkeypatch.setattr(bundle, "_default", None)
    monkeypatch.delenv("FA3_BUNDLE", raising=False)
    write_bundle(tmp_path / "bundle")
    load_bundle(tmp_path / "bundle")
    return fake


@pytest.fixture(params=["cold", "warm"])
def cold_and_warm(request: pytest.FixtureRequest, native: FakeLauncher) -> str:
    """Once before any kernel was used, once with those of the usual inputs at hand."""
    if request.param == "warm":
        for causal in (False, True):
            attention(*inputs(), causal=causal)
        native.calls.clear()
    return str(request.param)


# results


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_call_reaches_its_kernel(native: FakeLauncher, dtype: torch.dtype, head_dim: int, causal: bool) -> None:
    q, k, v = inputs(head_dim=head_dim, dtype=dtype)
    for _ in range(2):
        out = attention(q, k, v, causal=causal)
        assert isinstance(out, Tensor)
        assert torch.equal(out, reference.attention(q, k, v, causal=causal))
        assert (out.dtype, out.is_contiguous()) == (dtype, True)
    name = f"fwd_{'bf16' if dtype == torch.bfloat16 else 'fp16'}_d{head_dim}_{'causal' if causal else 'full'}_{ARCH}"
    assert [call.kernel for call in native.calls] == [name, name]
    assert native.loads == [(name, -1)]
    call = native.calls[0]
    assert (call.sm_margin, call.softmax_scale, call.lse) == (0, default_scale(head_dim), None)
    assert call.q is q
    assert call.k is k
    assert call.v is v


def test_lse(cold_and_warm: str) -> None:
    q, k, v = inputs()
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    expected, expected_lse = reference.attention(q, k, v, causal=True, return_lse=True)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    assert (lse.shape, lse.dtype, lse.is_contiguous()) == ((2, 4, 5), torch.float32, True)


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, torch.enable_grad], ids=["no_grad", "inference_mode", "grad"]
)
def test_modes(native: FakeLauncher, mode: Callable[[], Any]) -> None:
    with mode():
        q, k, v = inputs()
        out, lse = attention(q, k, v, return_lse=True)
        assert torch.equal(out, reference.attention(q, k, v))
        assert not out.requires_grad
        assert not lse.requires_grad
        assert out.is_inference() == (mode is torch.inference_mode)
    assert len(native.calls) == 1


@pytest.mark.parametrize("seqlens", [(5, 2), (300, 130)])
def test_more_queries_than_keys(seqlens: tuple[int, int]) -> None:
    """Report T03."""
    q, k, v = inputs(1, *seqlens, 4, 1, 64, torch.float16)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    empty = seqlens[0] - seqlens[1]
    assert not out[:, :empty].any()
    assert (lse[:, :, :empty] == -math.inf).all()
    assert torch.equal(out[0, empty], v[0, 0].expand(4, 64))


@pytest.mark.parametrize(
    ("batch", "seqlen_q", "seqlen_k", "heads_q", "heads_k"),
    [(0, 5, 7, 4, 2), (2, 0, 7, 4, 2), (2, 5, 7, 0, 0), (2, 5, 7, 0, 2), (0, 0, 0, 0, 0)],
)
def test_zero_size(cold_and_warm: str, batch: int, seqlen_q: int, seqlen_k: int, heads_q: int, heads_k: int) -> None:
    q, k, v = inputs(batch, seqlen_q, seqlen_k, heads_q, heads_k)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    assert (lse.shape, lse.dtype) == ((q.shape[0], q.shape[2], q.shape[1]), torch.float32)


def test_no_keys(cold_and_warm: str) -> None:
    """Report T02: the kernel answers, so the call has to reach it."""
    q, k, v = inputs(seqlen_k=0)
    out, lse = attention(q, k, v, return_lse=True)
    assert not out.any()
    assert (lse == -math.inf).all()


@pytest.mark.parametrize("heads", [(28, 4), (40, 8), (24, 8), (48, 1), (33, 3), (7, 7)])
def test_gqa_ratios(cold_and_warm: str, heads: tuple[int, int]) -> None:
    """Report T13."""
    q, k, v = inputs(1, 3, 20, *heads)
    assert torch.equal(attention(q, k, v, causal=True), reference.attention(q, k, v, causal=True))


# several plans of a variant

FURTHER = (("__n64", {"max_seqlen_k": 7, "min_batch": 2}), ("__n96", {"max_seqlen_q": 5, "max_heads_k": 1}))


@pytest.fixture
def several(tmp_path: Path, native: FakeLauncher) -> Bundle:
    write_bundle(tmp_path / "several", [Key("fwd", "bf16", "64", "causal", "dense")], FURTHER)
    return load_bundle(tmp_path / "several")


PLAN_CALLS = [
    ((2, 5, 7, 4, 2), "n64"),
    ((2, 900, 7, 4, 2), "n64"),
    ((2, 5, 8, 4, 2), ""),
    ((1, 5, 7, 4, 2), ""),
    ((1, 5, 7, 4, 1), "n96"),
    ((1, 6, 7, 4, 1), ""),
    ((2, 0, 7, 4, 2), "n64"),
    ((2, 5, 0, 4, 1), "n64"),
]


@pytest.mark.parametrize("order", [1, -1])
def test_extents_choose_the_plan(native: FakeLauncher, several: Bundle, order: int) -> None:
    for _ in range(2):
        native.calls.clear()
        for extents, plan in PLAN_CALLS[::order]:
            q, k, v = inputs(*extents)
            out, lse = attention(q, k, v, causal=True, return_lse=True)
            expected = reference.attention(q, k, v, causal=True, return_lse=True)
            assert torch.equal(out, expected[0])
            assert torch.equal(lse, expected[1])
            assert native.calls[-1].kernel.partition("__")[2] == plan
    assert len(native.loads) == 3  # all at the first call, so that none waits later
    assert (len(several.choices), len(several.ready)) == (1, 0)


def test_every_way_of_calling_chooses_the_plan(native: FakeLauncher, several: Bundle) -> None:
    class Watched(torch.Tensor):
        pass

    for extents, plan in PLAN_CALLS:
        q, k, v = inputs(*extents)
        native.calls.clear()
        attention(q, k, v, causal=True, out=torch.empty_like(q))
        attention(q.as_subclass(Watched), k, v, causal=True)
        torch.ops.fa3.attention(q, k, v, True, None, 0, "")
        torch.ops.fa3.attention_out(q, k, v, torch.empty_like(q), None, True, None, 0, several.name)
        assert {call.kernel.partition("__")[2] for call in native.calls} == {plan}
        assert len(native.calls) == 4


def test_one_compiled_program_chooses_in_each_call(native: FakeLauncher, several: Bundle) -> None:
    torch._dynamo.reset()
    frames = []

    def backend(module: torch.fx.GraphModule, _examples: Any) -> Callable[..., Any]:
        frames.append(module)
        return module.forward

    compiled = torch.compile(lambda q, k, v: attention(q, k, v, causal=True), backend=backend, dynamic=True)
    for seqlens, plan in (((5, 7), "n64"), ((6, 8), ""), ((9, 7), "n64")):
        compiled(*inputs(2, *seqlens))
        assert native.calls[-1].kernel.partition("__")[2] == plan
    assert len(frames) == 1  # the extents are not held against bounds while tracing


@pytest.mark.parametrize("name", ["__n64", "__n96", ""])
def test_one_plan_alone_takes_every_call(native: FakeLauncher, several: Bundle, name: str) -> None:
    kernel = f"fwd_bf16_d64_causal_{ARCH}{name}"
    one = several.only(kernel)
    for extents, _ in PLAN_CALLS:
        q, k, v = inputs(*extents)
        attention(q, k, v, causal=True, bundle=one)
        torch.ops.fa3.attention(q, k, v, True, None, 0, one.name)
    assert {call.kernel for call in native.calls} == {kernel}
    assert len(one.ready) == 1


def test_wrong_arguments_where_a_choice_is_at_hand(native: FakeLauncher, several: Bundle) -> None:
    q, k, v = inputs()
    for _ in range(2):
        with pytest.raises(ValueError, match="v has shape"):
            attention(q, k, v[:, :6], causal=True)
        with pytest.raises(ValueError, match="q has shape"):
            attention(q[0], k, v, causal=True)
        attention(q, k, v, causal=True)
    with pytest.raises(VariantNotBuilt, match="near: fwd_bf16_d64_causal_sm90a"):
        attention(q, k, v)


# strides


def test_strides_of_dims_of_extent_one_do_not_matter(cold_and_warm: str) -> None:
    """Report T10."""
    q, k, v = inputs(1, 5, 7, 1, 1)
    for stride in (0, 1, 3, 2**20):
        odd = [t.as_strided(t.shape, (stride, t.stride(1), stride, 1)) for t in (q, k, v)]
        assert odd[0].stride(2) == stride
        out = attention(*odd)
        assert torch.equal(out, attention(q, k, v))
        assert out.is_contiguous()


def fused(batch: int = 2, seqlen: int = 6, heads_q: int = 4, heads_k: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and a place for out in one buffer, (batch, seqlen, heads, head_dim)."""
    buffer = torch.randn(batch, seqlen, 2 * heads_q + 2 * heads_k, 64).to(torch.bfloat16)
    q, k, v, out = torch.split(buffer, [heads_q, heads_k, heads_k, heads_q], dim=2)
    return q, k, v, out


def test_views(cold_and_warm: str) -> None:
    """Report T11."""
    q, k, v = inputs()
    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    padded = [torch.nn.functional.pad(t, (0, 32))[..., :64] for t in (q, k, v)]
    for views in (transposed, padded, fused()[:3]):
        assert not views[0].is_contiguous()
        out = attention(*views, causal=True)
        assert torch.equal(out, attention(*(t.contiguous() for t in views), causal=True))
        assert out.is_contiguous()


def test_shared_keys_by_a_stride_of_zero(cold_and_warm: str) -> None:
    q, k, v = inputs(3)
    k, v = (t[:1].expand(3, -1, -1, -1) for t in (k, v))
    assert torch.equal(attention(q, k, v), attention(q, k.contiguous(), v.contiguous()))


def spoiled(name: str, change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    tensors = dict(zip("qkv", inputs(), strict=True))
    tensors[name] = change(tensors[name])
    return tensors["q"], tensors["k"], tensors["v"]


def last_dim_apart(t: Tensor) -> Tensor:
    return t.repeat_interleave(2, dim=3)[..., ::2]


def rows_apart(t: Tensor) -> Tensor:
    return torch.nn.functional.pad(t, (0, 4))[..., :64]


def off_by_one(t: Tensor) -> Tensor:
    return torch.empty(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape).copy_(t)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (last_dim_apart, r"{} has strides \(.*2\); allowed: 1 in the last dim \(use {}\.contiguous\(\)\)"),
        (rows_apart, r"{} has stride \d+ in dim 1; allowed: multiples of 8 elements \(16 bytes\)"),
        (off_by_one, "{} starts at address 0x[0-9a-f]+2; allowed: multiples of 16"),
    ],
)
def test_addresses_that_tma_cannot_read(
    cold_and_warm: str, native: FakeLauncher, name: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    message = message.replace("{}", name)
    if change is rows_apart:
        message = message.replace("1;", "[012];")
    with pytest.raises(ValueError, match=f"^{message}"):
        attention(*spoiled(name, change))
    assert native.calls == []


# types and shapes


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("q", lambda t: t.tolist(), TypeError, "q is a list; allowed: torch.Tensor"),
        ("k", lambda t: None, TypeError, "k is a NoneType; allowed: torch.Tensor"),
        ("v", lambda t: t.to_sparse(), TypeError, "v has layout torch.sparse_coo; allowed: torch.strided"),
        (
            "q",
            lambda t: torch.nested.nested_tensor(list(t)),
            TypeError,
            "q has layout torch.strided (nested); allowed: torch.strided",
        ),
        ("q", Tensor.float, TypeError, "q has dtype torch.float32; allowed: torch.bfloat16, torch.float16"),
        ("k", Tensor.half, TypeError, "k has dtype torch.float16; allowed: q's, torch.bfloat16"),
        ("v", Tensor.double, TypeError, "v has dtype torch.float64; allowed: torch.bfloat16, torch.float16"),
        ("q", lambda t: t[0], ValueError, "q has shape (5, 4, 64); allowed: (batch, seqlen_q, heads_q, head_dim)"),
        (
            "q",
            lambda t: t[None],
            ValueError,
            "q has shape (1, 2, 5, 4, 64); allowed: (batch, seqlen_q, heads_q, head_dim)",
        ),
        ("q", lambda t: t.sum(), ValueError, "q has shape (); allowed: (batch, seqlen_q, heads_q, head_dim)"),
        ("k", lambda t: t[0], ValueError, "k has shape (7, 2, 64); allowed: (batch, seqlen_k, heads_k, head_dim)"),
        (
            "k",
            lambda t: t[:1],
            ValueError,
            "k has shape (1, 7, 2, 64); allowed: (2, seqlen_k, heads_k, 64), as q has shape (2, 5, 4, 64)",
        ),
        (
            "k",
            lambda t: t[..., :32],
            ValueError,
            "k has shape (2, 7, 2, 32); allowed: (2, seqlen_k, heads_k, 64), as q has shape (2, 5, 4, 64)",
        ),
        (
            "v",
            lambda t: t[:, :6],
            ValueError,
            "v has shape (2, 6, 2, 64); allowed: (2, 7, 2, head_dim), as k has shape (2, 7, 2, 64)",
        ),
        (
            "v",
            lambda t: t[:, :, :1],
            ValueError,
            "v has shape (2, 7, 1, 64); allowed: (2, 7, 2, head_dim), as k has shape (2, 7, 2, 64)",
        ),
        ("v", lambda t: t[..., :0], ValueError, "v has head_dim 0; allowed: 1 and more"),
        (
            "q",
            lambda t: t[:, :, :3],
            ValueError,
            "q has 3 heads and k has 2; allowed: heads_q a multiple of heads_k",
        ),
        ("q", lambda t: t.to("meta"), ValueError, "k is on device cpu; allowed: q's, meta"),
        ("v", lambda t: t.to("meta"), ValueError, "v is on device meta; allowed: q's, cpu"),
    ],
)
def test_wrong_inputs(
    cold_and_warm: str,
    native: FakeLauncher,
    name: str,
    change: Callable[[Tensor], Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error) as caught:
        attention(*spoiled(name, change))
    assert str(caught.value) == message
    assert native.calls == []
    assert caught.value.__cause__ is None


def test_wrong_device() -> None:
    q, k, v = (t.to("meta") for t in inputs())
    with pytest.raises(ValueError, match=r"^q is on device meta; allowed"):
        attention(q, k, v)


def test_no_key_value_heads(cold_and_warm: str) -> None:
    q, k, v = inputs(heads_k=0)
    with pytest.raises(ValueError, match="q has 4 heads and k has 0; allowed"):
        attention(q, k, v)


def test_variant_not_built(cold_and_warm: str, native: FakeLauncher) -> None:
    q, k, v = inputs(head_dim=96)
    with pytest.raises(VariantNotBuilt, match="near: fwd_bf16_d128_causal_sm90a") as caught:
        attention(q, k, v, causal=True)
    assert caught.value.yaml == "- {dtype: bf16, head_dim: 96, mask: causal, layout: dense}"
    q, k, v = inputs()
    with pytest.raises(VariantNotBuilt, match="holds no kernel for fwd: dtype bf16, head_dim 64x32"):
        attention(q, k, v[..., :32])
    assert native.calls == []


def test_failure_of_a_launch_is_passed_on(native: FakeLauncher) -> None:
    native.failure = RuntimeError("CUDA error 719")
    with pytest.raises(RuntimeError) as caught:
        attention(*inputs())
    assert caught.value is native.failure


# out


def test_out(cold_and_warm: str, native: FakeLauncher) -> None:
    q, k, v = inputs()
    out = torch.full_like(q, math.nan)
    assert attention(q, k, v, out=out) is out
    assert torch.equal(out, reference.attention(q, k, v))
    result, lse = attention(q, k, v, out=out, return_lse=True)
    assert result is out
    assert native.calls[-1].out is out
    assert native.calls[-1].lse is lse


def test_out_may_be_a_view(cold_and_warm: str) -> None:
    """Report T11: what is around it stays as it is."""
    q, k, v = inputs()
    buffer = torch.full((2, 5, 4, 96), 7.0, dtype=torch.bfloat16)
    attention(q, k, v, out=buffer[..., :64])
    assert torch.equal(buffer[..., :64], reference.attention(q, k, v))
    assert (buffer[..., 64:] == 7).all()


def test_out_may_be_columns_of_the_inputs_buffer(cold_and_warm: str) -> None:
    q, k, v, out = fused()
    expected = reference.attention(q, k, v)
    attention(q, k, v, out=out)
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.numpy, TypeError, "out is a builtin_function_or_method; allowed: torch.Tensor"),
        (Tensor.float, TypeError, "out has dtype torch.float32; allowed: q's, torch.bfloat16"),
        (Tensor.half, TypeError, "out has dtype torch.float16; allowed: q's, torch.bfloat16"),
        (lambda t: t.to("meta"), ValueError, "out is on device meta; allowed: q's, cpu"),
        (lambda t: t[:1], ValueError, "out has shape (1, 5, 4, 64); allowed: (2, 5, 4, 64)"),
        (lambda t: t[0], ValueError, "out has shape (5, 4, 64); allowed: (2, 5, 4, 64)"),
        (last_dim_apart, ValueError, "out has strides (2560, 512, 128, 2); allowed: 1 in the last dim"),
        (
            rows_apart,
            ValueError,
            "out has stride 1360 in dim 0;|out has stride 272 in dim 1;|out has stride 68 in dim 2;",
        ),
        (off_by_one, ValueError, "out starts at address 0x"),
        (
            lambda t: t[:1].expand(2, -1, -1, -1),
            ValueError,
            "out has strides (0, 256, 64, 1) for shape (2, 5, 4, 64); allowed: a place for each element",
        ),
        (
            lambda t: t.as_strided(t.shape, (1280, 256, 32, 1)),
            ValueError,
            "out has strides (1280, 256, 32, 1) for shape (2, 5, 4, 64); allowed: a place for each element",
        ),
    ],
)
def test_wrong_out(
    cold_and_warm: str, native: FakeLauncher, change: Callable[[Tensor], Any], error: type[Exception], message: str
) -> None:
    q, k, v = inputs()
    pattern = "|".join(re.escape(part) for part in message.split("|"))
    with pytest.raises(error, match=f"^({pattern})"):
        attention(q, k, v, out=change(torch.empty_like(q)))
    assert native.calls == []


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_out_may_not_share_memory_with_inputs(cold_and_warm: str, native: FakeLauncher, name: str) -> None:
    tensors = dict(zip("qkv", inputs(heads_k=4, seqlen_k=5), strict=True))
    shifted = torch.empty(2 * 2 * 5 * 4 * 64, dtype=torch.bfloat16)
    tensors[name] = shifted[: 2 * 5 * 4 * 64].view(2, 5, 4, 64)
    for out in (tensors[name], shifted[8 : 8 + 2 * 5 * 4 * 64].view(2, 5, 4, 64)):
        with pytest.raises(ValueError, match=f"^out shares memory with {name}; allowed: memory of its own"):
            attention(tensors["q"], tensors["k"], tensors["v"], out=out)
    assert native.calls == []
    behind = shifted[2 * 5 * 4 * 64 :].view(2, 5, 4, 64)
    attention(tensors["q"], tensors["k"], tensors["v"], out=behind)


def test_interleaved_is_not_enough() -> None:
    """Columns of the same rows that overlap, and rows of different pitch."""
    buffer = torch.zeros(2, 6, 8, 64, dtype=torch.bfloat16)
    q, k, v = buffer[:, :, :4], *inputs(seqlen_q=6)[1:]
    with pytest.raises(ValueError, match="out shares memory with q"):
        attention(q, k, v, out=buffer[:, :, 3:7])
    attention(q, k, v, out=buffer[:, :, 4:])
    flat = buffer.view(-1)
    with pytest.raises(ValueError, match="out shares memory with q"):
        attention(q, k, v, out=flat.as_strided((2, 6, 4, 64), (6 * 320, 320, 64, 1), 256))


def test_zero_size_out() -> None:
    q, k, v = inputs(seqlen_q=0)
    out = torch.empty_like(q)
    assert attention(q, k, v, out=out) is out


def test_overwritten_out_is_noticed_by_autograd() -> None:
    q, k, v = inputs()
    out = torch.ones_like(q)
    weight = torch.ones_like(q, requires_grad=True)
    loss = (weight * out).sum()  # saves out for the gradient of weight
    attention(q, k, v, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)


def test_out_in_inference_mode() -> None:
    with torch.inference_mode():
        q, k, v = inputs()
        out = torch.empty_like(q)
        attention(q, k, v, out=out)
        assert torch.equal(out, reference.attention(q, k, v))


# scalars


@pytest.mark.parametrize(
    "scale", [0.5, 1, np.float32(0.25), np.float64(0.25), torch.tensor(0.25), request.SCALE_MIN, request.SCALE_MAX]
)
def test_softmax_scale(native: FakeLauncher, scale: Any) -> None:
    q, k, v = inputs()
    attention(q, k, v, softmax_scale=scale)
    assert native.calls[0].softmax_scale == float(scale)
    assert type(native.calls[0].softmax_scale) is float


@pytest.mark.parametrize("scale", [0.0, 0, -0.5, math.inf, -math.inf, math.nan, 1e-39, 3e38, torch.tensor(-1.0)])
def test_softmax_scale_out_of_range(cold_and_warm: str, scale: Any) -> None:
    with pytest.raises(ValueError, match=rf"^softmax_scale is {re.escape(str(float(scale)))}; allowed: 1\.18e-38 to "):
        attention(*inputs(), softmax_scale=scale)


@pytest.mark.parametrize("scale", ["1", True, 1j, torch.ones(2), torch.ones((), device="meta")])
def test_softmax_scale_of_a_wrong_type(cold_and_warm: str, scale: Any) -> None:
    with pytest.raises(TypeError, match=r"^softmax_scale is .*; allowed: a number on the host"):
        attention(*inputs(), softmax_scale=scale)


@pytest.mark.parametrize("margin", [0, 1, FakeLauncher.NUM_SMS - 1, np.int64(3)])
def test_sm_margin(native: FakeLauncher, margin: Any) -> None:
    attention(*inputs(), sm_margin=margin)
    assert native.calls[0].sm_margin == margin


@pytest.mark.parametrize(
    ("margin", "error", "message"),
    [
        (-1, ValueError, "sm_margin is -1; allowed: 0 to 131, as the device has 132 SMs"),
        (132, ValueError, "sm_margin is 132; allowed: 0 to 131, as the device has 132 SMs"),
        (1.0, TypeError, "sm_margin is 1.0; allowed: an int"),
        (True, TypeError, "sm_margin is True; allowed: an int"),
        (None, TypeError, "sm_margin is None; allowed: an int"),
    ],
)
def test_wrong_sm_margin(cold_and_warm: str, margin: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        attention(*inputs(), sm_margin=margin)
    assert str(caught.value) == message


@pytest.mark.parametrize("causal", [1, np.True_, True])
def test_causal_may_be_any_true(cold_and_warm: str, native: FakeLauncher, causal: Any) -> None:
    attention(*inputs(), causal=causal)
    assert "causal" in native.calls[0].kernel


@pytest.mark.parametrize("causal", [None, "yes", 2, [], torch.tensor(True)])
def test_wrong_causal(cold_and_warm: str, native: FakeLauncher, causal: Any) -> None:
    with pytest.raises(TypeError, match=r"^causal is .*; allowed: True, False"):
        attention(*inputs(), causal=causal)
    assert native.calls == []


# arguments of later releases


def test_signature() -> None:
    parameters = inspect.signature(attention).parameters
    names = list(parameters)
    assert names[:3] == ["q", "k", "v"]
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in names[3:])
    assert {*request.NEUTRAL, "window_size"} == set(names[3:]) - {
        *("causal", "softmax_scale", "sm_margin", "out", "return_lse", "bundle")
    }
    for name, neutral in request.NEUTRAL.items():
        assert parameters[name].default in neutral


@pytest.mark.parametrize("name", request.NEUTRAL)
def test_later_arguments(native: FakeLauncher, name: str) -> None:
    call: Any = attention
    for neutral in request.NEUTRAL[name]:
        call(*inputs(), **{name: neutral})
    count = len(native.calls)
    assert count == len(request.NEUTRAL[name])
    for value in (torch.ones(2), 30, "text"):
        with pytest.raises(Unsupported, match=f"^{name} is given, which this release does not support; allowed: "):
            call(*inputs(), **{name: value})
    assert len(native.calls) == count


@pytest.mark.parametrize(
    ("window", "causal", "mask"),
    [
        ((-1, -1), False, "full"),
        (None, False, "full"),
        ((None, None), False, "full"),
        ([-1, -1], False, "full"),
        ((-1, -1), True, "causal"),
        ((-1, 0), True, "causal"),
        ((None, 0), True, "causal"),
        ((-1, 0), False, "causal"),
        ((None, 0), False, "causal"),
        ((-1, 9), True, "causal"),
    ],
)
def test_windows_that_are_none(native: FakeLauncher, window: Any, causal: bool, mask: str) -> None:
    """Report X1."""
    attention(*inputs(), causal=causal, window_size=window)
    assert native.calls[0].kernel == f"fwd_bf16_d64_{mask}_{ARCH}"


@pytest.mark.parametrize(("window", "causal"), [((5, 0), True), ((-1, 3), False), ((0, 0), False), ((-2, -1), False)])
def test_windows_that_are(native: FakeLauncher, window: Any, causal: bool) -> None:
    with pytest.raises(Unsupported, match=r"^window_size is \(.*\); this release supports"):
        attention(*inputs(), causal=causal, window_size=window)
    assert native.calls == []


@pytest.mark.parametrize("window", [5, (1, 2, 3)])
def test_wrong_window(window: Any) -> None:
    with pytest.raises(TypeError, match=r"^window_size is .*; allowed: a pair \(left, right\)"):
        attention(*inputs(), window_size=window)


# bundles


def test_explicit_bundle(native: FakeLauncher, tmp_path: Path) -> None:
    write_bundle(tmp_path / "other")
    other = load_bundle(tmp_path / "other", default=False)
    attention(*inputs(), bundle=other)
    assert len(other.ready) == 1
    assert len(bundle.default_bundle().ready) == 0


def test_wrong_bundle() -> None:
    with pytest.raises(TypeError, match=r"^bundle is a str; allowed: what fa3\.runtime\.load_bundle returns"):
        attention(*inputs(), bundle="bundle")  # type: ignore[call-overload]


def test_no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_default", None)
    with pytest.raises(BundleError, match="FA3_BUNDLE"):
        attention(*inputs())


def test_head_dim_of_v_may_differ(native: FakeLauncher, tmp_path: Path) -> None:
    keys = [Key("fwd", "bf16", head_dim, "full", "dense") for head_dim in ("64", "64x32")]
    write_bundle(tmp_path / "other", keys)
    load_bundle(tmp_path / "other")
    q, k, v = inputs()
    for values in (v, v[..., :32], v, v[..., :32]):  # neither is taken for the other
        out = attention(q, k, values)
        assert out.shape == (2, 5, 4, values.shape[3])
        assert torch.equal(out, reference.attention(q, k, values))
    assert native.calls[1].softmax_scale == default_scale(64)
    assert [call.kernel for call in native.calls] == [f"fwd_bf16_d{d}_full_{ARCH}" for d in ("64", "64x32")] * 2


def test_the_same_kernel_serves_every_length(native: FakeLauncher) -> None:
    """Report X4: no further kernel after the first call."""
    for seqlen in (1, 2, 63, 64, 65):
        attention(*inputs(seqlen_q=seqlen, seqlen_k=seqlen), causal=True)
    assert len(native.calls) == 5
    assert len(native.loads) == 1


# gradients, transforms, subclasses, tracing

FORWARD_MODE_WARNS = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_gradients_are_refused_in_the_forward_call(cold_and_warm: str, native: FakeLauncher, name: str) -> None:
    tensors = spoiled(name, Tensor.requires_grad_)
    with pytest.raises(GradientNotBuilt, match=r"no backward kernel.*torch\.no_grad\(\)"):
        attention(*tensors)
    assert native.calls == []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(attention(*tensors), reference.attention(*tensors))


def test_gradient_of_out_is_refused() -> None:
    q, k, v = inputs()
    out = torch.empty_like(q, requires_grad=True)
    with pytest.raises(GradientNotBuilt):
        attention(q, k, v, out=out)
    with torch.no_grad():
        attention(q, k, v, out=out)


def test_parameters(native: FakeLauncher) -> None:
    q, k, v = inputs()
    weight = torch.nn.Parameter(q)
    with torch.no_grad():
        assert torch.equal(attention(weight, k, v), reference.attention(q, k, v))
    with pytest.raises(GradientNotBuilt):
        attention(weight, k, v)
    assert len(native.calls) == 1


def test_vmap_is_refused(native: FakeLauncher) -> None:
    q, k, v = (t[None] for t in inputs())
    with pytest.raises(Unsupported, match=r"vmap and the other transforms of torch\.func"):
        torch.vmap(attention)(q, k, v)
    assert native.calls == []


@FORWARD_MODE_WARNS
def test_functional_gradient_is_refused(native: FakeLauncher) -> None:
    q, k, v = inputs()
    with pytest.raises((Unsupported, GradientNotBuilt)):
        torch.func.grad(lambda q: attention(q, k, v).sum())(q)
    with pytest.raises(Unsupported):
        torch.func.jvp(lambda q: attention(q, k, v), (q,), (q,))
    assert native.calls == []


@FORWARD_MODE_WARNS
def test_forward_mode_is_refused(native: FakeLauncher) -> None:
    q, k, v = inputs()
    make_dual: Any = forward_ad.make_dual
    with forward_ad.dual_level():
        with pytest.raises(Unsupported, match=r"^forward-mode differentiation"):
            attention(make_dual(q, torch.ones_like(q)), k, v)
        assert native.calls == []
        assert torch.equal(attention(q, k, v), reference.attention(q, k, v))


def test_modes_see_the_call() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    q, k, v = inputs()
    with Watch():  # type: ignore[no-untyped-call]
        out, _ = attention(q, k, v, return_lse=True)
        attention(q, k, v, out=torch.empty_like(q))
    assert torch.equal(out, reference.attention(q, k, v))
    assert "fa3.attention.default" in seen
    assert "fa3.attention_out.default" in seen


def test_subclasses_see_the_call() -> None:
    seen = []

    class Tagged(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    q, k, v = inputs()
    out = attention(q.as_subclass(Tagged), k, v)
    assert isinstance(out, Tagged)
    assert torch.equal(out.as_subclass(Tensor), reference.attention(q, k, v))
    assert "fa3.attention" in seen


def test_fake_tensors() -> None:
    """Report X3: right shapes and strides, and errors, without any memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs()]
    with FakeTensorMode() as mode:
        q, k, v = map(mode.from_tensor, real)
        out, lse = attention(q, k, v, return_lse=True)
        assert (out.shape, out.stride(), out.dtype) == (q.shape, (1280, 256, 64, 1), q.dtype)
        assert (lse.shape, lse.dtype) == ((2, 4, 5), torch.float32)
        assert attention(q, k, v, out=q.new_empty(q.shape)).shape == q.shape
        with pytest.raises(VariantNotBuilt, match="head_dim 32"):
            attention(*(t[..., :32] for t in (q, k, v)))
        with pytest.raises(ValueError, match=r"^out has shape"):
            attention(q, k, v, out=k)


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_compile(return_lse: bool, given: bool) -> None:
    """Report X3: one graph, no break; with free lengths it serves others too."""

    def call(q: Tensor, k: Tensor, v: Tensor, out: Tensor | None) -> tuple[Tensor, ...]:
        result = attention(q * 2, k, v, causal=True, window_size=(-1, 0), out=out, return_lse=return_lse)
        return (result + 1,) if isinstance(result, Tensor) else (result[0] + 1, result[1])

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for seqlens in ((5, 7), (9, 3)):
        q, k, v = inputs(2, *seqlens)
        outs = torch.zeros_like(q), torch.zeros_like(q)
        expected, found = call(q, k, v, outs[0] if given else None), compiled(q, k, v, outs[1] if given else None)
        assert len(found) == 1 + return_lse
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert torch.equal(outs[0], outs[1])
        assert outs[0].any() == given


def test_compile_with_a_bundle(tmp_path: Path) -> None:
    write_bundle(tmp_path / "other")
    other = load_bundle(tmp_path / "other", default=False)
    torch._dynamo.reset()
    q, k, v = inputs()
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, bundle=other), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), reference.attention(q, k, v))
    assert len(other.ready) == 1


def test_compile_tells_of_a_miss_and_of_a_gradient() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="holds no kernel for fwd: dtype bf16, head_dim 32"):
        compiled(*inputs(head_dim=32))
    q, k, v = inputs()
    with pytest.raises(Exception, match="no backward kernel"):
        compiled(q.requires_grad_(), k, v)


def test_export_means_the_same_elsewhere(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self, chosen: Bundle) -> None:
            super().__init__()
            self.chosen = chosen

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return attention(q, k, v, bundle=self.chosen)

    write_bundle(tmp_path / "exported")
    q, k, v = inputs()
    with torch.no_grad():
        program = torch.export.export(Model(load_bundle(tmp_path / "exported")), (q, k, v))
    bundle._bundles.clear()  # as in another process
    assert torch.equal(program.module()(q, k, v), reference.attention(q, k, v))
    assert str(tmp_path / "exported") in bundle._bundles


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.trace_method. is deprecated:DeprecationWarning")
def test_trace() -> None:
    q, k, v = inputs()
    traced = torch.jit.trace(lambda q, k, v: attention(q, k, v), (q, k, v), check_trace=False)  # type: ignore[no-untyped-call]
    assert torch.equal(traced(q + 1, k, v), reference.attention(q + 1, k, v))


def test_ops_pass_torch_s_own_checks() -> None:
    q, k, v = inputs(1, 3, 4)
    options = (True, None, 0, "")
    torch.library.opcheck(torch.ops.fa3.attention.default, (q, k, v, *options))
    torch.library.opcheck(torch.ops.fa3.attention.default, (q, k, v, False, 0.5, 2, ""))
    lse = torch.empty(1, 4, 3)
    for target in (lse, None):
        torch.library.opcheck(torch.ops.fa3.attention_out.default, (q, k, v, torch.empty_like(q), target, *options))


def test_op_refuses_gradients() -> None:
    q, k, v = inputs()
    with pytest.raises(GradientNotBuilt):
        torch.ops.fa3.attention(q.requires_grad_(), k, v, False, None, 0, "")

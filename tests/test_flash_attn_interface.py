"""FlashAttention-3's calls: its arguments, its results, and an error for what is not there."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from fa3 import flash_attn_interface
from fa3.flash_attn_interface import flash_attn_func, flash_attn_varlen_func
from fa3.runtime import GradientNotBuilt, Unsupported, VariantNotBuilt, bundle, launcher, load_bundle, reference

from tests.runtime_bundle import ARCH, FakeLauncher, inputs, write_bundle

#: FlashAttention-3's arguments behind q, k and v, in their order, with their defaults.
OPTIONS = {
    "softmax_scale": None,
    "causal": False,
    "qv": None,
    "q_descale": None,
    "k_descale": None,
    "v_descale": None,
    "window_size": (-1, -1),
    "attention_chunk": 0,
    "softcap": 0.0,
    "num_splits": 1,
    "pack_gqa": None,
    "deterministic": False,
    "sm_margin": 0,
    "return_attn_probs": False,
}
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
USED = {"seqused_q": None, "seqused_k": None}

#: A value of each argument that asks for what this release lacks.
LATER: dict[str, Any] = {
    "qv": torch.ones(1),
    "q_descale": torch.ones(1),
    "k_descale": torch.ones(1),
    "v_descale": torch.ones(1),
    "window_size": (5, 0),
    "attention_chunk": 64,
    "softcap": 30.0,
    "num_splits": 2,
    "pack_gqa": True,
}


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLauncher:
    """The launcher behind the default bundle."""
    fake = FakeLauncher()
    monkeypatch.setattr(launcher, "native", lambda: fake)
    monkeypatch.setattr(bundle, "_bundles", {})
    monkeypatch.setattr(bundle, "_default", None)
    write_bundle(tmp_path)
    load_bundle(tmp_path)
    return fake


def signature(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    assert all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    return {parameter.name: parameter.default for parameter in parameters}


def test_signatures_are_flash_attention_3_s() -> None:
    needed = dict.fromkeys("qkv", inspect.Parameter.empty)
    assert list(signature(flash_attn_func).items()) == list((needed | OPTIONS).items())
    needed |= dict.fromkeys(LENGTHS, inspect.Parameter.empty)
    assert list(signature(flash_attn_varlen_func).items()) == list((needed | USED | OPTIONS).items())
    assert flash_attn_interface.__all__ == ["flash_attn_func", "flash_attn_varlen_func"]


@pytest.mark.parametrize("causal", [False, True])
def test_results(native: FakeLauncher, causal: bool) -> None:
    q, k, v = inputs()
    expected, expected_lse = reference.attention(q, k, v, causal=causal, softmax_scale=0.5, return_lse=True)
    out = flash_attn_func(q, k, v, 0.5, causal)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, expected)
    out, lse = flash_attn_func(q, k, v, softmax_scale=0.5, causal=causal, return_attn_probs=True)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    assert [call.lse is None for call in native.calls] == [True, False]


def test_what_changes_no_result_is_taken(native: FakeLauncher) -> None:
    q, k, v = inputs()
    flash_attn_func(q, k, v, window_size=(-1, 0), num_splits=0, pack_gqa=False, deterministic=True, sm_margin=7)
    (call,) = native.calls
    assert (call.kernel, call.sm_margin) == (f"fwd_bf16_d64_causal_{ARCH}", 7)


@pytest.mark.parametrize("name", LATER)
def test_what_is_not_there_is_named(native: FakeLauncher, name: str) -> None:
    options: dict[str, Any] = {name: LATER[name]}
    with pytest.raises(Unsupported, match=f"^{name} is "):
        flash_attn_func(*inputs(), **options)
    with pytest.raises(Unsupported, match=f"^{name} is "):
        flash_attn_varlen_func(*inputs(), None, None, None, None, **options)
    assert native.calls == []


def test_no_kernel_and_no_gradient() -> None:
    with pytest.raises(VariantNotBuilt, match="head_dim 96"):
        flash_attn_func(*inputs(head_dim=96))
    q, k, v = inputs()
    with pytest.raises(GradientNotBuilt):
        flash_attn_func(q.requires_grad_(), k, v)


def test_several_lengths_are_refused(native: FakeLauncher) -> None:
    q, k, v = (tensor.flatten(0, 1) for tensor in inputs())
    starts_q, starts_k = (torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (5, 7))
    with pytest.raises(Unsupported, match=r"^cu_seqlens_q is "):
        flash_attn_varlen_func(q, k, v, starts_q, starts_k, 5, 7)
    for position, name in enumerate(LENGTHS):
        lengths: list[Any] = [None] * 4
        lengths[position] = (starts_q, starts_k, 5, 7)[position]
        with pytest.raises(Unsupported, match=f"^{name} is "):
            flash_attn_varlen_func(q, k, v, *lengths)
    for name in USED:
        used: dict[str, Any] = {name: starts_q[:2]}
        with pytest.raises(Unsupported, match=f"^{name} is "):
            flash_attn_varlen_func(q, k, v, None, None, None, None, **used)
    assert native.calls == []


@pytest.mark.parametrize("function", [flash_attn_func, flash_attn_varlen_func], ids=["dense", "varlen"])
def test_every_argument_reaches_attention(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    """Also those that attention() refuses today, each by its own name."""
    seen: dict[str, Any] = {}

    def attention(*tensors: Any, **options: Any) -> str:
        seen.update(zip("qkv", tensors, strict=True), **options)
        return "result"

    monkeypatch.setattr(flash_attn_interface, "attention", attention)
    given = {name: object() for name in signature(function)}
    assert function(*given.values()) == "result"
    given["return_lse"] = given.pop("return_attn_probs")
    assert seen == given


def test_in_a_compiled_program() -> None:
    torch._dynamo.reset()
    q, k, v = inputs()
    compiled = torch.compile(lambda q, k, v: flash_attn_func(q, k, v, causal=True), fullgraph=True, backend="aot_eager")
    out = compiled(q, k, v)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, reference.attention(q, k, v, causal=True))

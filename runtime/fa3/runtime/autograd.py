"""Calls that torch has to see go through registered ops: traced ones, subclasses, modes, transforms, gradients.

``fa3::attention`` returns (out, lse); ``fa3::attention_out`` writes to ``out`` and, where given, ``lse``.  Both take
the bundle by its path, "" for the default one, so that an exported program means the same in another process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fa3.runtime import bundle as bundles
from fa3.runtime import eager, request
from fa3.runtime.bundle import Bundle
from fa3.runtime.errors import GradientNotBuilt, Unsupported

_unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual

_OPTIONS = "bool causal, float? softmax_scale, int sm_margin, str bundle"


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    softmax_scale: float | None,
    sm_margin: int,
    out: Tensor | None,
    return_lse: bool,
    bundle: Bundle | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The attention call through a registered op."""
    check(q, k, v, out)
    path = "" if bundle is None else bundle.name
    if out is None:
        out, lse = torch.ops.fa3.attention(q, k, v, causal, softmax_scale, sm_margin, path)
    else:
        lse = eager.new_lse(q) if return_lse else None
        torch.ops.fa3.attention_out(q, k, v, out, lse, causal, softmax_scale, sm_margin, path)
    return (out, lse) if return_lse else out


def check(q: Tensor, k: Tensor, v: Tensor, out: Tensor | None) -> None:
    """That the arguments are tensors of which torch wants nothing that the kernels lack."""
    for name, tensor in (("q", q), ("k", k), ("v", v)) + ((("out", out),) if out is not None else ()):
        request.check_tensor(name, tensor)
    _refuse_gradient(q, k, v, out)
    if not torch.compiler.is_compiling():
        _refuse_transforms(q, k, v)


def mark_written(out: Tensor) -> None:
    """Tells autograd that ``out`` is overwritten, so that a backward pass that had saved it says so."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


def _refuse_gradient(*tensors: Tensor | None) -> None:
    """Raises in the forward call where a backward call would have to follow."""
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        raise _gradient_not_built()


def _gradient_not_built() -> GradientNotBuilt:
    return GradientNotBuilt(
        "an input requires a gradient, and there is no backward kernel yet: "
        "call under torch.no_grad() or torch.inference_mode(), or detach the inputs"
    )


def _refuse_transforms(*tensors: Tensor) -> None:
    if torch._C._are_functorch_transforms_active() and any(
        map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)
    ):
        raise Unsupported(
            "vmap and the other transforms of torch.func do not apply to fa3 attention; allowed: plain calls"
        )
    if forward_ad._current_level >= 0 and any(_unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise Unsupported("forward-mode differentiation does not apply to fa3 attention; allowed: plain calls")


@torch.library.custom_op(
    "fa3::attention", mutates_args=(), schema=f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)"
)
def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float | None, sm_margin: int, bundle: str
) -> tuple[Tensor, Tensor]:
    out, lse = eager.forward(q, k, v, causal, softmax_scale, sm_margin, None, True, bundles.named_bundle(bundle))
    assert lse is not None  # as asked for
    return out, lse


@attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float | None, sm_margin: int, bundle: str
) -> tuple[Tensor, Tensor]:
    eager.find(q, k, v, causal, bundles.named_bundle(bundle))
    return q.new_empty((*q.shape[:3], v.shape[3])), eager.new_lse(q)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    raise _gradient_not_built()  # torch calls this only where an input requires a gradient


def _backward(ctx: Any, *gradients: Tensor) -> None:
    raise _gradient_not_built()


attention.register_autograd(_backward, setup_context=_setup_context)


@torch.library.custom_op(
    "fa3::attention_out",
    mutates_args=("out", "lse"),
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!)? lse, {_OPTIONS}) -> ()",
)
def attention_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    causal: bool,
    softmax_scale: float | None,
    sm_margin: int,
    bundle: str,
) -> None:
    eager.forward_into(q, k, v, causal, softmax_scale, sm_margin, out, lse, bundles.named_bundle(bundle))


@attention_out.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    causal: bool,
    softmax_scale: float | None,
    sm_margin: int,
    bundle: str,
) -> None:
    eager.find(q, k, v, causal, bundles.named_bundle(bundle))
    request.check_out(out, q, v)

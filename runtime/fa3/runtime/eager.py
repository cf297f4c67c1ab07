"""An attention call on tensors as they are: its kernel found, its outputs allocated, launched.

The launcher holds every argument against the kernel in any case, and faster than Python could.  So a call whose kernel
is at hand goes straight to it; :mod:`fa3.runtime.request`, which explains more, has its say when a kernel is first
needed and when something failed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fa3.contract import KernelEntry
from fa3.runtime import request
from fa3.runtime.bundle import Bundle, Choice, ReadyKernel


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    softmax_scale: float | None,
    sm_margin: int,
    out: Tensor | None,
    return_lse: bool,
    bundle: Bundle,
) -> tuple[Tensor, Tensor | None]:
    """out, newly made unless given, and the LSE where asked for."""
    try:
        shape, shape_v = q.shape, v.shape
        head_dim, head_dim_v = shape[3], shape_v[3]
        key = (q.dtype, head_dim, head_dim_v, causal, q.get_device())
        kernel = bundle.ready.get(key)
        if kernel is None:
            choice = bundle.choices.get(key)
            kernel = _prepare(q, k, v, causal, bundle) if choice is None else choice.kernel(shape, shape_v)
        scale = kernel.softmax_scale if softmax_scale is None else request.check_scale(softmax_scale)
        if sm_margin != 0:
            sm_margin = request.check_sm_margin(sm_margin, kernel.num_sms)
        if out is not None:
            request.check_out_memory(out, q, k, v)
            result = out
        elif head_dim_v == head_dim:
            result = torch.empty_like(q, memory_format=torch.contiguous_format)
        else:
            result = q.new_empty((*shape[:3], head_dim_v))
        lse = new_lse(q) if return_lse else None
        kernel.launch(sm_margin, scale, q, k, v, result, lse)
        return result, lse
    except Exception as error:
        raise _clearer(error, q, k, v, causal, out, bundle) from None


def forward_into(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    softmax_scale: float | None,
    sm_margin: int,
    out: Tensor,
    lse: Tensor | None,
    bundle: Bundle,
) -> None:
    """Writes to ``out`` and, where given, ``lse``."""
    kernel = _prepare(q, k, v, causal, bundle)
    scale = kernel.softmax_scale if softmax_scale is None else request.check_scale(softmax_scale)
    sm_margin = request.check_sm_margin(sm_margin, kernel.num_sms)
    request.check_out(out, q, v)
    request.check_out_memory(out, q, k, v)
    kernel.launch(sm_margin, scale, q, k, v, out, lse)


def find(q: Tensor, k: Tensor, v: Tensor, causal: bool, bundle: Bundle) -> tuple[KernelEntry, ...]:
    """The plans that a call may take; :func:`request.checked_key` says what is checked.

    The extents, which may be symbolic, are not held against the plans' bounds.
    """
    return bundle.find(request.checked_key(q, k, v, causal))


def new_lse(q: Tensor) -> Tensor:
    """An uninitialised LSE: float32 (batch, heads_q, seqlen_q)."""
    shape = q.shape
    return torch.empty((shape[0], shape[2], shape[1]), dtype=torch.float32, device=q.device)


def _prepare(q: Tensor, k: Tensor, v: Tensor, causal: bool, bundle: Bundle) -> ReadyKernel:
    """The kernel of a call, its inputs checked; from now on :func:`forward` finds it at once.

    All plans of its variant are loaded, so that no later call has to wait when its extents ask for another.
    """
    plans = find(q, k, v, causal, bundle)
    device = bundle.native.device("q", q.device)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        request.check_memory(name, tensor)
    kernels = [bundle.load(entry, device) for entry in plans]
    key = (q.dtype, q.shape[3], v.shape[3], bool(causal), q.get_device())
    if len(kernels) == 1:
        bundle.ready[key] = kernels[0]
        return kernels[0]
    choice = bundle.choices.get(key)
    if choice is None:
        bounds = [plan.when for plan in plans]
        choice = bundle.choices[key] = Choice([*zip(bounds, kernels, strict=True)])
    return choice.kernel(q.shape, v.shape)


def _clearer(
    error: Exception, q: Tensor, k: Tensor, v: Tensor, causal: bool, out: Tensor | None, bundle: Bundle
) -> Exception:
    """What is wrong with the arguments; ``error`` itself where they are right."""
    try:
        _prepare(q, k, v, causal, bundle)
        if out is not None:
            request.check_out(out, q, v)
            request.check_out_memory(out, q, k, v)
    except Exception as fault:
        return fault
    return error

"""An attention call on tensors as they are: checked, its kernel found, its outputs allocated, launched.

All that a call costs on the host beyond the launch is here and in :func:`fa3.runtime.request.fitting_head_dim`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fa3.contract import KernelEntry
from fa3.runtime import request
from fa3.runtime.bundle import Bundle, ReadyKernel


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
    kernel = _kernel(q, k, v, causal, bundle)
    if out is not None:
        request.check_out(out, q, k, v)
        request.check_out_memory(out, q, k, v)
    elif kernel.head_dim_v == q.shape[3]:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    else:
        out = q.new_empty((*q.shape[:3], kernel.head_dim_v))
    lse = new_lse(q) if return_lse else None
    _launch(kernel, sm_margin, softmax_scale, q, k, v, out, lse)
    return out, lse


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
    kernel = _kernel(q, k, v, causal, bundle)
    request.check_out(out, q, k, v)
    request.check_out_memory(out, q, k, v)
    _launch(kernel, sm_margin, softmax_scale, q, k, v, out, lse)


def find(q: Tensor, k: Tensor, v: Tensor, causal: bool, bundle: Bundle) -> KernelEntry:
    """The kernel that a call takes, after every check that needs no memory address (so also for fake tensors)."""
    request.check_inputs(q, k, v)
    causal = request.check_flag("causal", causal)
    return bundle.find(request.key(q.dtype, q.shape[3], v.shape[3], causal))


def new_lse(q: Tensor) -> Tensor:
    """An uninitialised LSE: float32 (batch, heads_q, seqlen_q)."""
    batch, seqlen_q, heads_q, _ = q.shape
    return torch.empty((batch, heads_q, seqlen_q), dtype=torch.float32, device=q.device)


def _kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool, bundle: Bundle) -> ReadyKernel:
    """The kernel of a call whose inputs are right; raises what is wrong with them."""
    call_key = (q.dtype, request.fitting_head_dim(q, k, v), causal, q.get_device())
    kernel = bundle.ready.get(call_key)
    if kernel is None:
        entry = find(q, k, v, causal, bundle)
        device = bundle.native.device("q", q.device)
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            request.check_addresses(name, tensor)
        kernel = bundle.load(entry, device)
        if q.numel() == 0:
            return replace(kernel, launch=_launch_nothing)
        if call_key[1]:  # what fits is found at once the next time
            bundle.ready[call_key] = kernel
    return kernel


def _launch(
    kernel: ReadyKernel,
    sm_margin: int,
    softmax_scale: float | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    if softmax_scale is None:
        softmax_scale = kernel.softmax_scale
    else:
        softmax_scale = request.check_scale(softmax_scale)
    if sm_margin != 0:
        sm_margin = request.check_sm_margin(sm_margin, kernel.num_sms)
    kernel.launch(sm_margin, softmax_scale, q, k, v, out, lse)


def _launch_nothing(*arguments: object) -> None:
    """The launch of a zero-size call."""

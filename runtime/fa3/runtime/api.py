"""The public call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function_variadic

from fa3.runtime import autograd, eager, request
from fa3.runtime import bundle as bundles
from fa3.runtime.bundle import Bundle

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class Options(TypedDict, total=False):
        """The keyword arguments of :func:`attention` that do not change what it returns."""

        causal: bool
        window_size: tuple[int | None, int | None] | None
        softcap: float
        softmax_scale: float | None
        sink: Tensor | None
        cu_seqlens_q: Tensor | None
        cu_seqlens_k: Tensor | None
        seqused_q: Tensor | None
        seqused_k: Tensor | None
        max_seqlen_q: int | None
        max_seqlen_k: int | None
        page_table: Tensor | None
        q_descale: Tensor | None
        k_descale: Tensor | None
        v_descale: Tensor | None
        num_splits: int
        pack_gqa: bool | None
        deterministic: bool
        attention_chunk: int
        qv: Tensor | None
        sm_margin: int
        policy: str | None
        out: Tensor | None
        workspace: Tensor | None
        bundle: Bundle | None


# looked up once: each is asked in every call
_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
_is_tracing = torch._C._is_tracing
_is_grad_enabled = torch.is_grad_enabled


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = False, **options: Unpack[Options]
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window_size: tuple[int | None, int | None] | None = request.NO_WINDOW,
    softcap: float = 0.0,
    softmax_scale: float | None = None,
    sink: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    attention_chunk: int = 0,
    qv: Tensor | None = None,
    sm_margin: int = 0,
    policy: str | None = None,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
    return_lse: bool = False,
    bundle: Bundle | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softmax_scale * q k^T) v for each head, by a precompiled kernel.

    It runs on torch's current stream of the tensors' device.

    q is (batch, seqlen_q, heads_q, head_dim), k and v are (batch, seqlen_k, heads_k, head_dim), of one dtype, bfloat16
    or float16, on one CUDA device.  heads_q is a multiple of heads_k: query head h reads key/value head ``h // (heads_q
    // heads_k)``.  Any strides will do as long as the last dim is contiguous and the data pointers and all other
    strides are multiples of 16 bytes (strides of dims of extent 1 do not count).

    causal          row i sees the keys j <= i + seqlen_k - seqlen_q (aligned bottom right)
    softmax_scale   1/sqrt(head_dim) by default; positive and finite as a float32
    sm_margin       SMs to leave to others
    out             where to write the result: q's shape and dtype, strides as above; memory of its own
    return_lse      also return the natural logarithm of each row's sum of exponentials
    bundle          where to look for the kernel; by default the bundle that load_bundle loaded last, else the one that
                    the environment variable FA3_BUNDLE names

    The other arguments belong to later releases and raise ``Unsupported`` unless they ask for what there is;
    window_size may be (-1, 0), causal.

    Returns out, (batch, seqlen_q, heads_q, head_dim) and contiguous unless given, or with ``return_lse`` (out, lse),
    lse being float32 (batch, heads_q, seqlen_q).  A row that sees no key has out 0 and LSE -inf.

    Raises ``TypeError`` for wrong types, ``ValueError`` for shapes, strides and ranges, ``VariantNotBuilt`` where the
    bundle holds no kernel for the call, ``GradientNotBuilt`` where an input needs a gradient.  Nothing falls back to
    another implementation.

    Nothing is read back from the device and nothing but the results is allocated, so a call can be captured in a CUDA
    graph; ``bundle.warm()`` before that loads the kernels.
    """
    if (
        not (type(softcap) is float and softcap == 0.0)
        or not (type(num_splits) is int and 0 <= num_splits <= 1)
        or not (type(attention_chunk) is int and attention_chunk == 0)
        or not (pack_gqa is None or pack_gqa is False)
        or not (deterministic is False or deterministic is True)
        or sink is not None
        or cu_seqlens_q is not None
        or cu_seqlens_k is not None
        or seqused_q is not None
        or seqused_k is not None
        or max_seqlen_q is not None
        or max_seqlen_k is not None
        or page_table is not None
        or q_descale is not None
        or k_descale is not None
        or v_descale is not None
        or qv is not None
        or policy is not None
        or workspace is not None
    ):
        request.check_neutral(
            softcap=softcap,
            sink=sink,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            page_table=page_table,
            q_descale=q_descale,
            k_descale=k_descale,
            v_descale=v_descale,
            num_splits=num_splits,
            pack_gqa=pack_gqa,
            deterministic=deterministic,
            attention_chunk=attention_chunk,
            qv=qv,
            policy=policy,
            workspace=workspace,
        )
    if window_size is not request.NO_WINDOW:
        causal = request.check_window(window_size, causal)
    if bundle is not None:
        bundles.check_bundle(bundle)

    if _is_compiling() or not _is_plain(q, k, v, out):
        return autograd.call(q, k, v, causal, softmax_scale, sm_margin, out, return_lse, bundle)
    if out is not None:
        autograd.mark_written(out)
    result, lse = eager.forward(
        q, k, v, causal, softmax_scale, sm_margin, out, return_lse, bundle or bundles.default_bundle()
    )
    return result if lse is None else (result, lse)


def _is_plain(q: Tensor, k: Tensor, v: Tensor, out: Tensor | None) -> bool:
    """Whether torch need not see the call: plain tensors, no mode, no transform, no tracing, no gradient."""
    return (
        type(q) is Tensor
        and type(k) is Tensor
        and type(v) is Tensor
        and (out is None or (type(out) is Tensor and not out.requires_grad))
        and not ((q.requires_grad or k.requires_grad or v.requires_grad) and _is_grad_enabled())
        and not has_torch_function_variadic(q, k, v)
        and not _dispatch_modes()
        and not _transforms()
        and not _is_tracing()
        and forward_ad._current_level < 0
    )

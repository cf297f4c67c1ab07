"""FlashAttention-3's calls over :func:`fa3.runtime.attention`: code written for them changes its import only::

    from fa3.flash_attn_interface import flash_attn_func, flash_attn_varlen_func

Arguments have FlashAttention-3's names, order and defaults, and results its order.  There is the forward pass only:
where an input requires a gradient, a call raises ``GradientNotBuilt``.  The kernels come from the bundle that
``fa3.runtime.load_bundle`` loaded last, else the one that the environment variable FA3_BUNDLE names.

What differs: nothing is copied to make it fit, so the last dim of q, k and v must be contiguous; a window is an error
also where it is as long as the sequence.
"""

from __future__ import annotations

from torch import Tensor

from fa3.runtime import attention

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int | None, int | None] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softmax_scale * q k^T) v for each head, of sequences of one length.

    q is (batch, seqlen_q, heads_q, head_dim), k and v are (batch, seqlen_k, heads_k, head_dim), of one dtype, bfloat16
    or float16, on one CUDA device; heads_q is a multiple of heads_k.

    softmax_scale       1/sqrt(head_dim) by default
    causal              row i sees the keys j <= i + seqlen_k - seqlen_q (aligned bottom right)
    deterministic       either; every forward kernel is
    sm_margin           SMs to leave to others
    return_attn_probs   also return the LSE; probabilities are never returned

    Returns out, q's dtype and (batch, seqlen_q, heads_q, head_dim), or with ``return_attn_probs`` (out, lse): lse is
    the natural logarithm of each row's sum of exponentials, float32 (batch, heads_q, seqlen_q).  A row that sees no key
    has out 0 and LSE -inf.

    Raises what :func:`fa3.runtime.attention` raises: ``Unsupported``, naming the argument, for what this release lacks
    (qv, descales, windows, chunks, softcap, splits, packed GQA); ``VariantNotBuilt`` where the bundle holds no kernel;
    ``GradientNotBuilt``; ``TypeError`` and ``ValueError``.
    """
    return attention(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        qv=qv,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        num_splits=num_splits,
        pack_gqa=pack_gqa,
        deterministic=deterministic,
        sm_margin=sm_margin,
        return_lse=return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int | None, int | None] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softmax_scale * q k^T) v for each head, of sequences of several lengths that lie one behind the other.

    This release has no such kernels: a call raises ``Unsupported``, naming cu_seqlens_q.

    q is (total_q, heads_q, head_dim), k and v are (total_k, heads_k, head_dim).

    cu_seqlens_q, cu_seqlens_k   where sequences begin, and the total: int32 (batch + 1,) on the tensors' device
    max_seqlen_q, max_seqlen_k   the lengths of the longest sequences
    seqused_q, seqused_k         how much of each sequence counts: int32 (batch,); by default all

    The other arguments and the errors are those of :func:`flash_attn_func`.  Returns out, (total_q, heads_q, head_dim),
    or with ``return_attn_probs`` (out, lse), lse being float32 (heads_q, total_q), in natural logarithms.
    """
    return attention(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        softmax_scale=softmax_scale,
        causal=causal,
        qv=qv,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        num_splits=num_splits,
        pack_gqa=pack_gqa,
        deterministic=deterministic,
        sm_margin=sm_margin,
        return_lse=return_attn_probs,
    )

"""The parameters of a kernel and how it is launched: one list per plan, from which everything else is derived.

The template's kernel has exactly these parameters in this order, the compiled cubin is held against them, the manifest
carries them, and the launcher fills them.  A kernel takes tensor maps, pointers, i32, i64 and f32, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from fa3.contract import Launch, Param, ParamKind, TensorMap

from fa3gen.arch import ARCHS
from fa3gen.model import ForwardPlan

#: Rows of a tensor map's box for Q: each consumer warpgroup has boxes of its own.
_WARPGROUP_ROWS = 64
#: Spans of swizzles in bytes, which are those of a tensor map's box along head_dim.
_SWIZZLES = (128, 64, 32)
_ELEMENT_BYTES = 2
#: (batch, seqlen, heads, head_dim) innermost first; heads outside seqlen, as the kernels count.
_DENSE_AXES = (3, 1, 2, 0)


@dataclass(frozen=True)
class Signature:
    """What a launch is given (tensors, scalars) and what the kernel takes (params), each in order."""

    tensors: tuple[str, ...]
    optional: tuple[str, ...]
    scalars: tuple[str, ...]
    params: tuple[Param, ...]


def signature(plan: ForwardPlan) -> Signature:
    """The argument list of ``plan``'s kernel."""
    params = [
        _tensor_map(plan, "q", _WARPGROUP_ROWS),
        _tensor_map(plan, "k", plan.tile_n),
        _tensor_map(plan, "v", plan.tile_n),
        Param("out", ParamKind.POINTER, "tensor:out"),
        Param("out_stride_batch", ParamKind.I64, "stride:out:0"),
        Param("out_stride_seqlen", ParamKind.I64, "stride:out:1"),
        Param("out_stride_head", ParamKind.I64, "stride:out:2"),
        Param("lse", ParamKind.POINTER, "tensor:lse"),
        Param("lse_stride_batch", ParamKind.I64, "stride:lse:0"),
        Param("lse_stride_head", ParamKind.I64, "stride:lse:1"),
        Param("seqlen_q", ParamKind.I32, "extent:q:1"),
        Param("seqlen_k", ParamKind.I32, "extent:k:1"),
        Param("heads_q", ParamKind.I32, "extent:q:2"),
        Param("heads_per_kv", ParamKind.I32, "derived:heads_per_kv"),
        Param("softmax_scale_log2", ParamKind.F32, "derived:softmax_scale_log2"),
        Param("m_tiles", ParamKind.I32, "derived:m_tiles"),
        Param("num_tiles", ParamKind.I32, "derived:num_tiles"),
    ]
    if plan.variant.causal:
        params.append(Param("head_section", ParamKind.I32, "derived:head_section"))
    if plan.dynamic:
        params.append(Param("tile_counter", ParamKind.POINTER, "workspace:tile_counter"))
    return Signature(("q", "k", "v", "out", "lse"), ("lse",), ("softmax_scale",), tuple(params))


def launch(plan: ForwardPlan) -> Launch:
    """Threads, shared memory and grid of ``plan``'s kernel."""
    return Launch(
        threads=plan.threads,
        smem_bytes=ARCHS[plan.variant.arch].smem_bytes(plan),
        grid="persistent" if plan.persistent else "tile_per_cta",
        tile_m=plan.tile_m,
    )


def _tensor_map(plan: ForwardPlan, tensor: str, rows: int) -> Param:
    head_dim = plan.variant.head_dim.v if tensor == "v" else plan.variant.head_dim.qk
    swizzle = next(span for span in _SWIZZLES if head_dim * _ELEMENT_BYTES % span == 0)
    tensor_map = TensorMap(_DENSE_AXES, (swizzle // _ELEMENT_BYTES, rows, 1, 1), plan.variant.dtype.value, swizzle)
    return Param(f"tma_{tensor}", ParamKind.TENSORMAP, f"tensor:{tensor}", tensor_map)

"""What a call asks for: its arguments checked and turned into a dispatch key.  No tensor work.

:func:`fitting_head_dim` is the quick look that every call takes.  Where it is not sure, the ``check`` functions say what is wrong, or let pass
what it was too strict about (strides of dims of extent 1, tensors of extent 0).
"""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor

from fa3.contract import LOG2_E, Key
from fa3.runtime.errors import Unsupported

#: The types of q, k, v and out, as kernels' names spell them.
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}

#: Data pointers and strides are multiples of this: TMA wants it.
ALIGN_BYTES = 16
ITEM_BYTES = 2
_POINTER_MASK = ALIGN_BYTES - 1
_STRIDE_MASK = ALIGN_BYTES // ITEM_BYTES - 1

#: softmax_scale * log2(e) is a float32 in the kernels: neither 0, subnormal nor infinite.
SCALE_MIN = float(torch.finfo(torch.float32).tiny)
SCALE_MAX = float(torch.finfo(torch.float32).max) / LOG2_E

#: window_size without a bound on either side
NO_WINDOW = (-1, -1)

#: Arguments that later releases give a meaning, with the values that ask for what there is.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "softcap": (0, None),
    "sink": (None,),
    "cu_seqlens_q": (None,),
    "cu_seqlens_k": (None,),
    "seqused_q": (None,),
    "seqused_k": (None,),
    "max_seqlen_q": (None,),
    "max_seqlen_k": (None,),
    "page_table": (None,),
    "q_descale": (None,),
    "k_descale": (None,),
    "v_descale": (None,),
    "num_splits": (0, 1, None),  # 0: chosen here, where one is the only choice
    "pack_gqa": (None, False),
    "deterministic": (False, True, None),  # every forward kernel is
    "attention_chunk": (0, None),
    "qv": (None,),
    "policy": (None,),
    "workspace": (None,),
}


def key(dtype: torch.dtype, head_dim: int, head_dim_v: int, causal: bool) -> Key:
    """The dispatch key of a dense forward call."""
    dims = str(head_dim) if head_dim == head_dim_v else f"{head_dim}x{head_dim_v}"
    return Key("fwd", DTYPES[dtype], dims, "causal" if causal else "full", "dense")


def fitting_head_dim(q: Tensor, k: Tensor, v: Tensor) -> int:
    """The head_dim where q, k and v surely agree and can be launched; 0 where a closer look is needed.

    The dtype and the device are only compared with one another: looking up the kernel shows whether they are right.
    """
    shape_q, shape_k = q.shape, k.shape
    if len(shape_q) != 4 or len(shape_k) != 4 or v.shape != shape_k:
        return 0
    batch, seqlen_q, heads_q, head_dim = shape_q
    batch_k, _, heads_k, head_dim_k = shape_k
    if not (batch and seqlen_q and heads_q and heads_k) or batch != batch_k or head_dim != head_dim_k:
        return 0
    q0, q1, q2, q3 = q.stride()
    k0, k1, k2, k3 = k.stride()
    v0, v1, v2, v3 = v.stride()
    if (
        heads_q % heads_k == 0
        and k.dtype is q.dtype is v.dtype
        and k.get_device() == q.get_device() == v.get_device()
        and q3 == k3 == v3 == 1
        and not (q0 | q1 | q2 | k0 | k1 | k2 | v0 | v1 | v2) & _STRIDE_MASK
        and not (q.data_ptr() | k.data_ptr() | v.data_ptr()) & _POINTER_MASK
    ):
        return head_dim
    return 0


def check_tensor(name: str, tensor: Any) -> None:
    """That an argument is a tensor with plain strides."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; allowed: torch.Tensor")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise TypeError(f"{name} has layout {tensor.layout}{' (nested)' * tensor.is_nested}; allowed: {torch.strided}")


def check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Types, devices and shapes; reads no memory addresses, so fake tensors and symbolic extents pass."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor)
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} has dtype {tensor.dtype}; allowed: {', '.join(map(str, DTYPES))}")
        if tensor.dtype != q.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}; allowed: q's, {q.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on device {tensor.device}; allowed: q's, {q.device}")
        if tensor.dim() != 4:
            seqlen, heads = ("seqlen_q", "heads_q") if name == "q" else ("seqlen_k", "heads_k")
            raise ValueError(f"{name} has shape {_list(tensor.shape)}; allowed: (batch, {seqlen}, {heads}, head_dim)")
    batch, _, heads_q, head_dim = q.shape
    if k.shape[0] != batch or k.shape[3] != head_dim:
        raise ValueError(
            f"k has shape {_list(k.shape)}; allowed: ({batch}, seqlen_k, heads_k, {head_dim}), as q has shape {_list(q.shape)}"
        )
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"v has shape {_list(v.shape)}; allowed: {_list((*k.shape[:3], 'head_dim'))}, as k has shape {_list(k.shape)}"
        )
    heads_k = k.shape[2]
    if heads_q % heads_k if heads_k else heads_q:
        raise ValueError(f"q has {heads_q} heads and k has {heads_k}; allowed: heads_q a multiple of heads_k")
    for name, dim in (("q", head_dim), ("v", v.shape[3])):
        if dim == 0:
            raise ValueError(f"{name} has head_dim 0; allowed: 1 and more")


def check_addresses(name: str, tensor: Tensor) -> None:
    """Strides and alignment of one tensor.  A stride that leads nowhere (extent 0 or 1) may be anything."""
    if tensor.numel() == 0:
        return
    *outer, last = tensor.stride()
    if last != 1 and tensor.shape[-1] > 1:
        raise ValueError(
            f"{name} has strides {_list(tensor.stride())}; allowed: 1 in the last dim (use {name}.contiguous())"
        )
    for axis, stride in enumerate(outer):
        if stride & _STRIDE_MASK and tensor.shape[axis] > 1:
            raise ValueError(
                f"{name} has stride {stride} in dim {axis}; allowed: multiples of {ALIGN_BYTES // ITEM_BYTES} elements ({ALIGN_BYTES} bytes)"
            )
    if tensor.data_ptr() & _POINTER_MASK:
        raise ValueError(f"{name} starts at address {tensor.data_ptr():#x}; allowed: multiples of {ALIGN_BYTES}")


def check_out(out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Type, device and shape of ``out``; reads no memory address."""
    check_tensor("out", out)
    shape = (*q.shape[:3], v.shape[3])
    if out.dtype != q.dtype:
        raise TypeError(f"out has dtype {out.dtype}; allowed: q's, {q.dtype}")
    if out.device != q.device:
        raise ValueError(f"out is on device {out.device}; allowed: q's, {q.device}")
    if out.shape != shape:
        raise ValueError(f"out has shape {_list(out.shape)}; allowed: {_list(shape)}")


def check_out_memory(out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    """That ``out`` is aligned, has a place for each element, and shares none with an input."""
    if out.numel() == 0:
        return
    check_addresses("out", out)
    if not out.is_contiguous() and _overlaps_itself(out):
        raise ValueError(
            f"out has strides {_list(out.stride())} for shape {_list(out.shape)}; allowed: a place for each element"
        )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.numel() and not _disjoint(out, tensor):
            raise ValueError(f"out shares memory with {name}; allowed: memory of its own")


def check_scale(softmax_scale: Any) -> float:
    """``softmax_scale`` as a float that kernels can use."""
    if type(softmax_scale) is float and SCALE_MIN <= softmax_scale <= SCALE_MAX:
        return softmax_scale
    if isinstance(softmax_scale, Tensor) and softmax_scale.device.type == "cpu" and softmax_scale.numel() == 1:
        softmax_scale = softmax_scale.item()
    if not isinstance(softmax_scale, numbers.Real) or isinstance(softmax_scale, bool):
        raise TypeError(f"softmax_scale is {softmax_scale!r}; allowed: a number on the host")
    value = float(softmax_scale)
    if not SCALE_MIN <= value <= SCALE_MAX:
        raise ValueError(f"softmax_scale is {value}; allowed: {SCALE_MIN:.3g} to {SCALE_MAX:.3g}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """``value`` as a bool, where it is one or counts as one (0, 1, numpy's)."""
    if isinstance(value, Tensor) or value not in (False, True):
        raise TypeError(f"{name} is {value!r}; allowed: True, False")
    return bool(value)


def check_sm_margin(sm_margin: Any, num_sms: int) -> int:
    """``sm_margin`` as an int that leaves the launch a multiprocessor."""
    if not isinstance(sm_margin, numbers.Integral) or isinstance(sm_margin, bool):
        raise TypeError(f"sm_margin is {sm_margin!r}; allowed: an int")
    value = int(sm_margin)
    if not 0 <= value < num_sms:
        raise ValueError(f"sm_margin is {value}; allowed: 0 to {num_sms - 1}, as the device has {num_sms} SMs")
    return value


def check_window(window_size: Any, causal: bool) -> bool:
    """The causal flag that ``window_size`` together with ``causal`` amounts to; ``Unsupported`` where it needs a window kernel.

    A bound of -1 or None is none.  (-1, 0) is causal, and causal with any bound on the right that it implies is causal.
    """
    try:
        left, right = (-1, -1) if window_size is None else window_size
    except (TypeError, ValueError):
        raise TypeError(f"window_size is {window_size!r}; allowed: a pair (left, right)") from None
    left, right = (-1 if bound is None else bound for bound in (left, right))
    if left == -1 and (right == -1 or causal):
        return causal
    if left == -1 and right == 0:
        return True
    raise Unsupported(f"window_size is {window_size!r}; this release supports (-1, -1), no window, and (-1, 0), causal")


def check_neutral(**arguments: Any) -> None:
    """``Unsupported`` for the first argument that asks for what this release does not do."""
    for name, value in arguments.items():
        if isinstance(value, Tensor) or not any(value is item or value == item for item in NEUTRAL[name]):
            allowed = ", ".join(repr(item) for item in NEUTRAL[name])
            raise Unsupported(f"{name} is given, which this release does not support; allowed: {allowed}")


def _list(items: Any) -> str:
    return f"({', '.join(map(str, items))})"


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements may share an address: sound, and exact where one dim's elements lie within another's step."""
    reach = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent > 1:
            if stride < reach:
                return True
            reach += stride * (extent - 1)
    return False


def _span(tensor: Tensor, axes: range = range(4)) -> int:
    """Elements from the first to the last one, counting along ``axes`` only."""
    return 1 + sum(tensor.stride(axis) * (tensor.shape[axis] - 1) for axis in axes)


def _disjoint(a: Tensor, b: Tensor) -> bool:
    """Whether ``a`` and ``b`` certainly share no address: apart, or columns of the same rows, such as slices of a fused projection."""
    start_a, start_b = a.data_ptr() // ITEM_BYTES, b.data_ptr() // ITEM_BYTES
    if start_a + _span(a) <= start_b or start_b + _span(b) <= start_a:
        return True
    pitch = a.stride(1)
    rows = [t.stride(axis) for t in (a, b) for axis in (0, 1) if t.shape[axis] > 1]
    if pitch == 0 or any(stride % pitch for stride in rows):
        return False
    # every row begins at the same place of a pitch, so comparing one of each will do
    columns = range(2, 4)
    apart = (start_b - start_a) % pitch
    return apart >= _span(a, columns) and pitch - apart >= _span(b, columns)

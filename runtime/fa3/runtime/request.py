"""What a call asks for: its arguments checked and turned into a dispatch key.  No tensor work.

Each fault names the argument, its value and what is allowed: ``TypeError`` for types, ``ValueError`` for shapes,
strides and ranges.
"""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor

from fa3.choice import forward_key
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


def checked_key(q: Tensor, k: Tensor, v: Tensor, causal: Any) -> Key:
    """The dispatch key of a call, after every check that needs no memory address (so for fake tensors too)."""
    check_inputs(q, k, v)
    # where the head dims are symbolic, the caller is specialised to them
    head_dim, head_dim_v = int(q.shape[3]), int(v.shape[3])
    return forward_key(DTYPES[q.dtype], head_dim, head_dim_v, check_flag("causal", causal))


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
            f"k has shape {_list(k.shape)}; allowed: ({batch}, seqlen_k, heads_k, {head_dim}), "
            f"as q has shape {_list(q.shape)}"
        )
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"v has shape {_list(v.shape)}; allowed: {_list((*k.shape[:3], 'head_dim'))}, "
            f"as k has shape {_list(k.shape)}"
        )
    heads_k = k.shape[2]
    if heads_q % heads_k if heads_k else heads_q:
        raise ValueError(f"q has {heads_q} heads and k has {heads_k}; allowed: heads_q a multiple of heads_k")
    for name, dim in (("q", head_dim), ("v", v.shape[3])):
        if dim == 0:
            raise ValueError(f"{name} has head_dim 0; allowed: 1 and more")


def check_memory(name: str, tensor: Tensor) -> None:
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
                f"{name} has stride {stride} in dim {axis}; "
                f"allowed: multiples of {ALIGN_BYTES // ITEM_BYTES} elements ({ALIGN_BYTES} bytes)"
            )
    if tensor.data_ptr() & _POINTER_MASK:
        raise ValueError(f"{name} starts at address {tensor.data_ptr():#x}; allowed: multiples of {ALIGN_BYTES}")


def check_out(out: Tensor, q: Tensor, v: Tensor) -> None:
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
    first, end = _range(out)
    if first == end:
        return
    if first & _POINTER_MASK or not out.is_contiguous():
        check_memory("out", out)
        if _overlaps_itself(out):
            raise ValueError(
                f"out has strides {_list(out.stride())} for shape {_list(out.shape)}; allowed: a place for each element"
            )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        first_input, end_input = _range(tensor)
        if first < end_input and first_input < end and not _interleaved(out, tensor):
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


def check_sm_margin(sm_margin: Any, num_sms: int | None) -> int:
    """``sm_margin`` as an int that leaves the launch a multiprocessor; without ``num_sms`` no device is known yet."""
    if not isinstance(sm_margin, numbers.Integral) or isinstance(sm_margin, bool):
        raise TypeError(f"sm_margin is {sm_margin!r}; allowed: an int")
    value = int(sm_margin)
    if num_sms is None:
        if value < 0:
            raise ValueError(f"sm_margin is {value}; allowed: 0 and more")
    elif not 0 <= value < num_sms:
        raise ValueError(f"sm_margin is {value}; allowed: 0 to {num_sms - 1}, as the device has {num_sms} SMs")
    return value


def check_window(window_size: Any, causal: bool) -> bool:
    """The causal flag that ``window_size`` and ``causal`` amount to; ``Unsupported`` where that is a window.

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
    """Whether elements may share an address; true also of a few exotic strides where none do."""
    reach = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent > 1:
            if stride < reach:
                return True
            reach += stride * (extent - 1)
    return False


def _range(tensor: Tensor) -> tuple[int, int]:
    """The addresses from the first element to behind the last; equal where there is none."""
    first = tensor.data_ptr()
    batch, seqlen, heads, head_dim = tensor.shape
    if not (batch and seqlen and heads and head_dim):
        return first, first
    strides = tensor.stride()
    elements = (batch - 1) * strides[0] + (seqlen - 1) * strides[1] + (heads - 1) * strides[2] + head_dim
    return first, first + ITEM_BYTES * elements


def _interleaved(a: Tensor, b: Tensor) -> bool:
    """Whether ``a`` and ``b`` are different columns of the same rows, so that they share no address.

    Slices of a fused projection are.
    """
    pitch = a.stride(1)
    rows = [t.stride(axis) for t in (a, b) for axis in (0, 1) if t.shape[axis] > 1]
    if pitch == 0 or any(stride % pitch for stride in rows):
        return False
    width_a, width_b = (t.stride(2) * (t.shape[2] - 1) + t.shape[3] for t in (a, b))
    offset = (b.data_ptr() - a.data_ptr()) // ITEM_BYTES % pitch  # the same in every row
    return width_a <= offset and width_b <= pitch - offset

"""Tensors that claim to be on a CUDA device, for a machine without one."""

from __future__ import annotations

import ctypes
from typing import Any

import tvm_ffi

from tests.native.support import Tensor

_CUDA = 2
_CODES = {"bf16": (4, 16), "fp16": (2, 16), "fp32": (2, 32)}


class _DLTensor(ctypes.Structure):
    """``DLManagedTensor`` of dlpack.h, flat."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Exporter:
    def __init__(self, tensor: Tensor) -> None:
        code, bits = _CODES[tensor.dtype]
        c = tensor.c()
        self._arrays = c  # owns shape and strides
        # The address is split over two fields that must be added.
        self._managed = _DLTensor(
            tensor.data - 32, _CUDA, tensor.device, c.ndim, code, bits, 1, c.shape, c.strides, 32, None, None
        )

    def __dlpack__(self, **_: object) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA, self._managed.device_id)


_kept: list[_Exporter] = []


def cuda_tensor(tensor: Tensor) -> Any:
    """``tensor`` for TVM-FFI; nothing of it may be read."""
    _kept.append(_Exporter(tensor))
    return tvm_ffi.from_dlpack(_kept[-1])

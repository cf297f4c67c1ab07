"""The native launcher: ``libfa3`` with its C interface ``fa3.h``, and a TVM-FFI binding over it."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent

#: folder of ``fa3.h``, for a C compiler's ``-I``
INCLUDE = _FOLDER
#: the C library
LIBRARY = _FOLDER / "libfa3.so"
#: the TVM-FFI binding, for ``tvm_ffi.load_module``
BINDING = _FOLDER / "libfa3_tvm_ffi.so"

"""The native launcher as Python sees it: the functions of libfa3's TVM-FFI binding, and which devices it serves."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from fa3.runtime.errors import BundleError, DeviceError

#: Where the runtime's wheel and an editable install put the library.
LIBRARY = Path(__file__).parents[1] / "native" / "libfa3_tvm_ffi.so"

#: What a device must be to run the kernels of an architecture.
CAPABILITIES = {"sm90a": (9, 0)}


class Launcher(Protocol):
    """What a bundle needs of a launcher.  Handles are opaque."""

    def load_bundle(self, path: str) -> Any:
        """A handle of the bundle in folder ``path``.  Touches no device and no driver."""

    def device(self, argument: str, device: torch.device) -> int:
        """The index of ``device``; ``ValueError`` naming ``argument`` where kernels cannot read its memory."""

    def check_arch(self, device: int, arch: str) -> None:
        """Raises :class:`DeviceError` where ``device`` cannot run the cubins of ``arch``."""

    def num_sms(self, device: int) -> int:
        """Multiprocessors that a launch on ``device`` can use."""

    def prepare(self, bundle: Any, name: str, device: int) -> Callable[..., None]:
        """Loads a kernel on ``device``; gives the function ``launch(sm_margin, *scalars, *tensors)`` for it.

        A tensor that the kernel may do without is None.  The launch goes to torch's current stream of the tensors'
        device.
        """


class NativeLauncher:
    """libfa3 through its TVM-FFI binding."""

    def __init__(self, library: Path = LIBRARY) -> None:
        if not library.is_file():
            raise BundleError(
                f"the native launcher {library} is missing: install the fa3-runtime wheel of this platform, "
                "or build it with pip install runtime/ in a source checkout (it takes a C++17 compiler)"
            )
        module = _tvm_ffi().load_module(library)
        self._load_bundle = module.get_function("load_bundle")
        self._kernel = module.get_function("kernel")
        self._warm = module.get_function("warm")
        self._num_sms = module.get_function("num_sms")
        self._launch = module.get_function("launch")

    def load_bundle(self, path: str) -> Any:
        return self._load_bundle(path)

    def device(self, argument: str, device: torch.device) -> int:
        if device.type != "cuda" or device.index is None:
            hint = "" if torch.cuda.is_available() else " (torch finds no usable CUDA driver on this machine)"
            raise ValueError(f"{argument} is on device {device}; allowed: CUDA devices{hint}")
        return device.index

    def check_arch(self, device: int, arch: str) -> None:
        needed = CAPABILITIES.get(arch)
        if needed is None:
            raise DeviceError(f"the bundle is for {arch}; this fa3-runtime serves {', '.join(CAPABILITIES)}")
        found = torch.cuda.get_device_capability(device)
        if found != needed:
            raise DeviceError(
                f"cuda:{device} is {torch.cuda.get_device_name(device)} of compute capability {found[0]}.{found[1]}; "
                f"the bundle's kernels ({arch}) need {needed[0]}.{needed[1]}"
            )

    def num_sms(self, device: int) -> int:
        return int(self._num_sms(device))

    def prepare(self, bundle: Any, name: str, device: int) -> Callable[..., None]:
        kernel = self._kernel(bundle, name)
        self._warm(kernel, device)
        return functools.partial(self._launch, kernel)


def _tvm_ffi() -> Any:
    """The module tvm_ffi, imported without initialising CUDA.

    Its import asks ``torch.cuda.is_available()``, which by default initialises CUDA in this process; torch then
    refuses to work in a process forked from it (a DataLoader's worker, say) although no GPU was used yet.  For the
    time of the import, torch is told to ask NVML instead.
    """
    # Not at the top of the module: the reference and the errors need no more than torch.
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        import tvm_ffi
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
    return tvm_ffi


@functools.cache
def native() -> NativeLauncher:
    """The process's launcher."""
    return NativeLauncher()

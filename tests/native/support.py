"""What the tests of the native launcher share: its libraries, a bundle for it, and its C interface through ctypes."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import fa3.native
from fa3.contract import CUBIN_DIR, INDEX, KernelEntry, Key, Manifest, Param, ParamKind, index_text

from fa3gen import abi
from fa3gen.axes import spelled
from fa3gen.model import ForwardPlan, parse_name
from fa3gen.plan import Scheduler, resolve

REPO = Path(__file__).parents[2]
RUNTIME = REPO / "runtime"
ARCH = "sm90a"
#: What stands for a cubin where no GPU will see it.
CUBIN = b"\x7fELF: no cubin"

Tensors = Mapping[str, "Tensor | None"]


# ---- libraries ------------------------------------------------------------------------------------------------------


def build_libraries(source: Path, target: Path, scratch: Path) -> None:
    """Builds both libraries of ``source`` (a copy of ``runtime/``) into ``target/fa3/native``."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(target), "--build-temp", str(scratch)]
    result = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "warning:" not in result.stderr, result.stderr


@cache
def libraries() -> Path:
    """The folder of the libraries: the installed ones, or newly built ones where a source is newer."""
    sources = [RUNTIME / "setup.py", *(RUNTIME / "native").iterdir(), *fa3.native.INCLUDE.glob("*.h")]
    newest = max(source.stat().st_mtime for source in sources)

    def current(folder: Path) -> bool:
        names = (fa3.native.LIBRARY.name, fa3.native.BINDING.name)
        return all((folder / name).is_file() and (folder / name).stat().st_mtime >= newest for name in names)

    build = REPO / "build" / "native"
    build.mkdir(parents=True, exist_ok=True)
    with (build / "lock").open("w") as lock:  # several test processes may come here at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in (fa3.native.LIBRARY.parent, build / "fa3" / "native"):
            if current(folder):
                return folder
        build_libraries(RUNTIME, build, build / "scratch")
    return build / "fa3" / "native"


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


# ---- bundles --------------------------------------------------------------------------------------------------------


def plan(name: str, **changes: Any) -> ForwardPlan:
    """The plan of the kernel of that name, with some fields changed."""
    return replace(resolve(parse_name(name)), **changes)


CAUSAL = plan("fwd_bf16_d128_causal_sm90a", scheduler=Scheduler.DYNAMIC)
FULL = plan("fwd_fp16_d64_full_sm90a", scheduler=Scheduler.STATIC)
LARGE = plan("fwd_bf16_d256_causal_sm90a")
PLANS = (CAUSAL, FULL, LARGE)


def entry(plan: ForwardPlan) -> KernelEntry:
    """The kernel of ``plan`` as a bundle lists it, with :data:`CUBIN`."""
    signature, variant = abi.signature(plan), plan.variant
    return KernelEntry(
        name=plan.name,
        symbol=f"{plan.name}_0",
        key=Key("fwd", variant.dtype.value, spelled(variant.head_dim), variant.mask.value, variant.layout.value),
        cubin=f"{CUBIN_DIR}/{plan.name}.cubin",
        cubin_sha256="",
        cubin_bytes=len(CUBIN),
        tensors=signature.tensors,
        optional=signature.optional,
        scalars=signature.scalars,
        params=signature.params,
        launch=abi.launch(plan),
    )


def write_bundle(folder: Path, entries: Iterable[KernelEntry] = tuple(map(entry, PLANS))) -> Path:
    """What the launcher reads of a bundle with ``entries``."""
    manifest = Manifest(ARCH, {}, tuple(entries))
    (folder / CUBIN_DIR).mkdir(parents=True, exist_ok=True)
    for kernel in manifest.kernels:
        (folder / kernel.cubin).write_bytes(CUBIN)
    (folder / INDEX).write_text(index_text(manifest))
    return folder


def param_letters(params: Sequence[Param]) -> str:
    """The kinds of ``params`` as the fake driver's setting ``param_kinds`` spells them."""
    letters = {ParamKind.TENSORMAP: "M", ParamKind.POINTER: "P", ParamKind.I32: "I", ParamKind.I64: "L"}
    return "".join(letters.get(param.kind, "F") for param in params)


# ---- the C interface ------------------------------------------------------------------------------------------------


class Status(IntEnum):
    """``fa3_status``"""

    BAD_VALUE = 1
    BAD_TYPE = 2
    NOT_FOUND = 3
    BAD_BUNDLE = 4
    NO_DRIVER = 5
    BAD_DEVICE = 6
    FORKED = 7
    DRIVER_ERROR = 8
    OUT_OF_MEMORY = 9


DTYPES = {"other": 0, "bf16": 1, "fp16": 2, "fp32": 3, "e4m3": 4, "int32": 5}


class LaunchError(Exception):
    """A call that did not return FA3_OK."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = Status(status)


class CTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class CCall(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("num_tensors", ctypes.c_int32),
        ("num_scalars", ctypes.c_int32),
        ("tensors", ctypes.POINTER(ctypes.POINTER(CTensor))),
        ("scalars", ctypes.POINTER(ctypes.c_double)),
        ("stream", ctypes.c_void_p),
        ("sm_margin", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("tile_counter", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Tensor:
    """A tensor that need not exist; strides in elements, None for contiguous."""

    shape: tuple[int, ...]
    dtype: str = "bf16"
    strides: tuple[int, ...] | None = None
    data: int = 0x10_0000_0000
    device: int = 0

    def c(self) -> CTensor:
        def array(values: tuple[int, ...]) -> Any:
            return (ctypes.c_int64 * len(values))(*values)

        strides = None if self.strides is None else array(self.strides)
        return CTensor(self.data, array(self.shape), strides, len(self.shape), DTYPES[self.dtype], self.device)


@dataclass(frozen=True)
class Call:
    """The arguments of a launch."""

    tensors: tuple[Tensor | None, ...]
    scalars: tuple[float, ...] = (0.125,)
    stream: int = 0
    sm_margin: int = 0
    tile_counter: int = 0
    size: int = field(default=ctypes.sizeof(CCall))

    def c(self) -> CCall:
        tensors = (ctypes.POINTER(CTensor) * len(self.tensors))()  # null where nothing is set
        for i, tensor in enumerate(self.tensors):
            if tensor is not None:
                tensors[i] = ctypes.pointer(tensor.c())
        scalars = (ctypes.c_double * len(self.scalars))(*self.scalars)
        return CCall(
            self.size,
            len(self.tensors),
            len(self.scalars),
            tensors,
            scalars,
            self.stream,
            self.sm_margin,
            0,
            self.tile_counter,
        )


class Library:
    """libfa3 through its C interface."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        self.c.fa3_last_error.restype = ctypes.c_char_p
        self.c.fa3_kernel_name.restype = ctypes.c_char_p
        self.c.fa3_kernel_tensor.restype = ctypes.c_char_p
        self.c.fa3_kernel_scalar.restype = ctypes.c_char_p
        self.c.fa3_bundle_kernel.restype = ctypes.c_void_p
        self.c.fa3_bundle_num_kernels.restype = ctypes.c_size_t

    def check(self, status: int) -> None:
        if status != 0:
            raise LaunchError(status, self.c.fa3_last_error().decode())

    def open(self, path: Path | str) -> ctypes.c_void_p:
        bundle = ctypes.c_void_p()
        self.check(self.c.fa3_bundle_open(os.fsencode(path), ctypes.byref(bundle)))
        return bundle

    def find(self, bundle: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        kernel = ctypes.c_void_p()
        self.check(self.c.fa3_bundle_find(bundle, name.encode(), ctypes.byref(kernel)))
        return kernel

    def warm(self, kernel: ctypes.c_void_p, device: int = 0) -> None:
        self.check(self.c.fa3_warm(kernel, device))

    def num_sms(self, device: int = 0) -> int:
        count = ctypes.c_int32()
        self.check(self.c.fa3_num_sms(device, ctypes.byref(count)))
        return count.value

    def launch(self, kernel: ctypes.c_void_p, call: Call) -> None:
        self.check(self.c.fa3_launch(kernel, ctypes.byref(call.c())))

    def describe(self, kernel: ctypes.c_void_p, call: Call, num_sms: int = 132) -> dict[str, str]:
        """The lines of ``fa3_describe``, by their first word, or by the parameter's name."""
        arguments, needed = call.c(), ctypes.c_size_t()
        self.check(self.c.fa3_describe(kernel, ctypes.byref(arguments), num_sms, None, 0, ctypes.byref(needed)))
        text = ctypes.create_string_buffer(needed.value)
        self.check(self.c.fa3_describe(kernel, ctypes.byref(arguments), num_sms, text, needed, None))
        return parse_description(text.value.decode())


def parse_description(text: str) -> dict[str, str]:
    """``fa3_describe``'s text as name -> rest of the line."""
    return dict(line.removeprefix("param ").split(" ", 1) for line in text.splitlines())


def dense(
    plan: ForwardPlan = CAUSAL,
    batch: int = 2,
    seqlen_q: int = 300,
    seqlen_k: int = 200,
    heads_q: int = 8,
    heads_k: int = 2,
    device: int = 0,
) -> dict[str, Tensor]:
    """Contiguous tensors for a kernel of ``plan``."""
    dtype, dims = plan.variant.dtype.value, plan.variant.head_dim
    shapes = {
        "q": (batch, seqlen_q, heads_q, dims.qk),
        "k": (batch, seqlen_k, heads_k, dims.qk),
        "v": (batch, seqlen_k, heads_k, dims.v),
        "out": (batch, seqlen_q, heads_q, dims.v),
    }
    address = 0x10_0000_0000
    tensors = {}
    for name, shape in shapes.items():
        tensors[name] = Tensor(shape, dtype, data=address, device=device)
        address += 0x1_0000_0000
    tensors["lse"] = Tensor((batch, heads_q, seqlen_q), "fp32", data=address, device=device)
    return tensors


def call(tensors: Tensors, **options: Any) -> Call:
    """A call with ``tensors`` in the kernels' order."""
    return Call(tuple(tensors[name] for name in ("q", "k", "v", "out", "lse")), **options)

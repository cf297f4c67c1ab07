"""The launcher through TVM-FFI, on torch tensors, without a driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm_ffi

from tests.native import support
from tests.native.support import CAUSAL, Library, call, dense, parse_description


@pytest.fixture(scope="module")
def module() -> Any:
    return tvm_ffi.load_module(str(support.libraries() / "libfa3_tvm_ffi.so"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.write_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def bundle(module: Any, folder: Path) -> Any:
    return module.load_bundle(str(folder))


@pytest.fixture(scope="module")
def kernel(module: Any, bundle: Any) -> Any:
    return module.kernel(bundle, CAUSAL.name)


def _tensors() -> list[torch.Tensor]:
    """A batch of 2; q is a view with padding, and starts inside its storage."""
    q = torch.zeros(2, 310, 8, 128, dtype=torch.bfloat16)[:, 10:]
    k, v = (torch.zeros(2, 200, 2, 128, dtype=torch.bfloat16) for _ in "kv")
    return [q, k, v, torch.zeros(2, 300, 8, 128, dtype=torch.bfloat16), torch.zeros(2, 8, 300)]


def test_a_call_from_torch_is_that_of_c(module: Any, kernel: Any, folder: Path) -> None:
    tensors = _tensors()
    library = Library(support.libraries() / "libfa3.so")
    spelled = {
        name: support.Tensor(tuple(tensor.shape), dtype, tensor.stride(), tensor.data_ptr())
        for name, dtype, tensor in zip(dense(), ["bf16"] * 4 + ["fp32"], tensors, strict=True)
    }
    through_c = library.describe(
        library.find(library.open(folder), CAUSAL.name), call(spelled, scalars=(0.5,), sm_margin=100)
    )
    through_ffi = parse_description(module.describe(kernel, 132, 100, 0.5, *tensors))
    assert through_ffi == through_c
    assert through_ffi["grid"] == "32"
    assert f"address {tensors[0].data_ptr():#x}" in through_ffi["tma_q"]
    assert f"strides {2 * 8 * 128},{2 * 128},{2 * 310 * 8 * 128}" in through_ffi["tma_q"]


def test_one_kernel_has_one_handle(module: Any, bundle: Any, kernel: Any) -> None:
    assert module.kernel(bundle, CAUSAL.name) == kernel
    assert module.kernel(bundle, support.LARGE.name) != kernel


def test_none_is_an_absent_tensor(module: Any, kernel: Any) -> None:
    found = parse_description(module.describe(kernel, 132, 0, 1, *_tensors()[:4], None))
    assert found["lse"] == "pointer 0"


def _changed(position: int, value: object) -> list[Any]:
    tensors: list[Any] = _tensors()
    tensors[position] = value
    return tensors


FAILURES: dict[str, tuple[Callable[[Any, Any], object], type[Exception], str]] = {
    "path": (lambda m, k: m.load_bundle("/nowhere"), ValueError, "cannot read /nowhere/index.txt"),
    "long path": (lambda m, k: m.load_bundle("/" + "n" * 300), ValueError, "File name too long"),
    "path type": (lambda m, k: m.load_bundle(3), TypeError, "path must be a str"),
    "bundle": (lambda m, k: m.kernel(4095, "x"), ValueError, "bundle is 4095, which is no handle of one"),
    "negative": (lambda m, k: m.kernel(-1, "x"), ValueError, "bundle is -1, which is no handle of one"),
    "name": (lambda m, k: m.kernel(0, "fwd"), ValueError, "has no kernel 'fwd'"),
    "kernel": (lambda m, k: m.warm(1 << 40, 0), ValueError, "kernel is 1099511627776, which is no handle of one"),
    "device": (lambda m, k: m.warm(k, 1 << 40), ValueError, "device is 1099511627776, beyond 32 bits"),
    "count": (lambda m, k: m.warm(k), TypeError, "takes 2 arguments, got 1"),
    "no scalar": (lambda m, k: m.describe(k, 132, 0), TypeError, "softmax_scale is missing"),
    "no tensor": (lambda m, k: m.describe(k, 132, 0, 1.0, *_tensors()[:2]), TypeError, "v is missing"),
    "too many": (lambda m, k: m.describe(k, 132, 0, 1.0, *_tensors(), 1), TypeError, "got too many arguments"),
    "scalar type": (lambda m, k: m.describe(k, 132, 0, "1", *_tensors()), TypeError, "softmax_scale must be a float"),
    "margin type": (lambda m, k: m.describe(k, 132, 0.5, 1.0, *_tensors()), TypeError, "sm_margin must be an int"),
    "tensor type": (lambda m, k: m.describe(k, 132, 0, 1.0, *_changed(1, 7)), TypeError, "k must be a tensor or None"),
    "absent": (lambda m, k: m.describe(k, 132, 0, 1.0, *_changed(0, None)), ValueError, "q is missing"),
    "dtype": (
        lambda m, k: m.describe(k, 132, 0, 1.0, *_changed(2, torch.zeros(2, 200, 2, 128, dtype=torch.float64))),
        TypeError,
        "v is of another type; the kernel takes bf16",
    ),
    "shape": (
        lambda m, k: m.describe(k, 132, 0, 1.0, *_changed(2, _tensors()[2][:, 1:])),
        ValueError,
        r"v: shape\[1\] \(seqlen_k\) is 199, but that of k is 200",
    ),
    "cpu": (lambda m, k: m.launch(k, 0, 1.0, *_tensors()), ValueError, "q is not on a CUDA device"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures_are_pythons_errors(module: Any, kernel: Any, case: str) -> None:
    function, error, text = FAILURES[case]
    with pytest.raises(error, match=text):
        function(module, kernel)


@pytest.mark.skipif(support.has_driver(), reason="this machine has a driver")
def test_no_driver_is_a_runtime_error(module: Any) -> None:
    with pytest.raises(RuntimeError, match="no NVIDIA driver"):
        module.num_sms(0)

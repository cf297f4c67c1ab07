"""What the launcher would pass to a kernel, held against contract.py, and what it refuses; no driver is needed."""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fa3 import contract
from fa3.contract import INDEX, ParamKind, Shapes, derive, index_text

from fa3gen import abi
from fa3gen.device import index
from fa3gen.model import ForwardPlan
from tests.native import support
from tests.native.support import (
    CAUSAL,
    FULL,
    LARGE,
    PLANS,
    LaunchError,
    Library,
    Status,
    Tensor,
    call,
    dense,
)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(support.libraries() / "libfa3.so")


@pytest.fixture(scope="module")
def kernels(library: Library, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    bundle = library.open(support.write_bundle(tmp_path_factory.mktemp("bundle")))
    return {plan.name: library.find(bundle, plan.name) for plan in PLANS}


def describe(
    library: Library, kernels: dict[str, Any], tensors: support.Tensors, plan: ForwardPlan = CAUSAL, **options: Any
) -> dict[str, str]:
    num_sms = options.pop("num_sms", 132)
    return library.describe(kernels[plan.name], call(tensors, **options), num_sms)


def map_fields(line: str) -> dict[str, str]:
    """``tensormap bf16 address A dims D ...`` as a dict."""
    words = line.split(" ")
    assert words[0] == "tensormap"
    return {"dtype": words[1]} | dict(zip(words[2::2], words[3::2], strict=True))


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_derived_scalars_and_grid_are_those_of_the_contract(
    library: Library, kernels: dict[str, Any], plan: ForwardPlan
) -> None:
    dims = plan.variant.head_dim
    seen = set()
    for batch, seqlen_q, seqlen_k, heads_k, ratio, scale in itertools.product(
        (1, 7), (1, 127, 128, 129, 257, 4096), (0, 1, 8191, 131072), (1, 3), (1, 5), (0.125, 1e-3)
    ):
        tensors = dense(plan, batch, seqlen_q, seqlen_k, heads_k * ratio, heads_k)
        found = describe(library, kernels, tensors, plan, scalars=(scale,), num_sms=16, sm_margin=3)
        heads_q, launch = heads_k * ratio, abi.launch(plan)
        shapes = Shapes(batch, seqlen_q, seqlen_k, heads_q, heads_k, dims.qk, dims.v, plan.tile_m)
        for param in abi.signature(plan).params:
            if not param.source.startswith("derived:"):
                continue
            kind, value = found[param.name].split(" ")
            expected = derive(param.source.removeprefix("derived:"), shapes, scale)
            assert kind == param.kind.value
            if param.kind is ParamKind.F32:
                assert struct.pack("f", float(value)) == struct.pack("f", expected), param
            else:
                assert int(value) == expected, (param, shapes)
            seen.add(param.name)
        num_tiles = int(derive("num_tiles", shapes))
        assert int(found["grid"]) == contract.grid(launch.grid, num_tiles, 16 - 3)
    assert seen == {p.name for p in abi.signature(plan).params if p.source.startswith("derived:")}


def test_every_derived_scalar_is_compared_with_the_contract() -> None:
    sources = {param.source for plan in PLANS for param in abi.signature(plan).params}
    assert {f"derived:{name}" for name in contract.DERIVED} <= sources
    assert {f"workspace:{name}" for name in contract.WORKSPACE} <= sources
    assert {abi.launch(plan).grid for plan in PLANS} == set(contract.GRID_RULES)


def test_plain_values(library: Library, kernels: dict[str, Any]) -> None:
    out = Tensor((2, 300, 8, 128), strides=(640_000, 128, 40_000, 1), data=0x6000_0010)
    lse = Tensor((2, 8, 300), "fp32", (10_000, 1000, 1), data=0x7000_0004)
    tensors = dense() | {"out": out, "lse": lse}
    found = describe(library, kernels, tensors)
    launch = abi.launch(CAUSAL)
    assert found["block"] == str(launch.threads)
    assert found["smem"] == str(launch.smem_bytes)
    assert found["out"] == "pointer 0x60000010"
    assert [found[f"out_stride_{axis}"] for axis in ("batch", "seqlen", "head")] == [
        "i64 640000",
        "i64 128",
        "i64 40000",
    ]
    assert found["lse"] == "pointer 0x70000004"
    assert found["lse_stride_batch"] == "i64 10000"
    assert found["lse_stride_head"] == "i64 1000"
    assert (found["seqlen_q"], found["seqlen_k"], found["heads_q"]) == ("i32 300", "i32 200", "i32 8")
    assert found["tile_counter"] == "pointer workspace"
    assert list(found)[3:] == [param.name for param in abi.signature(CAUSAL).params]


def test_an_absent_optional_tensor_is_null(library: Library, kernels: dict[str, Any]) -> None:
    found = describe(library, kernels, dense() | {"lse": None})
    assert found["lse"] == "pointer 0"
    assert found["lse_stride_batch"] == found["lse_stride_head"] == "i64 0"


def test_the_callers_tile_counter_is_used(library: Library, kernels: dict[str, Any]) -> None:
    assert describe(library, kernels, dense(), tile_counter=0x1234)["tile_counter"] == "pointer 0x1234"


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_tensor_maps(library: Library, kernels: dict[str, Any], plan: ForwardPlan) -> None:
    d = plan.variant.head_dim.qk
    # heads outside seqlen, padding between batches, and a base inside another tensor
    q = Tensor((3, 65, 5, d), plan.variant.dtype.value, (5 * 65 * d + 64, d, 65 * d, 1), data=0x4000_0010)
    tensors = dense(plan, 3, 65, 33, 5, 5) | {"q": q}
    found = map_fields(describe(library, kernels, tensors, plan)["tma_q"])
    assert found == {
        "dtype": plan.variant.dtype.value,
        "address": "0x40000010",
        "dims": f"{d},65,5,3",
        "strides": f"{2 * d},{2 * 65 * d},{2 * (5 * 65 * d + 64)}",
        "box": "64,64,1,1",
        "swizzle": "128",
    }
    keys = map_fields(describe(library, kernels, tensors, plan)["tma_k"])
    assert keys["dims"] == f"{d},33,5,3"
    assert keys["strides"] == f"{2 * 5 * d},{2 * d},{2 * 5 * d * 33}"
    assert keys["box"] == f"64,{plan.tile_n},1,1"


def test_strides_that_no_element_uses_are_replaced(library: Library, kernels: dict[str, Any]) -> None:
    """torch gives axes of extent 1 any stride; a tensor map takes multiples of 16 bytes only."""
    odd = Tensor((1, 1, 1, 128), strides=(3, 1, -7, 1))
    tensors = dense(CAUSAL, 1, 1, 200, 1, 1) | {"q": odd}
    assert map_fields(describe(library, kernels, tensors)["tma_q"])["strides"] == "256,256,256"
    # the innermost axis too, where its extent is 1: no kernel has such a head_dim, so only the lse
    lse = Tensor((1, 1, 1), "fp32", (5, 5, 5))
    assert describe(library, kernels, tensors | {"lse": lse})["lse_stride_batch"] == "i64 5"


def test_contiguous_strides_may_be_left_out(library: Library, kernels: dict[str, Any]) -> None:
    tensors = dense()
    spelled = {name: replace(tensor, strides=_contiguous(tensor.shape)) for name, tensor in tensors.items()}
    assert describe(library, kernels, tensors) == describe(library, kernels, spelled)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def test_inputs_may_repeat_memory(library: Library, kernels: dict[str, Any]) -> None:
    shared = Tensor((2, 200, 2, 128), strides=(0, 128, 0, 1))
    assert map_fields(describe(library, kernels, dense() | {"k": shared})["tma_k"])["strides"] == "256,0,0"


@pytest.mark.parametrize("empty", ["batch", "seqlen_q", "heads_q"])
def test_a_call_without_output_launches_nothing(library: Library, kernels: dict[str, Any], empty: str) -> None:
    extents = {empty: 0} | ({"heads_k": 0} if empty == "heads_q" else {})
    tensors = {name: replace(tensor, data=0) for name, tensor in dense(CAUSAL, **extents).items()}
    tensors |= {name: dense(CAUSAL, **extents)[name] for name in ("k", "v")}
    assert describe(library, kernels, tensors) == {"grid": "0"}
    library.launch(kernels[CAUSAL.name], call(tensors))  # needs no driver either


def test_no_keys_is_a_launch(library: Library, kernels: dict[str, Any]) -> None:
    """Its outputs must be written; the tensor maps of what is empty point at memory that exists."""
    tensors = dense(CAUSAL, seqlen_k=0)
    tensors |= {name: replace(tensors[name], data=0) for name in ("k", "v")}
    found = describe(library, kernels, tensors)
    assert (found["grid"], found["seqlen_k"]) == (str(2 * 8 * math.ceil(300 / CAUSAL.tile_m)), "i32 0")
    for name in ("tma_k", "tma_v"):
        fields = map_fields(found[name])
        assert (fields["address"], fields["dims"], fields["strides"]) == ("0x1000000000", "1,1,1,1", "16,16,16")


def test_sm_margin_only_shrinks_a_persistent_grid(library: Library, kernels: dict[str, Any]) -> None:
    big = {"batch": 4, "seqlen_q": 8192}
    assert describe(library, kernels, dense(CAUSAL, **big), sm_margin=32)["grid"] == "100"
    tiles = 4 * 8 * math.ceil(8192 / FULL.tile_m)
    assert describe(library, kernels, dense(FULL, **big), FULL, sm_margin=500)["grid"] == str(tiles)


# ---- refusals -------------------------------------------------------------------------------------------------------


def _with(name: str, **changes: Any) -> dict[str, Tensor]:
    tensors = dense()
    return tensors | {name: replace(tensors[name], **changes)}


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], Status, str]] = {
    "missing": (dense() | {"k": None}, {}, Status.BAD_VALUE, "k is missing"),
    "dtype": (_with("v", dtype="fp16"), {}, Status.BAD_TYPE, "v is fp16; the kernel takes bf16"),
    "unknown dtype": (_with("q", dtype="other"), {}, Status.BAD_TYPE, "q is of another type; the kernel takes bf16"),
    "lse dtype": (_with("lse", dtype="bf16"), {}, Status.BAD_TYPE, "lse is bf16; the kernel takes fp32"),
    "rank": (_with("q", shape=(300, 8, 128)), {}, Status.BAD_VALUE, "q has 3 dimensions; it must have 4"),
    "negative": (
        _with("q", shape=(2, -1, 8, 128)),
        {},
        Status.BAD_VALUE,
        "q: shape[1] is -1; it must be 0 to 2147483647",
    ),
    "extent": (_with("q", shape=(2, 2**31, 8, 128)), {}, Status.BAD_VALUE, "q: shape[1] is 2147483648; it must be"),
    "batch": (
        _with("k", shape=(3, 200, 2, 128)),
        {},
        Status.BAD_VALUE,
        "k: shape[0] (batch) is 3, but that of q is 2",
    ),
    "head_dim": (
        dense() | {"q": Tensor((2, 300, 8, 64))},
        {},
        Status.BAD_VALUE,
        "q: shape[3] (head_dim) is 64, but that of the kernel is 128",
    ),
    "keys": (
        _with("v", shape=(2, 100, 2, 128)),
        {},
        Status.BAD_VALUE,
        "v: shape[1] (seqlen_k) is 100, but that of k is 200",
    ),
    "lse shape": (
        _with("lse", shape=(2, 300, 8)),
        {},
        Status.BAD_VALUE,
        "lse: shape[1] (heads_q) is 300, but that of q is 8",
    ),
    "heads": (
        dense(heads_q=8, heads_k=3),
        {},
        Status.BAD_VALUE,
        "q has 8 heads; that must be a multiple of the 3 of k",
    ),
    "no key heads": (dense(heads_k=0), {}, Status.BAD_VALUE, "q has 8 heads; that must be a multiple of the 0 of k"),
    "device": (_with("out", device=1), {}, Status.BAD_VALUE, "out is on device 1, but q is on device 0"),
    "no data": (_with("k", data=0), {}, Status.BAD_VALUE, "k has no data"),
    "alignment": (_with("k", data=0x1000_0008), {}, Status.BAD_VALUE, "k is not 16-byte aligned"),
    "out alignment": (_with("out", data=0x1000_0008), {}, Status.BAD_VALUE, "out is not 16-byte aligned"),
    "lse alignment": (_with("lse", data=0x1002), {}, Status.BAD_VALUE, "lse is not aligned to its 4-byte elements"),
    "last axis": (
        _with("q", strides=(614400, 2048, 256, 2)),
        {},
        Status.BAD_VALUE,
        "q: stride[3] is 2; that axis must be contiguous",
    ),
    "out last axis": (
        _with("out", strides=(614400, 2048, 256, 2)),
        {},
        Status.BAD_VALUE,
        "out: stride[3] is 2; that axis must be contiguous",
    ),
    "lse last axis": (
        _with("lse", strides=(2400, 1, 8)),
        {},
        Status.BAD_VALUE,
        "lse: stride[2] is 8; that axis must be contiguous",
    ),
    "stride": (
        _with("q", strides=(307200, 1024, 132, 1)),
        {},
        Status.BAD_VALUE,
        "q: stride[2] is 132 elements; it must be a multiple of 8 (16 bytes)",
    ),
    "out stride": (
        _with("out", strides=(307200, 1024, 132, 1)),
        {},
        Status.BAD_VALUE,
        "out: stride[2] is 132 elements; it must be a multiple of 8 (16 bytes)",
    ),
    "negative stride": (
        _with("q", strides=(307200, -1024, 128, 1)),
        {},
        Status.BAD_VALUE,
        "q: stride[1] is -1024 elements",
    ),
    "far": (_with("q", strides=(2**39, 1024, 128, 1)), {}, Status.BAD_VALUE, "q: stride[0] is 549755813888 elements"),
    "shared output": (
        _with("out", strides=(0, 1024, 128, 1)),
        {},
        Status.BAD_VALUE,
        "out: stride[0] is 0; the elements of an output must not share memory",
    ),
    "tiles": (
        dense(batch=2**20, seqlen_q=2**18, heads_q=16),
        {},
        Status.BAD_VALUE,
        "q is too large: batch * heads * ceil(seqlen_q / 128) must be at most",
    ),
    "nan": (dense(), {"scalars": (math.nan,)}, Status.BAD_VALUE, "softmax_scale is nan; it must be finite and above 0"),
    "infinite": (dense(), {"scalars": (math.inf,)}, Status.BAD_VALUE, "softmax_scale is inf; it must be finite"),
    "zero scale": (dense(), {"scalars": (0.0,)}, Status.BAD_VALUE, "softmax_scale is 0; it must be finite and above 0"),
    "negative scale": (dense(), {"scalars": (-1.0,)}, Status.BAD_VALUE, "softmax_scale is -1; it must be"),
    "vanishing scale": (dense(), {"scalars": (1e-60,)}, Status.BAD_VALUE, "softmax_scale is 1e-60; it must be"),
    "margin": (dense(), {"sm_margin": -1}, Status.BAD_VALUE, "sm_margin is -1; it must be 0 or more"),
    "large margin": (
        dense(),
        {"sm_margin": 132},
        Status.BAD_VALUE,
        "sm_margin is 132; it must be below the 132 multiprocessors",
    ),
    "counter": (dense(), {"tile_counter": 2}, Status.BAD_VALUE, "tile_counter is not 4-byte aligned"),
    "size": (dense(), {"size": 8}, Status.BAD_VALUE, "call.size is 8; set it to sizeof(fa3_call), 56"),
    "scalars": (dense(), {"scalars": ()}, Status.BAD_VALUE, "takes 5 tensors and 1 scalars, the call gives 5 and 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(library: Library, kernels: dict[str, Any], case: str) -> None:
    tensors, options, status, text = REFUSED[case]
    with pytest.raises(LaunchError) as caught:
        describe(library, kernels, tensors, **options)
    assert caught.value.status == status
    assert text in str(caught.value)


def test_the_largest_call_that_fits(library: Library, kernels: dict[str, Any]) -> None:
    """The tile count stops short of AGAIN, so that a tile counter may run past it."""
    heads = index.AGAIN - 2**16
    big = dense(LARGE, 1, 1, 1, heads, 1)
    assert describe(library, kernels, big, LARGE)["num_tiles"] == f"i32 {heads}"
    with pytest.raises(LaunchError, match=f"q is too large: .* must be at most {heads}"):
        describe(library, kernels, dense(LARGE, 1, 1, 1, heads + 1, 1), LARGE)


# ---- bundles --------------------------------------------------------------------------------------------------------


def test_kernels_are_listed(library: Library, tmp_path: Path) -> None:
    bundle = library.open(support.write_bundle(tmp_path))
    count = library.c.fa3_bundle_num_kernels(bundle)
    listed = [library.c.fa3_bundle_kernel(bundle, i) for i in range(count + 1)]
    assert listed[-1] is None
    names = [library.c.fa3_kernel_name(ctypes.c_void_p(kernel)).decode() for kernel in listed[:-1]]
    assert names == sorted(plan.name for plan in PLANS)
    kernel = ctypes.c_void_p(listed[0])
    tensors = [library.c.fa3_kernel_tensor(kernel, i) for i in range(6)]
    assert tensors == [b"q", b"k", b"v", b"out", b"lse", None]
    assert [library.c.fa3_kernel_tensor_is_optional(kernel, i) for i in range(6)] == [0, 0, 0, 0, 1, 0]
    assert [library.c.fa3_kernel_scalar(kernel, i) for i in range(2)] == [b"softmax_scale", None]
    library.c.fa3_bundle_close(bundle)
    library.c.fa3_bundle_close(None)


def test_a_kernel_that_is_not_there(library: Library, tmp_path: Path) -> None:
    bundle = library.open(support.write_bundle(tmp_path))
    with pytest.raises(LaunchError) as caught:
        library.find(bundle, "fwd_bf16_d96_full_sm90a")
    assert caught.value.status == Status.NOT_FOUND
    names = ", ".join(sorted(plan.name for plan in PLANS))
    assert (
        str(caught.value)
        == f"the bundle in {tmp_path} has no kernel 'fwd_bf16_d96_full_sm90a'; it has {len(PLANS)}: {names}"
    )


def test_a_folder_that_is_no_bundle(library: Library, tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        library.open(tmp_path)
    assert caught.value.status == Status.NOT_FOUND
    assert str(caught.value) == f"cannot read {tmp_path}/{INDEX}: No such file or directory"


def test_a_cubin_that_was_not_copied_whole(library: Library, tmp_path: Path) -> None:
    cubin = support.write_bundle(tmp_path) / support.entry(CAUSAL).cubin
    cubin.write_bytes(b"short")
    with pytest.raises(LaunchError, match=r"has 5 bytes, but index\.txt says 14") as caught:
        library.open(tmp_path)
    assert caught.value.status == Status.BAD_BUNDLE
    cubin.unlink()
    with pytest.raises(LaunchError, match="cannot read"):
        library.open(tmp_path)


def test_an_index_of_another_schema(library: Library, tmp_path: Path) -> None:
    index = support.write_bundle(tmp_path) / INDEX
    index.write_text(index.read_text().replace(f"fa3-index {contract.SCHEMA}", "fa3-index 77"))
    with pytest.raises(
        LaunchError, match=f"has schema 77, this libfa3 reads schema {contract.SCHEMA}: rebuild the bundle"
    ):
        library.open(tmp_path)


DAMAGE = {
    "empty": (None, "", "index.txt is no index of a fa3gen bundle"),
    "truncated": ("end\n", "", r"line \d+: found 'kernel' instead of 'param'"),
    "launch fact": ("threads", "thread", "line 7: found 'thread' instead of 'threads'"),
    "number": ("tile_m 128", "tile_m many", "line 7: 'many' is no number"),
    "range": ("tile_m 128", "tile_m 0", "line 7: 0 is out of range"),
    "grid": ("persistent", "spiral", "line 7: this libfa3 does not know the grid rule 'spiral': install the runtime"),
    "layout": (" dense ", " varlen ", "line 4: this libfa3 does not know the layout 'varlen'"),
    "tensor": ("tensors q,k,v,out,lse", "tensors q,k,v,out,sink", "this libfa3 does not know the tensor 'sink'"),
    "kind": ("param seqlen_q i32", "param seqlen_q i16", "this libfa3 does not know the parameter kind 'i16'"),
    "source": ("extent:q:1", "length:q:1", "this libfa3 does not know the parameter source 'length'"),
    "axis": ("extent:q:1", "extent:q:4", "4 is out of range"),
    "no axis": ("extent:q:1", "extent:q", "parameter seqlen_q has a damaged source"),
    "argument": ("extent:q:1", "extent:sink:1", "'sink' is no argument of this kernel"),
    "derived": ("derived:m_tiles", "derived:n_tiles", "this libfa3 does not know the derived scalar 'n_tiles'"),
    "mismatch": ("i32 derived:m_tiles", "f32 derived:m_tiles", "parameter m_tiles takes no value of that source"),
    "workspace": ("workspace:tile_counter", "workspace:semaphore", "does not know the workspace 'semaphore'"),
    "box": ("box 64,64,1,1", "box 64,64,1", "parameter tma_q has a damaged tensor map"),
    "axes": ("axes 3,1,2,0", "axes 3,1,1,0", "parameter tma_q leaves an axis out"),
    "swizzle": ("swizzle 128", "swizzle 96", "96 is no swizzle"),
    "words": ("symbol ", "symbol a ", "line 5: 'symbol' has too few or too many words"),
    "scalar": ("scalars softmax_scale", "scalars scale", "the first scalar of kernel .* is not softmax_scale"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index(library: Library, tmp_path: Path, damage: str) -> None:
    old, new, message = DAMAGE[damage]
    index = support.write_bundle(tmp_path, [support.entry(CAUSAL), support.entry(LARGE)]) / INDEX
    text = index.read_text()
    assert old is None or old in text
    index.write_text("" if old is None else text.replace(old, new, 1))
    with pytest.raises(LaunchError, match=message) as caught:
        library.open(tmp_path)
    assert caught.value.status == Status.BAD_BUNDLE


def test_every_prefix_of_an_index_is_refused(library: Library, tmp_path: Path) -> None:
    entries = [support.entry(CAUSAL)]
    index = support.write_bundle(tmp_path, entries) / INDEX
    lines = index_text(contract.Manifest(support.ARCH, {}, tuple(entries))).splitlines(keepends=True)
    for count in range(3, len(lines)):
        index.write_text("".join(lines[:count]))
        with pytest.raises(LaunchError, match=f"line {count}: the text ends where"):
            library.open(tmp_path)


def test_one_name_twice(library: Library, tmp_path: Path) -> None:
    support.write_bundle(tmp_path, [support.entry(CAUSAL), support.entry(CAUSAL)])
    with pytest.raises(LaunchError, match=f"kernel {CAUSAL.name} is there twice"):
        library.open(tmp_path)


# ---- without a driver -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(support.has_driver(), reason="this machine has a driver")
@pytest.mark.parametrize("function", ["launch", "warm", "num_sms"])
def test_without_a_driver_a_call_says_so(library: Library, kernels: dict[str, Any], function: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "launch": lambda: library.launch(kernels[CAUSAL.name], call(dense())),
        "warm": lambda: library.warm(kernels[CAUSAL.name]),
        "num_sms": library.num_sms,
    }
    with pytest.raises(LaunchError, match=r"no NVIDIA driver: libcuda\.so\.1: cannot open") as caught:
        calls[function]()
    assert caught.value.status == Status.NO_DRIVER


def test_null_arguments(library: Library) -> None:
    assert library.c.fa3_bundle_open(None, None) == Status.BAD_VALUE
    assert library.c.fa3_last_error() == b"path is NULL"
    assert library.c.fa3_launch(None, None) == Status.BAD_VALUE
    assert library.c.fa3_last_error() == b"kernel is NULL"

"""A bundle without real cubins and a launcher without a GPU, for tests of the runtime."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fa3.choice import kernel_name
from fa3.contract import (
    CUBIN_DIR,
    INDEX,
    MANIFEST,
    Bounds,
    KernelEntry,
    Key,
    Launch,
    Manifest,
    index_text,
    manifest_to_json,
)
from fa3.runtime import reference, request
from torch import Tensor

ARCH = "sm90a"
KEYS = tuple(
    Key("fwd", dtype, head_dim, mask, "dense")
    for dtype in ("bf16", "fp16")
    for head_dim in ("64", "128")
    for mask in ("full", "causal")
)


def entry(key: Key, cubin: bytes = b"", suffix: str = "") -> KernelEntry:
    """A kernel for ``key`` whose cubin is ``cubin``."""
    name = kernel_name(key, ARCH) + suffix
    return KernelEntry(
        name=name,
        symbol=f"{name}_0",
        key=key,
        cubin=f"{CUBIN_DIR}/{name}.cubin",
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        cubin_bytes=len(cubin),
        tensors=("q", "k", "v", "out", "lse"),
        optional=("lse",),
        scalars=("softmax_scale",),
        params=(),
        launch=Launch(384, 200_000, "persistent", 128),
    )


#: Suffixes and bounds of further plans.
Further = Sequence[tuple[str, dict[str, int]]]


def plans(key: Key, further: Further = ()) -> list[KernelEntry]:
    """The plans for ``key``; their cubins hold their names."""
    found = []
    for priority, (suffix, when) in enumerate((*further, ("", None))):
        plan = entry(key, (kernel_name(key, ARCH) + suffix).encode(), suffix)
        found.append(replace(plan, when=None if when is None else Bounds.of(when), priority=priority))
    return found


def write_bundle(folder: Path, keys: Iterable[Key] = KEYS, further: Further = ()) -> Manifest:
    """A bundle with a general plan for each key and the ``further`` ones; its cubins hold their names."""
    entries = sorted((plan for key in keys for plan in plans(key, further)), key=lambda e: e.name)
    manifest = Manifest(ARCH, {"dsl": "4.8.1"}, tuple(entries))
    (folder / CUBIN_DIR).mkdir(parents=True, exist_ok=True)
    for item in manifest.kernels:
        (folder / item.cubin).write_bytes(item.name.encode())
    (folder / MANIFEST).write_text(json.dumps(manifest_to_json(manifest)))
    (folder / INDEX).write_text(index_text(manifest))
    return manifest


class LaunchCall(NamedTuple):
    kernel: str
    sm_margin: int
    softmax_scale: float
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor | None


class FakeLauncher:
    """Runs the reference where a GPU would run a kernel, and notes what it was asked to do.

    Like the native one it refuses wrong arguments, but only says "refused".
    """

    NUM_SMS = 132

    def __init__(self) -> None:
        self.bundles: list[str] = []
        self.loads: list[tuple[str, int]] = []
        self.calls: list[LaunchCall] = []
        self.failure: Exception | None = None  # of the next launch

    def load_bundle(self, path: str) -> str:
        self.bundles.append(path)
        return path

    def device(self, argument: str, device: torch.device) -> int:
        if device.type != "cpu":
            raise ValueError(f"{argument} is on device {device}; allowed: CPU devices")
        return -1

    def check_arch(self, device: int, arch: str) -> None:
        assert (device, arch) == (-1, ARCH)

    def num_sms(self, device: int) -> int:
        return self.NUM_SMS

    def prepare(self, bundle: Any, name: str, device: int) -> Callable[..., None]:
        self.loads.append((name, device))

        def launch(sm_margin: int, softmax_scale: float, *tensors: Any) -> None:
            call = LaunchCall(name, sm_margin, softmax_scale, *tensors)
            if self.failure is not None:
                raise self.failure
            _refuse(call)
            self.calls.append(call)
            out, lse = reference.attention(
                *tensors[:3], causal="causal" in name, softmax_scale=softmax_scale, return_lse=True
            )
            call.out.copy_(out)
            if call.lse is not None:
                call.lse.copy_(lse)

        return launch


def _refuse(call: LaunchCall) -> None:
    try:
        request.check_inputs(call.q, call.k, call.v)
        request.check_out(call.out, call.q, call.v)
        for tensor in (call.q, call.k, call.v, call.out):
            request.check_memory("tensor", tensor)
        assert call.kernel.split("_")[2] in (f"d{call.v.shape[3]}", f"d{call.q.shape[3]}x{call.v.shape[3]}")
    except Exception:
        raise RuntimeError("refused") from None


def inputs(
    batch: int = 2,
    seqlen_q: int = 5,
    seqlen_k: int = 7,
    heads_q: int = 4,
    heads_k: int = 2,
    head_dim: int = 64,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    q = make(batch, seqlen_q, heads_q, head_dim)
    return q, make(batch, seqlen_k, heads_k, head_dim), make(batch, seqlen_k, heads_k, head_dim)


def default_scale(head_dim: int) -> float:
    return 1.0 / math.sqrt(head_dim)

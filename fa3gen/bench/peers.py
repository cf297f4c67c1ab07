"""What is timed: this project's bundles, and other implementations where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fa3.contract import Extents, Key

from fa3gen.bench.shapes import Shape
from fa3gen.errors import UsageError, listing
from fa3gen.model import SUFFIX_MARK

if TYPE_CHECKING:
    from fa3.runtime import Bundle
    from torch import Tensor

#: Makes that many calls.
Run = Callable[[int], None]
#: Of q, k, v and whether the mask is causal.
Prepare = Callable[["Tensor", "Tensor", "Tensor", bool], Run]


def _no_kernel(_shape: Shape) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    ours: bool
    prepare: Prepare
    kernel: Callable[[Shape], str | None] = _no_kernel  # the name of the one that serves a shape, where it is ours
    picked: bool = False  # by --kernel: shapes that it has no kernel for are none of its business

    def takes(self, shape: Shape) -> bool:
        return not self.picked or self.kernel(shape) is not None


def bundle_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """A column for each bundle: the first is ``ours``, a further one has its folder's name."""
    names = ("ours", *(folder.resolve().name for folder in folders[1:]))
    check_names(names)
    return names


def check_names(names: Sequence[str]) -> None:
    """Raises UsageError where two of our columns, or one and a peer, have one name."""
    if len(set(names) | set(PEERS)) != len(names) + len(PEERS):
        raise UsageError(f"two columns have one name: {', '.join((*names, *PEERS))}", hint="rename the bundle's folder")


def plan_label(kernel: str) -> str:
    """What tells a kernel from the other plans of its variant: ``m256n64s4``, or ``general``."""
    return kernel.partition(SUFFIX_MARK)[2] or "general"


def load_bundle(folder: Path) -> Bundle:
    """The runtime's bundle; raises UsageError where the folder holds none."""
    from fa3 import runtime

    try:
        return runtime.load_bundle(folder, default=False)
    except runtime.BundleError as error:
        raise UsageError(str(error), hint="run `fa3gen build`, or name a bundle with --bundle") from error


def ours(name: str, bundle: Bundle) -> Contender:
    from fa3.runtime import attention

    def prepare(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
        def run(calls: int) -> None:
            for _ in range(calls):
                attention(q, k, v, causal=causal, bundle=bundle)

        return run

    return Contender(name, True, prepare, lambda shape: _serving(bundle, shape))


def plans(bundle: Bundle, patterns: Sequence[str]) -> list[Contender]:
    """The kernels of ``bundle`` whose names the patterns match, each for every shape of its variant.

    Plans of one label, of different variants, share a contender.
    """
    names = [entry.name for entry in bundle.manifest.kernels]
    chosen: dict[str, list[str]] = {}
    for pattern in patterns:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise UsageError(
                f"--kernel: {pattern!r} matches none of the bundle", hint=f"choose of {listing(names, 12)}"
            )
        for name in matched:
            same = chosen.setdefault(plan_label(name), [])
            same += [name] if name not in same else []
    found = (ours(label, bundle.only(*chosen[label])) for label in sorted(chosen, key=lambda c: (c != "general", c)))
    return [replace(contender, picked=True) for contender in found]


def _serving(bundle: Bundle, shape: Shape) -> str | None:
    from fa3.runtime import dispatch

    key = Key("fwd", shape.dtype, str(shape.head_dim), shape.mask, "dense")
    call = Extents(shape.batch, shape.seqlen, shape.seqlen, shape.heads, shape.heads)
    return dispatch.choose(bundle.kernels[key], call).name if key in bundle.kernels else None


def peer(name: str) -> Contender:
    """Raises what its import raises."""
    return Contender(name, False, PEERS[name]())


def _function(call: Callable[..., Any]) -> Prepare:
    def prepare(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
        def run(calls: int) -> None:
            for _ in range(calls):
                call(q, k, v, causal=causal)

        return run

    return prepare


def _fa3() -> Prepare:
    from importlib import import_module

    return _function(import_module("fa3_fwd_interface").flash_attn_func)


def _fa4() -> Prepare:
    from importlib import import_module

    return _function(import_module("flash_attn.cute.interface").flash_attn_func)


def _cudnn() -> Prepare:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def prepare(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

        def run(calls: int) -> None:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                for _ in range(calls):
                    scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    return prepare


#: Imports a peer.
PEERS: dict[str, Callable[[], Prepare]] = {"fa3": _fa3, "fa4": _fa4, "cudnn": _cudnn}

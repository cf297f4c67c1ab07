"""What is timed: this project's bundles, and other implementations where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fa3gen.errors import UsageError

if TYPE_CHECKING:
    from fa3.contract import KernelEntry
    from fa3.runtime import Bundle
    from torch import Tensor

#: Makes that many calls.
Run = Callable[[int], None]
#: Of q, k, v and whether the mask is causal.
Prepare = Callable[["Tensor", "Tensor", "Tensor", bool], Run]


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    ours: bool
    prepare: Prepare


def bundle_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """A column for each bundle: the first is ``ours``, a further one has its folder's name."""
    names = ("ours", *(folder.resolve().name for folder in folders[1:]))
    if len(set(names) | set(PEERS)) != len(names) + len(PEERS):
        raise UsageError(f"two columns have one name: {', '.join((*names, *PEERS))}", hint="rename the bundle's folder")
    return names


def load_bundle(folder: Path) -> Bundle:
    """The runtime's bundle; raises UsageError where the folder holds none."""
    from fa3 import runtime

    try:
        return runtime.load_bundle(folder, default=False)
    except runtime.BundleError as error:
        raise UsageError(str(error), hint="run `fa3gen build`, or name a bundle with --bundle") from error


def kernels(folder: Path) -> tuple[KernelEntry, ...]:
    """The table of contents of a bundle that :func:`load_bundle` takes."""
    return load_bundle(folder).manifest.kernels


def ours(name: str, bundle: Bundle) -> Contender:
    from fa3.runtime import attention

    def prepare(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
        def run(calls: int) -> None:
            for _ in range(calls):
                attention(q, k, v, causal=causal, bundle=bundle)

        return run

    return Contender(name, True, prepare)


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

"""What is timed: this project's bundles, and other implementations where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fa3.choice import GENERAL, choose, forward_key, plan_label
from fa3.contract import Extents

from fa3gen.bench.shapes import Shape
from fa3gen.errors import UsageError, listing

if TYPE_CHECKING:
    from fa3.contract import KernelEntry
    from fa3.runtime import Bundle
    from torch import Tensor

#: Makes that many calls.
Run = Callable[[int], None]
#: Of q, k, v and whether the mask is causal.
Prepare = Callable[["Tensor", "Tensor", "Tensor", bool], Run]


#: Why a shape cannot be asked for; "" where it can be, which is no promise.
WhyNot = Callable[[Shape], str]


class NotInstalled(Exception):
    """A peer that this machine does not have."""


def _anything(_shape: Shape) -> str:
    return ""


def _no_kernel(_shape: Shape) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    ours: bool
    prepare: Prepare
    why_not: WhyNot = _anything
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


def load_bundle(folder: Path) -> Bundle:
    """The runtime's bundle; raises UsageError where the folder holds none."""
    from fa3 import runtime

    try:
        return runtime.load_bundle(folder, default=False)
    except runtime.BundleError as error:
        raise UsageError(str(error), hint="run `fa3gen build`, or name a bundle with --bundle") from error


def kernels(folder: Path) -> dict[str, KernelEntry]:
    """The table of contents of a bundle that :func:`load_bundle` takes, by name."""
    return {entry.name: entry for entry in load_bundle(folder).manifest.kernels}


def ours(name: str, bundle: Bundle) -> Contender:
    from fa3.runtime import attention

    def prepare(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
        def run(calls: int) -> None:
            for _ in range(calls):
                attention(q, k, v, causal=causal, bundle=bundle)

        return run

    return Contender(name, True, prepare, kernel=lambda shape: _serving(bundle, shape))


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
    found = (ours(label, bundle.only(*chosen[label])) for label in sorted(chosen, key=lambda c: (c != GENERAL, c)))
    return [replace(contender, picked=True) for contender in found]


def _serving(bundle: Bundle, shape: Shape) -> str | None:
    key = forward_key(shape.dtype, shape.head_dim, shape.v_dim, shape.causal)
    call = Extents(shape.batch, shape.seqlen_q, shape.seqlen_k, shape.heads_q, shape.heads_k)
    return choose(bundle.kernels[key], call).name if key in bundle.kernels else None


def peer(name: str) -> Contender:
    """Raises NotInstalled, or what its import raises."""
    return PEERS[name](name)


def _function(call: Callable[..., Any]) -> Prepare:
    def prepare(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
        def run(calls: int) -> None:
            for _ in range(calls):
                call(q, k, v, causal=causal)

        return run

    return prepare


def _imported(module: str) -> Callable[[str], Contender]:
    """A peer whose ``flash_attn_func`` takes q, k and v as we do, with GQA, and masks aligned bottom right."""

    def load(name: str) -> Contender:
        try:
            found = import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{module}.".startswith(f"{error.name}."):
                raise NotInstalled(f"no module {error.name}") from error
            raise
        return Contender(name, False, _function(found.flash_attn_func))

    return load


def _cudnn(name: str) -> Contender:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def prepare(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
        gqa = q.shape[2] != k.shape[2]
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

        def run(calls: int) -> None:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                for _ in range(calls):
                    scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa)

        return run

    return Contender(name, False, prepare, _cudnn_why_not)


def _cudnn_why_not(shape: Shape) -> str:
    if shape.causal and shape.seqlen_q != shape.seqlen_k:
        return "torch's causal mask for cuDNN is aligned top left"
    return ""


#: Imports a peer, given its name.
PEERS: dict[str, Callable[[str], Contender]] = {
    "fa3": _imported("fa3_fwd_interface"),
    "fa4": _imported("flash_attn.cute.interface"),
    "cudnn": _cudnn,
}

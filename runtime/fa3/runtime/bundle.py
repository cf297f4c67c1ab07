"""Bundles: found, checked, loaded, and their kernels made ready for a device.

Loading a bundle needs no GPU and no driver.  A kernel is loaded on a device when a call first needs it there, or by
:meth:`Bundle.warm`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fa3.choice import head_dims
from fa3.contract import (
    INDEX,
    MANIFEST,
    UNBOUNDED,
    Bounds,
    Extents,
    KernelEntry,
    Key,
    Manifest,
    ManifestError,
    index_text,
    manifest_from_json,
)
from fa3.runtime import dispatch, launcher
from fa3.runtime.errors import BundleError

#: Names the bundle of calls that neither give one nor come after :func:`load_bundle`.
ENVIRONMENT = "FA3_BUNDLE"

#: The arguments of a launch in each family: tensors, scalars.
ARGUMENTS = {"fwd": (("q", "k", "v", "out", "lse"), ("softmax_scale",))}

#: What a call looks up: dtype, head_dim of q and k, head_dim of v, causal, device index.
CallKey = tuple[torch.dtype, int, int, bool, int]


@dataclass(frozen=True, slots=True)
class ReadyKernel:
    """A kernel that is loaded on a device."""

    name: str
    launch: Callable[..., object]  # launch(sm_margin, softmax_scale, q, k, v, out, lse or None)
    softmax_scale: float  # the default, 1/sqrt(head_dim)
    num_sms: int


#: Where the shapes of q and v have the extents: (of q?, axis).
_PLACES = {
    "batch": (True, 0),
    "seqlen_q": (True, 1),
    "seqlen_k": (False, 1),
    "heads_q": (True, 2),
    "heads_k": (False, 2),
}


class Choice:
    """The plans of a variant, loaded on a device: which of them a call takes.

    It is asked in every call, so it looks only at extents that are bounded.
    """

    __slots__ = ("_bounded", "_general")

    def __init__(self, plans: Sequence[tuple[Bounds | None, ReadyKernel]]) -> None:
        """``plans`` in the order of dispatch; the last has no bounds."""
        *bounded, (_, self._general) = plans
        self._bounded = [(_limits(when), kernel) for when, kernel in bounded if when is not None]

    def kernel(self, q: torch.Size, v: torch.Size) -> ReadyKernel:
        """The kernel for a call with tensors of these shapes."""
        for limits, kernel in self._bounded:
            for of_q, axis, least, greatest in limits:
                if not least <= (q if of_q else v)[axis] <= greatest:
                    break
            else:
                return kernel
        return self._general


def _limits(when: Bounds) -> list[tuple[bool, int, int, int]]:
    """Of q?, axis, least and greatest extent there."""
    limits = zip(Extents._fields, when.least, when.greatest, strict=True)
    return [(*_PLACES[extent], low, high) for extent, low, high in limits if low > 0 or high < UNBOUNDED]


class Bundle:
    """A loaded bundle; :func:`load_bundle` makes it.

    ``ready`` holds the kernels that calls have used, so that the next one finds its own with a single lookup;
    ``choices`` has those of variants with several plans.
    """

    def __init__(self, path: Path, manifest: Manifest, native: launcher.Launcher) -> None:
        self.path = path
        self.name = str(path)  # what registered ops carry
        self.manifest = manifest
        self.native = native
        self.kernels = dispatch.table(manifest.kernels)
        self.ready: dict[CallKey, ReadyKernel] = {}
        self.choices: dict[CallKey, Choice] = {}
        self._loaded: dict[tuple[str, int], ReadyKernel] = {}
        self._handle = native.load_bundle(os.fspath(path))
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<fa3 bundle {self.name}: {len(self.entries)} kernels for {self.manifest.arch}>"

    @property
    def entries(self) -> list[KernelEntry]:
        """Every kernel that a call can take."""
        return [entry for plans in self.kernels.values() for entry in plans]

    def find(self, key: Key) -> tuple[KernelEntry, ...]:
        """The plans for ``key`` in the order in which a call is held against them; raises ``VariantNotBuilt``."""
        return dispatch.lookup(self.kernels, key, self.name, self.manifest.arch)

    def only(self, *names: str) -> Bundle:
        """This bundle with the kernels ``names`` alone, one a variant, which take calls whatever their bounds.

        It is for comparing plans; the loaded kernels are shared.  Raises ``KeyError`` where a kernel is not there.
        """
        by_name = {entry.name: entry for entry in self.manifest.kernels}
        one = copy.copy(self)
        one.name = f"{self.path}/{'+'.join(names)}"
        one.kernels = dispatch.table(replace(by_name[name], when=None) for name in names)
        one.ready, one.choices = {}, {}
        with _lock:
            _bundles[one.name] = one  # where registered ops, which carry the name, find it
        return one

    def load(self, entry: KernelEntry, device: int) -> ReadyKernel:
        """The kernel ``entry``, loaded on ``device``; raises ``DeviceError`` where that cannot run it."""
        with self._lock:
            kernel = self._loaded.get((entry.name, device))
            if kernel is None:
                self.native.check_arch(device, self.manifest.arch)
                launch = self.native.prepare(self._handle, entry.name, device)
                scale = 1.0 / math.sqrt(head_dims(entry.key)[0])
                kernel = ReadyKernel(entry.name, launch, scale, self.native.num_sms(device))
                self._loaded[entry.name, device] = kernel
        return kernel

    def warm(self, device: torch.device | str | int | None = None) -> None:
        """Loads every kernel on ``device``, torch's current CUDA device by default, so that no call waits for it."""
        where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
        if where.type == "cuda" and where.index is None:
            where = torch.device("cuda", torch.cuda.current_device())
        index = self.native.device("device", where)
        for entry in self.entries:
            self.load(entry, index)


_bundles: dict[str, Bundle] = {}  # by absolute path
_default: Bundle | None = None
_lock = threading.Lock()


def load_bundle(path: str | os.PathLike[str], *, default: bool = True) -> Bundle:
    """The bundle in folder ``path``, checked and loaded; touches no GPU.

    It becomes the one that calls without ``bundle=`` use, unless ``default`` is False.  Loading the same bundle again
    gives the same object; after a rebuild in place it gives the new one.  Raises :class:`BundleError` where the folder
    holds no bundle or a damaged one, or where another release wrote it.
    """
    global _default
    folder = Path(os.path.abspath(path))
    manifest = _read_manifest(folder)
    _check_files(folder, manifest)
    with _lock:
        bundle = _bundles.get(str(folder))
        if bundle is None or bundle.manifest != manifest:
            bundle = _bundles[str(folder)] = Bundle(folder, manifest, launcher.native())
        if default:
            _default = bundle
    return bundle


def check_bundle(bundle: object) -> None:
    """That the argument ``bundle`` is one."""
    if not isinstance(bundle, Bundle):
        raise TypeError(f"bundle is a {type(bundle).__name__}; allowed: what fa3.runtime.load_bundle returns")


def default_bundle() -> Bundle:
    """The bundle of calls that give none: the last one loaded, else the one that the environment names."""
    if _default is not None:
        return _default
    path = os.environ.get(ENVIRONMENT)
    if not path:
        raise BundleError(
            "no bundle is loaded: call fa3.runtime.load_bundle(path) once, "
            f"set the environment variable {ENVIRONMENT} to its folder, or pass bundle="
        )
    return load_bundle(path)


def named_bundle(path: str) -> Bundle:
    """The bundle loaded from ``path``, loading it if need be; the default one where ``path`` is empty."""
    if not path:
        return default_bundle()
    return _bundles.get(path) or load_bundle(path, default=False)


def _read_manifest(folder: Path) -> Manifest:
    file = folder / MANIFEST
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise BundleError(f"{folder} holds no bundle: {file.name}: {error.strerror}") from error
    except ValueError as error:
        raise BundleError(f"{file} is damaged: {error}") from error
    try:
        manifest = manifest_from_json(document)
    except ManifestError as error:
        raise BundleError(f"{folder}: {error}") from error
    for entry in manifest.kernels:
        family = entry.key.family
        if ARGUMENTS.get(family) != (entry.tensors, entry.scalars):
            raise BundleError(
                f"{folder}: kernel {entry.name} takes {', '.join(entry.tensors + entry.scalars)}; this fa3-runtime "
                f"does not launch such kernels of family {family}: install the runtime that came with the bundle"
            )
    return manifest


def _check_files(folder: Path, manifest: Manifest) -> None:
    for entry in manifest.kernels:
        file = folder / entry.cubin
        if hashlib.sha256(_read(file)).hexdigest() != entry.cubin_sha256:
            raise BundleError(
                f"{file} is not the cubin that {MANIFEST} describes (its sha256 differs): copy the bundle again"
            )
    if _read(folder / INDEX) != index_text(manifest).encode():
        raise BundleError(f"{folder / INDEX} does not belong to {MANIFEST}: copy the bundle again")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BundleError(f"the bundle is incomplete: {file}: {error.strerror}") from error

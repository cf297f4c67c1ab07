"""Writes a bundle: cubins, manifest and the launcher's index; data only, and equal bytes for equal kernels."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa3.contract import (
    CUBIN_DIR,
    INDEX,
    MANIFEST,
    Bounds,
    KernelEntry,
    Key,
    Manifest,
    ManifestError,
    covered,
    index_text,
    manifest_to_json,
    plans_by_key,
)

from fa3gen import abi, witness
from fa3gen.axes import spelled
from fa3gen.compile import Resources
from fa3gen.digest import sha256
from fa3gen.errors import Fa3genError, UsageError
from fa3gen.model import ForwardPlan, Variant

#: Kernel name -> the device and date that its cubin was verified with, and the cubin's sha256.
Evidence = Mapping[str, Mapping[str, Any]]


class BundleError(Fa3genError):
    """The kernels make no bundle."""


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel to put into a bundle."""

    plan: ForwardPlan
    cubin: bytes
    resources: Resources


@dataclass(frozen=True)
class WrittenBundle:
    path: Path
    kernels: int
    size: int  # bytes of all files
    changed: bool  # false where it was there already, byte for byte


def make_manifest(
    kernels: Iterable[BuiltKernel], toolchain: Mapping[str, str], evidence: Evidence | None = None
) -> Manifest:
    """The table of contents.

    Raises BundleError where a call could mean two kernels or find none although its variant is there, where no call
    takes a kernel, and where the architectures differ.
    """
    ordered = sorted(kernels, key=lambda kernel: kernel.plan.name)
    archs = sorted({kernel.plan.variant.arch.value for kernel in ordered})
    if len(archs) != 1:
        raise BundleError(f"a bundle is of one architecture, not of {', '.join(archs) or 'none'}")
    entries = tuple(_entry(kernel, evidence or {}) for kernel in ordered)
    _check_dispatch(entries)
    return Manifest(archs[0], dict(toolchain), entries)


def write(path: Path, kernels: Sequence[BuiltKernel], manifest: Manifest) -> WrittenBundle:
    """Writes the bundle, or leaves it where it is the same already; what else was in the folder goes.

    Raises UsageError where ``path`` is a folder of something else.
    """
    files = _files(kernels, manifest)
    size = sum(map(len, files.values()))
    if _current(path) == files:
        return WrittenBundle(path, len(kernels), size, changed=False)
    _check_target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        fresh = scratch / "new"
        for name, data in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_bytes(data)
        if path.exists():
            path.rename(scratch / "old")
        fresh.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return WrittenBundle(path, len(kernels), size, changed=True)


def dispatch_key(variant: Variant) -> Key:
    """What a call asks for to get this variant."""
    return Key(
        variant.family.value,
        variant.dtype.value,
        spelled(variant.head_dim),
        variant.mask.value,
        variant.layout.value,
        variant.features,
    )


def verified(evidence: Evidence, name: str, cubin_sha256: str) -> dict[str, Any] | None:
    """The device and date of the evidence for exactly this cubin."""
    row = evidence.get(name)
    if row is None or row["cubin_sha256"] != cubin_sha256:
        return None
    return {"device": row["device"], "date": row["date"]}


def _entry(kernel: BuiltKernel, evidence: Evidence) -> KernelEntry:
    plan = kernel.plan
    signature = abi.signature(plan)
    digest = sha256(kernel.cubin)
    return KernelEntry(
        name=plan.name,
        symbol=witness.symbol(plan),
        key=dispatch_key(plan.variant),
        cubin=f"{CUBIN_DIR}/{plan.name}.cubin",
        cubin_sha256=digest,
        cubin_bytes=len(kernel.cubin),
        tensors=signature.tensors,
        optional=signature.optional,
        scalars=signature.scalars,
        params=signature.params,
        launch=abi.launch(plan),
        plan=plan.to_json(),
        resources=kernel.resources.to_json(),
        verified=verified(evidence, plan.name, digest),
        when=plan.when,
        priority=plan.priority,
    )


def _check_dispatch(entries: Sequence[KernelEntry]) -> None:
    """Each call must lead to one kernel, and to each kernel a call."""
    names = [entry.name for entry in entries]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise BundleError(f"kernels given twice: {', '.join(repeated)}")
    try:
        by_key = plans_by_key(entries)
    except ManifestError as error:
        raise BundleError(str(error), hint="build all plans of a variant together: select it by its name") from error
    for plans in by_key.values():
        before: list[Bounds] = []
        for plan in plans:
            when = plan.when or Bounds()
            if covered(when, before):
                raise BundleError(f"{plan.name} is never reached: the plans before it take its calls")
            before.append(when)


def _files(kernels: Sequence[BuiltKernel], manifest: Manifest) -> dict[str, bytes]:
    document = json.dumps(manifest_to_json(manifest), indent=1, sort_keys=True) + "\n"
    files = {MANIFEST: document.encode(), INDEX: index_text(manifest).encode()}
    for kernel in kernels:
        files[f"{CUBIN_DIR}/{kernel.plan.name}.cubin"] = kernel.cubin
    return files


def _current(path: Path) -> dict[str, bytes]:
    """The files under ``path``; empty where there are none."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def _check_target(path: Path) -> None:
    """Refuses to replace what is no bundle."""
    if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST).is_file():
        raise UsageError(f"{path} holds files and is no bundle", hint="name another folder with --out")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file", hint="name a folder with --out")

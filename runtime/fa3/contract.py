"""What a bundle's writer (fa3gen) and its readers (fa3.runtime, libfa3) agree on.

The one home of the dispatch key, the kinds of kernel parameter, the sources a parameter may take its value from, the
grid rules and the layout of ``manifest.json`` and ``index.txt``.  Standard library only: the generator imports this
module on machines without torch, the runtime on machines without a compiler.

A bundle is a folder of data::

    manifest.json          everything below, for Python, people and tools
    index.txt              the launcher's share of the same objects as flat text, so that C needs no JSON parser
    cubins/<name>.cubin
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import pairwise, product
from typing import Any, NamedTuple

SCHEMA = 3
MANIFEST = "manifest.json"
INDEX = "index.txt"
CUBIN_DIR = "cubins"

#: In the name of a kernel, between the variant's name and what a further plan of it does otherwise.
SUFFIX_MARK = "__"

#: K and V of the heads that are worked on together should stay in L2: half of the 60 MB of an H100/H200, the rest is
#: Q, O and slack.
L2_SECTION_BYTES = 32 << 20

LOG2_E = math.log2(math.e)


class Key(NamedTuple):
    """What a call asks for and a kernel offers; equal keys meet.  Every field is spelled as in the kernel's name."""

    family: str
    dtype: str
    head_dim: str
    mask: str
    layout: str
    features: tuple[str, ...] = ()


class Extents(NamedTuple):
    """The extents of a call that the bounds of a plan may speak of."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_k: int


#: The names of bounds, as YAML and the manifest spell them.
BOUNDS = tuple(f"{end}_{extent}" for extent in Extents._fields for end in ("min", "max"))

#: Above every extent.
UNBOUNDED = (1 << 63) - 1
_LEAST = Extents(0, 0, 0, 0, 0)
_GREATEST = Extents(UNBOUNDED, UNBOUNDED, UNBOUNDED, UNBOUNDED, UNBOUNDED)


@dataclass(frozen=True)
class Bounds:
    """The calls that a plan is meant for: the least and the greatest of each extent, both included."""

    least: Extents = _LEAST
    greatest: Extents = _GREATEST

    @classmethod
    def of(cls, values: Mapping[str, int]) -> Bounds:
        """From values by name, ``{"max_seqlen_k": 2047}``; ValueError where one is unknown or no call fits."""
        unknown = sorted(values.keys() - set(BOUNDS))
        if unknown:
            raise ValueError(f"there is no bound {unknown[0]!r}")
        least = Extents(*(values.get(f"min_{extent}", 0) for extent in Extents._fields))
        greatest = Extents(*(values.get(f"max_{extent}", UNBOUNDED) for extent in Extents._fields))
        for extent, low, high in zip(Extents._fields, least, greatest, strict=True):
            if low > high:
                raise ValueError(f"min_{extent} {low} is above max_{extent} {high}")
        return cls(least, greatest)

    def to_json(self) -> dict[str, int]:
        """The inverse of :meth:`of`; what bounds nothing is left out."""
        pairs = zip(self.least, self.greatest, strict=True)
        values = zip(BOUNDS, (value for pair in pairs for value in pair), strict=True)
        return {name: value for name, value in values if value != (0 if name.startswith("min_") else UNBOUNDED)}

    def fit(self, call: Extents) -> bool:
        """Whether the plan is meant for ``call``."""
        return all(low <= value <= high for low, value, high in zip(self.least, call, self.greatest, strict=True))

    def misfit(self, call: Extents) -> str:
        """Where ``call`` is outside: ``seqlen_k 4096 is above 2047``; "" where the plan is meant for it."""
        parts = []
        for extent, low, value, high in zip(Extents._fields, self.least, call, self.greatest, strict=True):
            if value < low:
                parts.append(f"{extent} {value} is below {low}")
            elif value > high:
                parts.append(f"{extent} {value} is above {high}")
        return ", ".join(parts)

    def __str__(self) -> str:
        """``seqlen_k <= 2047, 1024 <= seqlen_q``."""
        parts = []
        for extent, low, high in zip(Extents._fields, self.least, self.greatest, strict=True):
            if low or high != UNBOUNDED:
                parts.append((f"{low} <= " if low else "") + extent + (f" <= {high}" if high != UNBOUNDED else ""))
        return ", ".join(parts)


def covered(bounds: Bounds, by: Sequence[Bounds]) -> bool:
    """Whether every call within ``bounds`` is within one of ``by``.

    Along each extent what holds changes only where one of ``by`` begins or has ended, so a call of each kind will do.
    """
    kinds = []
    for axis in range(len(Extents._fields)):
        low, high = bounds.least[axis], bounds.greatest[axis]
        steps = {low, *(other.least[axis] for other in by), *(other.greatest[axis] + 1 for other in by)}
        kinds.append([step for step in sorted(steps) if low <= step <= high])
    return all(any(other.fit(Extents(*call)) for other in by) for call in product(*kinds))


class ParamKind(str, Enum):
    """The five kinds of kernel parameter, each of which ``cuLaunchKernelEx`` takes as one pointer."""

    TENSORMAP = "tensormap"
    POINTER = "pointer"
    I32 = "i32"
    I64 = "i64"
    F32 = "f32"


#: bytes of each kind in the kernel's parameter space (a tensor map is 64-byte aligned there)
PARAM_SIZE = {ParamKind.TENSORMAP: 128, ParamKind.POINTER: 8, ParamKind.I32: 4, ParamKind.I64: 8, ParamKind.F32: 4}


@dataclass(frozen=True)
class TensorMap:
    """How a tensor argument becomes a CUtensorMap.

    ``axes`` lists the tensor's axes innermost first, so dense ``(batch, seqlen, heads, head_dim)`` gives
    ``(3, 1, 2, 0)``.  ``box`` counts elements per tensor map dimension.  Reads outside the tensor give zeros, writes
    outside are dropped.
    """

    axes: tuple[int, ...]
    box: tuple[int, ...]
    dtype: str
    swizzle_bytes: int


@dataclass(frozen=True)
class Param:
    """One kernel parameter, in the order of the kernel's signature.

    ``source`` says where the value comes from (``axis`` counts the tensor's axes as the caller passes it):

    =========================  ==========================================================================
    ``tensor:<name>``          kinds tensormap and pointer: the tensor's address; null where it is absent
    ``extent:<name>:<axis>``   i32
    ``stride:<name>:<axis>``   i64, in elements; 0 where the tensor is absent
    ``scalar:<name>``          a scalar argument as it is
    ``derived:<name>``         one of :data:`DERIVED`
    ``workspace:<name>``       kind pointer: one of :data:`WORKSPACE`
    =========================  ==========================================================================
    """

    name: str
    kind: ParamKind
    source: str
    tensor_map: TensorMap | None = None


#: Scalars that the launcher computes, name -> meaning.  Each is implemented once there (``fa3_derive`` in libfa3) and
#: once below.
DERIVED = {
    "softmax_scale_log2": "f32: softmax_scale * log2(e); the kernels work in base 2",
    "heads_per_kv": "i32: query heads that share one key/value head",
    "m_tiles": "i32: ceil(seqlen_q / tile_m)",
    "num_tiles": "i32: m_tiles * heads_q * batch",
    "head_section": "i32: (head, batch) pairs that are worked on together so that their K and V stay in L2",
}

#: Device memory the launcher owns, name -> meaning.
WORKSPACE = {
    "tile_counter": "one int32, 0 before and after every launch (the kernel sets it back); "
    "never shared by two streams or two graphs",
}

#: Grid rules, name -> meaning.  Grids are one-dimensional: y and z would stop at 65,535.
GRID_RULES = {
    "tile_per_cta": "num_tiles CTAs",
    "persistent": "min(SMs of the context - sm_margin, num_tiles) CTAs",
}


@dataclass(frozen=True)
class Shapes:
    """The extents that :func:`derive` and :func:`grid` need; dense (batch, seqlen, heads, head_dim)."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_k: int
    head_dim: int
    head_dim_v: int
    tile_m: int


def derive(name: str, shapes: Shapes, softmax_scale: float = 1.0) -> int | float:
    """The value of derived scalar ``name``: the readable twin of the launcher's code, and its test."""
    if name == "softmax_scale_log2":
        return softmax_scale * LOG2_E
    if name == "heads_per_kv":
        return shapes.heads_q // shapes.heads_k
    m_tiles = -(-shapes.seqlen_q // shapes.tile_m)
    if name == "m_tiles":
        return m_tiles
    if name == "num_tiles":
        return m_tiles * shapes.heads_q * shapes.batch
    if name == "head_section":
        kv_bytes = 2 * shapes.seqlen_k * (shapes.head_dim + shapes.head_dim_v)
        kv_heads = L2_SECTION_BYTES // max(kv_bytes, 1)
        heads_per_kv = shapes.heads_q // shapes.heads_k
        return max(1, min(kv_heads * heads_per_kv, shapes.heads_q * shapes.batch))
    raise KeyError(name)


def grid(rule: str, num_tiles: int, num_sms: int) -> int:
    """CTAs of a launch."""
    if rule == "tile_per_cta":
        return num_tiles
    if rule == "persistent":
        return min(num_sms, num_tiles)
    raise KeyError(rule)


@dataclass(frozen=True)
class Launch:
    """What a launch needs beyond the parameters."""

    threads: int
    smem_bytes: int  # dynamic shared memory
    grid: str  # one of GRID_RULES
    tile_m: int  # query rows of a CTA


@dataclass(frozen=True)
class KernelEntry:
    """One kernel of a bundle.

    Several may have one key: the plans of a variant.  A call takes the one of lowest ``priority`` whose ``when`` fits
    it.  The last has no ``when``, so that every call finds one; it bears the variant's name.
    """

    name: str
    symbol: str
    key: Key
    cubin: str  # path inside the bundle
    cubin_sha256: str
    cubin_bytes: int
    tensors: tuple[str, ...]  # tensor arguments of a launch, in order; a caller may pass none for those in `optional`
    optional: tuple[str, ...]
    scalars: tuple[str, ...]  # scalar arguments of a launch, in order
    params: tuple[Param, ...]
    launch: Launch
    plan: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    verified: dict[str, Any] | None = None
    when: Bounds | None = None
    priority: int = 0


@dataclass(frozen=True)
class Manifest:
    """A bundle's table of contents; kernels are sorted by name."""

    arch: str
    toolchain: dict[str, str]
    kernels: tuple[KernelEntry, ...]
    schema: int = SCHEMA


class ManifestError(ValueError):
    """A manifest that this version cannot read; the text says why and what to do."""


def plans_by_key(entries: Iterable[KernelEntry]) -> dict[Key, tuple[KernelEntry, ...]]:
    """The plans for each key in the order in which a call is held against them.

    Raises :class:`ManifestError` where a call could mean two kernels or find none.
    """
    grouped: dict[Key, list[KernelEntry]] = {}
    for entry in entries:
        grouped.setdefault(entry.key, []).append(entry)
    for plans in grouped.values():
        plans.sort(key=lambda entry: entry.priority)
        for plan, following in pairwise(plans):
            if plan.priority == following.priority or plan.when is None:
                raise ManifestError(f"kernels {plan.name} and {following.name} answer the same calls")
        if plans[-1].when is not None:
            raise ManifestError(f"kernel {plans[-1].name} serves {plans[-1].when}, and no kernel serves other calls")
    return {key: tuple(plans) for key, plans in grouped.items()}


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    """``manifest`` as plain JSON types."""
    document: dict[str, Any] = {"schema": manifest.schema, "arch": manifest.arch, "toolchain": dict(manifest.toolchain)}
    document["kernels"] = [_entry_to_json(entry) for entry in manifest.kernels]
    return document


def _entry_to_json(entry: KernelEntry) -> dict[str, Any]:
    data = asdict(entry)
    data["key"] = entry.key._asdict() | {"features": list(entry.key.features)}
    data["params"] = [
        {k: v for k, v in asdict(p).items() if v is not None} | {"kind": p.kind.value} for p in entry.params
    ]
    data["when"] = None if entry.when is None else entry.when.to_json()
    return data


def manifest_from_json(document: Any) -> Manifest:
    """The inverse of :func:`manifest_to_json`; raises :class:`ManifestError`."""
    if not isinstance(document, dict) or "schema" not in document:
        raise ManifestError(f"{MANIFEST} holds no fa3gen manifest")
    if document["schema"] != SCHEMA:
        raise ManifestError(
            f"{MANIFEST} has schema {document['schema']}, this fa3-runtime reads schema {SCHEMA}: "
            "rebuild the bundle with the fa3gen of the same release, or install the runtime that came with it"
        )
    try:
        kernels = tuple(_entry_from_json(entry) for entry in document["kernels"])
        return Manifest(document["arch"], dict(document["toolchain"]), kernels)
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"{MANIFEST} is damaged: {error!r}") from error


def _entry_from_json(data: dict[str, Any]) -> KernelEntry:
    key = dict(data["key"])
    params = []
    for param in data["params"]:
        tensor_map = param.get("tensor_map")
        if tensor_map is not None:
            tensor_map = TensorMap(
                tuple(tensor_map["axes"]), tuple(tensor_map["box"]), tensor_map["dtype"], tensor_map["swizzle_bytes"]
            )
        params.append(Param(param["name"], ParamKind(param["kind"]), param["source"], tensor_map))
    return KernelEntry(
        name=data["name"],
        symbol=data["symbol"],
        key=Key(**(key | {"features": tuple(key["features"])})),
        cubin=data["cubin"],
        cubin_sha256=data["cubin_sha256"],
        cubin_bytes=data["cubin_bytes"],
        tensors=tuple(data["tensors"]),
        optional=tuple(data["optional"]),
        scalars=tuple(data["scalars"]),
        params=tuple(params),
        launch=Launch(**data["launch"]),
        plan=dict(data["plan"]),
        resources=dict(data["resources"]),
        verified=data["verified"],
        when=None if data["when"] is None else Bounds.of(data["when"]),
        priority=data["priority"],
    )


def index_text(manifest: Manifest) -> str:
    """``index.txt``: what the launcher needs, one fact a line.

    Words are separated by single spaces, lists by commas ("-" when empty).
    """

    def words(items: tuple[Any, ...]) -> str:
        return ",".join(str(item) for item in items) or "-"

    lines = [f"fa3-index {manifest.schema}", f"arch {manifest.arch}"]
    for entry in manifest.kernels:
        launch = entry.launch
        lines += [
            f"kernel {entry.name}",
            f"key {' '.join(entry.key[:-1])} {words(entry.key.features)}",
            f"symbol {entry.symbol}",
            f"cubin {entry.cubin} {entry.cubin_bytes}",
            f"launch threads {launch.threads} smem {launch.smem_bytes} grid {launch.grid} tile_m {launch.tile_m}",
            f"tensors {words(entry.tensors)}",
            f"optional {words(entry.optional)}",
            f"scalars {words(entry.scalars)}",
        ]
        for param in entry.params:
            line = f"param {param.name} {param.kind.value} {param.source}"
            if param.tensor_map is not None:
                tm = param.tensor_map
                line += f" {tm.dtype} axes {words(tm.axes)} box {words(tm.box)} swizzle {tm.swizzle_bytes}"
            lines.append(line)
        lines.append("end")
    return "\n".join(lines) + "\n"

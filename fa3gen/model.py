"""What a kernel variant is (the axes, their spelling, the canonical name) and what a plan for it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

from fa3.choice import spell_head_dims
from fa3.contract import SUFFIX_MARK, Bounds

from fa3gen.errors import Location
from fa3gen.features import FEATURES

__all__ = [
    "PLAN_FIELDS",
    "SPELLINGS",
    "SUFFIX_MARK",
    "Arch",
    "Bounds",
    "DType",
    "Family",
    "ForwardPlan",
    "HeadDim",
    "Layout",
    "Location",
    "Mask",
    "Scheduler",
    "Softmax",
    "Toolchain",
    "Variant",
    "parse_name",
    "parse_suffix",
    "suffix",
]


class Toolchain(str, Enum):
    """Whose CUDA libraries of the DSL compile: cubins of cu12 load on CUDA 12 and 13 drivers."""

    CU12 = "cu12"
    CU13 = "cu13"


class Family(str, Enum):
    """A mainloop structure; each has one template per architecture."""

    FWD = "fwd"


class Arch(str, Enum):
    SM90A = "sm90a"


class DType(str, Enum):
    """What q, k, v and out are."""

    BF16 = "bf16"
    FP16 = "fp16"


class Mask(str, Enum):
    FULL = "full"
    CAUSAL = "causal"  # aligned bottom right


class Layout(str, Enum):
    DENSE = "dense"  # (batch, seqlen, heads, head_dim), any strides with a contiguous last dim


@dataclass(frozen=True, slots=True, order=True)
class HeadDim:
    """Head dims of q/k and of v/out; spelled ``128``, or ``192x128`` where they differ."""

    qk: int
    v: int

    @classmethod
    def parse(cls, text: str) -> HeadDim:
        match = re.fullmatch(r"([1-9][0-9]*)(?:x([1-9][0-9]*))?", text)
        if match is None:
            raise ValueError(f"head_dim {text!r} is not spelled like 128 or 192x128")
        qk = int(match[1])
        v = int(match[2]) if match[2] else qk
        if match[2] and v == qk:
            raise ValueError(f"head_dim {text!r}: equal dims are spelled {qk}")
        return cls(qk, v)

    def __str__(self) -> str:
        return spell_head_dims(self.qk, self.v)


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """What one kernel computes.  How it does so is a plan (plan.py)."""

    family: Family
    arch: Arch
    dtype: DType
    head_dim: HeadDim
    mask: Mask
    layout: Layout
    features: tuple[str, ...] = ()  # in registry order
    origin: Location | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The canonical name, a C identifier: file, manifest key, pytest id, CLI selector and profiler symbol."""
        parts = [self.family.value, self.dtype.value, f"d{self.head_dim}", self.mask.value]
        if self.layout is not Layout.DENSE:
            parts.append(self.layout.value)
        return "_".join([*parts, *self.features, self.arch.value])

    @property
    def causal(self) -> bool:
        return self.mask is Mask.CAUSAL


def _any_of(kind: type[Enum]) -> str:
    """A regular expression for the values of ``kind``, longer ones before their beginnings."""
    return "|".join(sorted((re.escape(item.value) for item in kind), key=len, reverse=True))


def parse_name(name: str) -> Variant:
    """The variant a canonical name, or that of one of its plans, stands for; ``ValueError`` where it is none."""
    variant, mark, _ = name.partition(SUFFIX_MARK)
    if mark:
        parse_suffix(name.removeprefix(variant))
        return parse_name(variant)
    features = "".join(f"(?P<f_{name}>_{name})?" for name in FEATURES)
    pattern = (
        f"(?P<family>{_any_of(Family)})_(?P<dtype>{_any_of(DType)})_d(?P<head_dim>[0-9x]+)"
        f"_(?P<mask>{_any_of(Mask)})(?:_(?P<layout>{_any_of(Layout)}))?{features}_(?P<arch>{_any_of(Arch)})"
    )
    match = re.fullmatch(pattern, name)
    if match is None or match["layout"] == Layout.DENSE.value:  # dense is not spelled out
        raise ValueError(f"{name!r} is not a kernel name like fwd_bf16_d128_causal_sm90a")
    return Variant(
        Family(match["family"]),
        Arch(match["arch"]),
        DType(match["dtype"]),
        HeadDim.parse(match["head_dim"]),
        Mask(match["mask"]),
        Layout(match["layout"] or Layout.DENSE),
        tuple(f for f in FEATURES if match[f"f_{f}"]),
    )


class Scheduler(str, Enum):
    STATIC = "static"  # one tile a CTA
    PERSISTENT = "persistent"  # a CTA an SM, which takes every n-th tile
    DYNAMIC = "dynamic"  # persistent CTAs that draw tiles from an atomic counter


class Softmax(str, Enum):
    EXACT = "exact"  # O is rescaled in every step
    LAZY = "lazy"  # O is rescaled only when a row maximum of the warp grew by more than 2^8
    # the maximum of the masked blocks serves all others; a tile in which P overflows is done again
    OPTIMISTIC = "optimistic"


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """The plan of a ``fwd`` kernel."""

    variant: Variant
    tile_m: int  # query rows of a CTA: 64 per consumer warpgroup
    tile_n: int  # keys of a step
    stages: int  # K and V blocks in flight
    q_stages: int  # Q tiles in shared memory
    producer_regs: int
    consumer_regs: int
    scheduler: Scheduler
    softmax: Softmax
    pin_pv_wait: bool  # keep the exponentials above the wait for PV (ptxas hoists that wait over arithmetic)
    overlap_tiles: bool  # QK and softmax of the next tile's first block run under a tile's last PV
    reasons: tuple[str, ...] = ()
    when: Bounds | None = None  # the calls it is meant for; None: all that no other plan of the variant is meant for
    priority: int = 0  # a call takes the plan of lowest priority whose `when` fits it
    suffix: str = ""  # what its name adds to the variant's: see suffix()

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups, 64 rows each."""
        return self.tile_m // 64

    @property
    def threads(self) -> int:
        return 128 * (self.warpgroups + 1)

    @property
    def persistent(self) -> bool:
        """Whether a CTA works on several tiles, one after the other."""
        return self.scheduler is not Scheduler.STATIC

    @property
    def dynamic(self) -> bool:
        return self.scheduler is Scheduler.DYNAMIC

    @property
    def one_q(self) -> bool:
        """Whether a tile's Q must be handed back as early as possible, for want of a second Q tile."""
        return self.q_stages == 1

    @property
    def narrow(self) -> bool:
        """Whether a warpgroup multiplies only 64 keys of a tile's first block where its 64 rows see no more of it."""
        return self.variant.causal and self.optimistic and self.tile_n > 64 and self.tile_n % 64 == 0

    @property
    def lazy(self) -> bool:
        return self.softmax is Softmax.LAZY

    @property
    def optimistic(self) -> bool:
        return self.softmax is Softmax.OPTIMISTIC

    @property
    def name(self) -> str:
        """The variant's name; that of a further plan also says in what it differs (``…_sm90a__m256n64s4``)."""
        return self.variant.name + self.suffix

    def to_json(self) -> dict[str, Any]:
        """How the kernel computes, with reasons, as plain JSON types."""
        out: dict[str, Any] = {}
        for f in fields(self):
            if f.name in PLAN_FIELDS or f.name == "reasons":
                value = getattr(self, f.name)
                out[f.name] = (
                    value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value
                )
        return out


#: The fields that say how a kernel computes, with their types.
PLAN_FIELDS: dict[str, type] = {
    name: kind
    for name, kind in get_type_hints(ForwardPlan).items()
    if name not in ("variant", "reasons", "when", "priority", "suffix")
}

#: How the name of a further plan spells each field in which it differs from the variant's general plan: what stands
#: before a number or a value's own spelling; for a switch the words for true and for false.
SPELLINGS: dict[str, str | tuple[str, str]] = {
    "tile_m": "m",
    "tile_n": "n",
    "stages": "s",
    "q_stages": "_q",
    "producer_regs": "_pr",
    "consumer_regs": "_cr",
    "scheduler": "_",
    "softmax": "_",
    "pin_pv_wait": ("_pin", "_nopin"),
    "overlap_tiles": ("_overlap", "_nooverlap"),
}


def suffix(plan: ForwardPlan, general: ForwardPlan) -> str:
    """What ``plan`` adds to the variant's name, the general plan bearing that name: ``__m256n64s4_q1_lazy``."""
    names = [name for name in PLAN_FIELDS if getattr(plan, name) != getattr(general, name)]
    fields_text = "".join(_spell(name, getattr(plan, name)) for name in names)
    return SUFFIX_MARK + fields_text.removeprefix("_") if names else ""


def parse_suffix(text: str) -> Mapping[str, Any]:
    """The fields that a suffix names, with their values; ``ValueError`` where it is none."""
    fields_text = text.removeprefix(SUFFIX_MARK)
    starts = (fields_text, f"_{fields_text}")  # the first field drops its underscore
    found = next(filter(None, (_suffix_pattern().fullmatch(start) for start in starts)), None)
    if not text.startswith(SUFFIX_MARK) or fields_text.startswith("_") or not fields_text or found is None:
        raise ValueError(f"{text!r} is not the end of a plan's name, like __m256n64s4")
    return {name: _read_back(name, word) for name, word in found.groupdict().items() if word is not None}


def _spell(name: str, value: Any) -> str:
    form = SPELLINGS[name]
    if isinstance(form, tuple):
        return form[0] if value else form[1]
    return f"{form}{value.value if isinstance(value, Enum) else value}"


@cache
def _suffix_pattern() -> re.Pattern[str]:
    parts = []
    for name, kind in PLAN_FIELDS.items():
        form = SPELLINGS[name]
        if isinstance(form, tuple):
            parts.append(f"(?P<{name}>{form[0]}|{form[1]})?")
        else:
            parts.append(f"(?:{form}(?P<{name}>{_any_of(kind) if issubclass(kind, Enum) else '0|[1-9][0-9]*'}))?")
    return re.compile("".join(parts))


def _read_back(name: str, word: str) -> Any:
    form = SPELLINGS[name]
    return word == form[0] if isinstance(form, tuple) else PLAN_FIELDS[name](word)

"""What a kernel variant is: the axes, their spelling, and the canonical name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from fa3gen.features import FEATURES


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
        match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
        if match is None:
            raise ValueError(f"head_dim {text!r} is not spelled like 128 or 192x128")
        qk = int(match[1])
        v = int(match[2]) if match[2] else qk
        if match[2] and v == qk:
            raise ValueError(f"head_dim {text!r}: equal dims are spelled {qk}")
        return cls(qk, v)

    def __str__(self) -> str:
        return str(self.qk) if self.qk == self.v else f"{self.qk}x{self.v}"


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """Where in a YAML file something was said; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


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


def parse_name(name: str) -> Variant:
    """The variant a canonical name stands for; ``ValueError`` where it is none."""
    values = "|".join
    layouts = sorted((x.value for x in Layout if x is not Layout.DENSE), key=len, reverse=True)
    layout = f"(?:_(?P<layout>{values(layouts)}))?" if layouts else "(?P<layout>)"
    features = "".join(f"(?P<f_{f}>_{f})?" for f in FEATURES)
    pattern = (
        f"(?P<family>{values(x.value for x in Family)})_(?P<dtype>{values(x.value for x in DType)})_d(?P<head_dim>[0-9x]+)"
        f"_(?P<mask>{values(x.value for x in Mask)}){layout}{features}_(?P<arch>{values(x.value for x in Arch)})"
    )
    match = re.fullmatch(pattern, name)
    if match is None:
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

"""The axes as YAML spells them, and sets of cells written as ``axis: value`` or ``axis: [values]``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from yaml.nodes import Node

from fa3gen.errors import Location
from fa3gen.features import FEATURES, PLAIN, parse_features
from fa3gen.model import Arch, DType, Family, HeadDim, Layout, Mask, Variant
from fa3gen.yamlfile import Entry, YamlFile, enum_parser, spellings

AxisValue = Family | Arch | DType | HeadDim | Mask | Layout | tuple[str, ...]


@dataclass(frozen=True)
class Axis:
    """How a value of the axis is read (ValueError where it is none), and what to name as allowed."""

    parse: Callable[[str], AxisValue]
    allowed: tuple[str, ...]


#: Every axis, in the order of ``Variant``'s fields, whose names they bear.
AXES: dict[str, Axis] = {
    "family": Axis(enum_parser(Family, "family"), spellings(Family)),
    "arch": Axis(enum_parser(Arch, "arch"), spellings(Arch)),
    "dtype": Axis(enum_parser(DType, "dtype"), spellings(DType)),
    "head_dim": Axis(HeadDim.parse, ("a number like 128", "or two like 192x128")),
    "mask": Axis(enum_parser(Mask, "mask"), spellings(Mask)),
    "layout": Axis(enum_parser(Layout, "layout"), spellings(Layout)),
    "features": Axis(parse_features, (PLAIN, *FEATURES)),
}


def spelled(value: object) -> str:
    """A value of an axis or of a plan field as YAML spells it."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return "+".join(value) or PLAIN
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Cells:
    """A set of cells: the values of some axes; an axis left out is left open."""

    values: Mapping[str, tuple[AxisValue, ...]]
    at: Location
    width: int = 1  # characters to underline there

    def match(self, variant: Variant) -> bool:
        """Whether ``variant`` has one of the values of every axis named here."""
        return all(getattr(variant, axis) in values for axis, values in self.values.items())


def read_cells(yaml: YamlFile, node: Node, what: str, axes: Collection[str]) -> Cells:
    """Reads a mapping of ``axes`` as cells; what is wrong goes to ``yaml.problems``."""
    return cells_of(yaml, yaml.mapping(node, what, axes), node, what)


def cells_of(yaml: YamlFile, entries: Mapping[str, Entry], node: Node, what: str) -> Cells:
    """Cells from the entries of the mapping ``node`` that are axes."""
    values = {name: _values(yaml, entry.value, name, f"{what}.{name}") for name, entry in entries.items()}
    return Cells(values, yaml.location(node), yaml.width(node))


def _values(yaml: YamlFile, node: Node, name: str, what: str) -> tuple[AxisValue, ...]:
    axis = AXES[name]
    found: list[AxisValue] = []
    for item in yaml.items(node, what):
        value = yaml.value(item, what, axis.parse, axis.allowed)
        if value is not None and value in found:
            yaml.report("C010", f"{what} lists {spelled(value)} twice", item, hint="keep one of them")
        elif value is not None:
            found.append(value)
    return tuple(found)

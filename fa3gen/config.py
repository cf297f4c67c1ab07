"""Reads variants.yaml: what each key means and which values it takes, with the place of everything that was said.

``read`` gives whatever could be understood, with the problems found; ``load`` insists on a file without problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from yaml.nodes import MappingNode, Node

from fa3gen.axes import AXES, AxisValue, Cells, cells_of, read_cells
from fa3gen.errors import ConfigError, Diagnostic
from fa3gen.model import Arch, Family, Layout, Toolchain
from fa3gen.yamlfile import Entry, YamlFile, spellings

SCHEMA = "1"
TOP_KEYS = ("schema", "toolchain", "defaults", "families", "presets")
FAMILY_KEYS = ("axes", "exclude", "include", "on_unsupported")
REASON = "reason"

#: The axes of a family's cells; each family has its own key.
CELL_AXES = tuple(axis for axis in AXES if axis != "family")

#: Values of axes that neither the file's cells nor its ``defaults`` give.
NEUTRAL: dict[str, AxisValue] = {"arch": Arch.SM90A, "layout": Layout.DENSE, "features": ()}


class OnUnsupported(str, Enum):
    """What a variant that its family does not support means."""

    ERROR = "error"
    SKIP = "skip"


@dataclass(frozen=True)
class Exclude:
    cells: Cells
    reason: str


@dataclass(frozen=True)
class FamilyConfig:
    """A family's part of the matrix; ``complete`` is false where part of it, or of the defaults, could not be read."""

    family: Family
    axes: Cells
    exclude: tuple[Exclude, ...]
    include: tuple[Cells, ...]
    on_unsupported: OnUnsupported
    complete: bool


@dataclass(frozen=True)
class RawConfig:
    """variants.yaml as it was written, values parsed, nothing expanded."""

    file: str
    text: str
    toolchain: Toolchain
    defaults: Mapping[str, tuple[AxisValue, ...]]
    families: tuple[FamilyConfig, ...]
    presets: Mapping[str, tuple[Cells, ...]]
    complete: bool  # false where a family or the defaults could not be read
    problems: tuple[Diagnostic, ...] = field(default=())

    def error(self, problems: Iterable[Diagnostic]) -> ConfigError:
        """An error with the problems of this file, ending in the command that checks it again."""
        hint = f"correct {self.file}, then run `fa3gen list --config {self.file}`"
        return ConfigError(tuple(problems), {self.file: self.text}, hint=hint)


def load(path: str | Path) -> RawConfig:
    """Reads ``path``; raises ConfigError with every problem of the file."""
    config = read(path)
    if config.problems:
        raise config.error(config.problems)
    return config


def read(path: str | Path) -> RawConfig:
    """Reads ``path``; what is wrong goes to ``problems``.  Raises ConfigError only where it is missing or no YAML."""
    return _ConfigReader(YamlFile(path)).config()


class _ConfigReader:
    """Walks the file from top to bottom."""

    def __init__(self, yaml: YamlFile) -> None:
        self.yaml = yaml

    def config(self) -> RawConfig:
        yaml = self.yaml
        top = yaml.mapping(yaml.root, "the file", TOP_KEYS, required=("schema", "toolchain", "families"))
        if "schema" in top:
            yaml.schema(top["schema"].value, SCHEMA)
        toolchain = yaml.choice(top, "toolchain", Toolchain, Toolchain.CU12)
        before = len(yaml.problems)
        defaults = read_cells(yaml, top["defaults"].value, "defaults", CELL_AXES).values if "defaults" in top else {}
        families = self._families(top["families"], complete=len(yaml.problems) == before) if "families" in top else ()
        complete = len(yaml.problems) == before and "families" in top
        presets = self._presets(top["presets"]) if "presets" in top else {}
        return RawConfig(yaml.file, yaml.text, toolchain, defaults, families, presets, complete, tuple(yaml.problems))

    def _families(self, entry: Entry, complete: bool) -> tuple[FamilyConfig, ...]:
        known = self.yaml.mapping(entry.value, "families", spellings(Family))
        found = [self._family(Family(name), item.value, complete) for name, item in known.items()]
        if isinstance(entry.value, MappingNode) and not entry.value.value:
            self.yaml.report(
                "C007", "families names no family", entry.value, hint="add a family", allowed=spellings(Family)
            )
        return tuple(found)

    def _family(self, family: Family, node: Node, complete: bool) -> FamilyConfig:
        yaml, what = self.yaml, family.value
        before = len(yaml.problems)
        parts = yaml.mapping(node, what, FAMILY_KEYS, required=("axes",))
        axes = Cells({}, yaml.location(node))
        if "axes" in parts:
            values = read_cells(yaml, parts["axes"].value, f"{what}.axes", CELL_AXES).values
            axes = Cells(values, yaml.location(parts["axes"].key), len("axes"))
        exclude = [self._exclude(item, f"{what}.exclude") for item in self._items(parts, "exclude", what)]
        include = [read_cells(yaml, item, f"{what}.include", CELL_AXES) for item in self._items(parts, "include", what)]
        policy = yaml.choice(parts, "on_unsupported", OnUnsupported, OnUnsupported.ERROR)
        complete = complete and len(yaml.problems) == before
        return FamilyConfig(family, axes, tuple(exclude), tuple(include), policy, complete)

    def _items(self, parts: Mapping[str, Entry], key: str, what: str) -> list[Node]:
        return self.yaml.items(parts[key].value, f"{what}.{key}") if key in parts else []

    def _exclude(self, node: Node, what: str) -> Exclude:
        reason = None
        entries = self.yaml.mapping(node, what, (*CELL_AXES, REASON), required=(REASON,))
        if REASON in entries:
            reason = self.yaml.scalar(entries.pop(REASON).value, f"{what}.{REASON}")
            if not entries:
                self.yaml.report(
                    "C007", f"{what} names no axis", node, hint="say which cells it takes out", allowed=CELL_AXES
                )
        return Exclude(cells_of(self.yaml, entries, node, what), reason or "")

    def _presets(self, entry: Entry) -> dict[str, tuple[Cells, ...]]:
        yaml = self.yaml
        presets = {}
        for name, item in yaml.entries(entry.value, "presets").items():
            what = f"preset {name}"
            before = len(yaml.problems)
            cells = tuple(read_cells(yaml, node, what, tuple(AXES)) for node in yaml.items(item.value, what))
            if len(yaml.problems) == before:
                presets[name] = cells
        return presets

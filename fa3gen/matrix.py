"""From variants.yaml as written to the variants it asks for, and selections of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from fa3gen.axes import AxisValue, Cells
from fa3gen.config import CELL_AXES, NEUTRAL, Exclude, FamilyConfig, OnUnsupported, RawConfig, read
from fa3gen.errors import Diagnostic, Location, SelectionError, listing, nearest
from fa3gen.families import unsupported
from fa3gen.model import Family, ForwardPlan, Variant
from fa3gen.plan import resolve_all


@dataclass(frozen=True)
class Matrix:
    """The kernels that a configuration asks for; everything sorted by name.

    ``skipped`` are cells that their family does not support under ``on_unsupported: skip``, ``excluded`` those that an
    ``exclude`` took out, each with the reason.  ``presets`` maps a preset to the names it selects.
    """

    variants: tuple[Variant, ...]
    skipped: tuple[tuple[Variant, str], ...]
    excluded: tuple[tuple[Variant, str], ...]
    presets: Mapping[str, tuple[str, ...]]
    toolchain: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(variant.name for variant in self.variants)


def load(path: str | Path) -> Matrix:
    """Reads and expands ``path``; raises ConfigError with every problem of the file, of reading as of expanding."""
    return expand(read(path))


def expand(config: RawConfig) -> Matrix:
    """Expands ``config``; raises ConfigError with every problem.

    Parts that could not be read are not expanded, so that no problem is only the consequence of another.
    """
    return _Expansion(config).matrix()


def select(matrix: Matrix, patterns: Sequence[str] = (), preset: str | None = None) -> tuple[Variant, ...]:
    """The variants that a pattern (a name or a glob) or the preset selects, sorted by name; all where neither is given.

    Raises SelectionError with every pattern that matches nothing: the nearest names, or why the kernel is left out.
    """
    chosen = _chosen(matrix, {variant.name: [variant.name] for variant in matrix.variants}, patterns, preset)
    return tuple(variant for variant in matrix.variants if variant.name in chosen)


def select_plans(matrix: Matrix, patterns: Sequence[str] = (), preset: str | None = None) -> tuple[ForwardPlan, ...]:
    """As :func:`select`, the plans of the selected variants; a pattern may also match the names of single plans.

    A variant's name is that of its general plan too, and selects all its plans.  They are in the order of dispatch.
    """
    plans = [plan for variant in matrix.variants for plan in resolve_all(variant)]
    chosen = _chosen(matrix, {plan.name: [plan.name, plan.variant.name] for plan in plans}, patterns, preset)
    return tuple(plan for plan in plans if plan.name in chosen)


def _chosen(
    matrix: Matrix, names: Mapping[str, Sequence[str]], patterns: Sequence[str], preset: str | None
) -> set[str]:
    """The keys of ``names`` that a pattern or the preset selects by one of their names; all where neither is given."""
    if not patterns and preset is None:
        return {*names}
    problems: list[Diagnostic] = []
    chosen: set[str] = set()
    if preset is not None:
        wanted = matrix.presets.get(preset, ())
        chosen.update(key for key, spellings in names.items() if not {*spellings}.isdisjoint(wanted))
        if preset not in matrix.presets:
            problems.append(_unknown_preset(matrix, preset))
    for pattern in patterns:
        matched = [key for key, spellings in names.items() if any(fnmatchcase(s, pattern) for s in spellings)]
        chosen.update(matched)
        if not matched:
            problems.append(_unmatched(matrix, names, pattern))
    if problems:
        raise SelectionError(problems)
    return chosen


def _unknown_preset(matrix: Matrix, preset: str) -> Diagnostic:
    names = tuple(sorted(matrix.presets))
    return Diagnostic(
        "S002",
        f"there is no preset {preset!r}",
        hint="name one of the presets or add it to the configuration",
        allowed=names,
        suggestions=nearest(preset, names),
    )


def _unmatched(matrix: Matrix, names: Collection[str], pattern: str) -> Diagnostic:
    for kind, cells in (("excluded", matrix.excluded), ("skipped", matrix.skipped)):
        for variant, reason in cells:
            if fnmatchcase(variant.name, pattern):
                message = f"{pattern!r} matches no kernel: {variant.name} is {kind}: {reason}"
                return Diagnostic("S001", message, hint=f"see {variant.origin}")
    return Diagnostic(
        "S001",
        f"{pattern!r} matches no kernel",
        hint="`fa3gen list --names` shows all names",
        suggestions=nearest(pattern, names, count=3),
    )


class _Expansion:
    """The state of one expansion: cells found so far and problems."""

    def __init__(self, config: RawConfig) -> None:
        self.config = config
        self.problems = list(config.problems)
        self.whole = config.complete  # whether a preset can be judged
        self.cells: dict[Variant, Variant] = {}  # equal variants may differ in origin: the first one stays
        self.skipped: dict[Variant, str] = {}
        self.excluded: dict[Variant, str] = {}

    def matrix(self) -> Matrix:
        for family in self.config.families:
            if family.complete:
                self._expand_family(family)
        presets = self._presets() if self.whole else {}
        if not self.problems and not self.cells:
            self._report(
                "C024", "the matrix is empty", Location(self.config.file, 1, 1), hint="exclude less or add a cell"
            )
        if self.problems:
            raise self.config.error(self.problems)
        return Matrix(
            variants=tuple(sorted(self.cells.values(), key=_by_name)),
            skipped=_with_reasons(self.skipped),
            excluded=_with_reasons(self.excluded),
            presets=presets,
            toolchain=self.config.toolchain.value,
        )

    def _expand_family(self, family: FamilyConfig) -> None:
        grid = self._product(family.family, family.axes)
        kept = self._exclude(grid, family.exclude)
        self._add(kept, family)
        for cells in family.include:
            added = self._product(family.family, cells)
            repeated = [self.cells[v] for v in added if v in self.cells] + [v for v in self.skipped if v in added]
            if repeated:
                self._repeated(cells, repeated)
            self._add([v for v in added if v not in repeated], family)

    def _product(self, family: Family, cells: Cells) -> list[Variant]:
        """Every combination of the values of ``cells``, each axis left out at its default."""
        choices: list[tuple[AxisValue, ...]] = []
        for axis in CELL_AXES:
            values = cells.values.get(axis) or self.config.defaults.get(axis)
            if not values and axis in NEUTRAL:
                values = (NEUTRAL[axis],)
            if not values:
                self.whole = False
                self._report(
                    "C007",
                    f"{family.value} has no {axis}",
                    cells.at,
                    cells.width,
                    hint=f"add `{axis}:` here or to `defaults`",
                )
            choices.append(values or ())
        return [_variant(family, combination, cells.at) for combination in product(*choices)]

    def _exclude(self, grid: list[Variant], excludes: Iterable[Exclude]) -> list[Variant]:
        kept = dict.fromkeys(grid)
        for exclude in excludes:
            matched = [variant for variant in grid if exclude.cells.match(variant)]
            if grid and not matched:
                self._report(
                    "C020",
                    f"this exclude matches none of the {len(grid)} cells of the axes",
                    exclude.cells.at,
                    exclude.cells.width,
                    hint="remove it or correct its values",
                )
            for variant in matched:
                self.excluded.setdefault(variant, exclude.reason)
                kept.pop(variant, None)
        return list(kept)

    def _add(self, variants: Iterable[Variant], family: FamilyConfig) -> None:
        impossible: dict[tuple[Location, str], list[Variant]] = {}
        for variant in variants:
            self.excluded.pop(variant, None)
            reason = unsupported(variant)
            if reason is not None and family.on_unsupported is OnUnsupported.SKIP:
                self.skipped[variant] = reason
                continue
            self.cells[variant] = variant
            if reason is not None and variant.origin is not None:
                impossible.setdefault((variant.origin, reason), []).append(variant)
        for (origin, reason), group in impossible.items():
            names = listing([variant.name for variant in group])
            hint = "exclude the cells with a reason, or set `on_unsupported: skip`"
            self._report("C022", f"{names}: {reason}", origin, hint=hint)

    def _repeated(self, cells: Cells, repeated: Sequence[Variant]) -> None:
        names = listing([variant.name for variant in repeated])
        first = repeated[0].origin
        message = f"this include repeats {names}; first at line {first.line if first else 0}"
        self._report("C021", message, cells.at, cells.width, hint="include only cells that the axes do not give")

    def _presets(self) -> dict[str, tuple[str, ...]]:
        found = {}
        for preset, selections in sorted(self.config.presets.items()):
            names: set[str] = set()
            for cells in selections:
                matched = [variant.name for variant in self.cells if cells.match(variant)]
                names.update(matched)
                if not matched:
                    self._unselective(preset, cells)
            found[preset] = tuple(sorted(names))
        return found

    def _unselective(self, preset: str, cells: Cells) -> None:
        message = f"preset {preset}: this selects none of the {len(self.cells)} kernels"
        missing = {**self.excluded, **self.skipped}
        reasons = sorted({reason for variant, reason in missing.items() if cells.match(variant)})
        if reasons:
            message += f" (left out: {listing(reasons)})"
        self._report("C023", message, cells.at, cells.width, hint="remove it or correct its values")

    def _report(self, code: str, message: str, at: Location, width: int = 1, *, hint: str) -> None:
        self.problems.append(Diagnostic(code, message, at, hint, width=width))


def _variant(family: Family, combination: tuple[AxisValue, ...], origin: Location) -> Variant:
    values: dict[str, Any] = dict(zip(CELL_AXES, combination, strict=True))
    return Variant(family=family, origin=origin, **values)


def _by_name(variant: Variant) -> str:
    return variant.name


def _with_reasons(cells: Mapping[Variant, str]) -> tuple[tuple[Variant, str], ...]:
    return tuple(sorted(cells.items(), key=lambda item: item[0].name))

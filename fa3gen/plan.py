"""Chooses how a variant is computed: by the rule tuned for it, else by its family's default; checked for legality.

Tuned rules live in ``plans/<arch>.yaml``, whose header explains the format.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from yaml.nodes import MappingNode, Node

from fa3gen.arch import ARCHS
from fa3gen.axes import AXES, Cells, read_cells, spelled
from fa3gen.errors import Diagnostic, PlanError, nearest
from fa3gen.families import FAMILIES, unsupported
from fa3gen.model import Arch, ForwardPlan, Scheduler, Softmax, Variant
from fa3gen.yamlfile import YamlFile, enum_parser, spellings

__all__ = ["PLAN_FIELDS", "ForwardPlan", "Rule", "Scheduler", "Softmax", "load_rules", "resolve", "shipped_rules"]

SCHEMA = "1"
RULES_DIR = Path(__file__).parent / "plans"

#: The fields that a rule or an override may set, with their types.
PLAN_FIELDS: dict[str, type] = {
    name: t for name, t in get_type_hints(ForwardPlan).items() if name not in ("variant", "reasons")
}

#: Fields whose reasons speak of each other: a change of one makes the others' reasons moot.
_SIZES = ("tile_m", "tile_n", "stages", "q_stages", "producer_regs", "consumer_regs")
#: The axes of a rule's ``match``; the architecture is the file's.
_MATCH_AXES = tuple(axis for axis in AXES if axis != "arch")
_RULE_KEYS = ("match", *PLAN_FIELDS, "figure", "date")


@dataclass(frozen=True)
class Rule:
    """Plan fields for the variants that ``cells`` matches, with the figure measured for them and its date."""

    cells: Cells
    values: Mapping[str, Any]
    figure: str
    date: str


def resolve(
    variant: Variant, overrides: Mapping[str, Any] | None = None, *, rules: Sequence[Rule] | None = None
) -> ForwardPlan:
    """The plan of ``variant``: the first rule that matches, over the family's default.

    ``overrides`` sets fields on top of that, for candidate plans; values may be spelled as in YAML.  ``rules`` replaces
    the shipped ones.  Raises PlanError where the family does not support the variant, an override is wrong or the
    plan is illegal.
    """
    reason = unsupported(variant)
    if reason is not None:
        raise PlanError(
            [Diagnostic("P006", f"{variant.name}: {reason}", variant.origin, "exclude it in the configuration")]
        )
    chosen = shipped_rules(variant.arch) if rules is None else rules
    plan = _ruled(variant, next((rule for rule in chosen if rule.cells.match(variant)), None))
    if overrides:
        plan = _changed(plan, _parsed(variant, overrides), "asked for")
    reasons = ARCHS[variant.arch].check(plan)
    if reasons:
        hint = "change the fields named above"
        raise PlanError([Diagnostic("P005", f"{variant.name}: {reason}", hint=hint) for reason in reasons])
    return plan


@cache
def shipped_rules(arch: Arch) -> tuple[Rule, ...]:
    """The rules of ``plans/<arch>.yaml``."""
    return load_rules(RULES_DIR / f"{arch.value}.yaml", arch)


def load_rules(path: str | Path, arch: Arch = Arch.SM90A) -> tuple[Rule, ...]:
    """Reads rules and checks that each is reached and legal; raises ConfigError with every problem."""
    yaml = YamlFile(path)
    read = _read_rules(yaml)
    if not yaml.problems:
        _check_matches(yaml, read, arch)
        _check_plans(yaml, read, arch)
    if yaml.problems:
        raise yaml.error()
    return tuple(rule for _, rule in read)


def _ruled(variant: Variant, rule: Rule | None) -> ForwardPlan:
    plan = FAMILIES[variant.family].default_plan(variant)
    return plan if rule is None else _changed(plan, rule.values, f"{rule.figure} ({rule.date})")


def _changed(plan: ForwardPlan, values: Mapping[str, Any], why: str) -> ForwardPlan:
    """``plan`` with ``values``, for which ``why`` replaces the reasons."""
    reasons = []
    for reason in plan.reasons:
        name = reason.split(" ", 1)[0]
        if name in _SIZES and any(size in values for size in _SIZES):
            reason = f"{name} {spelled(getattr(plan, name))}: as in the default"
        if name not in values:
            reasons.append(reason)
    reasons += [f"{name} {spelled(value)}: {why}" for name, value in values.items()]
    return replace(plan, **values, reasons=tuple(reasons))


def _parsed(variant: Variant, overrides: Mapping[str, Any]) -> dict[str, Any]:
    problems = []
    values = {}
    for name, value in overrides.items():
        if name not in PLAN_FIELDS:
            allowed = tuple(PLAN_FIELDS)
            message = f"{variant.name}: a plan has no field {name!r}"
            problems.append(Diagnostic("P001", message, None, "correct the field", allowed, nearest(name, allowed)))
            continue
        parse, allowed = _field(name)
        try:
            values[name] = parse(spelled(value))
        except ValueError as error:
            problems.append(Diagnostic("P002", f"{variant.name}: {error}", None, "correct the value", allowed))
    if problems:
        raise PlanError(problems)
    return values


def _field(name: str) -> tuple[Callable[[str], Any], tuple[str, ...]]:
    """How a plan field is read, and the values to name as allowed."""
    kind = PLAN_FIELDS[name]
    if issubclass(kind, Enum):
        return enum_parser(kind, name), spellings(kind)
    if kind is bool:
        return _bool_parser(name), ("true", "false")
    return _int_parser(name), ("a whole number",)


def _bool_parser(name: str) -> Callable[[str], bool]:
    def parse(text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError(f"{name} has no value {text!r}")
        return text == "true"

    return parse


def _int_parser(name: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()):
            raise ValueError(f"{name} has no value {text!r}")
        return int(text)

    return parse


def _date(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"date {text!r} is not written like 2026-01-31") from None


def _read_rules(yaml: YamlFile) -> list[tuple[Node, Rule]]:
    top = yaml.mapping(yaml.root, "the file", ("schema", "rules"), required=("schema", "rules"))
    if "schema" in top:
        yaml.schema(top["schema"].value, SCHEMA)
    if "rules" not in top:
        return []
    return [(node, _read_rule(yaml, node)) for node in yaml.sequence(top["rules"].value, "rules")]


def _read_rule(yaml: YamlFile, node: Node) -> Rule:
    entries = yaml.mapping(node, "the rule", _RULE_KEYS, required=("match", "figure", "date"))
    cells = Cells({}, yaml.location(node))
    if "match" in entries:
        match = entries["match"].value
        cells = read_cells(yaml, match, "match", _MATCH_AXES)
        if isinstance(match, MappingNode) and "family" not in cells.values:
            yaml.report(
                "C007", "match needs the key 'family'", match, hint="add `family:`; plan fields belong to a family"
            )
    values = {}
    for name in PLAN_FIELDS:
        if name in entries:
            parse, allowed = _field(name)
            values[name] = yaml.value(entries[name].value, name, parse, allowed)
    if set(entries) == {"match", "figure", "date"} and len(node.value) == len(entries):
        yaml.report("C007", "the rule sets no plan field", node, hint="add a field", allowed=tuple(PLAN_FIELDS))
    figure = yaml.scalar(entries["figure"].value, "figure") if "figure" in entries else ""
    date = yaml.value(entries["date"].value, "date", _date, ()) if "date" in entries else ""
    return Rule(cells, values, figure or "", date or "")


def _supported(arch: Arch) -> list[Variant]:
    return [variant for family in FAMILIES.values() for variant in family.variants(arch)]


def _check_matches(yaml: YamlFile, rules: Sequence[tuple[Node, Rule]], arch: Arch) -> None:
    """Reports rules that match what an earlier one matches, or nothing that is left."""
    first: dict[object, int] = {}
    left = _supported(arch)
    for node, rule in rules:
        key = frozenset((axis, frozenset(values)) for axis, values in rule.cells.values.items())
        line = rule.cells.at.line
        if key in first:
            hint = "merge the two rules"
            yaml.report("P003", f"the rule matches the same as the one at line {first[key]}", node, hint=hint)
        elif not any(rule.cells.match(variant) for variant in left):
            known = any(rule.cells.match(variant) for variant in _supported(arch))
            why = "earlier rules take all that it matches" if known else "no family supports what it matches"
            yaml.report(
                "P004",
                f"the rule is never reached: {why}",
                node,
                hint="move it up, narrow the earlier rules or remove it",
            )
        first.setdefault(key, line)
        left = [variant for variant in left if not rule.cells.match(variant)]


def _check_plans(yaml: YamlFile, rules: Sequence[tuple[Node, Rule]], arch: Arch) -> None:
    """Reports rules whose plan is illegal, with the first variant of which that is so."""
    left = _supported(arch)
    for node, rule in rules:
        for variant in left:
            reasons = ARCHS[arch].check(_ruled(variant, rule)) if rule.cells.match(variant) else []
            if reasons:
                yaml.report("P005", f"{variant.name}: {'; '.join(reasons)}", node, hint="change the fields named above")
                break
        left = [variant for variant in left if not rule.cells.match(variant)]

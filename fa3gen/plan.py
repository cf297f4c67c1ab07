"""Chooses how a variant is computed: by the rules tuned for it, else by its family's default; checked for legality.

A variant has one plan, the general one, and further ones for the calls that rules with ``when`` speak of.

Tuned rules live in ``plans/<arch>.yaml``, whose header explains the format.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from fa3.contract import BOUNDS, UNBOUNDED, Bounds, Extents, covered
from yaml.nodes import MappingNode, Node

from fa3gen.arch import ARCHS
from fa3gen.axes import AXES, Cells, read_cells, spelled
from fa3gen.errors import Diagnostic, PlanError, nearest
from fa3gen.families import FAMILIES, unsupported
from fa3gen.model import PLAN_FIELDS, Arch, ForwardPlan, Scheduler, Softmax, Variant, suffix
from fa3gen.yamlfile import YamlFile, enum_parser, spellings

__all__ = [
    "PLAN_FIELDS",
    "ForwardPlan",
    "Rule",
    "Scheduler",
    "Softmax",
    "load_rules",
    "resolve",
    "resolve_all",
    "shipped_rules",
]

SCHEMA = "1"
RULES_DIR = Path(__file__).parent / "plans"

#: Fields whose reasons speak of each other: a change of one makes the others' reasons moot.
_SIZES = ("tile_m", "tile_n", "stages", "q_stages", "producer_regs", "consumer_regs")
#: The axes of a rule's ``match``; the architecture is the file's.
_MATCH_AXES = tuple(axis for axis in AXES if axis != "arch")
_RULE_KEYS = ("match", "when", *PLAN_FIELDS, "figure", "date")
_EVERY_CALL = Bounds()


@dataclass(frozen=True)
class Rule:
    """Plan fields for the variants that ``cells`` matches, with the figure measured for them and its date.

    ``when`` bounds the calls that the plan is meant for; a rule without it gives the general plan.
    """

    cells: Cells
    values: Mapping[str, Any]
    figure: str
    date: str
    when: Bounds | None = None


def resolve(
    variant: Variant, overrides: Mapping[str, Any] | None = None, *, rules: Sequence[Rule] | None = None
) -> ForwardPlan:
    """The general plan of ``variant``: the first rule without ``when`` that matches, over the family's default.

    ``overrides`` sets fields on top of that, for candidate plans, which are named as further plans are; values may be
    spelled as in YAML.  ``rules`` replaces the shipped ones.  Raises PlanError where the family does not support the
    variant, an override is wrong or the plan is illegal.
    """
    general = _plans(variant, rules)[-1]
    if not overrides:
        return _legal(general)
    plan = _changed(general, _parsed(variant, overrides), "asked for")
    return _legal(replace(plan, suffix=suffix(plan, general)))


def resolve_all(variant: Variant, *, rules: Sequence[Rule] | None = None) -> tuple[ForwardPlan, ...]:
    """Every plan of ``variant`` in the order in which a call is held against their bounds; the last is the general one.

    ``rules`` and errors as for :func:`resolve`.
    """
    return tuple(_legal(plan) for plan in _plans(variant, rules))


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
    if not yaml.problems:
        _check_differences(yaml, read, arch)
    if yaml.problems:
        raise yaml.error()
    return tuple(rule for _, rule in read)


def _plans(variant: Variant, rules: Sequence[Rule] | None) -> tuple[ForwardPlan, ...]:
    reason = unsupported(variant)
    if reason is not None:
        raise PlanError(
            [Diagnostic("P006", f"{variant.name}: {reason}", variant.origin, "exclude it in the configuration")]
        )
    chosen = _chosen(variant, shipped_rules(variant.arch) if rules is None else rules)
    bounded = [rule for rule in chosen if rule.when is not None]
    general = replace(_ruled(variant, next((r for r in chosen if r.when is None), None)), priority=len(bounded))
    further = []
    for priority, rule in enumerate(bounded):
        plan = _ruled(variant, rule)
        further.append(replace(plan, when=rule.when, priority=priority, suffix=suffix(plan, general)))
    return (*further, general)


def _chosen(variant: Variant, rules: Sequence[Rule]) -> list[Rule]:
    """The rules that give ``variant`` its plans: those that match, up to the first without ``when``."""
    chosen = []
    for rule in rules:
        if rule.cells.match(variant):
            chosen.append(rule)
            if rule.when is None:
                break
    return chosen


def _legal(plan: ForwardPlan) -> ForwardPlan:
    reasons = ARCHS[plan.variant.arch].check(plan)
    if reasons:
        hint = "change the fields named above"
        raise PlanError([Diagnostic("P005", f"{plan.variant.name}: {reason}", hint=hint) for reason in reasons])
    return plan


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
    when = _read_when(yaml, entries["when"].value) if "when" in entries else None
    values = {}
    for name in PLAN_FIELDS:
        if name in entries:
            parse, allowed = _field(name)
            values[name] = yaml.value(entries[name].value, name, parse, allowed)
    if set(entries) - {"when"} == {"match", "figure", "date"} and len(node.value) == len(entries):
        yaml.report("C007", "the rule sets no plan field", node, hint="add a field", allowed=tuple(PLAN_FIELDS))
    figure = yaml.scalar(entries["figure"].value, "figure") if "figure" in entries else ""
    date = yaml.value(entries["date"].value, "date", _date, ()) if "date" in entries else ""
    return Rule(cells, values, figure or "", date or "", when)


def _read_when(yaml: YamlFile, node: Node) -> Bounds | None:
    entries = yaml.mapping(node, "when", BOUNDS)
    values: dict[str, int] = {}
    for name, entry in entries.items():
        value = yaml.value(entry.value, f"when.{name}", _int_parser(name), ("a whole number",))
        if value is not None:
            values[name] = value
    crossed = [extent for extent in Extents._fields if values.get(f"min_{extent}", 0) > _greatest(values, extent)]
    for extent in crossed:
        low, high = values[f"min_{extent}"], values[f"max_{extent}"]
        message = f"no call fits: min_{extent} {low} is above max_{extent} {high}"
        yaml.report("P007", message, entries[f"max_{extent}"].value, hint="correct one of them")
    if crossed or len(values) < len(entries):
        return None
    bounds = Bounds.of(values)
    if bounds == _EVERY_CALL and isinstance(node, MappingNode) and len(node.value) == len(values):
        yaml.report("P007", "every call fits this `when`", node, hint="add a bound or remove the key", allowed=BOUNDS)
    return bounds


def _greatest(values: Mapping[str, int], extent: str) -> int:
    return values.get(f"max_{extent}", UNBOUNDED)


def _supported(arch: Arch) -> list[Variant]:
    return [variant for family in FAMILIES.values() for variant in family.variants(arch)]


def _check_matches(yaml: YamlFile, rules: Sequence[tuple[Node, Rule]], arch: Arch) -> None:
    """Reports rules that say what an earlier one says, and those that no call reaches."""
    first: dict[object, int] = {}
    left: dict[Variant, list[Bounds]] = {variant: [] for variant in _supported(arch)}  # with the bounds taken
    for node, rule in rules:
        key = frozenset((axis, frozenset(values)) for axis, values in rule.cells.values.items()), rule.when
        line = rule.cells.at.line
        matched = [variant for variant in left if rule.cells.match(variant)]
        if key in first:
            hint = "merge the two rules"
            yaml.report("P003", f"the rule matches the same as the one at line {first[key]}", node, hint=hint)
        elif all(covered(rule.when or _EVERY_CALL, left[variant]) for variant in matched):
            known = any(rule.cells.match(variant) for variant in _supported(arch))
            why = "earlier rules take all that it matches" if known else "no family supports what it matches"
            yaml.report(
                "P004",
                f"the rule is never reached: {why}",
                node,
                hint="move it up, narrow the earlier rules or remove it",
            )
        first.setdefault(key, line)
        for variant in matched:
            if rule.when is None:
                del left[variant]
            else:
                left[variant].append(rule.when)
    _check_defaults(yaml, rules, left)


def _check_defaults(
    yaml: YamlFile, rules: Sequence[tuple[Node, Rule]], left: Mapping[Variant, Sequence[Bounds]]
) -> None:
    """Reports rules that together take every call, so that the family's default, the general plan, has none."""
    for node, rule in rules:
        for variant in left:
            last = rule.when is not None and rule.cells.match(variant) and rule.when == left[variant][-1]
            if last and covered(_EVERY_CALL, left[variant]):
                message = f"{variant.name}: with this rule the family's default, its general plan, is never reached"
                yaml.report("P004", message, node, hint="leave out `when`, so that this is the general plan")
                break


def _check_plans(yaml: YamlFile, rules: Sequence[tuple[Node, Rule]], arch: Arch) -> None:
    """Reports rules whose plan is illegal, with the first variant of which that is so."""
    every = [rule for _, rule in rules]
    for node, rule in rules:
        for variant in _supported(arch):
            taken = rule in _chosen(variant, every)
            reasons = ARCHS[arch].check(_ruled(variant, rule)) if taken else []
            if reasons:
                yaml.report("P005", f"{variant.name}: {'; '.join(reasons)}", node, hint="change the fields named above")
                break


def _check_differences(yaml: YamlFile, rules: Sequence[tuple[Node, Rule]], arch: Arch) -> None:
    """Reports rules whose plan is another plan of the same variant again, with the first such variant."""
    every = [rule for _, rule in rules]
    for node, rule in rules:
        for variant in _supported(arch):
            chosen = _chosen(variant, every)
            other = _same_plan(variant, rule, chosen) if rule in chosen else None
            if other is not None:
                message = f"{variant.name}: the plan is the same as {other}"
                yaml.report("P008", message, node, hint="change a field, narrow `match` or remove the rule")
                break


def _same_plan(variant: Variant, rule: Rule, chosen: Sequence[Rule]) -> str | None:
    """What gives the plan of ``rule`` as well: an earlier rule, or the family's default as the general plan."""
    plan = _ruled(variant, rule)
    for other in chosen[: chosen.index(rule)]:
        if not suffix(plan, _ruled(variant, other)):
            return f"that of the rule at line {other.cells.at.line}"
    default = chosen[-1].when is not None and not suffix(plan, _ruled(variant, None))
    return "the family's default, the general plan" if default else None

"""Writes what was chosen into ``plans/<arch>.yaml``, as text: the header and the rules that stay are left alone."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fa3gen.axes import spelled
from fa3gen.families import FAMILIES
from fa3gen.model import Arch, ForwardPlan, Variant, parse_name
from fa3gen.plan import PLAN_FIELDS, load_rules
from fa3gen.tune import choose
from fa3gen.tune.choose import Decision, Tried

#: Fields that a rule names although the family's default has the same.
_ALWAYS = ("tile_m", "tile_n", "stages", "softmax")
_RULES = "rules:"


def text_of(decision: Decision, dtypes: Sequence[str]) -> str:
    """The rules of a decision: those with ``when``, then the general one; for ``dtypes``, all where it is empty."""
    blocks = [_rule(decision, r.chosen, dtypes, choose.bounds(r)) for r in decision.ranges]
    return "".join([*blocks, _rule(decision, decision.general, dtypes, {})])


def updated(text: str, file: Path, arch: Arch, decisions: Mapping[str, str], covered: Sequence[Variant]) -> str:
    """``text`` of ``file``: the rules in ``decisions`` first, without those that only ``covered`` variants reach."""
    lines = text.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.rstrip() == _RULES) + 1
    rules = load_rules(file, arch)
    begins = [rule.cells.at.line - 1 for rule in rules]
    ends = [*begins[1:], len(lines)]
    left = [v for family in FAMILIES.values() for v in family.variants(arch) if v not in covered]
    kept = []
    for rule, begin, end in zip(rules, begins, ends, strict=True):
        if any(rule.cells.match(variant) for variant in left):
            kept += lines[begin:end]
        if rule.when is None:
            left = [variant for variant in left if not rule.cells.match(variant)]
    head = lines[: begins[0]] if begins else lines[:start]
    return "".join([*head, *decisions.values(), *kept])


def write(file: Path, text: str, arch: Arch) -> None:
    """Puts ``text`` into ``file`` if it reads as rules; raises ConfigError and leaves the file alone where not."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder, file.name)
        trial.write_text(text, encoding="utf-8")
        load_rules(trial, arch)
    file.write_text(text, encoding="utf-8", newline="\n")


def dtypes(decision: Decision, decisions: Sequence[Decision], every: bool) -> tuple[str, ...]:
    """The dtypes that the rules of ``decision`` are for; empty: all, where ``every`` and no other was measured."""
    mine = parse_name(decision.variant)
    others = [parse_name(other.variant) for other in decisions]
    alone = sum((v.head_dim, v.mask) == (mine.head_dim, mine.mask) for v in others) == 1
    return () if every and alone else (mine.dtype.value,)


def covered(decision: Decision, dtypes: Sequence[str]) -> list[Variant]:
    """The variants that the rules of ``decision`` for ``dtypes`` are for."""
    mine = parse_name(decision.variant)
    return [
        variant
        for variant in FAMILIES[mine.family].variants(mine.arch)
        if (variant.head_dim, variant.mask) == (mine.head_dim, mine.mask)
        if not dtypes or variant.dtype.value in dtypes
    ]


def _rule(decision: Decision, tried: Tried, dtypes: Sequence[str], when: Mapping[str, int]) -> str:
    variant = parse_name(decision.variant)
    match = {"family": variant.family.value, "head_dim": str(variant.head_dim), "mask": variant.mask.value}
    match |= {"dtype": dtypes[0]} if dtypes else {}
    lines = [f"  - match: {{{choose.spelled(match)}}}"]
    lines += [f"    when: {{{choose.spelled(when)}}}"] if when else []
    lines += [f"    {name}: {value}" for name, value in _values(variant, tried.plan).items()]
    lines += [f"    figure: {_figure(decision, tried, when)}", f"    date: {_newest(tried)}"]
    return "\n".join(lines) + "\n"


def _values(variant: Variant, plan: ForwardPlan) -> dict[str, str]:
    default = FAMILIES[variant.family].default_plan(variant)
    return {
        name: spelled(getattr(plan, name))
        for name in PLAN_FIELDS
        if name in _ALWAYS or getattr(plan, name) != getattr(default, name)
    }


def _figure(decision: Decision, tried: Tried, when: Mapping[str, int]) -> str:
    """TFLOP/s and the ratio to what it stands against: without spaces behind colons, which YAML would read."""
    held = [s for s in decision.seqlens if tried is decision.at(s)] if when else list(decision.seqlens)
    times = [tried.times[s] for s in held]
    speeds = " to ".join(dict.fromkeys(f"{times[i].tflops:.0f}" for i in (0, -1)))
    lengths = " to ".join(dict.fromkeys(str(held[i]) for i in (0, -1)))
    against = decision.general if when else next((t for t in decision.tried if t.name == decision.variant), None)
    ratio = ""
    if against is not None and against is not tried and all(s in against.times for s in held):
        mean = choose.speed(tried, held, False) / choose.speed(against, held, False)
        what = "the general plan" if when else "the plan before"
        ratio = f", {mean:.2f} of {what}"
    return f"{speeds} TFLOP/s at seqlen {lengths}{ratio} ({times[0].machine})"


def _newest(tried: Tried) -> str:
    return max(time.date for time in tried.times.values())

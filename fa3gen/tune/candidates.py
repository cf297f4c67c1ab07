"""Which plans of a variant are worth a measurement.

Every field of a plan that has more than one value to try is an axis; legal plans are held against the budget of a step,
and those whose bound lies far above the best one's are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from typing import Any

from fa3gen.arch import ARCHS, sm90
from fa3gen.arch.budget import Budget
from fa3gen.model import ForwardPlan, Scheduler, Variant, suffix
from fa3gen.plan import PLAN_FIELDS, resolve

#: The numbers to try; of a field that is a choice or a switch every value is tried, and a number that is not listed
#: stays as it is.
NUMBERS: dict[str, tuple[int, ...]] = {
    "tile_m": (64, 128, 192, 256),
    "tile_n": (48, 64, 80, 96, 112, 128, 144, 160, 176, 192),
    "stages": (2, 3, 4, 5, 6),
    "q_stages": (1, 2),
}
#: Fields that the others determine: see :func:`registers`.
FITTED = ("producer_regs", "consumer_regs")
#: Fields of which one value is tried first, and others only after every combination of the rest: the most that fits,
#: or what the variant's plan has now.
MOST = ("stages", "q_stages")
CURRENT = ("scheduler", "pin_pv_wait", "overlap_tiles")

PRODUCER_REGS = (24, 32, 40)


@dataclass(frozen=True)
class Candidate:
    plan: ForwardPlan
    budget: Budget
    current: bool  # the plan that the variant has now

    @property
    def name(self) -> str:
        return self.plan.name


@dataclass(frozen=True)
class Search:
    """What came of a variant's combinations: how many there are, are legal and near the best; those to try."""

    variant: Variant
    combinations: int
    legal: int
    near: int
    candidates: tuple[Candidate, ...]


def search(variant: Variant, over: float, limit: int | None) -> Search:
    """The candidates of ``variant``, at most ``limit``: first the plan that it has now, then by :func:`_order`.

    A plan is dropped where its bound is more than ``over`` (0.1: a tenth) above that of the best.
    """
    current = resolve(variant)
    arch = ARCHS[variant.arch]
    count = 0
    legal: list[tuple[ForwardPlan, Budget]] = []
    for plan in _combinations(current):
        count += 1
        if not pointless(plan) and not arch.check(plan):
            legal.append((plan, arch.budget(plan)))
    best = min((_bound(plan, budget) for plan, budget in legal), default=0.0)
    near = [(plan, budget) for plan, budget in legal if _bound(plan, budget) <= best * (1 + over)]
    first = _first_values([plan for plan, _ in near], current)
    ordered = sorted(near, key=lambda item: (*_order(item[0], item[1], first), suffix(item[0], current)))
    others = [_named(plan, current) for plan, _ in ordered if suffix(plan, current)][: limit and limit - 1]
    found = [Candidate(plan, arch.budget(plan), plan is current) for plan in (current, *others)]
    return Search(variant, count, len(legal), len(near), tuple(found))


def given(variant: Variant, wanted: Sequence[Mapping[str, str]]) -> Search:
    """The plan that ``variant`` has now and plans with the fields of ``wanted`` changed, spelled as in YAML.

    Where tile_m changes, registers that are not given are fitted.  Raises PlanError where a plan is wrong or illegal.
    """
    plans = [resolve(variant)]
    for changes in wanted:
        fitted: dict[str, str] = {}
        if changes.get("tile_m", "").isdigit():
            fitted = dict(zip(FITTED, map(str, registers(int(changes["tile_m"]))), strict=True))
        plan = resolve(variant, {**fitted, **changes})
        if plan.name not in [other.name for other in plans]:
            plans.append(plan)
    found = tuple(Candidate(plan, ARCHS[variant.arch].budget(plan), plan is plans[0]) for plan in plans)
    return Search(variant, len(found), len(found), len(found), found)


def registers(tile_m: int) -> tuple[int, int]:
    """(producer_regs, consumer_regs): the most for consumers that the CTA's registers allow, and what that leaves."""
    warpgroups = tile_m // sm90.WGMMA_M
    launched = sm90.launch_registers(sm90.WARPGROUP_THREADS * (warpgroups + 1))
    step, most = sm90.REGISTER_STEP, sm90.REGISTER_MAX
    pool = launched * (warpgroups + 1)
    consumers = {p: min((pool - p) // warpgroups // step * step, most) for p in PRODUCER_REGS}
    return max(consumers.items(), key=lambda item: (item[1], item[0]))


def pointless(plan: ForwardPlan) -> str | None:
    """Why a legal plan is not worth a try."""
    if plan.scheduler is Scheduler.STATIC and plan.q_stages > 1:
        return f"q_stages {plan.q_stages}: a CTA of one tile has no next Q"
    return None


def _axes(current: ForwardPlan) -> dict[str, tuple[Any, ...]]:
    """The values to try of each field; those of one value are left out."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, kind in PLAN_FIELDS.items():
        if issubclass(kind, Enum):
            found[name] = tuple(kind)
        elif kind is bool:
            found[name] = (False, True)
        elif name in NUMBERS:
            found[name] = tuple(sorted({*NUMBERS[name], getattr(current, name)}))
    return found


def _combinations(current: ForwardPlan) -> Iterator[ForwardPlan]:
    axes = _axes(current)
    for values in product(*axes.values()):
        changes = dict(zip(axes, values, strict=True))
        changes |= dict(zip(FITTED, registers(changes["tile_m"]), strict=True))
        yield replace(current, **changes)


def _bound(plan: ForwardPlan, budget: Budget) -> float:
    """Clocks of a score at the least."""
    return budget.predicted / (plan.tile_m * plan.tile_n)


def _tried(plan: ForwardPlan) -> tuple[Any, ...]:
    """The fields all of whose values deserve the same attention."""
    return tuple(getattr(plan, name) for name in PLAN_FIELDS if name not in (*MOST, *CURRENT))


def _first_values(plans: list[ForwardPlan], current: ForwardPlan) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What is tried first of the fields in MOST and CURRENT, for each combination of the others."""
    kept = {name: getattr(current, name) for name in CURRENT}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for plan in plans:
        if all(getattr(plan, name) == value for name, value in kept.items()):
            most = {name: getattr(plan, name) for name in MOST}
            found[_tried(plan)] = max(found.get(_tried(plan), kept | most), kept | most, key=_most)
    return found


def _most(values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in reversed(MOST))  # a second Q tile goes before a further stage


def _order(
    plan: ForwardPlan, budget: Budget, first: Mapping[tuple[Any, ...], Mapping[str, Any]]
) -> tuple[int, float, float]:
    """By the number of fields that are not at what is tried first, then by the bound, then by what all units do."""
    values = first.get(_tried(plan))
    others = len(MOST) if values is None else sum(getattr(plan, name) != value for name, value in values.items())
    scores = plan.tile_m * plan.tile_n
    return others, _bound(plan, budget), sum(budget.clocks.values()) / scores


def _named(plan: ForwardPlan, current: ForwardPlan) -> ForwardPlan:
    """``plan`` with reasons and a name of its own."""
    changes = {name: getattr(plan, name) for name in PLAN_FIELDS if getattr(plan, name) != getattr(current, name)}
    return resolve(current.variant, changes)

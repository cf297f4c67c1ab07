"""Which kernel a call takes and why, or what is missing: as data and as text.

Standard library only, so that the generator's commands explain without torch what the runtime does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fa3 import choice
from fa3.choice import Table, plan_label
from fa3.contract import Bounds, Extents, KernelEntry, Key


@dataclass(frozen=True)
class PassedOver:
    """A plan of the variant that the call does not take."""

    kernel: str
    label: str
    when: Bounds | None  # the calls that it is meant for; None: all that no other plan is meant for
    reason: str


@dataclass(frozen=True)
class Explanation:
    """What a call gets; ``str()`` is the text.

    Without a kernel ``reason`` says what is missing.  Where a bundle could have the kernel, ``wanted`` is its name,
    ``nearest`` are the names of the bundle's most similar kernels and ``yaml`` is the line for variants.yaml; they are
    empty where this release does not do what the call asks for.
    """

    reason: str
    bundle: str = ""
    asked: str = ""  # the variant, axis by axis
    extents: Extents | None = None
    kernel: str | None = None
    label: str = ""  # of the plan among those of the variant: "general", or what it does otherwise
    when: Bounds | None = None  # the calls that the plan is meant for; None: all that no other plan is meant for
    passed_over: tuple[PassedOver, ...] = ()  # in the order of dispatch
    plan: Mapping[str, Any] = field(default_factory=dict)  # tile_m, tile_n, stages, ..., as in the manifest
    wanted: str = ""
    nearest: tuple[str, ...] = ()
    yaml: str = ""

    def to_json(self) -> dict[str, Any]:
        """Every field, as plain JSON types."""
        document = asdict(self)
        document["extents"] = None if self.extents is None else self.extents._asdict()
        document["when"] = _when_json(self.when)
        for other, plan in zip(document["passed_over"], self.passed_over, strict=True):
            other["when"] = _when_json(plan.when)
        return document

    def __str__(self) -> str:
        if self.kernel is None:
            return f"no kernel: {self.reason}"
        extents = self.extents._asdict() if self.extents else {}
        settings = {name: value for name, value in self.plan.items() if name != "reasons"}
        rows = [
            ("bundle", self.bundle),
            ("call", self.asked),
            ("extents", _pairs(extents)),
            ("plan", f"{self.label}, for {_calls(self.when) if self.passed_over else 'all calls'}"),
            ("why", self.reason),
            *(("passed over", f"{plan.label}, for {_calls(plan.when)}: {plan.reason}") for plan in self.passed_over),
            ("settings", _pairs(settings)),
        ]
        return "\n".join([self.kernel, *(f"  {name:11}  {text}" for name, text in rows if text)])


def explain(kernels: Table, key: Key, extents: Extents, bundle: str, arch: str) -> Explanation:
    """What a call of ``extents`` that asks for ``key`` gets of the kernels of ``bundle``."""
    asked = choice.describe(key)
    plans = kernels.get(key)
    if plans is None:
        miss = choice.miss(kernels, key, bundle, arch)
        return Explanation(miss.message, bundle, asked, extents, wanted=miss.name, nearest=miss.nearest, yaml=miss.yaml)
    chosen = choice.choose(plans, extents)
    return Explanation(
        _why(plans, chosen),
        bundle,
        asked,
        extents,
        kernel=chosen.name,
        label=plan_label(chosen.name),
        when=chosen.when,
        passed_over=_passed_over(plans, chosen, extents),
        plan=chosen.plan,
    )


def _why(plans: Sequence[KernelEntry], chosen: KernelEntry) -> str:
    if len(plans) == 1:
        return "it is the only plan of its variant"
    if chosen.when is None:
        return "the call fits no other plan of the variant"
    return f"of the {len(plans)} plans of the variant it is the first that the call fits"


def _passed_over(plans: Sequence[KernelEntry], chosen: KernelEntry, extents: Extents) -> tuple[PassedOver, ...]:
    """The other plans: each is outside of its bounds, or has its turn only after the chosen one."""
    found = []
    for plan in plans:
        if plan is not chosen:
            reason = "" if plan.when is None else plan.when.misfit(extents)
            reason = reason or f"its turn comes after {plan_label(chosen.name)}"
            found.append(PassedOver(plan.name, plan_label(plan.name), plan.when, reason))
    return tuple(found)


def _calls(when: Bounds | None) -> str:
    return "all other calls" if when is None else f"calls with {when}"


def _when_json(when: Bounds | None) -> dict[str, int] | None:
    return None if when is None else when.to_json()


def _pairs(values: Mapping[str, Any]) -> str:
    """``tile_m 128, stages 2``; switches are yes or no."""
    return ", ".join(f"{name} {_spell(value)}" for name, value in values.items())


def _spell(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"

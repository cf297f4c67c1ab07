"""The families of kernels: what each can do, and its default plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fa3gen import features
from fa3gen.families import fwd
from fa3gen.model import Arch, Family, ForwardPlan, Variant


class FamilyRules(Protocol):
    """What the module of a family offers."""

    def variants(self, arch: Arch) -> Iterator[Variant]:
        """Every variant that the family supports on an architecture."""

    def supports(self, variant: Variant) -> str | None:
        """Why the family cannot do ``variant``; ``None`` where it can."""

    def default_plan(self, variant: Variant) -> ForwardPlan:
        """The plan of a supported variant that no rule is tuned for, with reasons."""


FAMILIES: dict[Family, FamilyRules] = {Family.FWD: fwd}


def unsupported(variant: Variant) -> str | None:
    """Why ``variant`` cannot be built; ``None`` where it can."""
    return features.unsupported(variant.family.value, variant.features) or FAMILIES[variant.family].supports(variant)

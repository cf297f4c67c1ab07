"""What each architecture allows."""

from __future__ import annotations

from typing import Protocol

from fa3gen.arch import sm90
from fa3gen.arch.budget import Budget
from fa3gen.model import Arch, ForwardPlan


class ArchRules(Protocol):
    """What the module of an architecture offers."""

    def smem_bytes(self, plan: ForwardPlan) -> int:
        """Shared memory of the plan's kernel in bytes."""

    def check(self, plan: ForwardPlan) -> list[str]:
        """Why the plan is illegal; empty where it is legal."""

    def budget(self, plan: ForwardPlan) -> Budget:
        """What a step of the plan's mainloop takes of each unit of an SM."""


ARCHS: dict[Arch, ArchRules] = {Arch.SM90A: sm90}

"""Kernels that tests share: all of variants.yaml, from the store under build/, compiled where they are missing."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fa3gen import build, matrix
from fa3gen import plan as plan_module
from fa3gen.build import CUBIN, PTX, KernelBuild, Paths, Report
from fa3gen.model import Arch, ForwardPlan

REPO = Path(__file__).parents[1]
CONFIG = REPO / "variants.yaml"
#: One kernel for tests that need any.
NAME = "fwd_bf16_d64_full_sm90a"
#: Conditions of templates of which the shipped plans take one side, and a change of a plan that takes the other.
ALTERNATIVES: Mapping[str, Mapping[str, Any]] = {
    "plan.dynamic": {"scheduler": "persistent"},
    "plan.persistent": {"scheduler": "static"},
    "plan.optimistic": {"softmax": "exact"},
    "plan.lazy": {"softmax": "lazy"},
    "plan.pin_pv_wait": {"pin_pv_wait": "true"},
}


@dataclass(frozen=True)
class Built:
    """A kernel with what the compiler made of it."""

    kernel: KernelBuild
    cubin: bytes
    ptx: str

    @property
    def plan(self) -> ForwardPlan:
        return self.kernel.plan

    @property
    def remarks(self) -> list[str]:
        assert self.kernel.stored is not None
        return list(self.kernel.stored.meta["remarks"])


@cache
def shipped() -> matrix.Matrix:
    return matrix.load(CONFIG)


@cache
def plans() -> tuple[ForwardPlan, ...]:
    """The plans of every shipped kernel."""
    return matrix.select_plans(shipped())


#: Rules that give the variants of head dim 64 a further plan.
FURTHER_RULES = """
schema: 1
rules:
  - match: {family: fwd, head_dim: 64}
    when: {max_seqlen_k: 2047}
    tile_n: 64
    stages: 3
    figure: quicker there
    date: 2026-01-31
  - {match: {family: fwd, head_dim: 64}, stages: 3, figure: quickest, date: 2026-01-31}
"""
#: The further plan of NAME.
FURTHER = f"{NAME}__n64"


def use_further_rules(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str = FURTHER_RULES) -> None:
    """Has plans chosen by ``text`` instead of the shipped rules."""
    path = folder / "rules.yaml"
    path.write_text(text)
    rules = plan_module.load_rules(path)
    monkeypatch.setattr(plan_module, "shipped_rules", lambda _arch: rules)


def use_general_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has variants their general plans alone, for tests that count kernels by variants."""
    report()  # which is shared, and of all shipped plans
    rules = tuple(rule for rule in plan_module.shipped_rules(Arch.SM90A) if rule.when is None)
    monkeypatch.setattr(plan_module, "shipped_rules", lambda _arch: rules)


def plan_of(name: str = NAME) -> ForwardPlan:
    return next(plan for plan in plans() if plan.name == name)


@cache
def report() -> Report:
    """The build of the whole matrix; its bundle lies in a temporary folder until the process ends."""
    folder = tempfile.TemporaryDirectory()
    _FOLDERS.append(folder)
    paths = Paths.under(REPO / "build", Path(folder.name) / "bundle")
    builds = build.prepare(plans(), paths, shipped().toolchain)
    return build.run(builds, paths, shipped().toolchain)


@cache
def built() -> Mapping[str, Built]:
    """Every shipped kernel, by name."""
    found = {}
    for kernel in report().kernels:
        assert kernel.stored is not None, f"{kernel.name}: {kernel.reason}"
        found[kernel.name] = Built(kernel, kernel.stored.read(CUBIN), kernel.stored.read(PTX).decode())
    return found


def built_alone(plan: ForwardPlan) -> Built:
    """A kernel that need not be shipped, through the store."""
    with tempfile.TemporaryDirectory() as folder:
        paths = Paths.under(REPO / "build", Path(folder) / "bundle")
        (kernel,) = build.run(build.prepare([plan], paths, shipped().toolchain), paths, shipped().toolchain).kernels
    assert kernel.stored is not None, f"{kernel.name}: {kernel.reason}"
    return Built(kernel, kernel.stored.read(CUBIN), kernel.stored.read(PTX).decode())


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []

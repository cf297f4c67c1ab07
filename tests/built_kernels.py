"""Kernels that tests share: all of variants.yaml, from the store under build/, compiled where they are missing."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fa3gen import build, matrix
from fa3gen.build import CUBIN, PTX, KernelBuild, Paths, Report
from fa3gen.model import ForwardPlan
from fa3gen.plan import resolve

REPO = Path(__file__).parents[1]
CONFIG = REPO / "variants.yaml"
#: One kernel for tests that need any.
NAME = "fwd_bf16_d64_full_sm90a"
#: Conditions of templates of which the shipped plans take one side, and a change of a plan that takes the other.
ALTERNATIVES: Mapping[str, Mapping[str, Any]] = {"plan.persistent": {"scheduler": "static"}}


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
    """The plan of every shipped kernel."""
    return tuple(resolve(variant) for variant in shipped().variants)


def plan_of(name: str = NAME) -> ForwardPlan:
    return next(plan for plan in plans() if plan.name == name)


@cache
def report() -> Report:
    """The build of the whole matrix; its bundle lies in a temporary folder until the process ends."""
    folder = tempfile.TemporaryDirectory()
    _FOLDERS.append(folder)
    paths = Paths.under(REPO / "build", Path(folder.name) / "bundle")
    builds = build.prepare(shipped().variants, paths, shipped().toolchain)
    return build.run(builds, paths, shipped().toolchain)


@cache
def built() -> Mapping[str, Built]:
    """Every shipped kernel, by name."""
    found = {}
    for kernel in report().kernels:
        assert kernel.stored is not None, f"{kernel.name}: {kernel.reason}"
        found[kernel.name] = Built(kernel, kernel.stored.read(CUBIN), kernel.stored.read(PTX).decode())
    return found


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []

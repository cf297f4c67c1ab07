"""Scheduler: a CTA for each tile.  The same function as in scheduler_dynamic.py."""

from __future__ import annotations

from dataclasses import dataclass

from cutlass import Int32


@dataclass(frozen=True)
class Static:
    num_tiles: Int32


def draw(scheduler: Static, tile: Int32):
    return Int32(-1)

"""Scheduler: persistent CTAs that take every ``grid``-th tile.  The same function as in scheduler_dynamic.py."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from fa3gen.device import index


@dataclass(frozen=True)
class Persistent:
    num_tiles: Int32


def draw(scheduler: Persistent, tile: Int32):
    return index.later_tile(tile, cute.arch.grid_dim()[0], scheduler.num_tiles)

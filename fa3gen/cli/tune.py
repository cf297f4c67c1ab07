"""``fa3gen tune``: each step is a module of its own, because each runs on a machine that lacks the rest."""

from __future__ import annotations

import click

from fa3gen.cli.lazy import LazyGroup

#: Steps in their order, and what each does.
STEPS = {
    "candidates": "Build candidate plans into a bundle; needs no GPU.",
    "run": "Check and time the candidates on a GPU.",
    "choose": "Turn the times into rules for plans; needs no GPU.",
}


@click.group(cls=LazyGroup, modules="fa3gen.cli.tune_", table=STEPS, title="Steps")
def command() -> None:
    """Search plans: build candidates, time them on a GPU, choose."""

"""``fa3gen tune``: each step is a module of its own, because each runs on a machine that lacks the rest."""

from __future__ import annotations

from importlib import import_module

import click

#: Steps in their order, and what each does.
STEPS = {
    "candidates": "Build candidate plans into a bundle; needs no GPU.",
    "run": "Check and time the candidates on a GPU.",
    "choose": "Turn the times into rules for plans; needs no GPU.",
}


class _Steps(click.Group):
    """Steps by name, imported one at a time."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return [*STEPS]

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in STEPS:
            return None
        command = import_module(f"fa3gen.cli.tune_{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Steps"):
            formatter.write_dl([*STEPS.items()])


@click.group(cls=_Steps)
def command() -> None:
    """Search plans: build candidates, time them on a GPU, choose."""

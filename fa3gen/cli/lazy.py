"""Groups of commands whose modules are imported one at a time, when a command is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """The commands of ``table``, in its order: name -> what it does, for the overview.

    Each is ``command`` in the module whose name is ``modules`` and the command's name.
    """

    def __init__(self, *args: Any, modules: str, table: Mapping[str, str], title: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._modules, self._table, self._title = modules, table, title

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return [*self._table]

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        command = import_module(f"{self._modules}{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(self._title):
            formatter.write_dl([*self._table.items()])

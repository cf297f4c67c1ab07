"""Options and output that commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from fa3 import contract
from fa3.contract import Manifest

from fa3gen import evidence, matrix
from fa3gen.errors import MachineError, UsageError
from fa3gen.model import ForwardPlan

Command = TypeVar("Command", bound=Callable[..., Any])

BUILD_DIR = Path("build")
EVIDENCE = Path("tests/evidence")


@dataclass(frozen=True)
class Selection:
    """The configuration and the plans of it that the command line selects."""

    matrix: matrix.Matrix
    plans: tuple[ForwardPlan, ...]


def config_option(command: Command) -> Command:
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        default=Path("variants.yaml"),
        show_default=True,
        help="The file that says which kernels exist.",
    )(command)


def select_options(command: Command) -> Command:
    """SELECT and --preset."""
    command = click.option("--preset", help="Select a preset of the configuration.")(command)
    return click.argument("select", nargs=-1, metavar="[SELECT]...")(command)


def build_dir_option(command: Command) -> Command:
    return click.option(
        "--build-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=BUILD_DIR,
        show_default=True,
        help="Where builds keep sources, the store and the bundle.",
    )(command)


def verbosity_options(command: Command) -> Command:
    command = click.option("-q", "--quiet", is_flag=True, help="Print errors only.")(command)
    return click.option("-v", "--verbose", is_flag=True, help="Print more.")(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def load(config: Path, select: Sequence[str] = (), preset: str | None = None) -> Selection:
    """Reads the configuration and selects from it; raises ConfigError or SelectionError."""
    loaded = matrix.load(config)
    return Selection(loaded, matrix.select_plans(loaded, select, preset))


def load_evidence() -> Mapping[str, Mapping[str, Any]]:
    """What has been verified, by kernel; empty where there is no record."""
    return evidence.read(EVIDENCE)


def read_manifest(bundle: Path) -> Manifest:
    """A bundle's table of contents; raises MachineError where there is none, UsageError where it is damaged."""
    file = bundle / contract.MANIFEST
    try:
        return contract.manifest_from_json(json.loads(file.read_text("utf-8")))
    except OSError as error:
        raise MachineError(f"no bundle at {bundle}: {error.strerror}", hint="run `fa3gen build` first") from error
    except ValueError as error:
        raise UsageError(f"{file}: {error}", hint="run `fa3gen build`") from error


def when_json(plan: ForwardPlan) -> dict[str, int] | None:
    """The bounds of a plan as JSON; None for the general plan."""
    return None if plan.when is None else plan.when.to_json()


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be, no wider than the text: for people, and for `cut` and `awk`."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def file_size(size: int) -> str:
    """``size`` bytes in the unit that fits."""
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

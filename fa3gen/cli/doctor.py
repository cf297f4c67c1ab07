"""``fa3gen doctor``"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from fa3gen import doctor
from fa3gen.cli import common
from fa3gen.doctor import Check
from fa3gen.errors import ExitCode

_TASKS = {"build": "build kernels", "verify": "run and verify kernels"}


@click.command()
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, file_okay=False),
    default=common.BUILD_DIR / "bundle",
    show_default=True,
    help="The bundle to look at.",
)
@click.option(
    "--for",
    "tasks",
    type=click.Choice(doctor.TASKS),
    multiple=True,
    help="Exit with 3 where this machine cannot do it; may be repeated.  Without it one of the two is enough.",
)
@common.json_option
def command(bundle: Path, tasks: tuple[str, ...], as_json: bool) -> int:
    """Show what this machine has and lacks, and whether it can build kernels, verify them, or both."""
    checks = doctor.checks(bundle, common.EVIDENCE)
    missing = {task: doctor.missing(checks, task) for task in doctor.TASKS}
    can = {task: not names for task, names in missing.items()}
    if as_json:
        common.print_json({"can": can, "checks": [asdict(check) for check in checks]})
    else:
        common.print_table(("", "CHECK", "FOUND"), [(_mark(check), check.name, _text(check)) for check in checks])
        click.echo("\n".join(_sentences(missing)))
    enough = all(can[task] for task in tasks) if tasks else any(can.values())
    return ExitCode.OK if enough else ExitCode.MACHINE


def _sentences(missing: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [
        f"this machine cannot {_TASKS[task]}, for lack of: {', '.join(names)}"
        if names
        else f"this machine can {_TASKS[task]}"
        for task, names in missing.items()
    ]


def _mark(check: Check) -> str:
    return "ok" if check.ok else "missing" if check.tasks else "-"


def _text(check: Check) -> str:
    if check.ok:
        return check.found
    wanted = f" (to {' and '.join(check.tasks)})" if check.tasks else ""
    return f"none{wanted}: {check.hint}"

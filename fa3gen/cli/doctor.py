"""``fa3gen doctor``"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from fa3gen import doctor
from fa3gen.cli import common
from fa3gen.doctor import Check
from fa3gen.errors import ExitCode


@click.command()
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, file_okay=False),
    default=common.BUILD_DIR / "bundle",
    show_default=True,
    help="The bundle to look at.",
)
@common.json_option
def command(bundle: Path, as_json: bool) -> int:
    """Show what this machine has and lacks; exit code 3 where the runtime cannot run."""
    checks = doctor.checks(bundle)
    fatal = [check.name for check in checks if check.fatal]
    if as_json:
        common.print_json({"runs": not fatal, "checks": [asdict(check) for check in checks]})
    else:
        common.print_table(("", "CHECK", "FOUND"), [(_mark(check), check.name, _text(check)) for check in checks])
        click.echo(f"the runtime cannot run here: {', '.join(fatal)}" if fatal else "the runtime can run here")
    return ExitCode.MACHINE if fatal else ExitCode.OK


def _mark(check: Check) -> str:
    return "ok" if check.ok else "FAILED" if check.needed else "-"


def _text(check: Check) -> str:
    return check.found if check.ok else f"missing: {check.hint}"

"""``fa3gen render``"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from fa3gen import render
from fa3gen.cli import common
from fa3gen.errors import ExitCode, UsageError
from fa3gen.model import ForwardPlan
from fa3gen.render import Difference, Status

#: The preset whose sources are committed.
WITNESS = "witness"
GENERATED = Path("generated")


@click.command()
@common.select_options
@common.config_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=GENERATED,
    show_default=True,
    help="Where the sources go.",
)
@click.option("--check", is_flag=True, help="Write nothing; say which files are not as they should be.")
@click.option("--diff", is_flag=True, help="Write nothing; show what would change.")
@click.option("--stdout", is_flag=True, help="Print the sources instead.")
@common.verbosity_options
def command(
    select: tuple[str, ...],
    preset: str | None,
    config: Path,
    out: Path,
    check: bool,
    diff: bool,
    stdout: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Render templates to sources.

    Without SELECT and --preset these are the kernels of the preset `witness`, which are committed: their files are
    written, and files of other kernels are removed.
    """
    if stdout:
        for plan in common.load(config, select, preset).plans:
            click.echo(render.render(plan), nl=False)
        return int(ExitCode.OK)
    differences = _differences(select, preset, config, out)
    if not (check or diff):
        render.apply(differences)
    if diff:
        for difference in differences:
            click.echo(difference.diff(), nl=False)
    else:
        _report(differences, check, verbose, quiet)
    if not differences or not (check or diff):
        return int(ExitCode.OK)
    click.echo(f"next: run `{_fixing_command(select, preset, config, out)}`", err=True)
    return int(ExitCode.FINDINGS)


def _differences(select: tuple[str, ...], preset: str | None, config: Path, out: Path) -> list[Difference]:
    """What is not as it should be; a selection says nothing of files of other kernels."""
    committed = common.load(config, (), WITNESS).plans if out == GENERATED else ()
    if not select and preset is None:
        return render.compare(committed or common.load(config, (), WITNESS).plans, out)
    plans = common.load(config, select, preset).plans
    if out == GENERATED:
        _check_committed(plans, committed)
    return [difference for difference in render.compare(plans, out) if difference.status is not Status.ORPHANED]


def _check_committed(plans: Sequence[ForwardPlan], committed: Sequence[ForwardPlan]) -> None:
    names = {plan.name for plan in committed}
    others = [plan.name for plan in plans if plan.name not in names]
    if others:
        raise UsageError(
            f"{GENERATED} holds the preset {WITNESS} only, not {others[0]}",
            hint="print it with --stdout, name another folder with --out, or add it to the preset",
        )


def _report(differences: list[Difference], check: bool, verbose: bool, quiet: bool) -> None:
    done = {Status.CHANGED: "updated", Status.MISSING: "written", Status.ORPHANED: "removed"}
    for difference in differences:
        word = difference.status.value if check else done[difference.status]
        click.echo(f"{difference.path}: {word}", err=not check)
        if verbose and check:
            click.echo(difference.diff(), nl=False)
    if not differences and not quiet:
        click.echo("all sources are up to date", err=True)


def _fixing_command(select: tuple[str, ...], preset: str | None, config: Path, out: Path) -> str:
    words = ["fa3gen", "render", *select]
    for option, value, default in (
        ("--preset", preset, None),
        ("--config", str(config), "variants.yaml"),
        ("--out", str(out), str(GENERATED)),
    ):
        if value is not None and value != default:
            words += [option, value]
    return shlex.join(words)

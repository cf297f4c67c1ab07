"""``fa3gen tune choose``"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fa3gen.arch.budget import CLOCK_MHZ
from fa3gen.cli import common
from fa3gen.errors import ExitCode, UsageError
from fa3gen.model import parse_name
from fa3gen.plan import RULES_DIR
from fa3gen.tune import choose, record, rules
from fa3gen.tune.choose import Decision


@click.command("choose")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--plans",
    type=click.Path(path_type=Path, file_okay=False),
    default=RULES_DIR,
    help="The folder of <arch>.yaml, which the rules go into.  [default: fa3gen/plans]",
)
@click.option("--every-dtype", is_flag=True, help="Let the rules hold for dtypes that were not measured, too.")
@click.option("--dry-run", is_flag=True, help="Print the rules instead of writing them.")
@click.option("--markdown", is_flag=True, help="Print the tables in Markdown.")
@common.json_option
def command(file: Path, plans: Path, every_dtype: bool, dry_run: bool, markdown: bool, as_json: bool) -> int:
    """Choose plans by the times in FILE and write them as rules.

    A kernel's general plan is the fastest in the geometric mean over the lengths that were timed; its present plan
    stays where that is within 1 %.  Another plan that is over 2 % faster at every length of a range gets that range.
    """
    records = record.read(file)
    decisions = choose.decide(records)
    if not decisions:
        raise UsageError(f"{file}: no candidate has its times", hint="fa3gen tune run")
    if as_json:
        common.print_json([_document(decision) for decision in decisions])
    else:
        for decision in decisions:
            _print(decision, markdown)
    changed = [decision for decision in decisions if decision.changed]
    if not changed:
        click.echo("every kernel keeps its plan", err=True)
        return int(ExitCode.OK)
    for arch in sorted({parse_name(decision.variant).arch for decision in changed}):
        mine = [decision for decision in changed if parse_name(decision.variant).arch is arch]
        dtypes = {decision.variant: rules.dtypes(decision, decisions, every_dtype) for decision in mine}
        texts = {decision.variant: rules.text_of(decision, dtypes[decision.variant]) for decision in mine}
        if dry_run:
            click.echo("".join(texts.values()), nl=False, err=as_json)
            continue
        target = plans / f"{arch.value}.yaml"
        covered = [variant for decision in mine for variant in rules.covered(decision, dtypes[decision.variant])]
        rules.write(target, rules.updated(target.read_text("utf-8"), target, arch, texts, covered), arch)
        click.echo(f"{target}: rules for {common.plural(len(mine), 'kernel')}", err=True)
        click.echo("  next: fa3gen render, fa3gen build, and fa3gen verify on a Hopper machine", err=True)
    return int(ExitCode.OK)


def _print(decision: Decision, markdown: bool) -> None:
    clock = choose.clock_of(decision)
    header, rows = choose.table(decision, clock or CLOCK_MHZ)
    at = f"{clock or CLOCK_MHZ:.0f} MHz{'' if clock else ', which was not measured'}"
    click.echo(f"{'### ' if markdown else ''}{decision.variant}\n")
    if markdown:
        _print_markdown(header, rows)
    else:
        common.print_table(header, rows)
    click.echo(f"\nTFLOP/s by seqlen; BOUND: what the budget allows at {at} at the longest, and the binding unit\n")


def _print_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for cells in (header, ["---"] * len(header), *rows):
        click.echo(f"| {' | '.join(cells)} |")


def _document(decision: Decision) -> dict[str, Any]:
    return {
        "kernel": decision.variant,
        "seqlens": list(decision.seqlens),
        "general": decision.general.name,
        "ranges": [{"candidate": r.chosen.name, "when": choose.bounds(r)} for r in decision.ranges],
        "tried": [
            {
                "candidate": tried.name,
                "problems": list(tried.check.problems),
                "tflops": {str(seqlen): time.tflops for seqlen, time in sorted(tried.times.items())},
                "ratio": {str(seqlen): time.ratio for seqlen, time in sorted(tried.times.items())},
                "peers_ms": {str(seqlen): dict(time.peers) for seqlen, time in sorted(tried.times.items())},
            }
            for tried in decision.tried
        ],
    }

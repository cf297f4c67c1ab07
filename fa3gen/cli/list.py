"""``fa3gen list``"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fa3gen import abi, build, bundle
from fa3gen.axes import spelled
from fa3gen.build import CUBIN, KernelBuild, Paths, Status
from fa3gen.cli import common
from fa3gen.digest import sha256
from fa3gen.model import ForwardPlan
from fa3gen.plan import PLAN_FIELDS

_HEADER = ("NAME", "WHEN", "PLAN", "REGISTERS", "SMEM", "BUILT", "VERIFIED")


@click.command()
@common.select_options
@common.config_option
@common.build_dir_option
@click.option("--names", is_flag=True, help="Print names only.")
@click.option("--skipped", is_flag=True, help="Print what is left out, and why.")
@common.json_option
@common.verbosity_options
def command(
    select: tuple[str, ...],
    preset: str | None,
    config: Path,
    build_dir: Path,
    names: bool,
    skipped: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Show the kernels that the configuration asks for.

    WHEN bounds the calls that take the kernel; of several plans of a variant a call takes the first that it fits.
    PLAN is tile_m x tile_n, then stages of K and V, Q tiles and choices; REGISTERS are a thread's at entry.
    """
    selection = common.load(config, select, preset)
    if skipped:
        _print_skipped(selection, as_json, quiet)
    elif names or quiet:
        found = [plan.name for plan in selection.plans]
        common.print_json(found) if as_json else click.echo("\n".join(found))
    else:
        kernels = build.prepare(selection.plans, Paths.under(build_dir), selection.matrix.toolchain)
        _print_kernels([_row(kernel, common.load_evidence()) for kernel in kernels], as_json, verbose)


def _row(kernel: KernelBuild, evidence: bundle.Evidence) -> dict[str, Any]:
    built = kernel.stored is not None
    cubin = sha256(kernel.stored.read(CUBIN)) if kernel.stored is not None else ""
    return {
        "name": kernel.name,
        "when": common.when_json(kernel.plan),
        "plan": kernel.plan.to_json(),
        "summary": _summary(kernel.plan),
        "bounds": str(kernel.plan.when or "-"),
        "registers": kernel.resources.registers if kernel.resources else None,
        "smem_bytes": abi.launch(kernel.plan).smem_bytes,
        "built": built,
        "why_not_built": "" if kernel.status is Status.UP_TO_DATE else kernel.reason,
        "verified": bundle.verified(evidence, kernel.name, cubin),
        "origin": str(kernel.plan.variant.origin),
    }


def _summary(plan: ForwardPlan) -> str:
    """The fields of a plan that tell kernels apart, in a few words."""
    shown = ("tile_m", "tile_n", "stages", "q_stages", "producer_regs", "consumer_regs")
    choices = [spelled(getattr(plan, name)) for name in PLAN_FIELDS if name not in shown and name != "pin_pv_wait"]
    return f"{plan.tile_m}x{plan.tile_n} stages {plan.stages} q_stages {plan.q_stages} {' '.join(choices)}"


def _print_kernels(rows: list[dict[str, Any]], as_json: bool, verbose: bool) -> None:
    if as_json:
        texts = ("summary", "bounds")
        common.print_json([{key: value for key, value in row.items() if key not in texts} for row in rows])
        return
    header = (*_HEADER, "ORIGIN") if verbose else _HEADER
    cells = []
    for row in rows:
        verified = row["verified"]
        line = [
            row["name"],
            row["bounds"],
            row["summary"],
            str(row["registers"] or "-"),
            str(row["smem_bytes"]),
            "yes" if row["built"] else "no" if row["why_not_built"] == "new" else f"no ({row['why_not_built']})",
            f"{verified['device']}, {verified['date']}" if verified else "no",
        ]
        cells.append([*line, row["origin"]] if verbose else line)
    common.print_table(header, cells)


def _print_skipped(selection: common.Selection, as_json: bool, quiet: bool) -> None:
    rows = [
        {"name": variant.name, "kind": kind, "reason": reason, "origin": str(variant.origin)}
        for kind, cells in (("excluded", selection.matrix.excluded), ("skipped", selection.matrix.skipped))
        for variant, reason in cells
    ]
    if as_json:
        common.print_json(rows)
    elif rows:
        common.print_table(("NAME", "KIND", "REASON"), [(row["name"], row["kind"], row["reason"]) for row in rows])
    elif not quiet:
        click.echo("nothing is left out", err=True)

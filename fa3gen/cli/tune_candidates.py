"""``fa3gen tune candidates``"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fa3gen import build
from fa3gen.build import KernelBuild, Paths, Report, Status
from fa3gen.cli import common
from fa3gen.errors import ExitCode
from fa3gen.tune.candidates import Candidate, Search, given, search


@click.command("candidates")
@common.select_options
@common.config_option
@common.build_dir_option
@click.option("--out", type=click.Path(path_type=Path), help="The bundle's folder.  [default: BUILD_DIR/candidates]")
@click.option("--limit", type=click.IntRange(1), default=24, show_default=True, help="Candidates of a kernel at most.")
@click.option(
    "--over",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Drop plans whose bound is so many percent above the best.",
)
@click.option(
    "--plan",
    "wanted",
    multiple=True,
    metavar="FIELD=VALUE,...",
    callback=lambda context, parameter, values: [_fields(value) for value in values],
    help="Instead of a search: try the plan that differs so from the present one; may be repeated.",
)
@click.option("-j", "--jobs", type=click.IntRange(1), help="Compiler processes.  [default: usable cores]")
@click.option("--dry-run", is_flag=True, help="Only list the candidates.")
@common.json_option
@common.verbosity_options
def command(
    select: tuple[str, ...],
    preset: str | None,
    config: Path,
    build_dir: Path,
    out: Path | None,
    limit: int,
    over: float,
    wanted: list[dict[str, str]],
    jobs: int | None,
    dry_run: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Build candidate plans of the selected kernels into a bundle for `fa3gen tune run`.

    The first candidate of a kernel is the plan that it has now.  A candidate that fails to build is listed with the
    reason, and left out of the bundle.
    """
    selection = common.load(config, select, preset)
    variants = dict.fromkeys(plan.variant for plan in selection.plans)
    searches = [given(variant, wanted) if wanted else search(variant, over / 100, limit) for variant in variants]
    chosen = {candidate.name: candidate for found in searches for candidate in found.candidates}
    builds: Sequence[KernelBuild] = []
    report = None
    if not dry_run:
        paths = Paths.under(build_dir, out or build_dir / "candidates")
        plans = [candidate.plan for candidate in chosen.values()]
        builds = build.prepare(plans, paths, selection.matrix.toolchain)
        show = _progress(len(builds), quiet)
        toolchain = selection.matrix.toolchain
        report = build.run(builds, paths, toolchain, workers=jobs, keep_going=True, candidates=True, progress=show)
    rows = [_row(candidate, builds) for candidate in chosen.values()]
    if as_json:
        common.print_json({"searches": [_document(found) for found in searches], "candidates": rows})
    elif not quiet:
        _print(searches, rows, report)
    return int(ExitCode.OK if report is None or report.bundle is not None else ExitCode.FINDINGS)


def _fields(text: str) -> dict[str, str]:
    """``tile_n=64,stages=4`` as a mapping."""
    pairs = [pair.split("=") for pair in text.split(",")]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise click.BadParameter(f"{text!r} is not written like tile_n=64,stages=4")
    return dict(pairs)


def _progress(total: int, quiet: bool) -> build.Progress:
    done = []

    def show(kernel: KernelBuild) -> None:
        done.append(kernel)
        if not quiet and kernel.status is not Status.UP_TO_DATE:
            click.echo(f"{len(done)}/{total} {kernel.name}: {kernel.status.value}", err=True)

    return show


def _row(candidate: Candidate, builds: Sequence[KernelBuild]) -> dict[str, Any]:
    kernel = next((kernel for kernel in builds if kernel.name == candidate.name), None)
    resources = kernel.resources if kernel is not None else None
    return {
        "name": candidate.name,
        "current": candidate.current,
        "bound": candidate.budget.binding,
        "tflops": round(candidate.budget.tflops(), 1),
        "status": kernel.status.value if kernel is not None else "not built",
        "reason": kernel.reason if kernel is not None and kernel.status is Status.FAILED else "",
        "advisories": list(resources.advisories) if resources is not None else [],
        "plan": candidate.plan.to_json(),
    }


def _document(found: Search) -> dict[str, Any]:
    return {
        "kernel": found.variant.name,
        "combinations": found.combinations,
        "legal": found.legal,
        "near": found.near,
        "candidates": len(found.candidates),
    }


def _print(searches: Sequence[Search], rows: Sequence[Mapping[str, Any]], report: Report | None) -> None:
    header = ("CANDIDATE", "BOUND", "TFLOP/S AT MOST", "STATUS")
    common.print_table(header, [(r["name"], r["bound"], f"{r['tflops']:.0f}", _status(r)) for r in rows])
    click.echo()
    for found in searches:
        click.echo(
            f"{found.variant.name}: {found.combinations} combinations, {found.legal} legal, {found.near} near the best"
            f" bound, {len(found.candidates)} chosen"
        )
    failed = [row for row in rows if row["status"] == Status.FAILED.value]
    if failed:
        click.echo(f"{common.plural(len(failed), 'candidate')} left out: they failed to build")
    if report is not None and report.bundle is not None:
        size = common.file_size(report.bundle.size)
        click.echo(f"{report.bundle.path}: {common.plural(report.bundle.kernels, 'candidate')}, {size}")
        click.echo(f"  next: fa3gen tune run --bundle {report.bundle.path}  (on a Hopper machine)")


def _status(row: Mapping[str, Any]) -> str:
    advisories = [f"{code} x{times}" for code, times in Counter(row["advisories"]).items()]
    words = [row["status"], *advisories, *["now"] * row["current"]]
    return " ".join(words) + (f": {'; '.join(row['reason'].splitlines())}" if row["reason"] else "")

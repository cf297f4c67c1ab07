"""``fa3gen build``"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fa3gen import build
from fa3gen.build import KernelBuild, Paths, Report, Status
from fa3gen.cli import common
from fa3gen.errors import ExitCode


@click.command()
@common.select_options
@common.config_option
@common.build_dir_option
@click.option("--out", type=click.Path(path_type=Path), help="The bundle's folder.  [default: BUILD_DIR/bundle]")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Compiler processes.  [default: usable cores]")
@click.option("--force", is_flag=True, help="Compile kernels that are up to date, too.")
@click.option("--keep-going", is_flag=True, help="Write the bundle without the kernels that fail.")
@click.option("--dry-run", is_flag=True, help="Say what would be compiled, and why.")
@common.json_option
@common.verbosity_options
def command(
    select: tuple[str, ...],
    preset: str | None,
    config: Path,
    build_dir: Path,
    out: Path | None,
    jobs: int | None,
    force: bool,
    keep_going: bool,
    dry_run: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Compile kernels and pack them into a bundle.

    The bundle holds exactly the kernels that SELECT (names or globs) and --preset name; all of the configuration
    where neither is given.  A variant's name selects all its plans.  Kernels that were compiled before from the same
    input are taken from the store.
    """
    selection = common.load(config, select, preset)
    paths = Paths.under(build_dir, out)
    builds = build.prepare(selection.plans, paths, selection.matrix.toolchain, force)
    if dry_run:
        _print_plan(builds, as_json)
        return int(ExitCode.OK)
    display = _Display(len(builds), verbose, quiet)
    with display:
        report = build.run(
            builds,
            paths,
            selection.matrix.toolchain,
            workers=jobs,
            keep_going=keep_going,
            evidence=common.load_evidence(),
            progress=display.show,
        )
    _print_failures(report)
    if as_json:
        common.print_json(_report_json(report))
    elif not quiet:
        click.echo(_summary(report))
    return int(ExitCode.OK if report.ok else ExitCode.FINDINGS)


class _Display:
    """Progress on stderr: a bar on a terminal, else a line for each kernel."""

    def __init__(self, total: int, verbose: bool, quiet: bool) -> None:
        self.verbose, self.quiet = verbose, quiet
        self.bar: Progress | None = None
        if sys.stderr.isatty() and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task("building", total=total)
        self.context: AbstractContextManager[Any] = self.bar if self.bar is not None else nullcontext()

    def __enter__(self) -> None:
        self.context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)

    def show(self, kernel: KernelBuild) -> None:
        """A kernel is done."""
        if self.bar is not None:
            self.bar.update(self.task, advance=1, description=kernel.name)
        if self.quiet or (kernel.status is Status.UP_TO_DATE and not self.verbose):
            return
        line = _line(kernel)
        if self.bar is None:
            click.echo(line, err=True)
        elif self.verbose or kernel.status is Status.FAILED:
            self.bar.console.print(line, markup=False, highlight=False)


def _line(kernel: KernelBuild) -> str:
    parts = [f"{kernel.name}: {kernel.status.value}"]
    if kernel.status is Status.COMPILED:
        parts.append(f" in {kernel.seconds:.1f} s ({kernel.reason})")
    if kernel.resources is not None:
        parts.append(f", {kernel.resources.registers} registers, {kernel.resources.smem_bytes} bytes of shared memory")
        if kernel.resources.advisories:
            parts.append(f", {' '.join(kernel.resources.advisories)}")
    return "".join(parts)


def _print_failures(report: Report) -> None:
    for kernel in report.kernels:
        if kernel.status is Status.FAILED:
            text = kernel.reason.replace("\n", "\n  ")
            click.echo(f"error: {kernel.name} ({kernel.plan.variant.origin}) failed:\n  {text}", err=True)


def _print_plan(builds: list[KernelBuild], as_json: bool) -> None:
    if as_json:
        common.print_json([{"name": b.name, "status": b.status.value, "reason": b.reason} for b in builds])
        return
    for kernel in builds:
        would = f"would compile ({kernel.reason})" if kernel.status is Status.PENDING else kernel.status.value
        click.echo(f"{kernel.name}: {would}")


def _summary(report: Report) -> str:
    text = ", ".join(
        f"{report.count(status)} {status.value}" for status in (Status.COMPILED, Status.UP_TO_DATE, Status.FAILED)
    )
    text += f" in {report.seconds:.1f} s"
    if report.bundle is None:
        return f"{text}; no bundle written"
    bundle = report.bundle
    state = "" if bundle.changed else ", unchanged"
    return f"{text}; {bundle.path} ({common.plural(bundle.kernels, 'kernel')}, {common.file_size(bundle.size)}{state})"


def _report_json(report: Report) -> dict[str, Any]:
    return {
        "seconds": round(report.seconds, 3),
        "bundle": None
        if report.bundle is None
        else {"path": str(report.bundle.path), "bytes": report.bundle.size, "changed": report.bundle.changed},
        "kernels": [
            {
                "name": kernel.name,
                "status": kernel.status.value,
                "reason": kernel.reason,
                "digest": kernel.digest,
                "resources": kernel.resources.to_json() if kernel.resources else None,
            }
            for kernel in report.kernels
        ],
    }

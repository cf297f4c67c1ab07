"""``fa3gen verify``"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click
from fa3 import contract
from fa3.contract import KernelEntry, Manifest

from fa3gen import evidence
from fa3gen.cli import common
from fa3gen.digest import sha256
from fa3gen.errors import ExitCode, Fa3genError, UsageError
from fa3gen.evidence import State
from fa3gen.model import SUFFIX_MARK
from fa3gen.verify import cases, sanitizer
from fa3gen.verify.cases import Case
from fa3gen.verify.sanitizer import Outcome

if TYPE_CHECKING:
    import torch

    from fa3gen.verify.run import KernelResult


@click.command()
@click.argument("select", nargs=-1, metavar="[SELECT]...")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, file_okay=False),
    default=common.BUILD_DIR / "bundle",
    show_default=True,
    help="The bundle whose kernels are meant.",
)
@click.option(
    "--evidence",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=common.EVIDENCE,
    show_default=True,
    help="Where evidence is kept.",
)
@click.option("--check", is_flag=True, help="Compare the evidence with the bundle's cubins; needs no GPU.")
@click.option("--quick", is_flag=True, help="Run a few cases of each kernel; writes no evidence.")
@click.option("--all", "everything", is_flag=True, help="Run cases that the evidence already has, too.")
@click.option(
    "--sanitizer",
    "tools",
    default="",
    metavar="TOOLS",
    help="Run small cases under compute-sanitizer: memcheck,synccheck,racecheck.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds after which a case counts as hanging, which ends the run.",
)
@click.option("--small", is_flag=True, hidden=True, help="Run the sanitizer's cases; writes no evidence.")
@common.json_option
@common.verbosity_options
def command(
    select: tuple[str, ...],
    bundle: Path,
    folder: Path,
    check: bool,
    quick: bool,
    everything: bool,
    tools: str,
    timeout: float,
    small: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Run the test cases on a GPU and write the evidence; by default what the evidence lacks."""
    manifest = common.read_manifest(bundle)
    kernels = _selected(manifest, select)
    if check:
        _check_cubins(kernels, bundle)
        return _check(kernels, folder, as_json, quiet)
    if tools:
        return _sanitize(kernels, bundle, folder, manifest.arch, tools)
    return _run(kernels, bundle, folder, manifest.arch, quick, small, everything, timeout, as_json, verbose)


def _selected(manifest: Manifest, select: Sequence[str]) -> list[KernelEntry]:
    """The kernels that a pattern matches by their name or by their variant's; all where there is no pattern."""
    for pattern in select:
        if not any(_matches(entry, pattern) for entry in manifest.kernels):
            names = ", ".join(entry.name for entry in manifest.kernels)
            raise UsageError(f"{pattern!r} matches no kernel of the bundle", hint=f"select of {names}")
    return [e for e in manifest.kernels if not select or any(_matches(e, pattern) for pattern in select)]


def _matches(entry: KernelEntry, pattern: str) -> bool:
    variant = entry.name.partition(SUFFIX_MARK)[0]
    return fnmatchcase(entry.name, pattern) or fnmatchcase(variant, pattern)


# --- --check


def _check_cubins(kernels: Sequence[KernelEntry], bundle: Path) -> None:
    """That the cubins are those that the manifest describes, whose digests the evidence is compared with."""
    for entry in kernels:
        file = bundle / entry.cubin
        try:
            found = sha256(file.read_bytes())
        except OSError as error:
            raise Fa3genError(f"{file}: {error.strerror}", hint="run `fa3gen build`") from error
        if found != entry.cubin_sha256:
            what = f"is not the cubin that {contract.MANIFEST} describes: its sha256 differs"
            raise Fa3genError(f"{file} {what}", hint="run `fa3gen build`")


def _check(kernels: Sequence[KernelEntry], folder: Path, as_json: bool, quiet: bool) -> int:
    rows, waiting = evidence.read(folder), evidence.read_pending(folder)
    today = datetime.date.today()
    findings, table = 0, []
    for entry in kernels:
        ids = [case.id for case in cases.for_kernel(entry.key)]
        state = evidence.state(rows.get(entry.name), entry.cubin_sha256, ids)
        note, pending = "", waiting.get(entry.name)
        if pending is not None:
            note = f"pending since {pending.date}: {pending.reason}"
        if pending is not None and pending.expired(today):
            note += f"; older than {evidence.PENDING_DAYS} days"
        excused = pending is not None and not pending.expired(today)
        findings += (state is not State.VERIFIED and not excused) or (pending is not None and not excused)
        table.append((entry.name, state.value, note))
    if as_json:
        common.print_json([{"kernel": name, "state": state, "note": note} for name, state, note in table])
    elif not quiet:
        common.print_table(("KERNEL", "EVIDENCE", "NOTE"), table)
    if findings:
        click.echo(
            f"{common.plural(findings, 'kernel')} without evidence; next: run `fa3gen verify` on a GPU", err=True
        )
    return ExitCode.FINDINGS if findings else ExitCode.OK


# --- on the GPU


def _run(
    kernels: Sequence[KernelEntry],
    bundle: Path,
    folder: Path,
    arch: str,
    quick: bool,
    small: bool,
    everything: bool,
    timeout: float,
    as_json: bool,
    verbose: bool,
) -> int:
    from fa3.runtime import load_bundle

    from fa3gen.verify import run

    where = run.device()
    loaded = load_bundle(bundle)
    rows = evidence.read(folder)
    results = []
    for entry in kernels:
        todo = cases.for_sanitizer(entry.key) if small else _stale(entry, rows, quick, everything)
        start = time.monotonic()
        result = run.kernel(loaded, entry, todo, where, None if small else timeout)
        results.append(result)
        _say(result, time.monotonic() - start, verbose)
        if small:
            continue
        row = _row(rows.get(entry.name), entry, result, where, record=bool(todo) and not quick)
        if row is not None:
            rows[entry.name] = row
            evidence.write(folder, arch, {entry.name: row})
    failed = sum(bool(result.failed) for result in results)
    if as_json:
        common.print_json([_document(result) for result in results])
    else:
        click.echo(f"{len(results) - failed} of {common.plural(len(results), 'kernel')} passed")
    return ExitCode.FINDINGS if failed else ExitCode.OK


def _row(
    old: evidence.Row | None, entry: KernelEntry, result: KernelResult, where: torch.device, record: bool
) -> evidence.Row | None:
    """What the evidence of the kernel becomes; None where it stays as it is."""
    from fa3gen.verify import run

    if not result.failed:
        return evidence.merge(old, run.row(entry, result, where)) if record else None
    if old is None or old["cubin_sha256"] != entry.cubin_sha256:
        return None
    return evidence.without(old, {case.id for case, _ in result.failed})


def _stale(entry: KernelEntry, rows: dict[str, evidence.Row], quick: bool, everything: bool) -> list[Case]:
    wanted = [case for case in cases.for_kernel(entry.key) if case.quick or not quick]
    row = rows.get(entry.name)
    if everything or quick or row is None or row["cubin_sha256"] != entry.cubin_sha256:
        return wanted
    return [case for case in wanted if case.id not in row["cases"]]


def _say(result: KernelResult, seconds: float, verbose: bool) -> None:
    ratio, label = result.worst
    state = "FAILED" if result.failed else "passed"
    count = len(result.passed) + len(result.failed)
    click.echo(
        f"{result.name}: {state}, {len(result.passed)} of {count} cases, worst error {ratio:.2f} of the bound"
        f" ({label}), {seconds:.1f} s",
        err=True,
    )
    for case, problems in result.failed if verbose else result.failed[:5]:
        click.echo(f"  {case.id} {case.label}", err=True)
        for problem in problems:
            click.echo(f"    {problem}", err=True)
    if len(result.failed) > 5 and not verbose:
        click.echo(f"  and {len(result.failed) - 5} more: -v shows them", err=True)


def _document(result: KernelResult) -> dict[str, object]:
    return {
        "kernel": result.name,
        "passed": len(result.passed),
        "worst_ratio": result.worst[0],
        "worst_case": result.worst[1],
        "failed": [{"case": c.id, "label": c.label, "problems": list(p)} for c, p in result.failed],
    }


def _sanitize(kernels: Sequence[KernelEntry], bundle: Path, folder: Path, arch: str, tools: str) -> int:
    wanted = [tool.strip() for tool in tools.split(",") if tool.strip()]
    for tool in wanted:
        if tool not in sanitizer.TOOLS:
            raise UsageError(f"--sanitizer has no tool {tool!r}", hint=f"choose of {', '.join(sanitizer.TOOLS)}")
    rows = evidence.read(folder)
    outcomes: set[Outcome] = set()
    for tool in wanted:
        outcome, output = sanitizer.run(tool, bundle, [entry.name for entry in kernels])
        outcomes.add(outcome)
        click.echo(f"{tool}: {outcome.value} ({common.plural(len(kernels), 'kernel')})", err=True)
        if outcome is not Outcome.CLEAN:
            click.echo("\n".join(output.splitlines()[-40:]), err=True)
            continue
        for entry in kernels:
            row = rows.get(entry.name)
            if row is not None and row["cubin_sha256"] == entry.cubin_sha256:
                rows[entry.name] = {**row, "sanitizer": sorted({*row.get("sanitizer", ()), tool})}
                evidence.write(folder, arch, {entry.name: rows[entry.name]})
    if outcomes & {Outcome.FOUND, Outcome.CASES_FAILED}:
        return ExitCode.FINDINGS
    return ExitCode.MACHINE if Outcome.TOOL_FAILED in outcomes else ExitCode.OK

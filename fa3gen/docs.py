"""The README's table of kernels: written from the configuration, the plans and the evidence.

``python -m fa3gen.docs --write`` brings it up to date; ``--check`` says whether it is, and exits 1 where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from fa3gen import abi, evidence, matrix
from fa3gen.axes import spelled
from fa3gen.errors import ExitCode, Fa3genError
from fa3gen.model import ForwardPlan
from fa3gen.plan import resolve_all

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- kernels: written by `python -m fa3gen.docs --write` -->"
END = "<!-- end of kernels -->"

_HEADER = (
    "kernel",
    "calls",
    "tile (queries x keys)",
    "K/V stages",
    "softmax",
    "scheduler",
    "threads",
    "shared memory",
    "verified",
)


def kernel_table(root: Path = ROOT) -> str:
    """The table in Markdown, a line per kernel of ``variants.yaml`` in the folder ``root``."""
    found = matrix.load(root / "variants.yaml")
    folder = root / "tests" / "evidence"
    records, pending = evidence.read(folder), evidence.read_pending(folder)
    records = {name: record for name, record in records.items() if name not in pending}
    rows = [_row(plan, records) for variant in found.variants for plan in resolve_all(variant)]
    return "\n".join(_line(cells) for cells in (_HEADER, ["---"] * len(_HEADER), *rows)) + "\n"


def updated(text: str, table: str) -> str:
    """``text`` with ``table`` between the markers; raises Fa3genError where they are not there once each."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise Fa3genError(f"the README must hold the lines {BEGIN!r} and {END!r} once each, in this order")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def _row(plan: ForwardPlan, records: Mapping[str, evidence.Row]) -> tuple[str, ...]:
    record = records.get(plan.name)
    return (
        f"`{plan.name}`",
        str(plan.when or ("all others" if plan.priority else "all")),
        f"{plan.tile_m} x {plan.tile_n}",
        str(plan.stages),
        spelled(plan.softmax),
        spelled(plan.scheduler),
        str(plan.threads),
        f"{abi.launch(plan).smem_bytes / 1024:.0f} KB",
        f"{record['device']}, {record['date']}" if record else "no",
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@click.command()
@click.option("--write", "action", flag_value="write", help="Write the table into the README.")
@click.option("--check", "action", flag_value="check", default=True, help="Say whether it is up to date (default).")
def main(action: str) -> None:
    """Keep the README's table of kernels up to date."""
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    expected = updated(text, kernel_table())
    if expected == text:
        return
    if action == "write":
        readme.write_text(expected, "utf-8")
        click.echo("README.md: updated", err=True)
        return
    click.echo("README.md: the table of kernels is out of date\n  next: python -m fa3gen.docs --write", err=True)
    raise SystemExit(int(ExitCode.FINDINGS))


if __name__ == "__main__":
    main()

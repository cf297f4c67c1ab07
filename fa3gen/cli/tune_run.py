"""``fa3gen tune run``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fa3gen.bench import meter, peers, shapes, timing
from fa3gen.bench.peers import Contender
from fa3gen.bench.shapes import Shape
from fa3gen.cli import common
from fa3gen.errors import ExitCode, UsageError
from fa3gen.tune import record

if TYPE_CHECKING:
    from fa3gen.tune.run import Candidate


@click.command("run")
@click.argument("select", nargs=-1, metavar="[SELECT]...")
@click.option(
    "--bundle",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=common.BUILD_DIR / "candidates",
    show_default=True,
    help="The bundle of candidates.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("tune.jsonl"),
    show_default=True,
    help="The file to add results to; what it has already is not measured again.",
)
@click.option("--against", default="", metavar="PEERS", help=f"Others to time: {','.join(peers.PEERS)}.")
@click.option(
    "--seqlen",
    "seqlens",
    type=int,
    multiple=True,
    default=shapes.SEQLENS,
    show_default=True,
    help="Sequence length; may be repeated.",
)
@click.option("--tokens", type=click.IntRange(1), default=shapes.TOKENS, show_default=True, help="Batch x seqlen.")
@click.option("--width", type=click.IntRange(1), default=shapes.WIDTH, show_default=True, help="Heads x head_dim.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Samples of each time.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds after which a candidate counts as hanging, which ends the run.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def command(
    select: tuple[str, ...],
    folder: Path,
    out: Path,
    against: str,
    seqlens: tuple[int, ...],
    tokens: int,
    width: int,
    rounds: int,
    timeout: float,
    quiet: bool,
) -> int:
    """Check the candidates against the reference and time them in turn on a GPU.

    A run that ends early goes on where it was when the command is given again.
    """
    others = [_peer(name.strip()) for name in against.split(",") if name.strip()]
    known = record.read(out)
    timing.machine()  # raises where there is no GPU
    from fa3.runtime.launcher import native

    from fa3gen.tune import run
    from fa3gen.verify.run import device

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    candidates = run.load(folder, select, native())
    options = run.Options(rounds, timeout, out)
    run.check_all(candidates, device(), options, known, say)
    timing.heat()
    say(f"bf16 matmul of {timing.GEMM}³: {timing.ceiling():.0f} TFLOP/s")
    with meter.find() as reader:
        say(f"SM clock and power: {reader.source}")
        run.time_all(candidates, _shapes(candidates, seqlens, tokens, width), others, options, known, say, reader)
    wrong = sum(bool(known.checks[c.name].problems) for c in candidates)
    if not quiet:
        click.echo(f"{common.plural(len(candidates), 'candidate')}, {wrong} of them wrong; {out}")
        click.echo(f"  next: fa3gen tune choose {out}")
    return int(ExitCode.OK)


def _peer(name: str) -> Contender:
    if name not in peers.PEERS:
        raise UsageError(f"--against: unknown peer {name!r}", hint=f"choose of {', '.join(peers.PEERS)}")
    try:
        return peers.peer(name)
    except Exception as error:  # an import can raise anything
        raise UsageError(f"--against: {name} cannot be imported: {timing.first_line(error)}") from error


def _shapes(candidates: list[Candidate], seqlens: tuple[int, ...], tokens: int, width: int) -> list[Shape]:
    """The shapes of each (dtype, head_dim, mask) that a candidate is for."""
    keys = dict.fromkeys((c.entry.key.dtype, int(c.entry.key.head_dim), c.entry.key.mask) for c in candidates)
    return [
        shape
        for dtype, head_dim, mask in keys
        for shape in shapes.grid(dtype, [head_dim], [mask], seqlens, tokens, width)
    ]

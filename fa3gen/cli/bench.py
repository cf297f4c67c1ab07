"""``fa3gen bench``"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click
from fa3.contract import KernelEntry

from fa3gen.bench import bound, peers, report, shapes, timing
from fa3gen.bench.peers import Contender
from fa3gen.bench.report import Columns, Row
from fa3gen.bench.shapes import Shape
from fa3gen.cli import common
from fa3gen.errors import ExitCode, UsageError


@click.command()
@click.option(
    "--bundle",
    "bundles",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    default=[common.BUILD_DIR / "bundle"],
    show_default=True,
    help="The bundle to time; a further one is one more column, named by its folder.",
)
@click.option(
    "--against", default=",".join(peers.PEERS), show_default=True, metavar="PEERS", help="Others to time; may be empty."
)
@click.option("--dtype", type=click.Choice(shapes.DTYPES), default="bf16", show_default=True, help="Element type.")
@click.option(
    "--head-dim",
    "head_dims",
    type=int,
    multiple=True,
    default=shapes.HEAD_DIMS,
    show_default=True,
    help="Head dimension; may be repeated.",
)
@click.option(
    "--mask",
    "masks",
    type=click.Choice(shapes.MASKS),
    multiple=True,
    default=shapes.MASKS,
    show_default=True,
    help="Mask; may be repeated.",
)
@click.option(
    "--seqlen",
    "seqlens",
    type=int,
    multiple=True,
    default=shapes.SEQLENS,
    show_default=True,
    help="Sequence length; may be repeated.",
)
@click.option("--tokens", type=click.IntRange(1), default=16384, show_default=True, help="Batch x seqlen.")
@click.option("--width", type=click.IntRange(1), default=2048, show_default=True, help="Heads x head_dim.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Samples of each time.")
@click.option("--host", is_flag=True, help="Time the host's part of a call instead.")
@click.option("--json", "json_file", type=click.File("w"), help="Write JSON lines to a file, or - for stdout.")
def command(
    bundles: tuple[Path, ...],
    against: str,
    dtype: str,
    head_dims: tuple[int, ...],
    masks: tuple[str, ...],
    seqlens: tuple[int, ...],
    tokens: int,
    width: int,
    rounds: int,
    host: bool,
    json_file: IO[str] | None,
) -> int:
    """Time the kernels against others on a GPU, in turn, and print how they compare with the best of them."""
    names = _peers(against)
    grid = shapes.grid(dtype, head_dims, masks, seqlens, tokens, width)
    output = _Output(json_file)
    columns = Columns(peers.bundle_names(bundles), names)
    output.say(_machine_line(machine := timing.machine()), {"kind": "machine", **machine})
    contenders = _ours(columns.ours, bundles, host, output)
    contenders += _load(names, output)
    if host:
        return _host(columns, contenders, output)
    kernels = {name: peers.kernels(folder) for name, folder in zip(columns.ours, bundles, strict=True)}
    return _throughput(columns, contenders, grid, rounds, kernels, output)


class _Output:
    """Lines for people and records for programs, as they come; where stdout has the records, stderr has the lines."""

    def __init__(self, json_file: IO[str] | None) -> None:
        self._file = json_file
        self._err = json_file is not None and json_file.name == "<stdout>"

    def say(self, text: str, record: dict[str, Any] | None = None) -> None:
        click.echo(text, err=self._err)
        if self._file is not None and record is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()


def _peers(against: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in against.split(",") if name.strip()))
    for name in names:
        if name not in peers.PEERS:
            raise UsageError(f"--against: unknown peer {name!r}", hint=f"choose of {', '.join(peers.PEERS)}")
    return names


def _machine_line(machine: dict[str, str]) -> str:
    versions = ", ".join(f"{name} {machine[name]}" for name in ("driver", "torch", "cuda", "cudnn"))
    return f"{machine['gpu']}, {versions}, {machine['date']}"


def _ours(names: Sequence[str], folders: Sequence[Path], host: bool, output: _Output) -> list[Contender]:
    """The bundles; with ``host`` the first call of each is timed here, before anything else uses its kernel."""
    if host:
        timing.inputs(shapes.TINY)  # the CUDA context is not the bundle's
    found = []
    for name, folder in zip(names, folders, strict=True):
        start = time.perf_counter()
        contender = peers.ours(name, peers.load_bundle(folder))
        load = (time.perf_counter() - start) * 1e3
        found.append(contender)
        if host:
            _first_call(contender, load, output)
    return found


def _first_call(contender: Contender, load: float, output: _Output) -> None:
    try:
        first = timing.first_call(contender, shapes.TINY)
    except Exception as error:
        _failed(contender.name, timing.first_line(error), output)
        return
    record = {"kind": "first_call", "name": contender.name, "load_ms": load, "first_call_ms": first}
    output.say(f"{contender.name}: load_bundle {load:.1f} ms, first call {first:.2f} ms", record)


def _load(names: Sequence[str], output: _Output) -> list[Contender]:
    found = []
    for name in names:
        try:
            found.append(peers.peer(name))
        except Exception as error:  # an import can raise anything
            _failed(name, f"cannot be imported: {timing.first_line(error)}", output)
    return found


def _failed(name: str, error: str, output: _Output) -> None:
    output.say(f"{name} failed: {error}", {"kind": "failure", "name": name, "error": error})


def _host(columns: Columns, contenders: Sequence[Contender], output: _Output) -> int:
    found = timing.host(shapes.TINY, contenders)
    output.say("\n".join(report.host_lines(columns, found)), {"kind": "host", "us": found})
    timed = any(not isinstance(value, str) for times in found.values() for value in times.values())
    return ExitCode.OK if timed else ExitCode.FINDINGS


def _throughput(
    columns: Columns,
    contenders: Sequence[Contender],
    grid: Sequence[Shape],
    rounds: int,
    kernels: Mapping[str, Sequence[KernelEntry]],
    output: _Output,
) -> int:
    _ceiling("start", output)
    rows: list[Row] = []
    said: set[tuple[str, str]] = set()
    for shape in grid:
        if not rows or (rows[-1].shape.head_dim, rows[-1].shape.mask) != (shape.head_dim, shape.mask):
            output.say("\n" + report.heading(columns, shape))
        times = timing.shape(shape, contenders, rounds)
        row = Row(shape, times, _bounds(shape, times, kernels))
        rows.append(row)
        output.say(report.line(columns, row), report.record(columns, row))
        for failure in row.times.errors.items():
            if failure not in said:  # each shape's record has it; people need it once
                said.add(failure)
                output.say(f"  {failure[0]} failed: {failure[1]}")
    output.say("")
    _ceiling("end", output)
    means = report.means(columns, rows)
    output.say("\n".join(report.summary(columns, rows)), {"kind": "summary", "geomean": means})
    return ExitCode.OK if any(row.times.ms for row in rows) else ExitCode.FINDINGS


def _bounds(shape: Shape, times: timing.Times, kernels: Mapping[str, Sequence[KernelEntry]]) -> dict[str, float]:
    """TFLOP/s of each bundle at most, at the clock that the card had; empty where that could not be read."""
    if times.clock_mhz is None:
        return {}
    clock, sms = times.clock_mhz, timing.sms()
    found = {name: bound.tflops(entries, shape, clock, sms) for name, entries in kernels.items()}
    return {name: most for name, most in found.items() if most is not None}


def _ceiling(when: str, output: _Output) -> None:
    try:
        value = timing.ceiling(heat=when == "start")
    except Exception as error:  # the means still come, after a kernel that broke the CUDA context too
        _failed("matmul", timing.first_line(error), output)
        return
    output.say(
        f"bf16 matmul of {timing.GEMM}³, {when}: {value:.0f} TFLOP/s",
        {"kind": "ceiling", "when": when, "tflops": value},
    )

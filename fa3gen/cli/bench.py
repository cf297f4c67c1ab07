"""``fa3gen bench``"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import click

from fa3gen.bench import data, html, meter, peers, report, shapes, timing
from fa3gen.bench.meter import Meter
from fa3gen.bench.peers import Contender
from fa3gen.bench.report import Columns, Layout, Result, Row
from fa3gen.bench.shapes import Shape
from fa3gen.bench.timing import Times
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
@click.option(
    "--shapes",
    "shape_sets",
    default="paper",
    show_default=True,
    metavar="SETS",
    help=f"What to time: {', '.join(shapes.SETS)}, or a file of shapes (YAML or JSON lines; see the README).",
)
@click.option("--dtype", type=click.Choice(shapes.DTYPES), help="Take every shape in this type instead of its own.")
@click.option("--head-dim", "head_dims", type=int, multiple=True, help="Only shapes with it; may be repeated.")
@click.option(
    "--mask", "masks", type=click.Choice(shapes.MASKS), multiple=True, help="Only shapes with it; may be repeated."
)
@click.option(
    "--seqlen", "seqlens", type=int, multiple=True, help="Only shapes with that many queries; may be repeated."
)
@click.option(
    "--data",
    "kinds",
    default=report.NORMAL,
    show_default=True,
    metavar="KINDS",
    help=f"What is in the tensors: {', '.join(data.KINDS)}; several to compare them.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Samples of each time.")
@click.option("--host", is_flag=True, help="Time the host's part of a call instead.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write JSON lines to a file, or - for stdout.",
)
@click.option(
    "--markdown", is_flag=True, help="Print the result as Markdown to stdout; what else is said goes to stderr."
)
@click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a report with plots to a file, which needs nothing else.",
)
def command(
    bundles: tuple[Path, ...],
    against: str,
    shape_sets: str,
    dtype: str | None,
    head_dims: tuple[int, ...],
    masks: tuple[str, ...],
    seqlens: tuple[int, ...],
    kinds: str,
    rounds: int,
    host: bool,
    json_path: str | None,
    markdown: bool,
    html_path: Path | None,
) -> int:
    """Time the kernels against others on a GPU, in turn, and print how they compare with the best of them."""
    if markdown and json_path == "-":
        raise UsageError("--markdown and --json - both write to stdout", hint="give --json a file")
    wanted = _words(against, "--against", "peer", peers.PEERS)
    chosen = _words(kinds, "--data", "kind", data.KINDS) or (report.NORMAL,)
    problems = shapes.only(_shapes(shape_sets, dtype), head_dims, masks, seqlens)
    context = click.get_current_context()
    json_file = None if json_path is None else context.with_resource(click.open_file(json_path, "w", "utf-8"))
    html_file = None if html_path is None else context.with_resource(html_path.open("w", encoding="utf-8"))
    output = _Output(json_file, err=json_path == "-" or markdown)
    names = peers.bundle_names(bundles)
    facts = timing.machine()
    output.say(_machine_line(facts), {"kind": "machine", **facts})
    contenders = _ours(names, bundles, host, output)
    others = _load(wanted, output)
    columns = Columns(names, tuple(other.name for other in others))
    if host:
        return _host(columns, contenders + others, output)
    with meter.find() as reader:
        output.say(f"SM clock and power: {reader.source}", {"kind": "meter", "source": reader.source})
        layout = Layout.of(columns, problems, chosen, reader.works)
        run = _Run(contenders + others, rounds, reader, layout, output)
        result, notes = run(shapes.grouped(problems))
    if markdown:
        click.echo(report.markdown(result, _machine_line(facts)))
    if html_file is not None:
        html_file.write(html.page(result, _machine_line(facts), notes))
    return ExitCode.OK if any(row.times.ms for row in result.rows) else ExitCode.FINDINGS


class _Output:
    """Lines for people and records for programs, as they come; with ``err``, lines go to stderr."""

    def __init__(self, json_file: IO[str] | None, err: bool) -> None:
        self._file = json_file
        self._err = err

    def say(self, text: str, record: dict[str, Any] | None = None) -> None:
        click.echo(text, err=self._err)
        if self._file is not None and record is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()


def _words(text: str, option: str, what: str, known: Collection[str]) -> tuple[str, ...]:
    """The words of a list with commas, each once."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in words:
        if word not in known:
            raise UsageError(f"{option}: unknown {what} {word!r}", hint=f"choose of {', '.join(known)}")
    return words


def _shapes(sets: str, dtype: str | None) -> list[Shape]:
    names = [word.strip() for word in sets.split(",") if word.strip()]
    found = [shape for name in names for shape in shapes.named(name)]
    return found if dtype is None else [replace(shape, dtype=dtype) for shape in found]


def _machine_line(machine: dict[str, str]) -> str:
    versions = ", ".join(f"{name} {machine[name]}" for name in ("driver", "torch", "cuda", "cudnn"))
    return f"{machine['gpu']}, {versions}, {machine['date']}"


def _ours(names: Sequence[str], folders: Sequence[Path], host: bool, output: _Output) -> list[Contender]:
    """The bundles; with ``host`` the first call of each is timed here, before anything else uses its kernel."""
    if host:
        data.make(shapes.TINY)  # the CUDA context is not the bundle's
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
        except peers.NotInstalled as error:
            output.say(f"{name} is not installed, skipped: {error}", {"kind": "skipped", "name": name})
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


@dataclass(frozen=True)
class _Run:
    """The timing of shapes."""

    contenders: Sequence[Contender]
    rounds: int
    meter: Meter
    layout: Layout
    output: _Output

    def __call__(self, problems: Sequence[Shape]) -> tuple[Result, list[str]]:
        """All rows, and what is to be said of the run as a whole."""
        rows: list[Row] = []
        result = Result(self.layout.columns, rows)
        notes = [f"SM clock and power: {self.meter.source}"]
        said: set[str] = set()
        group = ""
        notes += self._ceiling("start")
        for problem in problems:
            hot = problem.group == group
            if not hot:
                group = problem.group
                self.output.say("\n" + self.layout.heading(group))
            found = timing.shape(problem, self.contenders, self.rounds, self.layout.kinds, self.meter, hot)
            for kind, times in found.items():
                row = Row(problem, times, kind)
                rows.append(row)
                self.output.say(self.layout.line(result, row), report.record(result, row))
            for line in _remarks(found.values()):
                if line not in said:  # each shape's record has it; people need it once
                    said.add(line)
                    self.output.say(f"  {line}")
        self.output.say("")
        notes += self._ceiling("end")
        self.output.say("\n".join(["", *report.summary(result)]), report.summary_record(result))
        return result, notes + sorted(said)

    def _ceiling(self, when: str) -> list[str]:
        try:
            if when == "start":
                timing.heat()
            value = timing.ceiling()
        except Exception as error:  # the means still come, after a kernel that broke the CUDA context too
            _failed("matmul", timing.first_line(error), self.output)
            return []
        line = f"bf16 matmul of {timing.GEMM}³, {when}: {value:.0f} TFLOP/s"
        self.output.say(line, {"kind": "ceiling", "when": when, "tflops": value})
        return [line]


def _remarks(found: Iterable[Times]) -> list[str]:
    """Why there are empty cells."""
    lines = []
    for times in found:
        lines += [f"{name} is not asked: {reason}" for name, reason in times.unsupported.items()]
        lines += [f"{name} failed: {error}" for name, error in times.errors.items()]
    return list(dict.fromkeys(lines))

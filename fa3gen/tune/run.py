"""Checks candidates against the reference and times them in turn, on a GPU."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from fa3 import contract
from fa3.choice import kernel_name
from fa3.contract import KernelEntry
from fa3.runtime import Bundle
from fa3.runtime.launcher import Launcher

from fa3gen.bench import data, peers, timing
from fa3gen.bench.meter import Meter
from fa3gen.bench.peers import Contender
from fa3gen.bench.report import NORMAL
from fa3gen.bench.shapes import Shape
from fa3gen.errors import Fa3genError, MachineError, UsageError
from fa3gen.tune import record
from fa3gen.tune.record import Check, Records, Time
from fa3gen.verify import run as verification
from fa3gen.verify.cases import Case

#: What each candidate must get right: tails of both lengths, few query rows per key, maxima that grow from block to
#: block, several tiles for each CTA, rows that see no key.  `fa3gen verify` runs everything on what is chosen.
CASES = (
    Case(113, 203, 1, 4, 2),
    Case(777, 777, 1, 2, 1, values="growing"),
    Case(500, 700, 2, 4, 2, ctas=2),
    Case(1000, 200, 1, 2, 2),
    Case(777, 777, 1, 2, 1, values="outlier"),
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    entry: KernelEntry
    variant: str
    bundle: Bundle  # in which the candidate is the only kernel, so that calls reach it

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def current(self) -> bool:
        """Whether it is the plan that the variant has now."""
        return self.name == self.variant


@dataclass(frozen=True)
class Options:
    rounds: int
    timeout: float  # seconds of a check or of a first call
    out: Path


def load(folder: Path, select: Sequence[str], native: Launcher) -> list[Candidate]:
    """The candidates of a bundle that a pattern matches; several may answer the same calls."""
    file = folder / contract.MANIFEST
    try:
        manifest = contract.manifest_from_json(json.loads(file.read_text("utf-8")))
    except OSError as error:
        raise MachineError(f"no bundle at {folder}: {error.strerror}", hint="run `fa3gen tune candidates`") from error
    except ValueError as error:
        raise UsageError(f"{file}: {error}", hint="run `fa3gen tune candidates`") from error
    found = []
    for entry in manifest.kernels:
        variant = kernel_name(entry.key, manifest.arch)
        if select and not any(fnmatchcase(name, pattern) for name in (entry.name, variant) for pattern in select):
            continue
        if hashlib.sha256((folder / entry.cubin).read_bytes()).hexdigest() != entry.cubin_sha256:
            raise UsageError(f"{folder / entry.cubin} is not the cubin of the manifest", hint="copy the bundle again")
        alone = replace(manifest, kernels=(entry,))
        found.append(Candidate(entry, variant, Bundle(folder.resolve(), alone, native)))
    if not found:
        raise UsageError(f"{' '.join(select)} matches no candidate of {folder}", hint="`fa3gen tune candidates`")
    return found


def check_all(
    candidates: Sequence[Candidate], device: torch.device, options: Options, known: Records, say: Say
) -> None:
    """Runs :data:`CASES` on every candidate whose cubin has no check yet."""
    for candidate in candidates:
        if known.check(candidate.name, candidate.entry.cubin_sha256) is None:
            found = _check(candidate, device, options)
            known.add(found)
            record.append(options.out, found)
            say(f"{candidate.name}: {'; '.join(found.problems) or 'right'}")
            _require_context(f"{candidate.name} failed, and with it the device")


def time_all(
    candidates: Sequence[Candidate],
    shapes: Sequence[Shape],
    others: Sequence[Contender],
    options: Options,
    known: Records,
    say: Say,
    meter: Meter | None = None,
) -> None:
    """Times the candidates that are right, all of a variant in one rotation, on every shape that they lack."""
    machine = timing.machine()
    for shape in shapes:
        mine = _right(candidates, shape, known)
        todo = [c for c in mine if (c.name, shape) not in known.times]
        for candidate in todo:
            _first_call(candidate, shape, options, known)
        todo = _right(todo, shape, known)
        if not todo:
            continue
        rotation = [c for c in mine if c.current or c in todo]
        contenders = [*(peers.ours(c.name, c.bundle) for c in rotation), *others]
        names = ", ".join(c.name for c in rotation)
        with verification.deadline(options.timeout * len(contenders), f"timing {_label(shape)} of {names}"):
            times = timing.shape(shape, contenders, options.rounds, meter=meter)[NORMAL]
        _require_context(f"{_label(shape)}: the device failed while these were timed: {names}")
        current_ms = next((times.ms.get(c.name) for c in rotation if c.current), None)
        beside = {other.name: times.ms[other.name] for other in others if other.name in times.ms}
        for candidate in todo:
            if candidate.name in times.ms:
                ms, digest = times.ms[candidate.name], candidate.entry.cubin_sha256
                where = machine["gpu"], machine["date"], times.clock_mhz.get(candidate.name)
                found = Time(candidate.name, digest, shape, ms, current_ms, *where, beside)
                known.add(found)
                record.append(options.out, found)
        for name, error in times.errors.items():
            say(f"{_label(shape)}: {name} failed: {error}")
        say(_summary(shape, todo, known))


def _right(candidates: Sequence[Candidate], shape: Shape, known: Records) -> list[Candidate]:
    """Those for ``shape`` whose results are right."""
    return [c for c in candidates if _fits(c, shape) and not _problems(c, known)]


def _problems(candidate: Candidate, known: Records) -> tuple[str, ...]:
    found = known.check(candidate.name, candidate.entry.cubin_sha256)
    return ("not checked",) if found is None else found.problems


def _fits(candidate: Candidate, shape: Shape) -> bool:
    key = candidate.entry.key
    return (key.dtype, key.head_dim, key.mask) == (shape.dtype, shape.dims, shape.mask)


def _check(candidate: Candidate, device: torch.device, options: Options) -> Check:
    with verification.deadline(options.timeout, candidate.name, lambda: _hangs(candidate, options, "in the checks")):
        result = verification.kernel(candidate.bundle, candidate.entry, CASES, device)
    return _as_check(candidate, tuple(f"{case.label}: {p[0]}" for case, p in result.failed))


def _hangs(candidate: Candidate, options: Options, where: str) -> None:
    """Leaves word, so that the next run passes the candidate over."""
    record.append(options.out, _as_check(candidate, (f"hangs {where}",)))


def _as_check(candidate: Candidate, problems: tuple[str, ...]) -> Check:
    entry = candidate.entry
    return Check(candidate.name, candidate.variant, entry.cubin_sha256, entry.plan, problems)


def _first_call(candidate: Candidate, shape: Shape, options: Options, known: Records) -> None:
    """A call to see whether it comes back; what it raises is found again when it is timed."""
    what = f"{candidate.name}: {_label(shape)}"
    q, k, v = data.make(shape)
    with verification.deadline(options.timeout, what, lambda: _hangs(candidate, options, f"at {_label(shape)}")):
        try:
            with torch.no_grad():
                peers.ours(candidate.name, candidate.bundle).prepare(q, k, v, shape.causal)(1)
        except Exception as error:
            found = _as_check(candidate, (f"{_label(shape)}: {timing.first_line(error)}",))
            known.add(found)
            record.append(options.out, found)
        _require_context(f"{what} failed, and with it the device")


def _require_context(what: str) -> None:
    """Raises where the CUDA context is lost: everything after that would fail in this process."""
    try:
        torch.cuda.synchronize()
    except Exception as error:
        hint = "run the command again: it goes on behind what has a record"
        raise Fa3genError(f"{what}: {timing.first_line(error)}", hint=hint) from error


def _label(shape: Shape) -> str:
    return f"{shape.group} {shape.label}"


def _summary(shape: Shape, timed: Sequence[Candidate], known: Records) -> str:
    """The fastest of those that were timed, against the present plan."""
    found = [known.times[c.name, shape] for c in timed if (c.name, shape) in known.times]
    if not found:
        return f"{_label(shape)}: none of {len(timed)} has a time"
    best = max(found, key=lambda time: time.tflops)
    ratio = "" if best.ratio is None else f", {best.ratio:.3f} of the present plan"
    return f"{_label(shape)}: {len(found)} timed, best {best.candidate}: {best.tflops:.0f} TFLOP/s{ratio}"

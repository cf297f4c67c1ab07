"""What a GPU showed, kept per kernel and cubin: ``tests/evidence/<arch>/<family>.jsonl``, a row a kernel.

Written by ``fa3gen verify`` alone.  ``pending.txt`` beside it names kernels that wait for their next GPU run, a line
each: kernel, date, reason.  Standard library only.
"""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from fa3gen.errors import Fa3genError

SCHEMA = 1
PENDING = "pending.txt"
#: Days after which a pending line is an error.
PENDING_DAYS = 14

Row = Mapping[str, Any]


class State(str, Enum):
    VERIFIED = "verified"
    CHANGED = "kernel changed"  # the record is of another cubin
    CASES_NOT_RUN = "cases not run"
    NEVER_RUN = "never run"


@dataclass(frozen=True)
class Pending:
    date: datetime.date
    reason: str

    def expired(self, today: datetime.date) -> bool:
        return (today - self.date).days > PENDING_DAYS


class EvidenceError(Fa3genError):
    """A file of evidence is damaged."""


def read(folder: Path) -> dict[str, Row]:
    """The rows below ``folder`` by kernel; raises EvidenceError."""
    rows: dict[str, Row] = {}
    for file in sorted(folder.glob("*/*.jsonl")):
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            row = _parse(file, number, line)
            if row["kernel"] in rows:
                raise EvidenceError(f"{file}:{number}: a second row of {row['kernel']}", hint="run `fa3gen verify`")
            rows[row["kernel"]] = row
    return rows


def _parse(file: Path, number: int, line: str) -> Row:
    try:
        row = json.loads(line)
        if row["schema"] != SCHEMA:
            raise ValueError(f"schema {row['schema']}, allowed: {SCHEMA}")
        for name in ("kernel", "cubin_sha256", "cases", "device", "date"):
            row[name]
    except (ValueError, KeyError, TypeError) as error:
        hint = "take the line out and run `fa3gen verify`"
        raise EvidenceError(f"{file}:{number}: no row of evidence ({error!r})", hint=hint) from error
    return dict(row)


def merge(old: Row | None, new: Row) -> Row:
    """``new`` together with what ``old`` has beyond it, where that is of the same cubin."""
    if old is None or old["cubin_sha256"] != new["cubin_sha256"]:
        return new
    merged = {
        **new,
        "cases": sorted({*old["cases"], *new["cases"]}),
        "sanitizer": sorted({*old.get("sanitizer", ()), *new.get("sanitizer", ())}),
        "cuda_graph": bool(old.get("cuda_graph") or new.get("cuda_graph")),
    }
    if "numerics" in old and "numerics" in new:
        before, now = old["numerics"], new["numerics"]
        again = len({*old["cases"]} & {*new["cases"]})  # what is run again, which is all or nothing, counts once
        worst = max(before, now, key=_worst_ratio)
        merged["numerics"] = {**worst, "cases": max(now["cases"], before["cases"] + now["cases"] - again)}
    return merged


def _worst_ratio(numerics: Mapping[str, Any]) -> float:
    return float(numerics["worst_ratio"])


def without(row: Row, failed: Collection[str]) -> Row:
    """``row`` less the cases that have ``failed`` since, so that the kernel no longer counts as verified."""
    return {**row, "cases": [case for case in row["cases"] if case not in failed]}


def write(folder: Path, arch: str, rows: Mapping[str, Row]) -> None:
    """Puts ``rows`` into the files of their families, which stay sorted; other rows of those files are kept."""
    kept = read(folder)
    for name, row in rows.items():
        kept[name] = row
    families = {name.split("_", 1)[0] for name in rows}
    for family in sorted(families):
        lines = [_line(kept[name]) for name in sorted(kept) if name.split("_", 1)[0] == family]
        _replace(folder / arch / f"{family}.jsonl", "".join(lines))


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _replace(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    Path(name).chmod(0o644)
    Path(name).replace(file)


def read_pending(folder: Path) -> dict[str, Pending]:
    """The lines of ``pending.txt``; raises EvidenceError."""
    file = folder / PENDING
    found: dict[str, Pending] = {}
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(maxsplit=2)
        try:
            kernel, date, reason = words
            found[kernel] = Pending(datetime.date.fromisoformat(date), reason)
        except ValueError as error:
            raise EvidenceError(f"{file}:{number}: not `kernel date reason`: {line!r}") from error
    return found


def state(row: Row | None, cubin_sha256: str, case_ids: Collection[str]) -> State:
    """What the record of a kernel says of the cubin ``cubin_sha256``, which must pass ``case_ids``."""
    if row is None:
        return State.NEVER_RUN
    if row["cubin_sha256"] != cubin_sha256:
        return State.CHANGED
    return State.VERIFIED if set(case_ids) <= set(row["cases"]) else State.CASES_NOT_RUN

"""Evidence: what its files hold, and what they say of a cubin."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from fa3gen import evidence
from fa3gen.evidence import EvidenceError, State

NAME = "fwd_bf16_d128_causal_sm90a"


def _row(**changes: Any) -> dict[str, Any]:
    row = {"schema": 1, "kernel": NAME, "cubin_sha256": "aa", "cases": ["1", "2"], "device": "H200"}
    return {**row, "date": "2026-01-31", "sanitizer": [], **changes}


def test_the_four_states() -> None:
    assert evidence.state(None, "aa", ["1"]) is State.NEVER_RUN
    assert evidence.state(_row(), "bb", ["1"]) is State.CHANGED
    assert evidence.state(_row(), "aa", ["1", "3"]) is State.CASES_NOT_RUN
    assert evidence.state(_row(), "aa", ["2", "1"]) is State.VERIFIED


def test_written_rows_are_read_back_sorted(tmp_path: Path) -> None:
    names = ["fwd_c", "fwd_a", "fwd_b"]
    evidence.write(tmp_path, "sm90a", {name: _row(kernel=name) for name in names[:2]})
    evidence.write(tmp_path, "sm90a", {"fwd_b": _row(kernel="fwd_b")})
    lines = (tmp_path / "sm90a" / "fwd.jsonl").read_text().splitlines()
    assert [json.loads(line)["kernel"] for line in lines] == sorted(names)
    assert evidence.read(tmp_path)["fwd_b"] == _row(kernel="fwd_b")
    assert [path.name for path in (tmp_path / "sm90a").iterdir()] == ["fwd.jsonl"]


def test_merging_keeps_cases_of_the_same_cubin_only() -> None:
    old = _row(cases=["1"], sanitizer=["memcheck"])
    same = evidence.merge(old, _row(cases=["3"]))
    assert (same["cases"], same["sanitizer"]) == (["1", "3"], ["memcheck"])
    other = evidence.merge(old, _row(cases=["3"], cubin_sha256="bb"))
    assert (other["cases"], other["sanitizer"]) == (["3"], [])


@pytest.mark.parametrize("line", ["{", "[]", '{"schema": 2}', json.dumps({"schema": 1, "kernel": NAME})])
def test_a_damaged_row_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "sm90a").mkdir()
    (tmp_path / "sm90a" / "fwd.jsonl").write_text(json.dumps(_row()) + "\n" + line + "\n")
    with pytest.raises(EvidenceError, match=r"fwd\.jsonl:2"):
        evidence.read(tmp_path)


def test_a_second_row_of_a_kernel_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "sm90a").mkdir()
    (tmp_path / "sm90a" / "fwd.jsonl").write_text((json.dumps(_row()) + "\n") * 2)
    with pytest.raises(EvidenceError, match="second row"):
        evidence.read(tmp_path)


def test_pending_lines(tmp_path: Path) -> None:
    assert evidence.read_pending(tmp_path) == {}
    (tmp_path / "pending.txt").write_text(f"# a comment\n\n{NAME} 2026-01-10 new tile order\n")
    line = evidence.read_pending(tmp_path)[NAME]
    assert line.reason == "new tile order"
    assert not line.expired(datetime.date(2026, 1, 24))
    assert line.expired(datetime.date(2026, 1, 25))


@pytest.mark.parametrize("line", [NAME, f"{NAME} 2026-01-10", f"{NAME} yesterday because"])
def test_a_pending_line_without_date_or_reason_is_an_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "pending.txt").write_text(line + "\n")
    with pytest.raises(EvidenceError, match=r"pending\.txt:1"):
        evidence.read_pending(tmp_path)

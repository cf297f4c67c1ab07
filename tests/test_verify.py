"""Verification: the cases that a kernel must pass, their ids, and `fa3gen verify` without a GPU."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from fa3 import contract
from fa3.contract import KernelEntry, Key, Launch, Manifest

from fa3gen import evidence
from fa3gen.cli import verify as command_module
from fa3gen.digest import sha256
from fa3gen.errors import Fa3genError
from fa3gen.verify import cases, inputs, sanitizer
from fa3gen.verify.cases import Case
from fa3gen.verify.sanitizer import Outcome
from fa3gen.verify.source import closure

KEY = Key("fwd", "bf16", "64", "causal", "dense")
NAME = "fwd_bf16_d64_causal_sm90a"
CASES = cases.for_kernel(KEY)
NUMERICS = [case for case in CASES if case.check == "numerics"]
TODAY = datetime.date.today()


# --- cases


@pytest.mark.parametrize("seqlen", [1, 2, 63, 64, 65, 113, 127, 129, 200, 1000, 4096])
def test_each_length_is_run_alone_and_mixed(seqlen: int) -> None:
    assert any(case.seqlen_q == case.seqlen_k == seqlen for case in NUMERICS)
    assert any(case.seqlen_q == seqlen != case.seqlen_k for case in NUMERICS)
    assert any(case.seqlen_k == seqlen != case.seqlen_q for case in NUMERICS)


def test_ratios_batches_layouts_and_values() -> None:
    assert {case.heads_q // case.heads_k for case in NUMERICS} >= {1, 3, 4, 7, 8}
    assert {case.batch for case in NUMERICS} >= set(range(8))
    assert {case.layout for case in NUMERICS} == set(inputs.LAYOUTS) - set(cases.ONE_HEAD_DIM.values())
    assert {case.values for case in NUMERICS} == set(inputs.VALUES)
    assert any(case.seqlen_q > case.seqlen_k > 0 for case in NUMERICS)
    assert any(case.seqlen_k == 0 < case.seqlen_q for case in NUMERICS)
    assert {case.check for case in CASES} == {"numerics", "graphs", "streams", "threads"}


def test_ids_are_unique_and_depend_on_the_problem_only() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    case = Case(64, 65)
    assert replace(case, quick=True).id == case.id
    changes: dict[str, Any] = {"seqlen_q": 3, "seqlen_k": 3, "batch": 3, "heads_q": 4, "layout": "padded"}
    changes |= {"values": "large", "heads_k": 1, "softmax_scale": 2.0, "ctas": 3, "check": "graphs"}
    for name, value in changes.items():
        assert replace(case, **{name: value}).id != case.id, name


def test_an_id_depends_on_the_judge_but_not_on_comments() -> None:
    source = "def judge():\n    return bound()\n\n\ndef bound():\n    return 2\n\n\ndef other():\n    return 3\n"
    text = closure(source, "judge")
    assert closure(source.replace("return 3", "return 4"), "judge") == text
    assert closure(source.replace("return 2", "# why\n    return 2"), "judge") == text
    assert closure(source.replace("return 2", "return 9"), "judge") != text


def test_of_a_table_only_the_picked_entry_counts() -> None:
    source = (
        "def judge():\n    return TABLE[key]\n\n\nTABLE: dict[str, Any] = {\n    'a': one,\n    'b': wrapped(two),\n}\n"
        "\n\ndef one():\n    return 1\n\n\ndef two():\n    return 2\n\n\ndef wrapped(f):\n    return f\n"
    )
    text = closure(source, "judge", {"TABLE": "b"})
    assert "TABLE = wrapped(two)" in text
    assert "def two" in text
    assert "def one" not in text
    assert "one" not in closure(source, "judge", {"TABLE": "c"})
    assert "def one" in closure(source, "judge")
    with pytest.raises(TypeError, match="no dict"):
        closure("def judge():\n    return TABLE\n\n\nTABLE = [1]\n", "judge", {"TABLE": "b"})


def _ids(monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str) -> dict[Case, str]:
    """The ids as they would be after a change of a file of fa3gen.verify."""
    original = cases._source

    def changed(path: Path) -> str:
        text = original(path)
        assert path.name != file or old in text
        return text.replace(old, new) if path.name == file else text

    cases._judges.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(cases, "_source", changed)
        found = {case: case.id for case in CASES}
    cases._judges.cache_clear()
    return found


@pytest.mark.parametrize(
    ("file", "old", "new", "touched"),
    [
        ("inputs.py", '"large": _large,', '"large": _large,\n    "tiny": _large,', lambda case: False),
        ("inputs.py", '"packed": _packed,', '"packed": _packed,\n    "new": _packed,', lambda case: False),
        ("inputs.py", "v + 100", "v + 101", lambda case: case.values == "offset"),
        ("inputs.py", "torch.cat((q, k, v)", "torch.cat([q, k, v]", lambda case: case.layout == "packed"),
        ("inputs.py", "60.0, 0.1)", "61.0, 0.1)", lambda case: case.values == "growing"),
        ("inputs.py", "manual_seed(case.seed)", "manual_seed(1)", lambda case: True),
        ("inputs.py", "POISON = 0x7FFF", "POISON = 0x7FFE", lambda case: case.check == "numerics"),
        ("inputs.py", "view.transpose(1, 2)", "view.mT", lambda case: case.layout == "heads_first"),
        ("numerics.py", "2.0**-6", "2.0**-7", lambda case: case.check == "numerics"),
        ("numerics.py", "torch.int16, 4", "torch.int8, 4", lambda case: True),
        ("behaviour.py", "for calls in (1, 3)", "for calls in (1, 4)", lambda case: case.check == "graphs"),
        ("reference.py", "1 << 26", "1 << 25", lambda case: case.check == "numerics"),
    ],
)
def test_a_change_touches_only_the_cases_that_use_it(
    file: str, old: str, new: str, touched: Callable[[Case], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {case: case.id for case in CASES}
    after = _ids(monkeypatch, file, old, new)
    wrong = [case.label for case in CASES if (before[case] != after[case]) != touched(case)]
    assert wrong == []


def test_an_option_that_is_not_given_is_no_part_of_a_case() -> None:
    assert Case(64, 65)._fields().keys() == {
        *("seqlen_q", "seqlen_k", "batch", "heads_q", "heads_k", "layout", "values", "check")
    }


# --- inputs and outputs


def test_outputs_show_what_was_not_written_and_what_was_overwritten() -> None:
    for dtype, layout in ((torch.bfloat16, "contiguous"), (torch.bfloat16, "heads_first"), (torch.float32, "padded")):
        guard = inputs.guarded((2, 3, 4, 64) if layout != "padded" else (2, 3, 5), dtype, torch.device("cpu"), layout)
        assert (guard.unwritten(), guard.touched()) == (guard.view.numel(), 0)
        guard.view.fill_(1)
        assert (guard.unwritten(), guard.touched()) == (0, 0)
        guard.view.as_strided((1,), (1,), guard.view.storage_offset() - 1).fill_(1)
        assert guard.touched() == dtype.itemsize // 2


@pytest.mark.parametrize("layout", [name for name in inputs.LAYOUTS if name != "far"])
def test_layouts_hold_the_same_values(layout: str) -> None:
    case = Case(7, 7, 2, 4, 2, values="large")
    device = torch.device("cpu")
    plain = inputs.make(case, torch.bfloat16, 64, 64, device)
    placed = inputs.LAYOUTS[layout](*plain)
    for name in inputs.Inputs._fields:
        ours, theirs = getattr(placed, name), getattr(plain, name)
        assert ours.shape == theirs.shape
        if not layout.startswith("shared") or name == "q":
            assert torch.equal(ours, theirs)


def test_every_layout_can_be_made_where_the_head_dims_differ() -> None:
    differing = cases.for_kernel(KEY._replace(head_dim="192x128"))
    layouts = {case.layout for case in differing}
    assert layouts == set(inputs.LAYOUTS) - set(cases.ONE_HEAD_DIM)
    for layout in sorted(layouts - {"far"}):
        plain = inputs.make(Case(7, 7, 2, 4, 2), torch.bfloat16, 192, 128, torch.device("cpu"))
        placed = inputs.LAYOUTS[layout](*plain)
        assert [tensor.shape[3] for tensor in placed] == [192, 192, 128]
        assert layout.startswith("shared") or all(map(torch.equal, placed, plain))


# --- the command


CUBIN = b"machine code"
SHA256 = sha256(CUBIN)


def _bundle(folder: Path) -> Path:
    launch = Launch(256, 0, "persistent", 64)
    entry = KernelEntry(NAME, NAME + "_0", KEY, "a.cubin", SHA256, len(CUBIN), (), (), (), (), launch)
    manifest = Manifest("sm90a", {}, (entry,))
    folder.mkdir(exist_ok=True)
    (folder / entry.cubin).write_bytes(CUBIN)
    (folder / contract.MANIFEST).write_text(json.dumps(contract.manifest_to_json(manifest)))
    return folder


def _evidence(folder: Path, **changes: Any) -> None:
    row = {"schema": 1, "kernel": NAME, "cubin_sha256": SHA256, "cases": [case.id for case in CASES]}
    evidence.write(folder, "sm90a", {NAME: {**row, "device": "H200", "date": "2026-01-31", **changes}})


def _verify(tmp_path: Path, *options: str) -> Result:
    arguments = ["--bundle", str(tmp_path / "bundle"), "--evidence", str(tmp_path / "evidence"), *options]
    return CliRunner().invoke(command_module.command, arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("changes", "state"),
    [({}, "verified"), ({"cubin_sha256": "bb"}, "kernel changed"), ({"cases": []}, "cases not run")],
)
def test_check_tells_the_state(tmp_path: Path, changes: dict[str, Any], state: str) -> None:
    _bundle(tmp_path / "bundle")
    _evidence(tmp_path / "evidence", **changes)
    result = _verify(tmp_path, "--check", "--json")
    assert json.loads(result.stdout) == [{"kernel": NAME, "state": state, "note": ""}]
    assert result.return_value == (0 if state == "verified" else 1)


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_check_looks_at_the_cubins_themselves(tmp_path: Path, damage: str) -> None:
    cubin = _bundle(tmp_path / "bundle") / "a.cubin"
    _evidence(tmp_path / "evidence")
    assert _verify(tmp_path, "--check").return_value == 0
    cubin.write_bytes(b"other code") if damage == "changed" else cubin.unlink()
    result = _verify(tmp_path, "--check")
    assert isinstance(result.exception, Fa3genError)
    assert result.exception.exit_code == 1
    assert str(cubin) in str(result.exception)


@pytest.mark.parametrize(("age", "code"), [(0, 0), (14, 0), (15, 1)])
def test_a_pending_kernel_is_excused_for_two_weeks(tmp_path: Path, age: int, code: int) -> None:
    _bundle(tmp_path / "bundle")
    (tmp_path / "evidence").mkdir()
    since = TODAY - datetime.timedelta(days=age)
    (tmp_path / "evidence" / "pending.txt").write_text(f"{NAME} {since} new tile order\n")
    result = _verify(tmp_path, "--check")
    assert result.return_value == code
    assert "never run" in result.stdout
    assert "new tile order" in result.stdout


@pytest.mark.parametrize("options", [["--check", "no_such_*"], ["--sanitizer", "leakcheck"]])
def test_wrong_words_are_named(tmp_path: Path, options: list[str]) -> None:
    _bundle(tmp_path / "bundle")
    result = _verify(tmp_path, *options)
    assert isinstance(result.exception, Fa3genError)
    assert options[1] in str(result.exception)


def test_no_bundle_says_what_to_run(tmp_path: Path) -> None:
    result = _verify(tmp_path, "--check")
    assert isinstance(result.exception, Fa3genError)
    assert "fa3gen build" in str(result.exception)


# --- compute-sanitizer

_CLEAN = "12 of 12 kernels passed\n========= ERROR SUMMARY: 0 errors\n"
_NO_HAZARD = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
_HAZARD = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
_CRASH = "========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception\n"


@pytest.mark.parametrize(
    ("code", "output", "outcome"),
    [
        (0, _CLEAN, Outcome.CLEAN),
        (0, _NO_HAZARD, Outcome.CLEAN),
        (86, "========= ERROR SUMMARY: 3 errors\n", Outcome.FOUND),
        (86, "========= ERROR SUMMARY: 1 error\n", Outcome.FOUND),
        (0, _HAZARD, Outcome.FOUND),
        (1, _CLEAN, Outcome.CASES_FAILED),
        (0, "12 of 12 kernels passed\n", Outcome.TOOL_FAILED),
        (255, _CRASH, Outcome.TOOL_FAILED),
        (1, _CRASH + _NO_HAZARD, Outcome.TOOL_FAILED),
    ],
)
def test_what_a_run_of_the_sanitizer_means(code: int, output: str, outcome: Outcome) -> None:
    assert sanitizer.judge(code, output) is outcome


def test_the_sanitizer_looks_at_every_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", _CLEAN)

    monkeypatch.setattr(sanitizer, "find", lambda: "compute-sanitizer")
    monkeypatch.setattr(subprocess, "run", run)
    assert sanitizer.run("memcheck", tmp_path, [NAME]) == (Outcome.CLEAN, _CLEAN)
    (command,) = commands
    options = command[: command.index(sys.executable)]
    assert options == ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "86"]
    assert command[-2:] == ["--small", NAME]


@pytest.mark.parametrize(
    ("outcomes", "code", "recorded"),
    [
        ({"memcheck": Outcome.CLEAN, "racecheck": Outcome.TOOL_FAILED}, 3, ["memcheck"]),
        ({"memcheck": Outcome.FOUND, "racecheck": Outcome.TOOL_FAILED}, 1, []),
        ({"memcheck": Outcome.CLEAN, "synccheck": Outcome.CLEAN}, 0, ["memcheck", "synccheck"]),
        ({"synccheck": Outcome.CASES_FAILED}, 1, []),
    ],
)
def test_only_clean_runs_of_the_sanitizer_are_recorded(
    outcomes: dict[str, Outcome], code: int, recorded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _bundle(tmp_path / "bundle")
    _evidence(tmp_path / "evidence", sanitizer=[])
    monkeypatch.setattr(sanitizer, "run", lambda tool, *_: sanitizer.Result(outcomes[tool], "text"))
    result = _verify(tmp_path, "--sanitizer", ",".join(outcomes))
    assert result.return_value == code
    assert all(f"{tool}: {outcome.value} (1 kernel)" in result.stderr for tool, outcome in outcomes.items())
    assert evidence.read(tmp_path / "evidence")[NAME]["sanitizer"] == recorded

"""The judge of kernels: right ones pass, and each kind of fault is found and located.  Without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from fa3.contract import Key
from fa3.runtime import launcher, load_bundle
from torch import Tensor

from fa3gen import evidence
from fa3gen.cli import verify as command_module
from fa3gen.verify import cases, numerics, run
from fa3gen.verify.cases import Case
from fa3gen.verify.target import Target
from tests.runtime_bundle import FakeLauncher, write_bundle

KEY = Key("fwd", "bf16", "64", "causal", "dense")
NAME = "fwd_bf16_d64_causal_sm90a"
CPU = torch.device("cpu")
#: Rows 0 to 9 see no key.
CASE = Case(20, 10, 2, 4, 2)

#: Changes what a right launch wrote: gets out, lse and the launch's number, from 0.
Fault = Callable[[Tensor, Tensor | None, int], None]


class _Faulty(FakeLauncher):
    """The reference, and then ``fault``."""

    fault: Fault | None = None

    def prepare(self, bundle: Any, name: str, device: int) -> Callable[..., None]:
        right = super().prepare(bundle, name, device)

        def launch(*arguments: Any) -> None:
            right(*arguments)
            if self.fault is not None:
                self.fault(arguments[5], arguments[6], len(self.calls) - 1)

        return launch


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> _Faulty:
    fake = _Faulty()
    monkeypatch.setattr(launcher, "native", lambda: fake)
    return fake


@pytest.fixture
def target(native: _Faulty, tmp_path: Path) -> Target:
    write_bundle(tmp_path / "bundle", [KEY])
    bundle = load_bundle(tmp_path / "bundle", default=False)
    return Target(bundle.manifest.kernels[0], bundle, CPU)


@pytest.mark.parametrize(
    "case",
    [
        CASE,
        *(Case(9, 9, layout=layout) for layout in ("heads_first", "padded", "packed", "paired", "shared_heads")),
        *(Case(7, 90, values=values) for values in ("large", "growing", "negative", "offset", "constant")),
        *(Case(*lengths) for lengths in ((5, 0), (0, 5), (1, 1))),
        Case(1, 9, 1, 1, 1, layout="odd_ones"),
        Case(9, 9, batch=0),
        Case(9, 9, ctas=2, softmax_scale=0.5),
    ],
    ids=lambda case: case.label,
)
def test_a_right_kernel_passes(target: Target, case: Case) -> None:
    verdict = numerics.check(target, case)
    assert verdict.problems == ()
    assert verdict.ratio <= 1.0


def test_margin_is_what_the_case_leaves(target: Target, native: _Faulty) -> None:
    numerics.check(target, Case(9, 9, ctas=2))
    assert {call.sm_margin for call in native.calls} == {native.NUM_SMS - 2}


def _set(name: str, place: tuple[int, ...], value: float, launches: tuple[int, ...] = (0, 1, 2)) -> Fault:
    def fault(out: Tensor, lse: Tensor | None, launch: int) -> None:
        tensor = out if name == "out" else lse
        if tensor is not None and launch in launches:
            tensor[place] = value

    return fault


def _outside(out: Tensor, lse: Tensor | None, launch: int) -> None:
    """The element behind the output, where the output is in a buffer."""
    if launch < 2:
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(1.0)


def _lse_outside(out: Tensor, lse: Tensor | None, launch: int) -> None:
    if launch == 1 and lse is not None:
        lse.as_strided((1,), (1,), lse.storage_offset() - 1).fill_(1.0)


def _unwritten(out: Tensor, lse: Tensor | None, launch: int) -> None:
    out.view(torch.int16)[1, 15, 2] = 0x7FFF


def _shifted(out: Tensor, lse: Tensor | None, launch: int) -> None:
    out[:, 10:] *= 1.05


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (_set("out", (1, 15, 2, 33), 7.0), r"out: 1 of \d+ off by over .* first \(1, 15, 2, 33\) is 7 "),
        (_set("out", (0, 12, 1, 5), torch.nan), r"out: 1 of \d+ NaN; .* first \(0, 12, 1, 5\)"),
        (_set("out", (0, 12, 1, 5), torch.inf), r"out: 1 of \d+ infinite"),
        (_set("out", (1, 3, 0, 0), 1e-6), r"out: 1 of \d+ not 0 in rows that see no key"),
        (_set("lse", (1, 2, 15), 40.0), r"lse: 1 of \d+ off by over 1e-3; .* first \(1, 2, 15\) is 40 "),
        (_set("lse", (1, 2, 15), torch.nan), r"lse: 1 of \d+ off by over 1e-3"),
        (_set("lse", (0, 1, 3), 0.0), r"lse: 1 of \d+ not -inf in rows that see no key"),
        (_set("out", (1, 3, 0, 0), -0.0, launches=(1,)), r"out: 1 of \d+ not what the first run gave"),
        (_set("out", (1, 15, 2, 33), 7.0, launches=(2,)), r"out: 1 of \d+ not what the first run gave"),
        (_set("lse", (1, 2, 15), 40.0, launches=(1,)), r"lse: 1 of \d+ not what the first run gave"),
        (_outside, r"out: 1 words around it overwritten"),
        (_lse_outside, r"lse: \d+ words around it overwritten"),
        (_unwritten, r"out: 64 of its elements not written"),
        (_shifted, r"out: \d+ of \d+ off by over"),
    ],
)
def test_a_fault_is_found_and_located(target: Target, native: _Faulty, fault: Fault, expected: str) -> None:
    native.fault = fault
    problems = "\n".join(numerics.check(target, CASE).problems)
    assert re.search(expected, problems), problems


# --- runs and what they leave


def test_a_case_that_raises_has_failed_and_the_next_one_runs(target: Target, native: _Faulty) -> None:
    native.failure = RuntimeError("no such launch")
    result = run.kernel(target.bundle, target.entry, [CASE], CPU)
    assert not result.passed
    assert "no such launch" in result.failed[0][1][0]
    native.failure = None
    assert run.kernel(target.bundle, target.entry, [CASE, Case(3, 3)], CPU).passed == [CASE, Case(3, 3)]


FURTHER = (("__n64", {"max_seqlen_k": 3}), ("__n96", {"max_batch": 1}))


@pytest.mark.parametrize("end", ["", "__n64", "__n96"])
def test_each_plan_runs_all_cases_whatever_its_bounds(native: _Faulty, tmp_path: Path, end: str) -> None:
    write_bundle(tmp_path / "several", [KEY], FURTHER)
    bundle = load_bundle(tmp_path / "several", default=False)
    (entry,) = (entry for entry in bundle.manifest.kernels if entry.name == NAME + end)
    wanted = [CASE, Case(3, 3), Case(3, 3, batch=1), Case(5, 0)]
    assert run.kernel(bundle, entry, wanted, CPU).passed == wanted
    assert {call.kernel for call in native.calls} == {entry.name}
    assert len(native.calls) >= 3 * len(wanted)


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        (NAME, ["", "__n64", "__n96"]),
        ("*_d64_*_sm90a", ["", "__n64", "__n96"]),
        (f"{NAME}__n6*", ["__n64"]),
        ("*__*", ["__n64", "__n96"]),
    ],
)
def test_a_pattern_matches_the_variant_or_the_plan(
    on_cpu: Path, native: _Faulty, pattern: str, chosen: list[str]
) -> None:
    write_bundle(on_cpu / "bundle", [KEY], FURTHER)
    names = [NAME + end for end in chosen]
    assert _verify(on_cpu, pattern) == 0
    assert [*evidence.read(on_cpu / "evidence")] == names
    assert {call.kernel for call in native.calls} == {*names}
    assert _verify(on_cpu, pattern, "--check") == 0
    assert _verify(on_cpu, "--check") == (len(names) < 3)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch, target: Target, tmp_path: Path) -> Path:
    """`fa3gen verify` on the CPU, with two cases; the folder above the bundle."""
    chosen = (CASE, Case(5, 5, quick=True))
    monkeypatch.setattr(cases, "for_kernel", lambda _key: chosen)
    monkeypatch.setattr(run, "device", lambda: CPU)
    monkeypatch.setattr(run, "machine", lambda _where: {"device": "none", "date": "2026-01-31"})
    return tmp_path


def _verify(folder: Path, *options: str) -> int:
    arguments = ["--bundle", str(folder / "bundle"), "--evidence", str(folder / "evidence"), *options]
    return int(CliRunner().invoke(command_module.command, arguments, standalone_mode=False).return_value)


def test_a_run_is_recorded_and_not_repeated(on_cpu: Path, native: _Faulty) -> None:
    assert _verify(on_cpu, "--check") == 1
    assert _verify(on_cpu) == 0
    row = evidence.read(on_cpu / "evidence")[NAME]
    assert row["numerics"]["cases"] == len(row["cases"]) == 2
    assert _verify(on_cpu, "--check") == 0
    launches = len(native.calls)
    assert _verify(on_cpu) == 0
    assert len(native.calls) == launches
    assert _verify(on_cpu, "--all") == 0
    assert len(native.calls) == 2 * launches


def test_a_new_case_adds_to_the_record(on_cpu: Path) -> None:
    assert _verify(on_cpu) == 0
    first = dict(evidence.read(on_cpu / "evidence")[NAME])
    # as if the second case were new, the first had been the worst, and a graph had been captured
    known = {"cases": [CASE.id], "numerics": {**first["numerics"], "cases": 1, "worst_ratio": 9.0}, "cuda_graph": True}
    evidence.write(on_cpu / "evidence", "sm90a", {NAME: {**first, **known}})
    assert _verify(on_cpu) == 0
    row = evidence.read(on_cpu / "evidence")[NAME]
    assert row["cases"] == first["cases"]
    assert (row["numerics"]["cases"], row["numerics"]["worst_ratio"], row["cuda_graph"]) == (2, 9.0, True)


def test_quick_records_nothing(on_cpu: Path) -> None:
    assert _verify(on_cpu, "--quick") == 0
    assert evidence.read(on_cpu / "evidence") == {}


@pytest.mark.parametrize("options", [("--all",), ("--quick",)])
def test_a_kernel_that_fails_later_is_no_longer_verified(
    on_cpu: Path, native: _Faulty, options: tuple[str, ...]
) -> None:
    assert _verify(on_cpu) == 0
    native.fault = _set("out", (0, 4, 0, 0), torch.nan, launches=tuple(range(99)))
    assert _verify(on_cpu, *options) == 1
    assert _verify(on_cpu, "--check") == 1


def test_a_kernel_that_fails_at_once_leaves_no_record(on_cpu: Path, native: _Faulty) -> None:
    native.fault = _shifted
    assert _verify(on_cpu) == 1
    assert evidence.read(on_cpu / "evidence") == {}


def test_a_case_that_hangs_ends_the_process() -> None:
    program = (
        "import time\nfrom fa3gen.verify import run\n"
        "with run.deadline(60, 'quick'): pass\n"
        "with run.deadline(0.2, 'case 1'): time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=_environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: case 1 hangs: not done within 0.2 s\n"


def _environment() -> dict[str, str]:
    root = Path(__file__).parents[1]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "runtime")])}

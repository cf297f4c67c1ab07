"""What doctor makes of a machine; the machine itself is stubbed."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import CliRunner

from fa3gen import doctor
from fa3gen.cli import doctor as command
from fa3gen.doctor import Check
from fa3gen.errors import ExitCode

HAS = Check("torch", "2", needed=True, ok=True)
LACKS_GPU = Check("gpu", "", needed=True, ok=False, hint="use one")
LACKS_COMPILER = Check("c++ compiler", "", needed=False, ok=False, hint="only for building")


@pytest.mark.parametrize(
    ("checks", "code"),
    [((HAS,), ExitCode.OK), ((HAS, LACKS_COMPILER), ExitCode.OK), ((HAS, LACKS_GPU), ExitCode.MACHINE)],
)
def test_exit_code_follows_what_the_runtime_needs(
    checks: tuple[Check, ...], code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "checks", lambda _bundle: checks)
    assert command.command.main([], standalone_mode=False) == code


def test_text_and_json_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "checks", lambda _bundle: (HAS, LACKS_COMPILER, LACKS_GPU))
    text = CliRunner().invoke(command.command, []).stdout
    assert "FAILED  gpu           missing: use one" in text
    assert text.endswith("the runtime cannot run here: gpu\n")
    document = json.loads(CliRunner().invoke(command.command, ["--json"]).stdout)
    assert document["runs"] is False
    assert [check["name"] for check in document["checks"]] == ["torch", "c++ compiler", "gpu"]


def test_a_machine_without_gpu_bundle_or_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    found = {check.name: check for check in doctor.checks(tmp_path)}
    assert found["gpu"].fatal
    assert "no CUDA device" in found["gpu"].hint
    assert not found["bundle"].ok
    assert "holds no bundle" in found["bundle"].hint
    assert not found["bundle"].fatal
    assert not found["c++ compiler"].ok


def test_runtime_as_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("fa3gen.doctor.metadata.version", missing)
    found = {check.name: check for check in doctor.checks(tmp_path)}
    assert found["fa3-runtime"].found == "not installed, found as source"
    assert found["torch"].fatal


def test_a_gpu_that_no_kernel_runs_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Old GPU")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 0))
    gpu = next(check for check in doctor.checks(tmp_path) if check.name == "gpu")
    assert gpu.fatal
    assert "Old GPU, compute capability 8.0; the runtime serves 9.0" in gpu.hint

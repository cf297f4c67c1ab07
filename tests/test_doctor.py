"""What doctor makes of a machine; the machine itself is stubbed."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fa3.contract import Key
from fa3.runtime import launcher

from fa3gen import doctor, evidence
from fa3gen.cli import doctor as command
from fa3gen.doctor import Check
from fa3gen.errors import ExitCode
from fa3gen.verify import cases
from tests.runtime_bundle import FakeLauncher, write_bundle

HAS = Check("python", "3", ok=True, tasks=("build", "verify"))
LACKS_GPU = Check("gpu", "", ok=False, tasks=("verify",), hint="use one")
LACKS_DSL = Check("dsl", "", ok=False, tasks=("build",), hint="install it")
LACKS_COMPILER = Check("c++ compiler", "", ok=False, hint="only for the launcher")


@pytest.mark.parametrize(
    ("checks", "options", "code"),
    [
        ((HAS,), [], ExitCode.OK),
        ((HAS, LACKS_COMPILER), ["--for", "build", "--for", "verify"], ExitCode.OK),
        ((HAS, LACKS_GPU), [], ExitCode.OK),
        ((HAS, LACKS_GPU), ["--for", "build"], ExitCode.OK),
        ((HAS, LACKS_GPU), ["--for", "verify"], ExitCode.MACHINE),
        ((HAS, LACKS_DSL), [], ExitCode.OK),
        ((HAS, LACKS_DSL), ["--for", "build", "--for", "verify"], ExitCode.MACHINE),
        ((HAS, LACKS_DSL, LACKS_GPU), [], ExitCode.MACHINE),
    ],
)
def test_a_machine_needs_to_be_good_for_something(
    checks: tuple[Check, ...], options: list[str], code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "checks", lambda *_: checks)
    assert command.command.main(options, standalone_mode=False) == code


def test_text_and_json_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "checks", lambda *_: (HAS, LACKS_COMPILER, LACKS_GPU))
    text = CliRunner().invoke(command.command, []).stdout
    assert "missing  gpu           none (to verify): use one\n" in text
    assert "-        c++ compiler  none: only for the launcher\n" in text
    assert text.endswith(
        "this machine can build kernels\nthis machine cannot run and verify kernels, for lack of: gpu\n"
    )
    document = json.loads(CliRunner().invoke(command.command, ["--json"]).stdout)
    assert document["can"] == {"build": True, "verify": False}
    assert [check["name"] for check in document["checks"]] == ["python", "c++ compiler", "gpu"]


def _checks(bundle: Path, records: Path | None = None) -> dict[str, Check]:
    return {check.name: check for check in doctor.checks(bundle, records or bundle)}


def test_a_machine_without_gpu_bundle_or_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    found = _checks(tmp_path)
    assert "no CUDA device" in found["gpu"].hint
    assert not found["bundle"].ok
    assert "holds no bundle" in found["bundle"].hint
    assert not found["evidence"].ok
    assert not found["c++ compiler"].ok
    assert doctor.missing(found.values(), "build") == ()
    assert "gpu" in doctor.missing(found.values(), "verify")


def test_a_machine_without_the_kernel_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fa3gen.toolchain.installed", dict)
    assert doctor.missing(_checks(tmp_path).values(), "build") == ("nvidia-cutlass-dsl",)


def test_packages_as_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("fa3gen.doctor.metadata.version", missing)
    found = _checks(tmp_path)
    for name in ("fa3gen", "fa3-runtime"):
        assert found[name].found == "not installed, found as source"
    assert {"torch", "apache-tvm-ffi"} <= {*doctor.missing(found.values(), "verify")}


def test_a_gpu_that_no_kernel_runs_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Old GPU")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 0))
    gpu = _checks(tmp_path)["gpu"]
    assert not gpu.ok
    assert gpu.tasks == ("verify",)
    assert "Old GPU, compute capability 8.0; the runtime serves 9.0" in gpu.hint


def test_the_bundle_and_its_evidence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launcher, "native", FakeLauncher)
    keys = [Key("fwd", "bf16", head_dim, "full", "dense") for head_dim in ("64", "128", "256")]
    kernels = write_bundle(tmp_path / "bundle", keys).kernels
    row: dict[str, Any] = {"schema": evidence.SCHEMA, "device": "H200", "date": "2026-01-31"}
    row["cases"] = [case.id for case in cases.for_kernel(keys[0])]
    rows = [{**row, "kernel": kernel.name, "cubin_sha256": kernel.cubin_sha256} for kernel in kernels]
    rows[1]["cubin_sha256"] = "another"
    evidence.write(tmp_path / "evidence", "sm90a", {rows[i]["kernel"]: rows[i] for i in (0, 1)})
    found = _checks(tmp_path / "bundle", tmp_path / "evidence")
    assert found["bundle"].found.endswith("3 kernels for sm90a")
    assert found["evidence"].found == "verified 1 of 3, 1 kernel changed, 1 never run"

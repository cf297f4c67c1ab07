"""``fa3gen explain`` on a bundle without cubins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fa3.contract import MANIFEST, Key, manifest_to_json
from fa3.runtime import explain, launcher, load_bundle

from fa3gen.cli import main
from tests.runtime_bundle import ARCH, FakeLauncher, write_bundle

KEYS = [Key("fwd", dtype, dims, "causal", "dense") for dtype in ("bf16", "fp16") for dims in ("64", "192x128")]
GENERAL = f"fwd_bf16_d64_causal_{ARCH}"
CALL = ["--head-dim", "64", "--seqlen-q", "100", "--heads-q", "8", "--causal"]


class Result(NamedTuple):
    code: object
    out: str
    err: str


class Shell:
    def __init__(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.bundle = bundle
        self.capsys = capsys

    def __call__(self, *options: str) -> Result:
        with pytest.raises(SystemExit) as exited:
            main(["explain", "--bundle", str(self.bundle), *options])
        return Result(exited.value.code, *self.capsys.readouterr())


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    write_bundle(tmp_path / "bundle", KEYS, [("__n64", {"max_seqlen_k": 2047})])
    return Shell(tmp_path / "bundle", capsys)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (CALL, (1, 100, 100, 8, 8)),
        ([*CALL, "--seqlen-k", "4096", "--heads-k", "2", "--batch", "3"], (3, 100, 4096, 8, 2)),
        ([*CALL, "--no-causal"], (1, 100, 100, 8, 8)),
        (["--seqlen-q", "0", "--heads-q", "1", "--causal", "--head-dim", "192x128"], (1, 0, 0, 1, 1)),
        ([*CALL, "--dtype", "fp16"], (1, 100, 100, 8, 8)),
    ],
)
def test_it_says_what_the_runtime_says(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, options: list[str], sizes: tuple[int, ...]
) -> None:
    monkeypatch.setattr(launcher, "native", FakeLauncher)
    batch, seqlen_q, seqlen_k, heads_q, heads_k = sizes
    dims = (192, 128) if "192x128" in options else (64, 64)
    dtype = torch.float16 if "fp16" in options else torch.bfloat16
    q, k, v = (
        torch.empty(shape, dtype=dtype, device="meta")
        for shape in (
            (batch, seqlen_q, heads_q, dims[0]),
            (batch, seqlen_k, heads_k, dims[0]),
            (batch, seqlen_k, heads_k, dims[1]),
        )
    )
    expected = explain(q, k, v, causal="--no-causal" not in options, bundle=load_bundle(shell.bundle, default=False))
    code = 0 if expected.kernel else 1
    assert shell(*options) == (code, f"{expected}\n", "")
    result = shell(*options, "--json")
    assert (result.code, json.loads(result.out)) == (code, json.loads(json.dumps(expected.to_json())))


def test_the_plan_follows_the_extents(shell: Shell) -> None:
    assert shell(*CALL, "--seqlen-k", "2047").out.startswith(f"{GENERAL}__n64\n")
    result = shell(*CALL, "--seqlen-k", "2048")
    assert result.out.startswith(f"{GENERAL}\n")
    assert "passed over  n64, for calls with seqlen_k <= 2047: seqlen_k 2048 is above 2047" in result.out


def test_no_kernel_is_a_finding(shell: Shell) -> None:
    result = shell(*CALL, "--no-causal")
    assert (result.code, result.err) == (1, "")
    assert result.out.startswith(f"no kernel: bundle {shell.bundle} holds no kernel for fwd: dtype bf16, head_dim 64")
    assert f"near: {GENERAL} (mask causal, not full)" in result.out
    assert "- {dtype: bf16, head_dim: 64, mask: full, layout: dense}" in result.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*CALL, "--heads-k", "3"], "--heads-q 8 is no multiple of --heads-k 3"),
        ([*CALL, "--head-dim", "64x"], "--head-dim: head_dim '64x' is not spelled like 128 or 192x128"),
        ([*CALL, "--head-dim", "64x64"], "equal dims are spelled 64"),
        ([*CALL, "--seqlen-k", "-1"], "--seqlen-k"),
        ([*CALL, "--dtype", "fp64"], "--dtype"),
        (CALL[2:], "--head-dim"),
    ],
)
def test_wrong_usage(shell: Shell, options: list[str], message: str) -> None:
    result = shell(*options)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_bundle_that_is_none(shell: Shell) -> None:
    manifest = write_bundle(shell.bundle, KEYS[:1])
    twice = replace(manifest, kernels=(*manifest.kernels, replace(manifest.kernels[0], name="twin")))
    (shell.bundle / MANIFEST).write_text(json.dumps(manifest_to_json(twice)))
    result = shell(*CALL)
    assert (result.code, result.out) == (2, "")
    assert f"kernels {GENERAL} and twin answer the same calls\n  next: run `fa3gen build`" in result.err
    (shell.bundle / MANIFEST).write_text("{}")
    assert shell(*CALL).code == 2
    (shell.bundle / MANIFEST).unlink()
    result = shell(*CALL)
    assert result.code == 3
    assert (
        result.err
        == f"error: no bundle at {shell.bundle}: No such file or directory\n  next: run `fa3gen build` first\n"
    )

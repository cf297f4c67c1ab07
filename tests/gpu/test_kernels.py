"""Every kernel of build/bundle on a GPU: the quick cases, graphs, streams and threads; and a C program.

`fa3gen verify` runs all cases and keeps the record; this is the same checks under pytest.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from fa3 import contract
from fa3.runtime import launcher, load_bundle

from fa3gen.verify import cases, run

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "build" / "bundle"
LIBRARIES = launcher.LIBRARY.parent

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a Hopper GPU"),
    pytest.mark.skipif(not BUNDLE.is_dir(), reason="needs a built bundle: run `fa3gen build`"),
]


def _names() -> list[str]:
    file = BUNDLE / contract.MANIFEST
    document = json.loads(file.read_text("utf-8")) if file.is_file() else {"kernels": []}
    return [entry["name"] for entry in document["kernels"]]


@pytest.mark.parametrize("name", _names())
def test_kernel(name: str) -> None:
    bundle = load_bundle(BUNDLE, default=False)
    (entry,) = [entry for entry in bundle.manifest.kernels if entry.name == name]
    chosen = [case for case in cases.for_kernel(entry.key) if case.quick or case.check != "numerics"]
    assert {case.check for case in chosen} == set(run.CHECKS)
    result = run.kernel(bundle, entry, chosen, run.device(), timeout=60)
    assert result.failed == []
    assert len(result.passed) == len(chosen)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that uses fa3.h and libfa3 alone."""
    path = tmp_path_factory.mktemp("c") / "use_fa3"
    source = ROOT / "tests" / "native" / "use_fa3.c"
    words = ["cc", "-std=c11", f"-I{LIBRARIES}", str(source), "-o", str(path), str(LIBRARIES / "libfa3.so")]
    subprocess.run([*words, f"-Wl,-rpath,{LIBRARIES}", "-ldl", "-lm"], check=True)
    return path


@pytest.mark.parametrize("name", _names())
def test_c_program(program: Path, name: str) -> None:
    done = subprocess.run([program, BUNDLE, name, "run"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}: worst error ")

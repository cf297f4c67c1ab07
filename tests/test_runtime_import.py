"""What importing the runtime brings along, and what it needs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[1] / "runtime"


def run(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``code`` in a fresh interpreter that finds the runtime but not the generator."""
    kept = {name: value for name, value in os.environ.items() if name not in ("FA3_BUNDLE", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=kept | {"PYTHONPATH": str(RUNTIME), **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_import_brings_no_generator_along(tmp_path: Path) -> None:
    code = (
        "import sys, fa3.runtime\n"
        "kept_out = ('cutlass', 'jinja2', 'yaml', 'click', 'pydantic', 'rich', 'fa3gen', 'tvm_ffi')\n"
        "print([name for name in kept_out if name in sys.modules])"
    )
    result = run(code, tmp_path)
    assert (result.stdout, result.returncode) == ("[]\n", 0), result.stderr


def test_import_without_torch_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys\nsys.modules['torch'] = None\nimport fa3.contract\nimport fa3.runtime"
    result = run(code, tmp_path)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last == (
        "ModuleNotFoundError: fa3.runtime needs PyTorch: install torch for your CUDA version, "
        'or pip install "fa3-runtime[torch]"'
    )


def test_another_missing_module_is_not_taken_for_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import absent_module")
    result = run("import fa3.runtime", tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{RUNTIME}")
    assert result.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'absent_module'"


@pytest.mark.parametrize("name", ["choice", "contract", "explanation"])
def test_what_the_generator_shares_needs_the_standard_library_only(name: str) -> None:
    tree = ast.parse((RUNTIME / "fa3" / f"{name}.py").read_text())
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert modules
    others = {module for module in modules if module.partition(".")[0] not in sys.stdlib_module_names}
    assert others <= {"fa3", "fa3.choice", "fa3.contract"}


def test_read_only_home_and_empty_path(tmp_path: Path) -> None:
    """Report X4: importing needs no compiler and writes nothing."""
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    result = run(
        "import fa3.runtime; print(fa3.runtime.attention.__name__)",
        tmp_path,
        HOME=str(home),
        PATH="",
        TMPDIR=str(home),
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert (result.stdout, result.returncode) == ("attention\n", 0), result.stderr
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", ["attention", "explain", "load_bundle", "reference", "VariantNotBuilt"])
def test_public_names(name: str) -> None:
    import fa3.runtime

    assert name in fa3.runtime.__all__
    assert all(hasattr(fa3.runtime, public) for public in fa3.runtime.__all__)

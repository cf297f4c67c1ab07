"""Rendering: holes, errors, the whole matrix as Python, and files against what they should be."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from fa3gen import render
from fa3gen.errors import Fa3genError
from fa3gen.matrix import select_plans
from fa3gen.model import Scheduler
from fa3gen.render import Difference, RenderError, Status, Symbol, literal, render_text
from tests.built_kernels import REPO, plan_of, plans, shipped

#: The order of a set of strings depends on the hash seed: a generator that iterates over one is caught.
RENDER_ALL = """
import hashlib
from tests.built_kernels import plans
from fa3gen.render import render
print(hashlib.sha256("".join(map(render, plans())).encode()).hexdigest())
"""


class Colour(str, Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (128, "128"),
        (-1, "-1"),
        (True, "True"),
        (0.5, "0.5"),
        ("bf16", '"bf16"'),
        ('a "quoted" \\ text\n', '"a \\"quoted\\" \\\\ text\\n"'),
        ("é", '"é"'),
        (Symbol("cutlass.BFloat16"), "cutlass.BFloat16"),
    ],
)
def test_a_hole_prints_a_python_literal(value: object, text: str) -> None:
    assert literal(value) == text
    assert render_text("x = {{value}}\n", "t", value=value) == f"x = {text}\n"
    if not isinstance(value, Symbol):
        assert ast.literal_eval(text) == value


@pytest.mark.parametrize(
    "value", [None, (1, 2), [1], {}, Colour.RED, Scheduler.STATIC, float("nan"), float("inf"), b""]
)
def test_a_hole_refuses_what_has_no_literal(value: object) -> None:
    with pytest.raises(RenderError, match="a hole holds"):
        render_text("x = {{value}}", "t", value=value)


def test_errors_name_the_template_and_the_line() -> None:
    with pytest.raises(RenderError, match=r"templates/sm90a/fwd.py.jinja:3: .*Expected an expression"):
        render_text("a = 1\n\n# % if\n", "sm90a/fwd.py.jinja")
    with pytest.raises(RenderError, match=r"templates/t: 'nothing' is undefined"):
        render_text("x = {{nothing}}\n", "t")
    with pytest.raises(RenderError, match=r"templates/t: .*has no attribute 'tile_k'"):
        render_text("x = {{plan.tile_k}}\n", "t", plan=plan_of())


def test_control_lines_leave_no_trace() -> None:
    text = "def f():\n    # % if yes\n    return 1\n    # % else\n    return 2\n    # % endif\n"
    assert render_text(text, "t", yes=True) == "def f():\n    return 1\n"
    assert render_text(text, "t", yes=False) == "def f():\n    return 2\n"


@pytest.mark.parametrize("plan", plans(), ids=lambda plan: plan.name)
def test_every_source_is_python_with_the_constants_of_its_plan(plan: Any) -> None:
    source = render.render(plan)
    for mark in ("{{", "}}", "{%", "# %"):
        assert mark not in source
    assert source.endswith("\n")
    constants = {
        node.targets[0].id: ast.unparse(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert ast.literal_eval(constants["NAME"]) == plan.name
    for field in ("tile_m", "tile_n", "stages", "q_stages", "producer_regs", "consumer_regs", "threads"):
        assert constants[field.upper()] == str(getattr(plan, field)), field
    header = source.partition('"""')[0]
    assert plan.name in header
    assert "templates/sm90a/fwd.py.jinja" in header
    unwrapped = " ".join(line.lstrip("# ") for line in header.splitlines())
    for reason in plan.reasons:
        assert reason in unwrapped
    assert all(line.startswith("#") and len(line) <= 120 for line in header.splitlines())


@pytest.mark.parametrize("command", [("format", "--check"), ("check", "--no-cache")], ids=["format", "check"])
def test_sources_pass_ruff(command: tuple[str, ...]) -> None:
    for plan in plans():
        path = str(render.generated_path(Path("generated"), plan))
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"],
            input=render.render(plan),
            cwd=REPO,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_rendering_is_the_same_in_every_process() -> None:
    expected = hashlib.sha256("".join(map(render.render, plans())).encode()).hexdigest()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-c", RENDER_ALL], cwd=REPO, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


def test_compare_finds_what_changed_is_missing_or_orphaned(tmp_path: Path) -> None:
    same, changed, missing = plans()[:3]
    for plan in (same, changed):
        render.write_source(render.generated_path(tmp_path, plan), render.render(plan))
    changed_path = render.generated_path(tmp_path, changed)
    changed_path.write_text(changed_path.read_text().replace("TILE_M", "TILE_X"))
    orphan = tmp_path / "sm90a" / "fwd_bf16_d32_full_sm90a.py"
    orphan.write_text("x = 1\n")

    found = {d.path: d for d in render.compare((same, changed, missing), tmp_path)}

    missing_path = render.generated_path(tmp_path, missing)
    assert {path: d.status for path, d in found.items()} == {
        changed_path: Status.CHANGED,
        missing_path: Status.MISSING,
        orphan: Status.ORPHANED,
    }
    diff = found[changed_path].diff()
    assert "-TILE_X = " in diff
    assert "+TILE_M = " in diff
    assert "-x = 1" in found[orphan].diff()

    render.apply(found.values())
    assert render.compare((same, changed, missing), tmp_path) == []
    assert not orphan.exists()


def test_files_that_are_right_are_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    render.write_source(path, "a = 1\n")
    os.utime(path, (1, 1))
    render.write_source(path, "a = 1\n")
    assert path.stat().st_mtime == 1
    render.write_source(path, "a = 2\n")
    assert path.read_text() == "a = 2\n"


def test_the_committed_sources_are_up_to_date() -> None:
    witness = select_plans(shipped(), (), "witness")
    differences: list[Difference] = render.compare(witness, REPO / "generated")
    assert not differences, f"{[(d.path.name, d.status.value) for d in differences]}: run `fa3gen render`"


def test_a_missing_template_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "_TEMPLATE_DIRS", ())
    with pytest.raises(Fa3genError, match=r"there is no templates/sm90a/fwd.py.jinja"):
        render.render(plan_of())

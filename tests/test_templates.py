"""Templates: Python as they stand, and no condition that does not matter."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

from fa3gen.matrix import select_plans
from fa3gen.model import ForwardPlan
from fa3gen.plan import resolve
from tests.built_kernels import ALTERNATIVES, REPO, plans, shipped

TEMPLATES = sorted((REPO / "templates").rglob("*.jinja"))
pytestmark = pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: str(path.relative_to(REPO)))


def conditions(template: Path) -> set[str]:
    text = template.read_text(encoding="utf-8")
    return set(re.findall(r"^\s*# % (?:el)?if (.+?)\s*$", text, re.MULTILINE))


def holds(condition: str, plan: ForwardPlan) -> bool:
    test = jinja2.Environment(undefined=jinja2.StrictUndefined).compile_expression(condition, undefined_to_none=False)
    return bool(test(plan=plan, variant=plan.variant))


def test_it_is_python(template: Path) -> None:
    ast.parse(template.read_text(encoding="utf-8"))


def test_it_passes_ruff(template: Path) -> None:
    for command in (["format", "--check"], ["check", "--no-cache"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, str(template)],
            cwd=REPO,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_it_only_asks_yes_or_no(template: Path) -> None:
    """No loops, macros, filters or assignments; holes name a field and nothing more."""
    text = template.read_text(encoding="utf-8")
    assert set(re.findall(r"^\s*# % (\w+)", text, re.MULTILINE)) <= {"if", "elif", "else", "endif"}
    assert "{%" not in text
    assert "{#" not in text
    for hole in re.findall(r"\{\{(.*?)\}\}", text):
        assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", hole), hole
    assert conditions(template)
    for condition in conditions(template):
        assert re.fullmatch(r"(not )?(plan|variant)(\.[a-z_]+)+", condition), condition


def test_the_witness_set_takes_both_sides_of_every_condition(template: Path) -> None:
    witness = select_plans(shipped(), (), "witness")
    for condition in sorted(conditions(template)):
        over_matrix = {holds(condition, plan) for plan in plans()}
        if condition in ALTERNATIVES:
            assert len(over_matrix) == 1, f"{condition} takes both sides now: take it out of ALTERNATIVES"
            changed = resolve(plans()[0].variant, ALTERNATIVES[condition])
            assert {holds(condition, changed)} | over_matrix == {True, False}
        else:
            assert over_matrix == {True, False}, f"{condition} is always {over_matrix}: a dead condition"
            missing = "add a variant to the preset `witness`"
            assert {holds(condition, plan) for plan in witness} == {True, False}, f"{condition}: {missing}"

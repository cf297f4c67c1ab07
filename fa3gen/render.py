"""Plans to source files: fills in the template of a family and architecture, and compares files with the result.

Templates are Python files whose control lines are comments (``# % if``) and whose holes stand where expressions do.
Rendering is a function of the plan and the template alone.
"""

from __future__ import annotations

import difflib
import json
import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from fa3gen.errors import Fa3genError
from fa3gen.model import Arch, DType, Family, ForwardPlan

#: Width of generated files.
LINE_LENGTH = 120

_PACKAGE = Path(__file__).parent
#: Installed inside the package; in a source checkout beside it.
_TEMPLATE_DIRS = (_PACKAGE / "templates", _PACKAGE.parent / "templates")


class Symbol(str):
    """A dotted name that a hole prints as it is, where other text becomes a string literal."""


#: The compiler's name of each element type.
ELEMENTS = {DType.BF16: Symbol("cutlass.BFloat16"), DType.FP16: Symbol("cutlass.Float16")}


class RenderError(Fa3genError):
    """A template cannot be rendered."""


class Status(str, Enum):
    """What is wrong with a generated file."""

    CHANGED = "changed"
    MISSING = "missing"
    ORPHANED = "orphaned"  # no kernel of that name is asked for


@dataclass(frozen=True)
class Difference:
    """A generated file that is not as it should be; ``expected`` is ``None`` where it should not be there."""

    path: Path
    status: Status
    found: str | None
    expected: str | None

    def diff(self) -> str:
        """The way from the file to what it should be, as a unified diff."""
        before = (self.found or "").splitlines(keepends=True)
        after = (self.expected or "").splitlines(keepends=True)
        return "".join(difflib.unified_diff(before, after, str(self.path), "rendered"))


def render(plan: ForwardPlan) -> str:
    """The source of ``plan``'s kernel; raises RenderError where the template is missing or wrong."""
    variant = plan.variant
    template = _template_name(variant.family, variant.arch)
    body = render_text(_read(template), template, plan=plan, variant=variant, element=ELEMENTS[variant.dtype])
    return _header(plan, template) + body


def render_text(text: str, template: str, **context: Any) -> str:
    """``text`` filled in with ``context``; ``template`` is its name in messages."""
    try:
        return _environment().from_string(text).render(context)
    except jinja2.TemplateSyntaxError as error:
        raise RenderError(f"templates/{template}:{error.lineno}: {error.message}") from error
    except (jinja2.UndefinedError, TypeError) as error:
        raise RenderError(f"templates/{template}: {error}") from error


def generated_path(root: Path, plan: ForwardPlan) -> Path:
    """Where the source of ``plan`` lies under ``root``."""
    return root / plan.variant.arch.value / f"{plan.name}.py"


def compare(plans: Iterable[ForwardPlan], root: Path) -> list[Difference]:
    """Files under ``root`` that are not as the plans ask for, sorted by path."""
    expected = {generated_path(root, plan): render(plan) for plan in plans}
    found = {path: path.read_text(encoding="utf-8") for path in root.glob("*/*.py") if path.name != "__init__.py"}
    differences = []
    for path in sorted({*expected, *found}):
        want, have = expected.get(path), found.get(path)
        if want is None:
            differences.append(Difference(path, Status.ORPHANED, have, None))
        elif have is None:
            differences.append(Difference(path, Status.MISSING, None, want))
        elif want != have:
            differences.append(Difference(path, Status.CHANGED, have, want))
    return differences


def apply(differences: Iterable[Difference]) -> None:
    """Makes the files as they should be."""
    for difference in differences:
        if difference.expected is None:
            difference.path.unlink()
        else:
            write_source(difference.path, difference.expected)


def write_source(path: Path, text: str) -> None:
    """Writes ``text`` where the file differs from it."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def literal(value: object) -> str:
    """What a hole prints: numbers and text as Python literals, a Symbol bare; TypeError for anything else."""
    if isinstance(value, Symbol):
        return str(value)
    if type(value) is str:
        return json.dumps(value, ensure_ascii=False)  # double quotes, as the formatter writes them
    if type(value) in (bool, int) or (type(value) is float and math.isfinite(value)):
        return repr(value)
    raise TypeError(
        f"a hole holds {value!r} of type {type(value).__name__}; it prints int, float, bool, str and Symbol"
    )


def _hole(value: object) -> str:
    return str(value) if isinstance(value, jinja2.Undefined) else literal(value)  # of what is undefined, str raises


def _header(plan: ForwardPlan, template: str) -> str:
    """A comment that tells where the file comes from, and why its constants are what they are."""
    lines = [f"# {plan.name}", f"# Rendered by `fa3gen render` from templates/{template}; do not edit.", "#"]
    for reason in plan.reasons:
        lines += textwrap.wrap(reason, LINE_LENGTH, initial_indent="#   ", subsequent_indent="#       ")
    return "\n".join(lines) + "\n"


def _template_name(family: Family, arch: Arch) -> str:
    return f"{arch.value}/{family.value}.py.jinja"


def _read(template: str) -> str:
    for folder in _TEMPLATE_DIRS:
        path = folder / template
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise RenderError(f"there is no templates/{template}", hint="a family needs one for each architecture")


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        line_statement_prefix="# %",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        finalize=_hole,
        autoescape=False,
    )

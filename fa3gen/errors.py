"""What can go wrong and how it is said: diagnostics with stable codes, and exceptions with exit codes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

#: Every diagnostic code and what it stands for.  Codes are stable: one is never given a second meaning.
CODES = {
    # reading a YAML file
    "C001": "the file cannot be read",
    "C002": "the file is no YAML",
    "C003": "a key is given twice",
    "C004": "unknown key",
    "C005": "wrong type",
    "C006": "unknown value",
    "C007": "a required key or value is missing",
    "C008": "the file has another schema version",
    "C009": "a list is empty",
    "C010": "a value is listed twice",
    # expanding the matrix
    "C020": "an exclude matches nothing",
    "C021": "an include repeats a cell",
    "C022": "a variant cannot be built",
    "C023": "a preset selects nothing",
    "C024": "the matrix is empty",
    # selecting from it
    "S001": "a selector matches no kernel",
    "S002": "unknown preset",
    # plans
    "P001": "unknown plan field",
    "P002": "a plan field has a wrong value",
    "P003": "two rules match the same",
    "P004": "a rule is never reached",
    "P005": "the plan is illegal",
    "P006": "no plan for a variant that its family does not support",
    "P007": "bounds that no call fits, or that every call fits",
    "P008": "two plans of a variant are the same",
}


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FINDINGS = 1  # the command ran and found something wrong
    USAGE = 2  # the command line or the configuration is wrong
    MACHINE = 3  # this machine lacks what the command needs


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """Where in a YAML file something was said; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


def nearest(word: str, candidates: Iterable[str], count: int = 1) -> tuple[str, ...]:
    """The up to ``count`` candidates most like ``word``, best first; empty where none is near."""
    return tuple(difflib.get_close_matches(word, list(candidates), n=count, cutoff=0.6))


def listing(items: Sequence[str], limit: int = 3) -> str:
    """``a, b, c and 4 more``."""
    shown = ", ".join(items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem: what, where, what would be right, and what to do."""

    code: str
    message: str
    location: Location | None = None
    hint: str = ""  # the next step
    allowed: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    width: int = 1  # characters under the caret

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"{self.code!r} is no diagnostic code; add it to fa3gen.errors.CODES")

    def render(self, source_text: str | None = None) -> str:
        """The diagnostic as text; with the file's text also the line with a caret under the place."""
        where = f"{self.location}: " if self.location else ""
        lines = [f"{where}error {self.code}: {self.message}"]
        if self.location and source_text is not None:
            lines += _excerpt(source_text, self.location, self.width)
        if self.allowed:
            lines.append(f"  allowed: {', '.join(self.allowed)}")
        if self.suggestions:
            lines.append(f"  did you mean {' or '.join(self.suggestions)}?")
        if self.hint:
            lines.append(f"  next: {self.hint}")
        return "\n".join(lines)


def _excerpt(source_text: str, location: Location, width: int) -> list[str]:
    lines = source_text.splitlines()
    if location.line > len(lines):  # the end of the file
        return []
    line = lines[location.line - 1]
    gutter = str(location.line)
    before = line[: location.column - 1]
    indent = "".join(char if char == "\t" else " " for char in before)  # tabs stay, so that the caret lands
    carets = "^" * max(1, min(width, len(line) - len(before)))
    return [f"  {gutter} | {line}", f"  {' ' * len(gutter)} | {indent}{carets}"]


class Fa3genError(Exception):
    """Base of everything fa3gen raises on purpose; ``hint`` is the next step."""

    exit_code: ExitCode = ExitCode.FINDINGS

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message


class UsageError(Fa3genError):
    """The command line or the configuration is wrong."""

    exit_code = ExitCode.USAGE


class MachineError(Fa3genError):
    """This machine lacks what the command needs."""

    exit_code = ExitCode.MACHINE


class DiagnosticError(UsageError):
    """One or more diagnostics.

    ``sources`` maps file names to their text, so that ``str`` of the error shows the places.
    """

    def __init__(
        self, diagnostics: Sequence[Diagnostic], sources: Mapping[str, str] | None = None, *, hint: str = ""
    ) -> None:
        self.diagnostics = sorted(diagnostics, key=_reading_order)
        self.sources = dict(sources or {})
        super().__init__("\n".join(self._render(d) for d in self.diagnostics), hint=hint)

    def __str__(self) -> str:
        """Every diagnostic, then how many there are and the next step."""
        count = f"{len(self.diagnostics)} error{'s' * (len(self.diagnostics) != 1)}"
        return f"{self.message}\n{count}; {self.hint}" if self.hint else self.message

    def _render(self, diagnostic: Diagnostic) -> str:
        text = self.sources.get(diagnostic.location.file) if diagnostic.location else None
        return diagnostic.render(text)


def _reading_order(diagnostic: Diagnostic) -> tuple[Location, str, str]:
    return (diagnostic.location or Location("", 0, 0), diagnostic.code, diagnostic.message)


class ConfigError(DiagnosticError):
    """A YAML file is wrong: every problem that it has."""


class SelectionError(DiagnosticError):
    """Selectors or a preset select nothing."""


class PlanError(DiagnosticError):
    """No legal plan."""

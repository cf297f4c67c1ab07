"""The source of a function and of what it uses in its own file, without comments and docstrings.

Plain text, not a syntax tree printed again: that differs among Python versions.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping


def closure(source: str, root: str, picks: Mapping[str, str] | None = None) -> str:
    """The statements of a module that ``root`` needs, in the module's order; KeyError where there is no ``root``.

    Of a table (a dict) that ``picks`` names, only the entry with the key given there counts.
    """
    picks = picks or {}
    lines = source.splitlines()
    defined: dict[str, list[ast.stmt]] = {}
    for node in ast.parse(source).body:
        for name in _defines(node):
            defined.setdefault(name, []).append(node)
    needed: dict[int, str] = {}
    waiting = [*defined[root]]
    while waiting:
        node = waiting.pop()
        if node.lineno in needed:
            continue
        table = next((name for name in _defines(node) if name in picks), None)
        part = node if table is None else _entry(node, picks[table])
        needed[node.lineno] = "" if part is None else f"{table} = " * (table is not None) + _text(part, lines)
        used = {item.id for item in ast.walk(part) if isinstance(item, ast.Name)} if part is not None else set()
        waiting += [other for name in used & defined.keys() for other in defined[name]]
    return "\n".join(needed[line] for line in sorted(needed) if needed[line])


def _entry(table: ast.stmt, wanted: str) -> ast.expr | None:
    """The value in a dict's statement."""
    value = table.value if isinstance(table, (ast.Assign, ast.AnnAssign)) else None
    if not isinstance(value, ast.Dict):
        raise TypeError(f"line {table.lineno} is no dict")
    keys = [key.value if isinstance(key, ast.Constant) else None for key in value.keys]
    return value.values[keys.index(wanted)] if wanted in keys else None


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _text(node: ast.stmt | ast.expr, lines: list[str]) -> str:
    if isinstance(node, ast.expr):  # an entry of a table: its own characters only
        return ast.get_source_segment("\n".join(lines), node) or ""
    decorators = node.decorator_list if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    dropped = {line for item in ast.walk(node) for line in _docstring_lines(item)}
    kept = [lines[i - 1].rstrip() for i in range(first, (node.end_lineno or first) + 1) if i not in dropped]
    return "\n".join(line for line in kept if line and not line.lstrip().startswith("#"))


def _docstring_lines(node: ast.AST) -> range:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node, clean=False) is not None:
        docstring = node.body[0]
        return range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)
    return range(0)

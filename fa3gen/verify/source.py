"""The source of a function and of what it uses in its own file, without comments and docstrings.

Plain text, not a syntax tree printed again: that differs among Python versions.
"""

from __future__ import annotations

import ast


def closure(source: str, root: str) -> str:
    """The statements of a module that ``root`` needs, in the module's order; KeyError where there is no ``root``."""
    lines = source.splitlines()
    defined: dict[str, list[ast.stmt]] = {}
    for node in ast.parse(source).body:
        for name in _defines(node):
            defined.setdefault(name, []).append(node)
    needed: dict[int, ast.stmt] = {}
    waiting = [*defined[root]]
    while waiting:
        node = waiting.pop()
        if node.lineno not in needed:
            needed[node.lineno] = node
            used = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
            waiting += [other for name in used & defined.keys() for other in defined[name]]
    return "\n".join(_text(needed[line], lines) for line in sorted(needed))


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _text(node: ast.stmt, lines: list[str]) -> str:
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

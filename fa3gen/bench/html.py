"""A report in one file that needs nothing else: tables, and bars drawn as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fa3gen.bench.report import Columns, Result, Row, Table, cell, mean_tables, shape_tables

_COLORS = ("#2a78d6", "#e07b00", "#2b9a66", "#9a5bd0", "#c2405d", "#5c6b7a")  # the last ones for further bundles
_STYLE = """
:root { color-scheme: light dark; --text: #1c1f23; --soft: #5c6670; --line: #d5dade; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --text: #e7eaee; --soft: #9aa5b1; --line: #3a424a; --page: #15181c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 68rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.scroll { overflow-x: auto; margin: .5rem 0 1.5rem; }
.note { color: var(--soft); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; border-radius: 2px; }
svg { display: block; max-width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--text); }
svg line { stroke: var(--line); }
"""
_BAR, _GAP, _TOP = 11, 10, 22  # heights in pixels: a bar, between shapes, of the axis
_SCALE, _RIGHT, _CHARACTER = 520, 60, 7.0  # widths: of the longest bar, behind it, of a character of a label


def page(result: Result, machine: str, notes: Sequence[str]) -> str:
    """The report as HTML."""
    parts = [f"<h1>Attention forward</h1><p>{escape(machine)}</p>"]
    parts += [f'<p class="note">{escape(note)}</p>' for note in notes]
    parts += [f"<h2>{escape(title)}</h2>{_table(table)}" for title, table in mean_tables(result)]
    for group, (title, table) in zip(result.groups, shape_tables(result), strict=True):
        rows = [row for row in result.rows if row.shape.group == group]
        parts.append(f"<h2>{escape(title)}</h2>{_legend(result.columns)}")
        parts.append(f'<div class="scroll">{bars(result.columns, rows, len(result.kinds) > 1)}</div>{_table(table)}')
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>fa3gen bench</title></head>\n<body>{body}</body></html>\n'
    )


def bars(columns: Columns, rows: Sequence[Row], kinds: bool) -> str:
    """A bar for each time, TFLOP/s to the right; the shapes of a group one below the other."""
    labels = [f"{row.shape.label} {row.kind}" if kinds else row.shape.label for row in rows]
    left = round(max(map(len, labels), default=0) * _CHARACTER) + 12
    found = [[(name, row.tflops(name)) for name in columns.all] for row in rows]
    top = max([value for values in found for _, value in values if value is not None], default=1.0)
    block = len(columns.all) * _BAR + _GAP
    width, height = left + _SCALE + _RIGHT, _TOP + len(rows) * block
    parts = [_axis(left, height, top)]
    for i, (label, values) in enumerate(zip(labels, found, strict=True)):
        y = _TOP + i * block
        middle = y + len(values) * _BAR / 2 + 4
        parts.append(f'<text x="{left - 8}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>')
        parts += [_bar(left, y + j * _BAR, value, top, columns, name) for j, (name, value) in enumerate(values)]
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg {size} role="img" aria-label="TFLOP/s by shape">{"".join(parts)}</svg>'


def _bar(x: int, y: int, value: float | None, top: float, columns: Columns, name: str) -> str:
    if value is None:
        return ""
    length = _SCALE * value / top
    title = f"<title>{escape(name)}: {cell(value, 1)} TFLOP/s</title>"
    bar = (
        f'<rect x="{x}" y="{y}" width="{length:.1f}" height="{_BAR - 1}" fill="{_color(columns, name)}">{title}</rect>'
    )
    number = f'<text x="{x + length + 5:.1f}" y="{y + _BAR - 1.5:.1f}">{cell(value, 0)}</text>'
    return bar + number * (name in columns.ours)


def _axis(left: int, height: int, top: float) -> str:
    step = next((s for s in (10, 20, 50, 100, 200, 500) if top / s <= 10), 1000)
    parts = []
    for value in range(0, int(top) + 1, step):
        x = left + _SCALE * value / top
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_TOP - 10}" text-anchor="middle">{value}</text>')
    return "".join(parts)


def _legend(columns: Columns) -> str:
    keys = (
        f'<span class="key" style="background:{_color(columns, name)}"></span>{escape(name)}' for name in columns.all
    )
    return f"<p>{''.join(keys)}</p>"


def _color(columns: Columns, name: str) -> str:
    """The same for a peer whatever else is there: ours first, then the peers, then further bundles."""
    order = [*columns.ours[:1], *columns.peers, *columns.ours[1:]]
    return _COLORS[order.index(name) % len(_COLORS)]


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in table[0])
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in table[1:])
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'

"""Self-contained HTML pages that a person can read, print and sign: no script, and nothing is loaded."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1d2430; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 0 .3rem } h2 { font-size: 1.15rem; margin: 1.8rem 0 .5rem }
table { border-collapse: collapse; width: 100%; font-size: .9rem } caption { text-align: left; padding: .2rem 0 }
th, td { padding: .25rem .5rem; border-bottom: 1px solid #d5dae2; text-align: right; vertical-align: top }
th:first-child, td:first-child, td.text { text-align: left }
.facts th { width: 14rem } .facts td { overflow-wrap: anywhere } thead th { border-bottom: 2px solid #1d2430 }
.swatch { display: inline-block; width: .9em; height: .9em; margin-right: .4em; border: 1px solid #5a6372;
  vertical-align: -.1em; print-color-adjust: exact; -webkit-print-color-adjust: exact }
.note { border-left: 4px solid #b7791f; background: #fdf6e7; padding: .4rem .8rem; margin: .4rem 0 }
.muted { color: #4b5563 } .wide { overflow-x: auto } figure { margin: 0 } img { max-width: 100%; height: auto }
.sign { display: flex; gap: 3rem; margin-top: 3rem } .sign div { flex: 1; border-top: 1px solid; padding-top: .2rem }
@media print { body { margin: 0; max-width: none; font-size: 11px } h2 { break-after: avoid }
  table, figure { break-inside: avoid } }
"""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
        f'content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f"</head>\n<body>\n<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def heading(text: str) -> Markup:
    """A section's heading."""
    return Markup(f"<h2>{escape(text)}</h2>")


def paragraph(text: str, kind: str = "") -> Markup:
    """A paragraph."""
    return Markup(f'<p class="{kind}">{html(text)}</p>' if kind else f"<p>{html(text)}</p>")


def note(text: str) -> Markup:
    """A paragraph that must not be overlooked."""
    return paragraph(text, "note")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> Markup:
    """A table; None is an empty cell."""
    lines = [f"<caption>{escape(caption)}</caption>"] if caption else []
    lines.append("<thead><tr>" + "".join(f'<th scope="col">{html(cell)}</th>' for cell in head) + "</tr></thead>")
    lines.append("<tbody>")
    for first, *others in rows:
        cells = "".join(f"<td{_kind(cell)}>{html(cell)}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{html(first)}</th>{cells}</tr>')
    return Markup('<div class="wide"><table>' + "\n".join(lines) + "</tbody></table></div>")


def facts(rows: Iterable[tuple[str, Any]]) -> Markup:
    """A table of names and values; empty values are left out."""
    lines = [
        f'<tr><th scope="row">{html(name)}</th><td class="text">{html(value)}</td></tr>'
        for name, value in rows
        if value not in (None, "")
    ]
    return Markup('<div class="wide"><table class="facts">' + "\n".join(lines) + "</table></div>")


def _kind(cell: Any) -> str:
    return ' class="text"' if isinstance(cell, str) and cell[:1].isalpha() else ""


def swatch(name: str, color: str) -> Markup:
    """A class with its colour."""
    return Markup(f'<span class="swatch" style="background:{escape(color, quote=True)}"></span>{escape(name)}')


def picture(content: bytes, alt: str, media_type: str = "image/png") -> Markup:
    """A picture inside the page."""
    data = base64.b64encode(content).decode()
    return Markup(f'<figure><img src="data:{media_type};base64,{data}" alt="{escape(alt, quote=True)}"></figure>')


def html(value: Any) -> str:
    """A cell's text."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else escape(str(value), quote=False)


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent."""
    return "-" if share is None else f"{100 * share:.{digits}f}"


def interval(record: dict[str, Any] | None, factor: float = 100.0, digits: int = 1) -> str:
    """A figure with its interval."""
    if record is None or record["value"] is None:
        return "-"
    value = f"{factor * record['value']:,.{digits}f}"
    if record["low"] is None:
        return value
    return f"{value} ({factor * record['low']:,.{digits}f} to {factor * record['high']:,.{digits}f})"

"""A report as a list of blocks, written as one HTML file and as Markdown with figures beside it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from hyperscene.errors import write_error
from hyperscene.training.study.figures import draw_png
from hyperscene.training.study.folder import write_bytes, write_text

RANK_MARKS = ("", "①", "②", "③")  # best, second, third: not by colour alone


@dataclass(frozen=True)
class Heading:
    """A heading; level 2 begins a study, 3 a part of it."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Plain text; a finding is highlighted."""

    text: str
    is_finding: bool = False


@dataclass(frozen=True)
class Listing:
    """Commands, printed as they are."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Entry:
    """An entry of a table; rank 1 to 3 marks the best, second and third."""

    text: str
    rank: int = 0


@dataclass(frozen=True)
class Row:
    """A row of a table. Without entries it is a heading above the rows below."""

    name: str
    entries: Sequence[Entry] = ()
    is_ruled: bool = False  # with a rule above


@dataclass(frozen=True)
class Table:
    """A table whose first column holds names; the note says how to read the others."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    note: str = ""


@dataclass(frozen=True)
class FigureBlock:
    """A figure with its caption; report.md shows only those that are `in_markdown`."""

    name: str
    figure: Figure
    caption: str
    in_markdown: bool = False

    @cached_property
    def png(self) -> bytes:
        return draw_png(self.figure)


Block = Heading | Paragraph | Listing | Table | FigureBlock


def write_pages(output: Path, title: str, blocks: Sequence[Block]) -> None:
    """Write report.html, report.md and figures/ into a folder; figures of an earlier report are deleted."""
    shown = [block for block in blocks if isinstance(block, FigureBlock) and block.in_markdown]
    folder = output / "figures"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for block in shown:
            write_bytes(folder / f"{block.name}.png", block.png)
        write_text(output / "report.md", markdown_page(title, blocks))
        write_text(output / "report.html", html_page(title, blocks))
        for old in set(folder.glob("*.png")) - {folder / f"{block.name}.png" for block in shown}:
            old.unlink(missing_ok=True)
        if not shown:
            with suppress(OSError):  # it may hold other files
                folder.rmdir()
    except OSError as error:
        raise write_error(error) from error


# HTML


def html_page(title: str, blocks: Sequence[Block]) -> str:
    """The report in one file, without scripts or links to other files."""
    contents = "".join(
        f'<li><a href="#{anchor}">{escape(block.text)}</a></li>'
        for block, anchor in zip(blocks, _anchors(blocks), strict=True)
        if isinstance(block, Heading) and block.level == 2
    )
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLES}</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{escape(title)}</h1>",
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav>' if contents.count("<li>") > 1 else "",
        *_html_blocks(blocks),
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _html_blocks(blocks: Sequence[Block]) -> Iterator[str]:
    number = 0
    for block, anchor in zip(blocks, _anchors(blocks), strict=True):
        if isinstance(block, Heading):
            yield f'<h{block.level} id="{anchor}">{escape(block.text)}</h{block.level}>'
        elif isinstance(block, Paragraph):
            kind = ' class="finding"' if block.is_finding else ""
            yield f"<p{kind}>{escape(block.text)}</p>"
        elif isinstance(block, Listing):
            yield "<pre>" + "\n".join(f"<code>{_html_words(line)}</code>" for line in block.lines) + "</pre>"
        elif isinstance(block, Table):
            yield _html_table(block)
        else:
            number += 1
            yield (
                f'<figure><div class="wide" tabindex="0" role="group" aria-label="Figure {number}">'
                f"{_html_image(block)}</div>"
                f"<figcaption><b>Figure {number}.</b> {escape(block.caption)}</figcaption></figure>"
            )


def _html_image(picture: FigureBlock) -> str:
    width = picture.figure.get_figwidth() * 115  # CSS pixels
    address = f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"
    return f'<img alt="{escape(_first_sentence(picture.caption))}" style="max-width:{width:.0f}px" src="{address}">'


def _html_words(line: str) -> str:
    """A line that breaks only between words: browsers break options at their hyphens."""
    return " ".join(f"<span>{escape(word)}</span>" for word in line.split(" "))


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    lines = []
    for row in table.rows:
        if not row.entries:
            lines.append(
                f'<tr class="group"><th scope="rowgroup" colspan="{len(table.columns)}">{escape(row.name)}</th></tr>'
            )
            continue
        kind = ' class="ruled"' if row.is_ruled else ""
        entries = "".join(_html_entry(entry) for entry in row.entries)
        lines.append(f'<tr{kind}><th scope="row">{escape(row.name)}</th>{entries}</tr>')
    title = escape(table.title)
    return (
        f'<figure class="table"><figcaption><b>{title}.</b> {escape(table.note)}</figcaption>'
        f'<div class="wide" tabindex="0" role="group" aria-label="{title}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div></figure>"
    )


def _html_entry(entry: Entry) -> str:
    if entry.rank:
        return f'<td class="rank{entry.rank}">{escape(entry.text)}&nbsp;<span>{RANK_MARKS[entry.rank]}</span></td>'
    return f"<td>{escape(entry.text)}</td>"


def _first_sentence(caption: str) -> str:
    """The alternative text of a figure."""
    return re.split(r"(?<=[.:;])\s", caption, maxsplit=1)[0].rstrip(".:;")


def _anchors(blocks: Sequence[Block]) -> list[str]:
    """An anchor for each heading, and an empty string for other blocks."""
    anchors: list[str] = []
    for block in blocks:
        anchor = (
            re.sub(r"[^a-z0-9]+", "-", block.text.lower()).strip("-") or "part" if isinstance(block, Heading) else ""
        )
        repeats = sum(1 for other in anchors if anchor and re.fullmatch(rf"{anchor}(_\d+)?", other))
        anchors.append(f"{anchor}_{repeats + 1}" if repeats else anchor)
    return anchors


STYLES = """
:root { color-scheme: light dark; --ink: #14201b; --quiet: #52605a; --line: #d3dbd6; --ground: #ffffff;
  --page: #f4f6f4; --raised: #eef2ef; --accent: #0b6350; --first: #c40000; --second: #00780a; --third: #0050e6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8efeb; --quiet: #a5b3ac; --line: #34403a; --ground: #171e1b;
  --page: #0e1412; --raised: #202925; --accent: #66d4ad; --first: #ff8a80; --second: #6fdc77; --third: #8fb4ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 80rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1, h2, h3 { line-height: 1.25; text-wrap: balance; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; margin: 0 0 1rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 0.5rem; padding-top: 1rem; border-top: 2px solid var(--line); }
h3 { font-size: 1.1rem; margin: 2.25rem 0 0.5rem; }
p { max-width: 46rem; margin: 0.6rem 0; }
pre { margin: 0.6rem 0; padding: 0.6rem 0.9rem; background: var(--raised); border-radius: 4px; font-size: 0.85rem;
  white-space: normal; }
pre code { display: block; padding-left: 1.5rem; text-indent: -1.5rem; }
pre span { display: inline-block; max-width: 100%; text-indent: 0; overflow-wrap: anywhere; }
a { color: var(--accent); }
nav ul { margin: 0 0 1rem; padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; }
.finding { border-left: 4px solid var(--accent); background: var(--raised); padding: 0.6rem 0.9rem;
  border-radius: 4px; }
figure { margin: 1.25rem 0; padding: 1rem; background: var(--ground); border: 1px solid var(--line);
  border-radius: 10px; }
figcaption { font-size: 0.9rem; color: var(--quiet); max-width: 46rem; margin-top: 0.6rem; }
figcaption b { color: var(--ink); }
.table figcaption { margin: 0 0 0.6rem; }
.wide { overflow-x: auto; }
.wide:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
img { display: block; width: 100%; min-width: 34rem; height: auto; background: #fff; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { padding: 0.28rem 0.2rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
thead th { border-bottom: 2px solid var(--line); color: var(--quiet); font-weight: 600; vertical-align: bottom;
  white-space: normal; min-width: 4rem; }
th:first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--ground); }
tbody th { font-weight: 400; }
tbody tr + tr { border-top: 1px solid var(--line); }
tbody tr.ruled { border-top: 2px solid var(--quiet); }
tbody tr.group th { font-weight: 600; padding-top: 0.7rem; }
.rank1, .rank2, .rank3 { font-weight: 700; }
.rank1 { color: var(--first); } .rank2 { color: var(--second); } .rank3 { color: var(--third); }
@media (max-width: 40rem) {
  main { padding: 1rem 0.75rem 3rem; }
  figure { padding: 0.75rem; }
  th, td { padding: 0.28rem 0.4rem; }
  tbody th { white-space: normal; min-width: 7rem; }
}
@media print { .wide { overflow: visible; } img { min-width: 0; } figure { break-inside: avoid; } }
"""


# Markdown


def markdown_page(title: str, blocks: Sequence[Block]) -> str:
    """The report in Markdown; its figures are files in figures/, and most of them are in the HTML only."""
    parts = [f"# {_plain(title)}"]
    shown = _in_markdown(blocks)
    if any(isinstance(block, FigureBlock) and not block.in_markdown for block in blocks):
        parts.append("The same command writes report.html, which has more figures.")
    number = 0
    for block in shown:
        if isinstance(block, Heading):
            parts.append(f"{'#' * block.level} {_plain(block.text)}")
        elif isinstance(block, Paragraph):
            parts.append(f"> {_plain(block.text)}" if block.is_finding else _plain(block.text))
        elif isinstance(block, Listing):
            parts.append(
                "\n".join(f"    {line}" for line in block.lines)
            )  # indented: no text can end the block, as it could end a fence
        elif isinstance(block, Table):
            parts.append(_markdown_table(block))
        else:
            number += 1
            parts.append(f"![{_plain(_first_sentence(block.caption))}](figures/{block.name}.png)")
            parts.append(f"**Figure {number}.** {_plain(block.caption)}")
    return "\n\n".join(parts) + "\n"


def _in_markdown(blocks: Sequence[Block]) -> list[Block]:
    """The blocks without figures that only the HTML shows, and without headings that have nothing left below them."""
    shown: list[Block] = []
    for block in reversed(blocks):
        below = shown[-1] if shown else None
        is_empty = isinstance(block, Heading) and (
            below is None or (isinstance(below, Heading) and below.level <= block.level)
        )
        if not is_empty and (block.in_markdown if isinstance(block, FigureBlock) else True):
            shown.append(block)
    return shown[::-1]


def _markdown_table(table: Table) -> str:
    lines = [_line(map(_plain, table.columns)), _line(["---"] + ["--:"] * (len(table.columns) - 1))]
    for row in table.rows:
        if row.entries:
            lines.append(_line([_plain(row.name), *(_markdown_entry(entry) for entry in row.entries)]))
        else:
            lines.append(_line([f"**{_plain(row.name)}**"] + [""] * (len(table.columns) - 1)))
    return "\n".join([f"**{_plain(table.title)}.** {_plain(table.note)}".rstrip(), "", *lines])


def _markdown_entry(entry: Entry) -> str:
    text = _plain(entry.text)
    return f"**{text}** {RANK_MARKS[entry.rank]}" if entry.rank else text


def _line(cells: Iterator[str] | Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(text: str) -> str:
    """Text with Markdown's characters escaped."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", text.replace("\n", " "))

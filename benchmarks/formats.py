"""The rows of a run as text, Markdown, JSON or a chart, and on a page of the documentation."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.comparison import OURSELVES, WITHOUT_KERNEL, Line, Row, failed_runs, notes_of
from reput.bench.figures import shown, yes_or_no
from reput.bench.machine import machine_text
from reput.cli.terminal.output import table_text, write_line

__all__ = ["FORMATS", "fill_page", "print_run", "rows_text", "table_rows"]

FORMATS = ("text", "json", "markdown", "svg")
# Of the chart, in pixels: two columns of figures, each with a heading and a bar for each contender.
COLUMN, LEFT, BAR, HEAD, GAP = 470, 62, 13, 18, 10
BAR_MAX = COLUMN - LEFT - 80
# reput, reput without the kernel, the others in the order of their columns. A name stands at each bar, so that nobody
# has to tell colours apart.
COLOURS = ("#2563eb", "#7aa5f8", "#d97706", "#b45309", "#f59e0b", "#0d9488", "#a855f7", "#db2777")
STYLE = """\
.ground { fill: #ffffff } text { fill: #1f2937 }
@media (prefers-color-scheme: dark) { .ground { fill: #14181f } text { fill: #e5e7eb } }"""


def print_run(lines: Sequence[Line], rows: Sequence[Row], form: str, page: Path | None, name: str) -> int:
    """Print the rows of a run and its failures, and fill *page* between its marks of *name*. Return the exit code."""
    machine = lines[0].machine
    write_line(rows_text(rows, machine, form))
    if page is not None:
        fill_page(page, name, rows, machine, notes_of(lines))
    failed = list(failed_runs(lines))
    for sentence in failed:
        print(f"reput: {sentence}", file=sys.stderr)
    return 1 if failed else 0


def rows_text(rows: Sequence[Row], machine: Mapping[str, Any], form: str) -> str:
    """Return the rows in one of `FORMATS`."""
    if form == "json":
        return "\n".join(json.dumps(msgspec.to_builtins(row)) for row in rows)
    if form == "svg":
        return svg_chart(rows, machine_text(machine))
    table = table_rows(rows)
    columns = tuple(table[0]) if table else ()
    if form == "markdown":
        lines = [columns, ["---"] * len(columns), *(row.values() for row in table)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines if table)
    return "\n\n".join([machine_text(machine), *([table_text(table, columns)] if table else [])])


def fill_page(page: Path, name: str, rows: Sequence[Row], machine: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Replace what *page* has between its marks of *name* by the table, and write the chart beside it, as NAME.svg."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = page.read_text("utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"page has no marks: page={page} begin={begin} end={end}")
    notes_text = "".join(f"- {note}\n" for note in notes)
    parts = [f"{machine_text(machine)}.", notes_text.rstrip(), f"![The figures as bars]({name}.svg)"]
    content = "\n\n".join(part for part in [*parts, rows_text(rows, machine, "markdown")] if part)
    page.write_text(f"{before}{begin}\n\n{content}\n\n{end}{after}", "utf-8")
    page.with_name(f"{name}.svg").write_text(rows_text(rows, machine, "svg") + "\n", "utf-8")


def table_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return the table's rows as text, with a column for each contender. What no row has is no column."""
    contenders = contenders_of(rows)
    table = [
        {
            "what": row.what,
            "asked": row.asked,
            "unit": row.unit,
            "reput": shown(row.figure),
            "from": shown(row.least) if row.least != row.most else "",
            "to": shown(row.most) if row.least != row.most else "",
            **{who: shown(row.peers.get(who)) for who in contenders},
            "ratio": "" if row.ratio is None else f"{row.ratio:.2f}",
            "ratios": ratios_text(row),
            "kept": yes_or_no(row.kept),
            "others": "" if row.other_load_cores is None else f"{row.other_load_cores:.2f}",
        }
        for row in rows
    ]
    return [{name: text for name, text in row.items() if any(other[name] for other in table)} for row in table]


def contenders_of(rows: Sequence[Row]) -> list[str]:
    """Return the others in the order of their columns."""
    found = {who for row in rows for who in row.peers}
    return sorted(found, key=lambda who: (who != WITHOUT_KERNEL, not who[0].isdigit(), who))


def ratios_text(row: Row) -> str:
    """Return the range of the ratios over the rounds, or nothing after a single round."""
    if row.ratio_least is None or row.ratio_most is None or row.ratio_least == row.ratio_most:
        return ""
    return f"{row.ratio_least:.2f}-{row.ratio_most:.2f}"


def svg_chart(rows: Sequence[Row], title: str) -> str:
    """Return a chart: for each figure that others have, too, a bar for each contender, as a share of the longest.

    It has its own ground, which is dark where the reader's system is, and the fonts of the reader's system.
    """
    whos = [OURSELVES, *contenders_of(rows)]
    compared = [row for row in rows if row.peers and max(row.figure, *row.peers.values()) > 0]
    drawn = [text_at(GAP, HEAD, title)]
    height = 2 * HEAD
    for pair in zip(compared[::2], [*compared[1::2], None], strict=False):
        blocks = [bars(row, whos) for row in pair if row is not None]
        for column, block in enumerate(blocks):
            drawn += [f'<g transform="translate({column * COLUMN},{height})">', *block, "</g>"]
        # A heading, and a bar and two texts for each contender.
        height += HEAD + BAR * max(len(block) // 3 for block in blocks) + GAP
    size = f'viewBox="0 0 {2 * COLUMN} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    ground = f'<rect class="ground" width="{2 * COLUMN}" height="{height}"/>'
    return "\n".join([head, f"<style>\n{STYLE}\n</style>", ground, *drawn, "</svg>"])


def bars(row: Row, whos: Sequence[str]) -> list[str]:
    """Return the elements of one figure."""
    values = {OURSELVES: row.figure, **row.peers}
    longest = max(values.values())
    heading = f"{row.what}, {row.unit} ({row.better} is better)"
    drawn = [text_at(GAP, HEAD - 5, heading, ' font-weight="bold"')]
    for number, who in enumerate(who for who in whos if who in values):
        top = HEAD + number * BAR
        width = max(1.0, BAR_MAX * values[who] / longest)
        colour = COLOURS[whos.index(who) % len(COLOURS)]
        drawn += [
            text_at(LEFT - 6, top + BAR - 3, who, ' text-anchor="end"'),
            f'<rect x="{LEFT}" y="{top}" width="{width:.0f}" height="{BAR - 2}" fill="{colour}"/>',
            text_at(LEFT + width + 5, top + BAR - 3, shown(values[who])),
        ]
    return drawn


def text_at(x: float, y: float, content: str, more: str = "") -> str:
    """Return a line of text, with *more* attributes."""
    return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{escape(content)}</text>'

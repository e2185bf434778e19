"""The rows of a run as text, Markdown, JSON and a chart."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from benchmarks.comparison import Row, row_of
from benchmarks.formats import FORMATS, fill_page, rows_text
from reput.bench.figures import Figure, at_least, at_most

MACHINE = {"processor": "P <1>", "cores": 2, "python": "3.11", "file_system": "ext4", "reput": "1"}
SVG = "{http://www.w3.org/2000/svg}"


def row(figure: Figure, **values: float) -> Row:
    """Return a row of one round: what each contender reached."""
    return row_of("read", figure, {who.replace("_", " "): {1: [value]} for who, value in values.items()})


ROWS = [
    row(at_least("in order", "", "1/s", 5_000), reput=1_000, no_kernel=500, SQLite=250, **{"5.5.0": 2_000}),
    row(at_least("alone", "", "1/s"), reput=7),
    row(at_most("by key", "", "µs"), reput=4, **{"5.5.0": 1}),
]


def test_a_table_in_markdown():
    """With a column for each contender, and none that is empty in all rows."""
    assert rows_text(ROWS, MACHINE, "markdown").splitlines() == [
        "| what | asked | unit | reput | no kernel | 5.5.0 | SQLite | ratio | kept |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| in order | ≥ 5,000 | 1/s | 1,000 | 500 | 2,000 | 250 | 0.50 | NO |",
        "| alone |  | 1/s | 7 |  |  |  |  |  |",
        "| by key |  | µs | 4 |  | 1 |  | 4.00 |  |",
    ]


def test_a_chart_needs_nothing_else():
    """Each figure that others have has a bar for each contender; the longest is the largest figure."""
    text = rows_text(ROWS, MACHINE, "svg")
    root = ElementTree.fromstring(text)
    groups = root.findall(f"{SVG}g")
    texts = [[element.text for element in group.iter(f"{SVG}text")] for group in groups]
    assert texts == [
        ["in order, 1/s (more is better)", "reput", "1,000", "no kernel", "500", "5.5.0", "2,000", "SQLite", "250"],
        ["by key, µs (less is better)", "reput", "4", "5.5.0", "1"],
    ]
    widths = [[int(bar.attrib["width"]) for bar in group.iter(f"{SVG}rect")] for group in groups]
    for of, shares in zip(widths, [[0.5, 0.25, 1, 0.125], [1, 0.25]], strict=True):
        assert [width / max(of) for width in of] == pytest.approx(shares, abs=0.01)
    # A contender has the same colour everywhere.
    colours = [[bar.attrib["fill"] for bar in group.iter(f"{SVG}rect")] for group in groups]
    assert colours[1] == [colours[0][0], colours[0][2]]
    assert "href" not in text
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text


def test_an_object_for_each_figure():
    """In JSON, one a line."""
    lines = [json.loads(line) for line in rows_text(ROWS, MACHINE, "json").splitlines()]
    assert [(line["what"], line["figure"], line["peers"]) for line in lines] == [
        (found.what, found.figure, found.peers) for found in ROWS
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_may_have_no_rows(form):
    """Each format says so in its way."""
    shown = rows_text([], MACHINE, form)
    assert ("P <1>" in shown or "P &lt;1&gt;" in shown) == (form in ("text", "svg"))


def test_a_page_is_filled(tmp_path):
    """Between its marks, again and again, with what was left out; the chart stands beside it."""
    page = tmp_path / "page.md"
    page.write_text("head\n<!-- beside -->\nold\n<!-- /beside -->\ntail\n")
    for _ in range(2):
        fill_page(page, "beside", ROWS, MACHINE, ["NATS is left out"])
    head, text = page.read_text().split("<!-- beside -->")
    content, tail = text.split("<!-- /beside -->")
    assert (head, tail) == ("head\n", "\ntail\n")
    assert "old" not in content
    assert "- NATS is left out\n" in content
    assert rows_text(ROWS, MACHINE, "markdown") in content
    assert "](beside.svg)" in content
    assert (tmp_path / "beside.svg").read_text() == rows_text(ROWS, MACHINE, "svg") + "\n"
    with pytest.raises(ValueError, match="page has no marks"):
        fill_page(page, "brokers", ROWS, MACHINE, [])

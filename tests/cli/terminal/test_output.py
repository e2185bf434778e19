"""Rows to stdout."""

from __future__ import annotations

import json
import sys

import pytest

from reput.cli.terminal.options import OutputFormat
from reput.cli.terminal.output import OutputClosed, Printer, aligned, print_table

ROWS = [{"name": "a", "lag": 5, "error": None, "after": []}, {"name": "bcd", "lag": None, "error": "x y", "after": []}]


def test_json_is_one_object_a_line(capsys):
    """All fields, including those that a table omits."""
    assert Printer(OutputFormat.JSON, str).rows(ROWS) == 2
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS
    print_table(ROWS, ("name",), OutputFormat.JSON)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS


def test_text_is_what_the_verb_says(capsys):
    """One line per row."""
    Printer(OutputFormat.TEXT, lambda row: row["name"].upper()).rows(ROWS)
    assert capsys.readouterr().out == "A\nBCD\n"


def test_a_table_has_columns_and_no_empty_ones(capsys):
    """Numbers are right-aligned; unknown values are a hyphen, never 0."""
    print_table(ROWS, ("name", "lag", "after", "error"), OutputFormat.TEXT)
    assert capsys.readouterr().out == "name  lag  error\na       5  -\nbcd     -  x y\n"
    print_table([], ("name",), OutputFormat.TEXT)
    assert capsys.readouterr().out == ""


def test_columns_are_as_wide_as_their_widest_cell():
    """Two spaces between them, none at the end of a line."""
    assert aligned([["a", "b"], ["long", "1"]]) == "a     b\nlong  1"


def test_a_closed_stdout_is_told_apart(monkeypatch):
    """It differs from a broken socket somewhere in the engine."""

    class Closed:
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(OutputClosed):
        Printer(OutputFormat.JSON, str).row({})

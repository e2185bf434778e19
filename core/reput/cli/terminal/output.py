"""Results on stdout: one row per line, as text or as JSON."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from reput.cli.terminal.options import OutputFormat
from reput.cli.terminal.rows import Body, record_row, record_text
from reput.process.logs.exception_text import exception_line
from reput_hooks import Record

__all__ = [
    "BODY_PREVIEW_SIZE",
    "OutputClosed",
    "Printer",
    "RecordPrinter",
    "aligned",
    "cell_text",
    "fitted_table",
    "print_table",
    "table_text",
    "wrapped",
    "write_line",
]

BODY_PREVIEW_SIZE = 60  # characters
NUMERIC = re.compile(r"-|[0-9.,]+")
Row = Mapping[str, Any]


class OutputClosed(Exception):
    """The reader of stdout has gone."""


class Printer:
    """Prints rows in the requested format. *text* converts a row to text, possibly of several lines."""

    def __init__(self, output_format: OutputFormat, text: Callable[[Row], str]) -> None:
        self.is_json = output_format is OutputFormat.JSON
        self.text = text
        self.encoder = msgspec.json.Encoder()

    def row(self, row: Row) -> None:
        """Print one row.

        Raises:
            OutputClosed: stdout has no reader any more.
        """
        write_line(self.encoder.encode(row).decode() if self.is_json else self.text(row))

    def rows(self, rows: Iterable[Row]) -> int:
        """Print all *rows* and return their number."""
        count = 0
        for row in rows:
            self.row(row)
            count += 1
        return count


class RecordPrinter:
    """Prints records with their bodies in the requested form: by default base64 in JSON, shortened in text."""

    def __init__(self, output_format: OutputFormat, body: Body | None) -> None:
        is_json = output_format is OutputFormat.JSON
        self.body = body or (Body.BASE64 if is_json else Body.TEXT)
        self.body_size_max = None if body else BODY_PREVIEW_SIZE
        self.printer = Printer(output_format, self.text)

    def text(self, row: Row) -> str:
        """Return the line for one record."""
        return record_text(row, self.body_size_max)

    def record(self, record: Record, **more: Any) -> None:
        """Print one record; *more* fields come first.

        Raises:
            OutputClosed: stdout has no reader any more.
        """
        self.printer.row(more | record_row(record, self.body))


def print_table(rows: Sequence[Row], columns: Sequence[str], output_format: OutputFormat) -> None:
    """Print *rows*: in JSON completely, in text as a table of *columns*, without columns that are empty in all rows."""
    if output_format is OutputFormat.JSON:
        Printer(output_format, str).rows(rows)
        return
    if text := table_text(rows, columns):
        write_line(text)


def table_text(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return a table of *columns* of *rows*, without columns that are empty in all rows."""
    shown = [name for name in columns if any(row[name] not in (None, "", []) for row in rows)]
    return aligned([shown, *([cell_text(row[name]) for name in shown] for row in rows)]) if shown else ""


def fitted_table(rows: Sequence[Row], columns: Sequence[str], width: int) -> str:
    """Return `table_text` in lines of *width*: columns that do not fit form further tables below the first one.

    A cell that is wider than a line stands below, wrapped.
    """
    shown = [name for name in columns if any(row[name] not in (None, "", []) for row in rows)]
    if not shown:
        return ""
    first = shown[0]
    widths = {name: max(len(name), *(len(cell_text(row[name])) for row in rows)) for name in shown}
    room = width - widths[first]
    tables: list[list[str]] = [[first]]
    below: list[str] = []
    left = room
    for name in shown[1:]:
        needed = widths[name] + 2
        if needed > room:
            below += [
                wrapped(f"{name} of {cell_text(row[first])}: {cell_text(row[name])}", width)
                for row in rows
                if row[name] not in (None, "", [])
            ]
            continue
        if needed > left:
            tables.append([first])
            left = room
        tables[-1].append(name)
        left -= needed
    return "\n".join([*(table_text(rows, names) for names in tables), *below])


def wrapped(line: str, width: int) -> str:
    """Return *line* wrapped to *width*; longer words stay whole."""
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def cell_text(value: object) -> str:
    """Return a cell as text: a hyphen for an unknown value, the exception's message for a traceback."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "-"
    return exception_line(str(value))


def write_line(line: str) -> None:
    """Write one line to stdout.

    Raises:
        OutputClosed: stdout has no reader any more.
    """
    try:
        sys.stdout.write(line + "\n")
    except BrokenPipeError:
        raise OutputClosed from None


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return *lines* of cells as columns separated by two spaces; columns of numbers are right-aligned."""
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(NUMERIC.fullmatch(cell) for cell in column[1:]) for column in columns]
    pads = [str.rjust if right else str.ljust for right in numeric]
    return "\n".join(
        "  ".join(pad(cell, width) for pad, cell, width in zip(pads, line, widths, strict=True)).rstrip()
        for line in lines
    )

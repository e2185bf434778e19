"""`reput dump`: prints the content of the log, in order, or of a view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
    BodyOption,
    ConfigOption,
    CountOption,
    FormatOption,
    OutputFormat,
    SetOption,
    StoreArgument,
    settings_of,
    whole_number,
)
from reput.cli.terminal.output import Printer, RecordPrinter
from reput.cli.terminal.rows import Body
from reput_hooks import Record

if TYPE_CHECKING:
    from reput.settings import Settings
    from reput.store.recovery.log_walk import Extent

__all__ = ["EXAMPLE", "dump"]

EXAMPLE = "reput send store orders --count 3 && reput dump store"


def dump(
    store: StoreArgument,
    begin: Annotated[
        int | None, typer.Option("--from", metavar="O", parser=whole_number(), help="Begin at this commit-log offset.")
    ] = None,
    until: Annotated[
        int | None, typer.Option("--until", metavar="O", parser=whole_number(), help="End at this commit-log offset.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="T", help="Only records or units of this topic.")
    ] = None,
    count: CountOption = None,
    body: BodyOption = None,
    view: Annotated[
        str | None,
        typer.Option("--view", metavar="V", help="Dump this view: consume_queue, consume_queue_ext or index."),
    ] = None,
    queue_id: Annotated[
        int | None,
        typer.Option("--queue-id", metavar="Q", parser=whole_number(), help="With --view: only units of this queue."),
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Print the log in commit-log order: records, and rows for other bytes: blanks, damage, stale bytes.

    With --view, print the content of a view's files instead. Exit code 1: there is damage. It has its own row, and the
    dump continues after it.
    """
    settings = settings_of(store, config, assignments).settings
    if view is not None:
        refuse_together("--view", {"--from": begin, "--until": until, "--body": body})
        return dump_units(store, view, settings, topic, queue_id, count, output_format)
    refuse_together("a dump of the log", {"--queue-id": queue_id})
    from reput.store.check.dump import dump_log

    demand_crc = settings.force_verify_prop_crc
    rows = dump_log(store, begin=begin, until=until, topic=topic, count=count, demand_crc=demand_crc)
    return dump_records(rows, body, output_format)


def refuse_together(what: str, options: Mapping[str, object]) -> None:
    """Refuse options that do not go with *what*.

    Raises:
        typer.BadParameter: one of *options* was given.
    """
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"{name} does not go with {what}: {name}={value}")


def dump_records(rows: Iterable[Record | Extent], body: Body | None, output_format: OutputFormat) -> int:
    """Print the log, and return the exit code."""
    printer = DumpPrinter(output_format, body)
    is_damaged = False
    for found in rows:
        if isinstance(found, Record):
            printer.record(found, kind="record")
        else:
            printer.printer.row(extent_row(found))
            is_damaged |= found.kind == "damage"
    return ANSWER_IS_NO if is_damaged else 0


def dump_units(
    store: Path,
    view: str,
    settings: Settings,
    topic: str | None,
    queue_id: int | None,
    count: int | None,
    output_format: OutputFormat,
) -> int:
    """Print a view, and return the exit code."""
    from reput.store.check.dump_view import ViewDamageRow, dump_view

    printer = Printer(output_format, unit_text)
    is_damaged = False
    for row in islice(dump_view(store, view, settings, topic=topic, queue_id=queue_id), count):
        printer.row(to_builtins(row))
        is_damaged |= isinstance(row, ViewDamageRow)
    return ANSWER_IS_NO if is_damaged else 0


def unit_text(row: Mapping[str, Any]) -> str:
    """Return a unit or entry of a view as names and values, beginning with its position."""
    return "  ".join(f"{name}={value}" for name, value in row.items() if value is not None)


def extent_row(extent: Extent) -> dict[str, Any]:
    """Return the row for bytes that are not a record."""
    if extent.kind == "blank":
        return {"kind": "blank", "commit_log_offset": extent.begin, "size": extent.end - extent.begin}
    return {"kind": extent.kind, "commit_log_offset": extent.begin, "until": extent.end, "reason": extent.reason}


class DumpPrinter(RecordPrinter):
    """Prints records and other byte ranges."""

    def text(self, row: Mapping[str, Any]) -> str:
        if row["kind"] == "record":
            return super().text(row)
        size = row["size"] if row["kind"] == "blank" else row["until"] - row["commit_log_offset"]
        reason = f": {row['reason']}" if "reason" in row else ""
        return f"{row['commit_log_offset']:>14}  {size:>8}  {row['kind']}{reason}"

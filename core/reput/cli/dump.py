"""`reput dump`: what the log holds, in its order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.failure import ANSWER_IS_NO
from reput.cli.options import (
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
from reput.cli.output import RecordPrinter
from reput_hooks import Record

if TYPE_CHECKING:
    from reput.store.log_walk import Extent

__all__ = ["EXAMPLE", "dump"]

EXAMPLE = "reput send store orders --count 3 && reput dump store"


def dump(
    store: StoreArgument,
    begin: Annotated[
        int | None, typer.Option("--from", metavar="O", parser=whole_number(), help="From this commit-log offset.")
    ] = None,
    until: Annotated[
        int | None, typer.Option("--until", metavar="O", parser=whole_number(), help="Up to this commit-log offset.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="T", help="Records of this topic only.")] = None,
    count: CountOption = None,
    body: BodyOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Print the records of the log in commit-log order, with rows for what is no record: blanks, damage, stale bytes.

    Exit code 1: there is damage. It is a row of its own, and the dump goes on behind it.
    """
    from reput.store.dump import dump_log

    settings_of(store, config, assignments)
    printer = DumpPrinter(output_format, body)
    is_damaged = False
    for found in dump_log(store, begin=begin, until=until, topic=topic, count=count):
        if isinstance(found, Record):
            printer.record(found, kind="record")
        else:
            printer.printer.row(extent_row(found))
            is_damaged |= found.kind == "damage"
    return ANSWER_IS_NO if is_damaged else 0


def extent_row(extent: Extent) -> dict[str, Any]:
    """Return the row of bytes that are no record."""
    if extent.kind == "blank":
        return {"kind": "blank", "commit_log_offset": extent.begin, "size": extent.end - extent.begin}
    return {"kind": extent.kind, "commit_log_offset": extent.begin, "until": extent.end, "reason": extent.reason}


class DumpPrinter(RecordPrinter):
    """Prints records, and what is none."""

    def text(self, row: Mapping[str, Any]) -> str:
        if row["kind"] == "record":
            return super().text(row)
        size = row["size"] if row["kind"] == "blank" else row["until"] - row["commit_log_offset"]
        reason = f": {row['reason']}" if "reason" in row else ""
        return f"{row['commit_log_offset']:>14}  {size:>8}  {row['kind']}{reason}"

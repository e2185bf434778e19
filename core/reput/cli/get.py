"""`reput get`: messages by queue position."""

from __future__ import annotations

from typing import Annotated

import typer

from reput.cli.failure import ANSWER_IS_NO
from reput.cli.options import (
    BodyOption,
    ConfigOption,
    FormatOption,
    OutputFormat,
    QueueIdArgument,
    SetOption,
    StoreArgument,
    TopicArgument,
    settings_of,
    whole_number,
)
from reput.cli.output import RecordPrinter

__all__ = ["EXAMPLE", "get"]

EXAMPLE = "reput send store orders --count 3 && reput get store orders 0 0 --count 3"


def get(
    store: StoreArgument,
    topic: TopicArgument,
    queue_id: QueueIdArgument,
    queue_offset: Annotated[
        int, typer.Argument(metavar="QUEUE_OFFSET", parser=whole_number(), help="Of the first message.")
    ],
    count: Annotated[
        int, typer.Option("--count", metavar="N", parser=whole_number(1), help="At most so many, one behind the other.")
    ] = 1,
    body: BodyOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Print messages of a queue, from a queue offset on.

    Exit code 1: there is none.
    """
    from reput.cli.behind import note_if_behind
    from reput.opened_store import ReadOnlyStore

    with ReadOnlyStore(store, settings_of(store, config, assignments).settings) as opened:
        found = opened.get(topic, queue_id, queue_offset, count)
        if not found.records:
            note_if_behind(opened, "consume_queue")
    printer = RecordPrinter(output_format, body)
    for record in found.records:
        printer.record(record)
    return 0 if found.records else ANSWER_IS_NO

"""`reput get`: messages by queue position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
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
from reput.cli.terminal.output import RecordPrinter
from reput.errors import DamagedStore

if TYPE_CHECKING:
    from reput.embedded.read_only_store import ReadOnlyStore
    from reput_hooks import Record

__all__ = ["EXAMPLE", "get"]

EXAMPLE = "reput send store orders --count 3 && reput get store orders 0 0 --count 3"


def get(
    store: StoreArgument,
    topic: TopicArgument,
    queue_id: QueueIdArgument,
    queue_offset: Annotated[
        int, typer.Argument(metavar="QUEUE_OFFSET", parser=whole_number(), help="Queue offset of the first message.")
    ],
    count: Annotated[
        int,
        typer.Option("--count", metavar="N", parser=whole_number(1), help="Maximum number of consecutive messages."),
    ] = 1,
    body: BodyOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Print messages of a queue, from a queue offset on.

    Exit code 1: there are no messages. If one is damaged, those before it are printed, and the exit code is 3.
    """
    from reput.cli.target.behind import note_if_behind
    from reput.embedded.read_only_engine import ReadOnlyEngine
    from reput.embedded.read_only_store import ReadOnlyStore

    printer = RecordPrinter(output_format, body)
    is_found = False
    with ReadOnlyEngine(store, settings_of(store, config, assignments).settings) as engine:
        for record in messages(ReadOnlyStore(engine), topic, queue_id, queue_offset, count):
            printer.record(record)
            is_found = True
        if not is_found:
            note_if_behind(engine, "consume_queue")
    return 0 if is_found else ANSWER_IS_NO


def messages(store: ReadOnlyStore, topic: str, queue_id: int, queue_offset: int, count: int) -> Iterator[Record]:
    """Yield up to *count* messages of a queue.

    Raises:
        DamagedStore: the next one is damaged; those before it were yielded.
    """
    try:
        found = store.get(topic, queue_id, queue_offset, count)
    except DamagedStore:
        for _ in range(count):
            found = store.get(topic, queue_id, queue_offset, 1)
            yield from found
            queue_offset = found.next_queue_offset
    else:
        yield from found

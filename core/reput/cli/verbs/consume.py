"""`reput consume`: messages of a topic, from all of its queues."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.target.remote import connected, consume_group, is_address, topic_records
from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
    BodyOption,
    ConfigOption,
    CountOption,
    FormatOption,
    OutputFormat,
    SetOption,
    TargetArgument,
    TopicArgument,
    parse_time,
    settings_of,
)
from reput.cli.terminal.output import RecordPrinter
from reput.errors import DamagedStore
from reput_hooks import Record

if TYPE_CHECKING:
    from reput.consume.administration.group_reading import GroupReading
    from reput.consume.pull.topic_reader import Beginning, MessageSource, TopicReader
    from reput.settings import Settings

__all__ = ["EXAMPLE", "consume", "parse_beginning"]

EXAMPLE = "reput send store orders --count 3 && reput consume store orders --group billing"
CONSUME_QUEUE = "consume_queue"
VIEW_WAIT_S = 0.01
WRITER_WAIT_S = 1.0


def consume(
    store: TargetArgument,
    topic: TopicArgument,
    group: Annotated[
        str | None, typer.Option("--group", metavar="G", help="Continue where this group left off, and commit.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="earliest|latest|TIME", help="Where to begin in queues without a committed offset."
        ),
    ] = "earliest",
    tags: Annotated[str | None, typer.Option("--tags", metavar="EXPR", help="Only these tags, like 'a || b'.")] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="EXPR", help="SQL92 filter on properties, like 'a > 5'.")
    ] = None,
    count: CountOption = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more messages, until Ctrl-C.")] = False,
    body: BodyOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Print the messages of a topic in log order.

    With --group, offsets are committed. Those of a store go to its consumerOffset.json, and no other process may write
    the store meanwhile; with HOST:PORT the group shares the topic with its other consumers. A time is milliseconds
    since 1970, or like 2026-01-31T12:00:00Z. Exit code 1: there are no messages.
    """
    from reput.consume.administration.group_reading import GroupReading
    from reput.consume.pull.topic_reader import TopicReader, first_queue_offset
    from reput.consume.registry.subscription import subscribe
    from reput.consume.registry.topics import may_be_topic
    from reput.embedded.read_only_engine import ReadOnlyEngine
    from reput.embedded.read_only_store import ReadOnlyStore
    from reput.filter import parse, parse_plain_tags

    if not may_be_topic(topic):
        raise typer.BadParameter(f"{topic!r} is not a valid topic name", param_hint="'TOPIC'")
    if tags is not None and sql is not None:
        raise typer.BadParameter(f"--tags and --sql exclude each other: --tags={tags} --sql={sql}")
    remote = is_address(store)
    if group is not None and follow and not remote:
        raise typer.BadParameter(
            f"--group and --follow exclude each other, because a group needs the store for itself: --group={group}"
        )
    beginning = parse_beginning(start)
    tag_filter = parse_plain_tags(tags) if tags is not None else None
    sql_filter = parse(sql) if sql is not None else None
    if remote:
        printer = RecordPrinter(output_format, body)
        with connected(store, config, assignments) as client:
            if group is not None:
                wanted = sql_filter or tag_filter
                found = consume_group(client, topic, group, wanted, beginning, printer, count, follow=follow)
            else:
                records = topic_records(client, topic, beginning, tag_filter, sql_filter, follow=follow)
                found = print_all(islice(records, count), printer)
        return 0 if found else ANSWER_IS_NO
    settings = settings_of(store, config, assignments).settings
    with ExitStack() as stack:
        engine = stack.enter_context(ReadOnlyEngine(store, settings))
        offsets: GroupReading | None = None
        if group is not None:
            subscription = subscribe(topic, sql_filter or tag_filter)
            offsets = stack.enter_context(GroupReading(store, engine, group, subscription))

        def begin(source: MessageSource, queue_id: int) -> int:
            committed = offsets.next_queue_offset(queue_id) if offsets else None
            return first_queue_offset(source, topic, queue_id, beginning) if committed is None else committed

        reader = TopicReader(topic, begin, tag_filter=tag_filter, sql_filter=sql_filter)
        records = followed(store, settings, reader) if follow else reader.records(offsets or ReadOnlyStore(engine))
        output = Output(reader, offsets, settings.flush_consumer_offset_interval / 1000)
        found = output.print(records, RecordPrinter(output_format, body), count)
    return 0 if found else ANSWER_IS_NO


def print_all(records: Iterable[Record], printer: RecordPrinter) -> int:
    """Print records, and return how many there were."""
    count = 0
    for record in records:
        printer.record(record)
        count += 1
    return count


def parse_beginning(text: str, option: str = "--from") -> Beginning:
    """Return where to begin: ``earliest``, ``latest``, or a time in ms since 1970.

    Raises:
        typer.BadParameter: *text* is none of these.
    """
    match text:
        case "earliest" | "latest":
            return text
    try:
        return parse_time(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error.message}, nor earliest or latest", param_hint=f"'{option}'") from None


def followed(store: Path, settings: Settings, reader: TopicReader) -> Iterator[Record]:
    """Yield the existing records, and then new ones from any writer. It never ends."""
    from reput.embedded.read_only_engine import ReadOnlyEngine
    from reput.embedded.read_only_store import ReadOnlyStore

    waiting = threading.Event()
    while True:
        with ReadOnlyEngine(store, settings) as engine:
            while True:
                readable = engine.readable_up_to(CONSUME_QUEUE)
                yield from reader.records(ReadOnlyStore(engine))
                sys.stdout.flush()
                if not engine.wait_for_growth(readable):
                    break
                # The log has grown; its queues follow a moment later.
                waiting.wait(VIEW_WAIT_S)
        waiting.wait(WRITER_WAIT_S)


class Output:
    """Prints records and commits what was printed: periodically, at the end, and when interrupted."""

    def __init__(self, reader: TopicReader, offsets: GroupReading | None, commit_interval_s: float) -> None:
        self.reader = reader
        self.offsets = offsets
        self.commit_interval_s = commit_interval_s
        self.commit_due = time.monotonic() + commit_interval_s

    def print(self, records: Iterator[Record], printer: RecordPrinter, count: int | None) -> int:
        """Print up to *count* records, and return their number."""
        found = 0
        try:
            for record in records:
                printer.record(record)
                found += 1
                if found == count:
                    break
                if self.offsets is not None and time.monotonic() >= self.commit_due:
                    self.commit()
        except (KeyboardInterrupt, DamagedStore):
            self.commit()
            raise
        self.reader.acknowledge()
        self.commit()
        return found

    def commit(self) -> None:
        """Commit the offsets of the printed records for the group, if there is one."""
        if self.offsets is not None:
            sys.stdout.flush()
            self.offsets.commit(self.reader.positions)
            self.commit_due = time.monotonic() + self.commit_interval_s

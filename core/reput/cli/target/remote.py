"""Verbs on ``HOST:PORT``: what they do with brokers instead of a store's files."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from reput.cli.terminal.options import ADDRESS, OutputFormat
from reput.cli.terminal.output import RecordPrinter, print_table
from reput_hooks import Record

if TYPE_CHECKING:
    from reput.client.client import Client
    from reput.consume.pull.topic_reader import Beginning, MessageSource
    from reput.consume.registry.subscription import Filter
    from reput.filter import SqlFilter, TagFilter

__all__ = ["connected", "consume_group", "is_address", "print_brokers", "topic_records"]

# A group has got what there is when nothing has come for so long.
QUIET_S = 1.0
FOLLOW_INTERVAL_S = 0.2
WATCH_INTERVAL_S = 1.0
# A person waits for the answer.
PUT_TIMEOUT_S = 3.0
BROKER_COLUMNS = (
    "cluster",
    "broker_name",
    "broker_id",
    "address",
    "version",
    "put_tps",
    "get_tps",
    "over_quota",
    "error",
)


def is_address(target: Path) -> bool:
    """Return whether a TARGET is a name server's ``HOST:PORT``, or a broker's ``unix:PATH``, and no directory."""
    text = str(target)
    return (ADDRESS.fullmatch(text) is not None or text.startswith("unix:")) and not target.exists()


@contextmanager
def connected(target: Path, config: Path | None, assignments: list[str] | None) -> Iterator[Client]:
    """Yield a client of the brokers of a name server.

    Raises:
        typer.BadParameter: settings are given, which belong to a store.
    """
    from reput.access.credentials import account_of_environment
    from reput.client.client import connect

    if config is not None or assignments:
        raise typer.BadParameter(
            f"--config and --set are for a store, brokers have their own settings: TARGET={target}"
        )
    account: dict[str, Any] = account_of_environment()
    with connect(str(target), timeout=PUT_TIMEOUT_S, **account) as client:
        yield client


def topic_records(
    client: Client,
    topic: str,
    beginning: Beginning,
    tag_filter: TagFilter | None,
    sql_filter: SqlFilter | None,
    *,
    follow: bool,
) -> Iterator[Record]:
    """Yield the messages of a topic, in the order of their log; with *follow*, wait for more, without end."""
    from reput.consume.pull.topic_reader import TopicReader, first_queue_offset

    source = cast("MessageSource", client)

    def begin(source: MessageSource, queue_id: int) -> int:
        return first_queue_offset(source, topic, queue_id, beginning)

    reader = TopicReader(topic, begin, tag_filter=tag_filter, sql_filter=sql_filter)
    waiting = threading.Event()
    while True:
        yield from reader.records(source)
        if not follow:
            return
        sys.stdout.flush()
        waiting.wait(FOLLOW_INTERVAL_S)


def consume_group(
    client: Client,
    topic: str,
    group: str,
    wanted: Filter,
    beginning: Beginning,
    printer: RecordPrinter,
    count: int | None,
    *,
    follow: bool,
) -> int:
    """Print and acknowledge what a group has not consumed yet; return how many messages there were."""
    found = 0
    with client.consumer(group, topic, wanted, begin=beginning) as consumer:
        for found in itertools.count():
            if found == count:
                break
            record = consumer.receive(None if follow else QUIET_S)
            if record is None:
                break
            printer.record(record)
            if follow:
                sys.stdout.flush()
            consumer.ack(record)
        sys.stdout.flush()
    return found


def print_brokers(client: Client, output_format: OutputFormat, *, watch: bool) -> bool:
    """Print a row per broker; return whether all of them answer."""
    waiting = threading.Event()
    while True:
        rows = [broker_row(row) for row in client.administration.brokers()]
        print_table(rows, BROKER_COLUMNS, output_format)
        sys.stdout.flush()
        if not watch:
            return bool(rows) and all(row["error"] is None for row in rows)
        waiting.wait(WATCH_INTERVAL_S)


def broker_row(broker: Any) -> dict[str, Any]:
    """Return the row for one broker."""
    from reput.watched.rates import GOT_NAMES, PUT_NAMES, broker_rate

    runtime = broker.runtime or {}
    return {
        "cluster": broker.cluster,
        "broker_name": broker.broker_name,
        "broker_id": broker.broker_id,
        "address": broker.address,
        "version": runtime.get("brokerVersionDesc"),
        "put_tps": broker_rate(runtime, *PUT_NAMES),
        "get_tps": broker_rate(runtime, *GOT_NAMES),
        # Requests that were refused or answered later; None: the broker has no quotas.
        "over_quota": broker_rate(runtime, "quotaRefusedNums"),
        "runtime": broker.runtime,
        "error": broker.error,
    }

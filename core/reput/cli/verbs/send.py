"""`reput send`: puts messages into a store."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
import typer

from reput.cli.target.remote import connected, is_address
from reput.cli.terminal.interrupts import Interrupted, Interrupts
from reput.cli.terminal.options import (
    ConfigOption,
    FormatOption,
    OutputFormat,
    SetOption,
    TargetArgument,
    TopicArgument,
    settings_of,
    whole_number,
)
from reput.cli.terminal.output import Printer, write_line
from reput.errors import ReputError

if TYPE_CHECKING:
    from reput.store.record.message import Message, PutMessageResult

__all__ = ["EXAMPLE", "send"]

EXAMPLE = "echo hello | reput send store orders --tags greeting"
SIZE_DEFAULT = 1024
UNKNOWN = -1
# The status of a message that needs no word; the module that has it is loaded later.
CONFIRMED = "PUT_OK"


def parse_rate(text: str) -> float:
    """Return a number of messages per second.

    Raises:
        typer.BadParameter: *text* is not a number above 0.
    """
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0.0 < rate < math.inf:
        raise typer.BadParameter(f"{text!r} is not a number above 0")
    return rate


def send(
    store: TargetArgument,
    topic: TopicArgument,
    tags: Annotated[str | None, typer.Option("--tags", metavar="TAG", help="The tag that consumers filter by.")] = None,
    keys: Annotated[str | None, typer.Option("--keys", metavar="KEYS", help="Keys, separated by spaces.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="K=V", help="A property; may be repeated.")
    ] = None,
    queue_id: Annotated[
        int | None,
        typer.Option(
            "--queue-id",
            metavar="Q",
            parser=whole_number(),
            help="Queue of the topic; default: the write queues of a described topic in turn.",
        ),
    ] = None,
    sharding_key: Annotated[
        str | None,
        typer.Option("--sharding-key", metavar="KEY", help="Pick the queue by this key, as RocketMQ's clients do."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", metavar="N", parser=whole_number(), help="Generate N messages instead of reading stdin."
        ),
    ] = None,
    size: Annotated[
        int,
        typer.Option("--size", metavar="B", parser=whole_number(), help="Body size of generated messages in bytes."),
    ] = SIZE_DEFAULT,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="R", parser=parse_rate, help="Maximum messages per second.")
    ] = None,
    delay_level: Annotated[
        int,
        typer.Option(
            "--delay-level",
            metavar="L",
            parser=whole_number(),
            help="Deliver later: 1 is 1 s, 18 is 2 h; higher levels count as the highest.",
        ),
    ] = 0,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Put each line of stdin as a message, or N generated messages. A missing store is created.

    Text output shows how many messages went to each queue, also if a later one cannot be stored; JSON has one row per
    message. Ctrl-C, SIGTERM and SIGHUP end it between two messages, and close the store; the exit code is then 128 plus
    the signal's number.
    """
    from reput.embedded.store_engine import StoreEngine
    from reput.errors import MessageIllegal
    from reput.store.record.delay_level import DelayLevels
    from reput.store.record.message import Message, check_topic, message_properties

    template = Message(
        topic,
        b"",
        tags,
        keys,
        dict(split_property(text) for text in properties or ()),
        0,
        queue_id,
        delay_level,
        sharding_key,
    )
    # Opening creates a missing store, which should not happen for a message that cannot be sent.
    check_topic(topic)
    message_properties(template)
    bodies = stdin_lines() if count is None else generated_bodies(count, size)
    printer = Printer(output_format, str)
    sent = Sent()
    if is_address(store):
        with (
            Interrupts() as interrupts,
            connected(store, config, assignments) as client,
            told_on_error(sent, printer, store, topic),
        ):
            for body in until_interrupted(paced(bodies, rate), interrupts):
                put_one(client, template, body, printer, sent, flush=count is None)
        if not printer.is_json:
            write_line(sent.summary(store, topic))
        return interrupts.exit_code
    settings = settings_of(store, config, assignments).settings
    level = DelayLevels(settings.message_delay_level).level_of(template)
    if count and size > settings.max_message_size:
        raise MessageIllegal(f"body is too long: body_size={size} max_message_size={settings.max_message_size}")
    with Interrupts() as interrupts, StoreEngine(store, settings, "processes") as engine:
        with told_on_error(sent, printer, store, topic):
            for body in until_interrupted(paced(bodies, rate), interrupts):
                put_one(engine, template, body, printer, sent, flush=count is None)
        # The store waits here for lagging dispatchers, which could also continue at the next opening.
        with contextlib.suppress(Interrupted), interrupts.ending():
            engine.close()
    if not printer.is_json:
        write_line(sent.summary(store, topic) + delay_text(level, delay_level))
    return interrupts.exit_code


class Putting(Protocol):
    """What puts messages: a store, or a client of brokers."""

    def put(self, message: Message) -> PutMessageResult:
        """Store one message."""


def put_one(target: Putting, template: Message, body: bytes, printer: Printer, sent: Sent, *, flush: bool) -> None:
    """Put one message like *template*, and print its row."""
    result = target.put(msgspec.structs.replace(template, body=body))
    sent.add(result)
    if printer.is_json:
        printer.row(result_row(template.topic, result))
        if flush:
            # The process that writes the lines may wait for one result before it writes the next line.
            sys.stdout.flush()


@contextlib.contextmanager
def told_on_error(sent: Sent, printer: Printer, store: Path, topic: str) -> Iterator[None]:
    """If a message cannot be stored, say which were stored before it."""
    try:
        yield
    except ReputError:
        if sent.count and not printer.is_json:
            write_line(sent.summary(store, topic))
        raise


def until_interrupted(bodies: Iterator[bytes], interrupts: Interrupts) -> Iterator[bytes]:
    """Yield *bodies* until a signal comes, which only interrupts waiting for the next one."""
    while True:
        try:
            with interrupts.waiting():
                body = next(bodies, None)
        except Interrupted:
            return
        if body is None:
            return
        yield body


def split_property(text: str) -> tuple[str, str]:
    """Return name and value of ``K=V``.

    Raises:
        typer.BadParameter: *text* does not have this form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"--property takes K=V: --property={text}")
    return name, value


def stdin_lines() -> Iterator[bytes]:
    """Yield each line of stdin without its end."""
    if sys.stdin.isatty():
        print("reput: each line is a message; end with Ctrl-D", file=sys.stderr)
    for line in sys.stdin.buffer:
        yield line.rstrip(b"\r\n")


def generated_bodies(count: int, size: int) -> Iterator[bytes]:
    """Yield *count* bodies of *size* bytes: their number, padded with full stops."""
    for number in range(count):
        yield str(number).encode().ljust(size, b".")[:size]


def paced(bodies: Iterator[bytes], rate: float | None) -> Iterator[bytes]:
    """Yield *bodies*, at most *rate* per second."""
    begun_at = time.monotonic()
    waiting = threading.Event()
    for number, body in enumerate(bodies):
        if rate is not None and (wait := begun_at + number / rate - time.monotonic()) > 0:
            waiting.wait(wait)
        yield body


def result_row(topic: str, result: PutMessageResult) -> dict[str, Any]:
    """Return the row of one stored message."""
    row = {
        "status": result.status.value,
        "topic": topic,
        "queue_id": result.queue_id,
        "queue_offset": result.queue_offset,
        "commit_log_offset": result.commit_log_offset,
        "next_commit_log_offset": result.next_commit_log_offset,
        "record_size": result.record_size,
        "store_timestamp": result.store_timestamp,
        "message_id": result.message_id,
    }
    # RocketMQ's brokers do not tell everything.
    return {name: None if value == UNKNOWN else value for name, value in row.items()}


def delay_text(level: int, asked: int) -> str:
    """Return the messages' delay level as text; empty without one."""
    if not level:
        return ""
    if asked <= level:
        return f", delay level {level}"
    return f", delay level {level}: the highest one, {asked} was requested"


class Sent:
    """Summary of the sent messages: the first and the last message, and the offsets in each queue."""

    def __init__(self) -> None:
        self.count = 0
        self.first: PutMessageResult | None = None
        self.last: PutMessageResult | None = None
        # Queue id → first and last queue offset.
        self.queues: dict[int, tuple[int, int]] = {}
        # Of messages that are stored, but of which the broker does not confirm as much as it should.
        self.unconfirmed: Counter[str] = Counter()

    def add(self, result: PutMessageResult) -> None:
        """Add one message."""
        self.count += 1
        if result.status.value != CONFIRMED:
            self.unconfirmed[result.status.value] += 1
        self.first = self.first or result
        self.last = result
        begin, _ = self.queues.get(result.queue_id, (result.queue_offset, 0))
        self.queues[result.queue_id] = begin, result.queue_offset

    def summary(self, store: Path, topic: str) -> str:
        """Return the summary as text."""
        if self.first is None or self.last is None:
            return "nothing was sent"
        queues = ", ".join(
            f"queue {queue_id} from {begin} to {end}" for queue_id, (begin, end) in sorted(self.queues.items())
        )
        unconfirmed = ", ".join(f"{count} {status}" for status, count in self.unconfirmed.items())
        return (
            f"{self.count} sent to {topic} in {store}: {queues}, "
            f"commit-log offset {self.first.commit_log_offset} to {self.last.next_commit_log_offset}"
            + (f"; stored, but not confirmed: {unconfirmed}" if unconfirmed else "")
        )

"""GroupDeadLetters: the messages that a group could not handle, and their way back.

    %DLQ%billing ── redrive ──▶ orders              to every group of the topic, or
                          └───▶ %RETRY%billing      to this group alone

A dead letter stays where it is; a redrive puts a copy, which begins its retries anew. How far it came is kept as the
committed offset of a group of its own, `REDRIVE_GROUP`, so that the next redrive goes on there. A redrive of chosen
letters leaves that offset alone, and so does one that begins elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Literal, Protocol

import msgspec

from reput.argument_checks import require_text, require_whole
from reput.consume.administration.stored_queues import StoredQueues
from reput.consume.delivery.carried_message import carried_message, carried_properties
from reput.consume.pull.topic_reader import Beginning, MessageSource, TopicReader, check_beginning, first_queue_offset
from reput.consume.registry.topics import DLQ_PREFIX, RETRY_PREFIX
from reput.errors import ConfigError, MessageIllegal, RequestRefused
from reput.filter import parse, parse_plain_tags
from reput.in_thread import iterated_in_thread
from reput.remoting.response_code import ResponseCode
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput.store.disk.shortages import tell_read_error
from reput.store.reader.results import GetMessageResult
from reput.store.record.body_compression import COMPRESSED_FLAG
from reput.store.record.message import Message, PutMessageResult
from reput_hooks import Record

__all__ = [
    "REDRIVE_GROUP",
    "DeadLetterSource",
    "GroupDeadLetters",
    "RedriveMarks",
    "RedrivenLetter",
    "StoredMarks",
    "StoredMessages",
    "origin_topic",
]

REDRIVE_GROUP = "reput_redrive"
# What a broker adds when it retries a message, delays it or lets it die; a redriven message begins anew.
LEFT_OUT = ("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "DELAY", "WAIT", "REAL_TOPIC", "REAL_QID")
LEFT_OUT_COUNTS = ("RECONSUME_TIME", "MAX_RECONSUME_TIMES", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME")
# After so many letters the mark is written, so that a kill repeats no more.
MARK_EVERY = 100
RedriveTarget = Literal["topic", "group"]


class DeadLetterSource(MessageSource, Protocol):
    """An open store, or a client of brokers."""

    def put(self, message: Message) -> PutMessageResult:
        """Store a message."""


class RedriveMarks(Protocol):
    """How far the dead letters of groups were redriven."""

    def redriven_to(self, group: str, queue_id: int) -> int | None:
        """Return the queue offset that a redrive begins at; None: there was none."""

    def note_redriven(self, group: str, queue_id: int, queue_offset: int) -> None:
        """Keep the queue offset that the next redrive begins at, durably."""


class RedrivenLetter(msgspec.Struct, frozen=True):
    """What became of one dead letter.

    Attributes:
        queue_id, queue_offset: where the letter lies in its dead-letter topic.
        topic: the topic that it went back to, or would go back to; None: unknown.
        outcome: "redriven"; "chosen", by a dry run; or "left", for the *reason*.
        message_id: the store's id of the copy; None: there is none.
    """

    queue_id: int
    queue_offset: int
    topic: str | None
    outcome: Literal["redriven", "chosen", "left"]
    message_id: str | None = None
    reason: str | None = None


class StoredMarks:
    """`RedriveMarks` in a store's own file of offsets."""

    def __init__(self, offsets: ConsumerOffsetManager) -> None:
        self.offsets = offsets

    def redriven_to(self, group: str, queue_id: int) -> int | None:
        """Return the queue offset that a redrive begins at; None: there was none."""
        return self.offsets.query_offset(REDRIVE_GROUP, DLQ_PREFIX + group, queue_id)

    def note_redriven(self, group: str, queue_id: int, queue_offset: int) -> None:
        """Keep the queue offset that the next redrive begins at, durably."""
        self.offsets.commit_offset(REDRIVE_GROUP, DLQ_PREFIX + group, queue_id, queue_offset)
        self.offsets.persist()


class StoredMessages:
    """The messages of a store, as `GroupDeadLetters` uses them."""

    def __init__(self, queues: StoredQueues, put: Callable[[Message], PutMessageResult] | None) -> None:
        """*put*: None: the store is not open for writing."""
        self.queues = queues
        self.put_one = put

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic."""
        return self.queues.queue_ids(topic)

    def queue_range(self, topic: str, queue_id: int = 0) -> tuple[int, int]:
        """Return the first readable queue offset, and the one after the last."""
        return self.queues.queue_range(topic, queue_id)

    @tell_read_error("the dead letters cannot be read")
    def get(
        self, topic: str, queue_id: int = 0, queue_offset: int = 0, count_max: int = 32, *, tags: str | None = None
    ) -> GetMessageResult:
        """Return messages of a queue; the caller filters."""
        del tags
        store = self.queues.store
        with store.read_lock:
            return store.reader.get_message(topic, queue_id, queue_offset, count_max)

    def put(self, message: Message) -> PutMessageResult:
        """Store a message.

        Raises:
            ConfigError: the store is not open for writing.
        """
        if self.put_one is None:
            raise ConfigError(
                f"a store that is not open for writing takes no messages: topic={message.topic}",
                "Open it for writing, or connect to its broker.",
            )
        return self.put_one(message)


class GroupDeadLetters:
    """The dead letters of one group. Get it from `Administration.dead_letters`. One thread or task at a time."""

    def __init__(self, source: DeadLetterSource, marks: RedriveMarks, group: str, *, keeps_birth: bool) -> None:
        """Programs use `Administration.dead_letters` instead.

        Args:
            keeps_birth: *source* puts messages with the birth and flags of others, as a store does.
        """
        require_text("group", group)
        self._source = source
        self._marks = marks
        self._group = group
        self._topic = DLQ_PREFIX + group
        self._keeps_birth = keeps_birth

    def read(
        self,
        begin: Beginning | None = None,
        *,
        topic: str | None = None,
        tags: str | None = None,
        sql: str | None = None,
    ) -> Generator[Record, None, None]:
        """Yield the dead letters, in the order in which they died.

        Args:
            begin: ``"earliest"``, ``"latest"`` or the time of death, ms since 1970; None: where the last redrive ended.
            topic: only letters that were sent to this topic.
            tags: only letters with tags that this expression selects, like ``a || b``.
            sql: only letters that this SQL92 expression selects.

        Raises:
            ConfigError: an argument is wrong.
            FilterSyntaxError: a filter does not parse.
        """
        if begin is not None:
            check_beginning("begin", begin)
        if tags is not None and sql is not None:
            raise ConfigError(f"tags and sql exclude each other: tags={tags!r} sql={sql!r}")

        def begin_of(source: MessageSource, queue_id: int) -> int:
            mark = self._marks.redriven_to(self._group, queue_id) if begin is None else None
            return first_queue_offset(source, self._topic, queue_id, begin or "earliest") if mark is None else mark

        reader = TopicReader(
            self._topic,
            begin_of,
            tag_filter=None if tags is None else parse_plain_tags(tags),
            sql_filter=None if sql is None else parse(sql),
        )
        try:
            for record in reader.records(self._source):
                if topic in (None, origin_topic(record)):
                    yield record
        except RequestRefused as error:
            # No message of the group has died yet.
            if error.response_code != ResponseCode.TOPIC_NOT_EXIST:
                raise

    def aread(
        self,
        begin: Beginning | None = None,
        *,
        topic: str | None = None,
        tags: str | None = None,
        sql: str | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Like `read`, for ``async for`` in a task."""
        return iterated_in_thread(self.read(begin, topic=topic, tags=tags, sql=sql))

    def redrive(
        self,
        begin: Beginning | None = None,
        *,
        to: RedriveTarget = "topic",
        topic: str | None = None,
        tags: str | None = None,
        sql: str | None = None,
        count: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Generator[RedrivenLetter, None, None]:
        """Put dead letters back, one at each step of the iteration, and yield what became of each.

        Letters that die meanwhile, perhaps again, wait for the next redrive: one that cannot be handled does not keep a
        redrive going for ever.

        The parameters that are not listed choose the letters, as those of `read` do.

        Args:
            to: ``"topic"``: where they were sent to, so that all groups of the topic get them; ``"group"``: the retry
                topic, so that this group alone does.
            count: the largest number of letters; None: all.
            rate: the largest number of letters a second; None: without limit.
            dry_run: put nothing, and only yield the letters that would be put back.

        Raises:
            ConfigError, FilterSyntaxError: as of `read`.
            StoreError, BrokerError, RequestRefused: a letter could not be put; those before it were.
        """
        if to not in ("topic", "group"):
            raise ConfigError(f"to is neither topic nor group: to={to!r}")
        if count is not None:
            require_whole("count", count, 1)
        if rate is not None and not rate > 0:
            raise ConfigError(f"rate must be a number above 0: rate={rate!r}")
        is_used = begin is None and not dry_run and (topic, tags, sql) == (None, None, None)
        positions = RedrivePositions(self._marks, self._group, is_used=is_used)
        begun_at, waiting = time.monotonic(), threading.Event()
        number = 0
        ends = self._ends()
        try:
            for record in self.read(begin, topic=topic, tags=tags, sql=sql):
                if number == count:
                    break
                if record.queue_offset >= ends.get(record.queue_id, 0):
                    continue
                if rate is not None and (pause := begun_at + number / rate - time.monotonic()) > 0:
                    waiting.wait(pause)
                if number == 0:
                    positions.begin(record)
                row = self._put_back(record, to, dry_run=dry_run)
                number += 1
                positions.passed(record)
                yield row
        finally:
            positions.write()

    def aredrive(
        self,
        begin: Beginning | None = None,
        *,
        to: RedriveTarget = "topic",
        topic: str | None = None,
        tags: str | None = None,
        sql: str | None = None,
        count: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> AsyncGenerator[RedrivenLetter, None]:
        """Like `redrive`, for ``async for`` in a task."""
        return iterated_in_thread(
            self.redrive(begin, to=to, topic=topic, tags=tags, sql=sql, count=count, rate=rate, dry_run=dry_run)
        )

    def _ends(self) -> dict[int, int]:
        """Return where the queues of the dead letters end now."""
        try:
            queue_ids = self._source.queue_ids(self._topic)
            return {queue_id: self._source.queue_range(self._topic, queue_id)[1] for queue_id in queue_ids}
        except RequestRefused as error:
            # No message of the group has died yet.
            if error.response_code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return {}

    def _put_back(self, record: Record, to: RedriveTarget, *, dry_run: bool) -> RedrivenLetter:
        """Put one letter back, and return what became of it."""
        place = record.queue_id, record.queue_offset
        origin = origin_topic(record)
        if origin is None:
            return RedrivenLetter(*place, None, "left", reason="it does not say which topic it was sent to")
        if not self._keeps_birth and record.sys_flag & COMPRESSED_FLAG:
            return RedrivenLetter(
                *place, origin, "left", reason="its body is compressed in a way that is not read here"
            )
        topic = origin if to == "topic" else RETRY_PREFIX + self._group
        if dry_run:
            return RedrivenLetter(*place, topic, "chosen")
        properties = {
            name: value
            for name, value in carried_properties(record).items()
            if name not in LEFT_OUT and name not in LEFT_OUT_COUNTS
        }
        if to == "group":
            properties["RETRY_TOPIC"] = origin
        message = Message(topic, record.body, properties=properties, flag=record.flag)
        if self._keeps_birth:
            message = msgspec.structs.replace(
                carried_message(record, topic, 0, properties, keeps_store_host=False), queue_id=None, reconsume_times=0
            )
        try:
            result = self._source.put(message)
        except MessageIllegal as error:
            return RedrivenLetter(*place, topic, "left", reason=str(error))
        return RedrivenLetter(*place, topic, "redriven", message_id=result.message_id)


class RedrivePositions:
    """Where a redrive is in each queue."""

    def __init__(self, marks: RedriveMarks, group: str, *, is_used: bool) -> None:
        self.marks = marks
        self.group = group
        self.is_used = is_used
        self.positions: dict[int, int] = {}
        self.unwritten = 0

    def begin(self, record: Record) -> None:
        """Keep the position of the first letter: if marks are refused, nothing was put back yet.

        Raises:
            RequestRefused, BrokerError: they are.
        """
        if self.is_used:
            self.marks.note_redriven(self.group, record.queue_id, record.queue_offset)

    def passed(self, record: Record) -> None:
        """Note that one letter was put back, or left for good."""
        if self.is_used:
            self.positions[record.queue_id] = record.queue_offset + 1
            self.unwritten += 1
            if self.unwritten >= MARK_EVERY:
                self.write()

    def write(self) -> None:
        """Keep the positions, durably."""
        if self.unwritten:
            for queue_id, queue_offset in self.positions.items():
                self.marks.note_redriven(self.group, queue_id, queue_offset)
            self.unwritten = 0


def origin_topic(record: Record) -> str | None:
    """Return the topic that a dead letter was sent to; None: it does not say."""
    return record.properties.get("RETRY_TOPIC") or record.properties.get("DLQ_ORIGIN_TOPIC") or None

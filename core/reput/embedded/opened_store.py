"""OpenedStore: the public methods of a store, whether it was opened for writing or only for reading."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from reput.argument_checks import require_text, require_whole
from reput.closing_block import ClosingBlock
from reput.embedded.reading_engine import ReadingEngine
from reput.errors import ConfigError
from reput.filter import TagMessageFilter, parse_plain_tags
from reput.in_thread import in_thread
from reput.process.control.group_status import GroupStatus
from reput.settings import Settings
from reput.store.disk.shortages import store_error, tell_read_error
from reput.store.reader.results import GetMessageResult, with_exact_tags
from reput.store.record.record import decode_message_id
from reput.store.record.sent_record import as_sent
from reput_hooks import Record

__all__ = ["TIMESTAMP_MAX", "OpenedStore"]

TIMESTAMP_MAX = 0x7FFFFFFFFFFFFFFF

Engine = TypeVar("Engine", bound=ReadingEngine)


class OpenedStore(ClosingBlock, Generic[Engine]):
    """Reading, status and life of an open store. Any number of threads and tasks may use it.

    Every method that may wait has a coroutine twin: the same name with the prefix ``a``, the same arguments, result
    and errors. After `close`, every method raises `reput.StoreClosed`.
    """

    def __init__(self, engine: Engine) -> None:
        """Take over *engine*. Programs call `reput.open` instead."""
        self._engine = engine

    @property
    def directory(self) -> Path:
        """The store's directory."""
        return self._engine.directory

    @property
    def settings(self) -> Settings:
        """The store's effective settings, from every source."""
        return self._engine.settings

    @property
    def closed(self) -> bool:
        """Whether the store was closed, or this process is a forked child of the one that opened it."""
        return self._engine.closed

    # Reading.

    def get(
        self, topic: str, queue_id: int = 0, queue_offset: int = 0, count_max: int = 32, *, tags: str | None = None
    ) -> GetMessageResult:
        """Return up to *count_max* messages of a queue, from *queue_offset* on, in the queue's order.

        The result is a sequence of records. It also has RocketMQ's status and the queue offset to continue from. This
        does not wait for messages. A message is found once the dispatcher ``consume_queue`` has entered it: see
        `Store.wait_for`. Past the end and in an unknown topic or queue the result is empty.

        Args:
            tags: an expression like ``a || b``; only messages with one of these tags are returned. One call looks at
                some hundred messages, so an empty result with the status NO_MATCHED_MESSAGE is not the queue's end.

        Raises:
            ConfigError: an argument has a wrong type.
            FilterSyntaxError: *tags* does not parse.
            DamagedStore: a record contradicts its queue.
            StoreError: a file cannot be read.
        """
        engine = self._engine
        reads = engine.reads
        if reads is not None and tags is None:
            known: GetMessageResult | None = reads.get(topic, queue_id, queue_offset, count_max)
            if known is not None:
                return known
        engine.require_open()
        require_text("topic", topic)
        require_whole("queue_id", queue_id)
        require_whole("queue_offset", queue_offset, None)
        require_whole("count_max", count_max)
        message_filter = wanted = None
        if tags is not None:
            require_text("tags", tags)
            wanted = parse_plain_tags(tags)
            message_filter = TagMessageFilter(wanted)
        try:
            with engine.read_lock:
                found = engine.reader.get_message(
                    topic, queue_id, queue_offset, count_max, message_filter=message_filter
                )
                if reads is not None:
                    engine.reader.keep_queue(topic, queue_id, found)
                return found if wanted is None else with_exact_tags(found, wanted)
        except OSError as error:
            raise store_error(f"the queue cannot be read: topic={topic} queue_id={queue_id}", error) from error

    async def aget(
        self, topic: str, queue_id: int = 0, queue_offset: int = 0, count_max: int = 32, *, tags: str | None = None
    ) -> GetMessageResult:
        """Like `get`, for a task."""
        return await in_thread(self.get, topic, queue_id, queue_offset, count_max, tags=tags)

    def query(
        self,
        topic: str | None = None,
        key: str | None = None,
        count_max: int = 64,
        *,
        tags: str | None = None,
        begin: int = 0,
        end: int = TIMESTAMP_MAX,
    ) -> list[Record]:
        """Return the newest messages of *topic* with this key, or with these tags, the oldest of them first.

        A message is found once the dispatcher ``index`` has entered it: see `Store.wait_for`.

        Args:
            count_max: number of messages, at most ``max_msgs_num_batch``.
            topic: None if *key* is a ``message_id``.
            key: one of a message's keys, the unique key that RocketMQ's clients set, or a ``message_id``.
            tags: the message's complete tags. Needs the setting ``index_tags``.
            begin: the earliest store time, in ms since 1970. The index knows times to the second.
            end: the latest store time.

        Raises:
            ConfigError: neither *key* nor *tags* is given, or both are; or the store's index has no tags; or *topic*
                is None and *key* is no message id.
            StoreError: a file cannot be read.
        """
        engine = self._engine
        reads = engine.reads
        if reads is not None and tags is None:
            known = reads.query(topic, key, count_max, begin, end)
            if known is not None:
                return known
        engine.require_open()
        if topic is not None:
            require_text("topic", topic)
        if (key is None) == (tags is None):
            raise ConfigError(
                f"a query takes either a key or tags: key={key!r} tags={tags!r}", "Give exactly one of the two."
            )
        require_text("key" if tags is None else "tags", key if tags is None else tags)
        require_whole("count_max", count_max)
        require_whole("begin", begin, None)
        require_whole("end", end, None)
        if topic is None and (key is None or decode_message_id(key) is None):
            raise ConfigError(
                f"a query without a topic needs a message id: key={key!r} tags={tags!r}",
                "Name the topic, or give the message_id that put has returned.",
            )
        with engine.read_lock, tell_read_error(f"the index cannot be read: topic={topic}"):
            if topic is None:
                assert key is not None
                record = engine.reader.store.record_of_id(key)
                found = [record] if record and count_max and begin <= record.store_timestamp <= end else []
            elif tags is not None:
                found = engine.reader.index.query_tags(topic, tags, count_max, begin, end).records
            else:
                assert key is not None
                found = engine.reader.index.query_message(topic, key, count_max, begin, end).records
        return list(map(as_sent, found))

    async def aquery(
        self,
        topic: str | None = None,
        key: str | None = None,
        count_max: int = 64,
        *,
        tags: str | None = None,
        begin: int = 0,
        end: int = TIMESTAMP_MAX,
    ) -> list[Record]:
        """Like `query`, for a task."""
        return await in_thread(self.query, topic, key, count_max, tags=tags, begin=begin, end=end)

    def records(self, commit_log_offset: int = 0, *, follow: bool = False) -> Iterator[Record]:
        """Yield all records of the log, in its order, from the first one at or after *commit_log_offset*.

        No dispatcher is needed. Begin anywhere: offset 0 means the first record that retention has left.

        Args:
            follow: wait for later records and continue with them, until the store is closed or its writer has ended.
                A put wakes the follower. In another process a dispatcher does; while none runs, the follower looks for
                records ten times a second.

        Raises:
            DamagedStore: the bytes at the next offset are not a record.
            StoreError: a file cannot be read.
        """
        self._engine.require_open()
        require_whole("commit_log_offset", commit_log_offset)
        return self._engine.records(commit_log_offset, follow)

    def arecords(self, commit_log_offset: int = 0, *, follow: bool = False) -> AsyncIterator[Record]:
        """Like `records`, for ``async for`` in a task."""
        self._engine.require_open()
        require_whole("commit_log_offset", commit_log_offset)
        return self._engine.arecords(commit_log_offset, follow)

    def topics(self) -> dict[str, list[int]]:
        """Return the queue ids of every topic that has a consume queue, ascending."""
        self._engine.require_open()
        with tell_read_error("the queues cannot be listed"):
            return self._engine.reader.topics()

    async def atopics(self) -> dict[str, list[int]]:
        """Like `topics`, for a task."""
        return await in_thread(self.topics)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the queues of *topic* that messages were put to, ascending; empty if there is none."""
        self._engine.require_open()
        require_text("topic", topic)
        with tell_read_error(f"the queues cannot be listed: topic={topic}"):
            return sorted(self._engine.queue_ids(topic))

    async def aqueue_ids(self, topic: str) -> list[int]:
        """Like `queue_ids`, for a task."""
        return await in_thread(self.queue_ids, topic)

    def queue_range(self, topic: str, queue_id: int = 0) -> tuple[int, int]:
        """Return the queue offset of the first message that can be read, and the one after the last.

        Both are 0 if there is no such queue. `get` takes the first one to read the whole queue.
        """
        engine = self._engine
        engine.require_open()
        require_text("topic", topic)
        require_whole("queue_id", queue_id)
        with engine.read_lock, tell_read_error(f"the queue cannot be read: topic={topic} queue_id={queue_id}"):
            return engine.reader.queue_range(topic, queue_id)

    async def aqueue_range(self, topic: str, queue_id: int = 0) -> tuple[int, int]:
        """Like `queue_range`, for a task."""
        return await in_thread(self.queue_range, topic, queue_id)

    def status(self) -> GroupStatus:
        """Return the state of store, writer and dispatchers, and how much was put and consumed; None: not known.

        Raises:
            StoreError: a file with a part of it cannot be read.
        """
        self._engine.require_open()
        return self._engine.status()

    async def astatus(self) -> GroupStatus:
        """Like `status`, for a task."""
        return await in_thread(self.status)

    # Life.

    def close(self) -> None:
        """Close the store. Closing it again does nothing."""
        self._engine.close()

    def _require_open(self) -> None:
        """Refuse calls on a closed store, and in a forked child of its process."""
        self._engine.require_open()

"""Store: what `reput.open` returns for a store that this process writes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from reput.argument_checks import (
    OFFSET_MAX,
    require_messages,
    require_path,
    require_seconds,
    require_text,
    require_whole,
)
from reput.consume.delivery.schedule_service import DelayLevelRow
from reput.embedded.opened_store import OpenedStore
from reput.embedded.store_engine import StoreEngine
from reput.errors import MessageIllegal
from reput.in_thread import in_thread, opened_in_thread
from reput.process.control.control_messages import RebuiltView
from reput.store.record.message import Message, PutMessageResult
from reput.store.retention.retention_plan import SegmentFate
from reput.worker.running import RunsWorkers

if TYPE_CHECKING:
    from reput.consume.administration.administration import Administration
    from reput.consume.delivery.transaction_service import TransactionService
    from reput.consume.groups.consumer import Consumer
    from reput.consume.pull.topic_reader import Beginning
    from reput.consume.registry.statistics import StoreStatistics
    from reput.consume.registry.subscription import Filter
    from reput.worker.worker import Worker

__all__ = ["Store"]


class Store(OpenedStore[StoreEngine], RunsWorkers):
    """A store that this process writes. Any number of threads and tasks may use it. Open it with `reput.open`.

    Close it with `close`, or use ``with``; otherwise the end of the program closes it, with a ResourceWarning. If the
    program is killed, the next opening recovers what `put` promises. After `close`, every method raises `StoreClosed`.

    A method that may wait has a coroutine twin with the prefix ``a``. In a task, await the twin: `aput` for `put`.
    """

    def __init__(self, engine: StoreEngine) -> None:
        """Take over *engine*. Programs call `reput.open` instead."""
        super().__init__(engine)
        # Saves an attribute look-up in put, which is called a hundred thousand times a second; compiled puts, called
        # directly, save two calls. With SYNC_FLUSH a put waits for the disk, so it does not end there.
        self._writer = engine.writer
        self._kernel = None if engine.writer.sync_flush else engine.writer.appender.kernel

    # Writing.

    def put(self, message: Message) -> PutMessageResult:
        """Store one message and return its position.

        By default, this does not wait for the disk. The message survives a kill of the program at once, and a power cut
        once the log is forced: within 10 s, or by `flush`. With ``flush_disk_type="SYNC_FLUSH"`` this
        returns once the message is on disk, or after ``sync_flush_timeout`` with the status FLUSH_DISK_TIMEOUT. With
        ``transient_store_pool_enable`` a kill of the program may lose the messages of the last fraction of a second.

        Raises:
            MessageIllegal: the message violates a limit of RocketMQ.
            StoreFull: the disk has no space.
            StoreBusy: the disk is so slow that an earlier put is stuck, or no buffer of the transient pool is free.
            StoreReadOnly: the disk refused to force the log, now or before. This message may be stored; with every
                other error it is not.
            StoreClosed: the store was closed, or this is a forked child of its writer.
        """
        if self._kernel is not None:
            result: PutMessageResult | None = self._kernel.put(message)
            if result is not None:
                return result
        try:
            return self._writer.put(message)
        except (AttributeError, TypeError):
            # Checked only now, so that a successful put does not pay for it.
            require_messages([message])
            raise

    async def aput(self, message: Message) -> PutMessageResult:
        """Like `put`, for a task.

        With SYNC_FLUSH the message is stored at the end of the loop's turn, together with all others of that turn, and
        they share one force of the disk. A task that is cancelled in the same turn stores nothing; one that is
        cancelled later gives up waiting, and its message is stored.
        """
        writer = self._writer
        try:
            if not writer.sync_flush:
                return writer.appender.append(message)
            message, prepared = writer.appender.admit(message)
        except (AttributeError, TypeError):
            require_messages([message])
            raise
        return await self._engine.grouped_puts().put(message, prepared)

    def put_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Store *messages* in their order, without another message between them; return a result for each, in order.

        All messages are checked before the first is stored. If the disk refuses midway, the error's ``stored_count``
        says how many were stored. Errors and durability are those of `put`.
        """
        if not isinstance(messages, Iterable):
            raise MessageIllegal(
                f"messages are not iterable: type={type(messages).__name__}", "Give a list of reput.Message."
            )
        batch = list(messages)
        try:
            return self._writer.put_batch(batch)
        except (AttributeError, TypeError):
            require_messages(batch)
            raise

    async def aput_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Like `put_batch`, for a task. A cancelled batch is stored all the same."""
        return await in_thread(self.put_batch, messages)

    def flush(self) -> int:
        """Force all messages put so far to disk, and return the commit-log offset up to which the log is durable.

        Raises:
            StoreError: the disk refused, or did not answer within 60 s.
        """
        self._engine.require_open()
        return self._writer.flush()

    async def aflush(self) -> int:
        """Like `flush`, for a task. Tasks that flush at the same time share one force."""
        self._engine.require_open()
        end = self._writer.appended
        if self._writer.durable < end:
            await self._engine.grouped_puts().waits.wait(end)
            if self._writer.durable < end:
                raise self._writer.appender.refusal()
        return self._writer.durable

    @property
    def appended(self) -> int:
        """The commit-log offset at which the log ends: that of the next message."""
        return self._writer.appended

    @property
    def durable(self) -> int:
        """The commit-log offset up to which the log is forced to disk."""
        return self._writer.durable

    @property
    def commit_log_offset_min(self) -> int:
        """The commit-log offset at which the log begins. Retention has removed what was before it."""
        return self._writer.commit_log_offset_min

    def wait_durable(self, commit_log_offset: int) -> None:
        """Force the log, and wait until it is on disk up to *commit_log_offset*, without a time limit.

        An offset beyond the log's end waits for later puts, too.

        Raises:
            StoreError: the disk refused, or the store was closed first.
        """
        if self._is_durable(commit_log_offset):
            return
        forced = threading.Event()
        self._writer.call_when_durable(commit_log_offset, forced.set)
        forced.wait()
        if self._writer.durable < commit_log_offset:
            raise self._writer.appender.refusal()

    async def await_durable(self, commit_log_offset: int) -> None:
        """Like `wait_durable`, for a task. Tasks that wait at the same time share one force."""
        if self._is_durable(commit_log_offset):
            return
        await self._engine.grouped_puts().waits.wait(commit_log_offset)
        if self._writer.durable < commit_log_offset:
            raise self._writer.appender.refusal()

    def delete_topic(self, topic: str, timeout: float | None = 5.0) -> int:
        """Delete *topic* durably, and return the commit-log offset at which the log ended then.

        Its consume queues, its entry in ``topics.json`` and the groups' committed offsets for it are removed.
        Its records stay in the log until retention removes them, and until then are found by key. Messages put to it
        from now on belong to a new topic, whose queue offsets start at 0. No rebuild of a view brings the old one back.

        Args:
            timeout: seconds to wait until the queues are removed; None: no limit. Afterwards this returns all the same,
                and the dispatcher ``consume_queue`` removes them when it runs.

        Raises:
            ConfigError: the topic is one of RocketMQ's own.
            MessageIllegal: *topic* is not a legal topic name.
            StoreError: the deletion cannot be written.
        """
        self._engine.require_open()
        require_text("topic", topic)
        require_seconds("timeout", timeout)
        return self._engine.delete_topic(topic, timeout)

    async def adelete_topic(self, topic: str, timeout: float | None = 5.0) -> int:
        """Like `delete_topic`, for a task."""
        return await in_thread(self.delete_topic, topic, timeout)

    def clean(self) -> list[SegmentFate]:
        """Remove the segments that retention would remove at the next hour of ``delete_when``.

        A thread of the store removes them one after the other; this does not wait for it.

        Returns:
            For each segment of the log, oldest first, whether it goes, and why.

        Raises:
            StoreError: that thread has died.
        """
        self._engine.require_open()
        return self._writer.retention.clean()

    async def aclean(self) -> list[SegmentFate]:
        """Like `clean`, for a task."""
        return await in_thread(self.clean)

    # Views.

    def progress(self, dispatcher: str) -> int | None:
        """Return the commit-log offset up to which a view is readable; None if that is not known yet.

        Raises:
            DispatcherError: the dispatcher is not enabled.
        """
        self._engine.require_open()
        require_text("dispatcher", dispatcher)
        return self._engine.group.progress(dispatcher)

    def wait_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Wait until the view of *dispatcher* is readable up to *commit_log_offset*.

        Args:
            commit_log_offset: usually the ``next_commit_log_offset`` of a put.
            timeout: seconds; None: without limit.

        Raises:
            WaitTimeout: it was not readable in time.
            DispatcherError: the dispatcher is not enabled, or has stopped and will not start by itself; or the store is
                being closed.
        """
        self._engine.require_open()
        require_wait(dispatcher, commit_log_offset, timeout)
        self._engine.group.wait_for(dispatcher, commit_log_offset, timeout)

    async def await_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Like `wait_for`, for a task."""
        require_wait(dispatcher, commit_log_offset, timeout)
        await self._engine.await_for(dispatcher, commit_log_offset, timeout)

    def rebuild(self, *views: str, force: bool = False) -> list[RebuiltView]:
        """Rebuild views from the log, swap them in, and return when that is done.

        Readers use the old views until then, and puts go on. A view that is built from one of *views* is rebuilt, too.

        Args:
            views: names of their dispatchers.
            force: also rebuild a view that lies outside the store, such as a server that would get the whole log again.

        Raises:
            ConfigError: a view lies outside the store, and *force* is not set.
            DispatcherError: a view is not enabled, or could not be built. The old views stay.
        """
        self._engine.require_open()
        for view in views:
            require_text("view", view)
        return self._engine.group.rebuild(views, force=force)

    async def arebuild(self, *views: str, force: bool = False) -> list[RebuiltView]:
        """Like `rebuild`, for a task."""
        return await in_thread(self.rebuild, *views, force=force)

    def pids(self) -> list[int]:
        """Return the processes of the store: this one, the supervisor, and those of the dispatchers."""
        self._engine.require_open()
        return self._engine.views.pids()

    # Consuming.

    def consumer(
        self,
        group: str,
        topics: str | Iterable[str],
        filter: Filter = None,
        *,
        begin: Beginning = "earliest",
        in_flight_max: int = 1000,
        broadcast: bool = False,
        offset_store: str | os.PathLike[str] | None = None,
    ) -> Consumer:
        """Return a consumer of *group*, which shares the messages of *topics* with the group's other consumers.

        Args:
            filter: tags like ``a || b``, or an SQL92 expression from `reput.filter.parse`; None: all messages.
            begin: where the group starts in queues that it never consumed: "earliest", "latest", or a store time in ms
                since 1970.
            in_flight_max: how many unacknowledged messages the consumer may hold.
            broadcast: the consumer gets every message, like every other consumer of the group
                (RocketMQ's MessageModel.BROADCASTING). Messages that fail are dropped, not sent back.
            offset_store: the file in which a broadcasting consumer keeps its offsets. Without a file it keeps them in
                memory, and each new consumer starts from *begin*.

        Raises:
            RequestRefused: the group's name is illegal, or the group may not consume, or may not broadcast.
            FilterSyntaxError: the filter does not parse.
            ConfigError: the group's other consumers have another filter for a topic, or consume the other way; or
                another consumer uses *offset_store*; or the dispatcher ``consume_queue`` is not enabled.
            DamagedStore: neither *offset_store* nor its backup can be read.
            StoreError: the system refuses a file or a thread.
        """
        path = None if offset_store is None else require_path("offset_store", offset_store)
        return self._engine.services.consumer(
            group,
            topics,
            filter,
            begin=begin,
            in_flight_max=in_flight_max,
            broadcast=broadcast,
            offset_store=path,
        )

    async def aconsumer(
        self,
        group: str,
        topics: str | Iterable[str],
        filter: Filter = None,
        *,
        begin: Beginning = "earliest",
        in_flight_max: int = 1000,
        broadcast: bool = False,
        offset_store: str | os.PathLike[str] | None = None,
    ) -> Consumer:
        """Like `consumer`, for a task."""
        return await opened_in_thread(
            self.consumer,
            group,
            topics,
            filter,
            begin=begin,
            in_flight_max=in_flight_max,
            broadcast=broadcast,
            offset_store=offset_store,
        )

    def _worker_consumer(
        self,
        worker: Worker,
        group: str,
        topics: str | Iterable[str],
        filter: Filter,
        begin: Beginning,
        in_flight_max: int,
        queue_in_flight_max: int,
    ) -> Consumer:
        """Return a consumer in this process."""
        return self._engine.services.consumer(
            group,
            topics,
            filter,
            begin=begin,
            in_flight_max=in_flight_max,
            queue_in_flight_max=queue_in_flight_max,
        )

    @property
    def transactions(self) -> TransactionService:
        """Messages that are delivered only when their sender commits them. The first use reads the open transactions.

        Raises:
            DispatcherError: the consume queue is not built, or not up to the log's end.
            DamagedStore: a half message, or a configuration file, cannot be read.
            StoreError: the system refuses a file or a thread.
        """
        return self._engine.transactions

    @property
    def administration(self) -> Administration:
        """Shows and changes topics and consumer groups. The first use reads their files.

        Raises:
            DamagedStore: a configuration file cannot be read, nor its backup.
            StoreError: the system refuses a file or a thread.
        """
        return self._engine.services.administration

    async def atransactions(self) -> TransactionService:
        """Like `transactions`, for a task."""
        return await in_thread(lambda: self.transactions)

    async def aadministration(self) -> Administration:
        """Like `administration`, for a task."""
        return await in_thread(lambda: self.administration)

    def delays(self) -> list[DelayLevelRow]:
        """Return a row for each delay level that ever had a message, with the number of messages that wait.

        Without the dispatcher ``consume_queue`` no delayed message is delivered, and the list is empty.
        """
        self._engine.require_open()
        schedule = self._engine.schedule
        return [] if schedule is None else schedule.status()

    def statistics(self) -> StoreStatistics:
        """Return how much was put and consumed since the store was opened; None: not known.

        Raises:
            StoreError: the system refuses a file.
        """
        self._engine.require_open()
        return self._engine.statistics()

    def next_queue_offset(self, topic: str, queue_id: int = 0) -> int:
        """Return the queue offset of the next message that is put to a queue; 0 if the queue does not exist."""
        self._engine.require_open()
        require_text("topic", topic)
        require_whole("queue_id", queue_id)
        return self._engine.next_queue_offset(topic, queue_id)

    # Life.

    def close(self, timeout: float | None = None) -> None:
        """Drain the dispatchers, force everything to disk, and leave a store that RocketMQ opens as cleanly shut down.

        Closing a closed store does nothing.

        Args:
            timeout: seconds that the dispatchers may take to catch up; `math.inf`: as long as they need; None: the
                setting ``dispatcher_drain_time_max``. A warning every five seconds names the dispatchers that are
                behind. After the timeout nothing is lost: they continue after the next opening. RocketMQ recovers such
                a store as after a crash.

        Raises:
            ConfigError: *timeout* is not a number of seconds.
            StoreError: the disk refused. Everything that was durable before is safe.
        """
        require_seconds("timeout", timeout)
        self._engine.close(timeout)

    async def aclose(self, timeout: float | None = None) -> None:
        """Like `close`, for a task."""
        await in_thread(self.close, timeout)

    def _is_durable(self, commit_log_offset: int) -> bool:
        """Tell whether the log is forced to disk up to *commit_log_offset*.

        Raises:
            StoreClosed: it is not, and this process will never do it.
        """
        require_whole("commit_log_offset", commit_log_offset, 0, OFFSET_MAX)
        if self._writer.durable >= commit_log_offset:
            return True
        # A forked child never forces the log.
        self._engine.require_open()
        return False


def require_wait(dispatcher: str, commit_log_offset: int, timeout: float | None) -> None:
    """Check the arguments of a wait for a dispatcher."""
    require_text("dispatcher", dispatcher)
    require_whole("commit_log_offset", commit_log_offset, 0, OFFSET_MAX)
    require_seconds("timeout", timeout)

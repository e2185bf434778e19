"""StoreEngine: a store that this process writes, with its views and services, under the public `Store`.

This is where the parts meet: `reput.store` writes and reads bytes, `reput.ring` hands out what was written,
`reput.process` runs the dispatchers, `reput.consume` delivers. It checks no arguments: `Store` and the verbs do.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reput.consume.delivery.schedule_service import HALF_TOPIC, ScheduleService
from reput.consume.groups.cut_offsets import bring_back_offsets
from reput.consume.pull.arrivals import ArrivalPublisher
from reput.consume.registry.topics import is_system_topic
from reput.embedded.log_growth import LogGrowth
from reput.embedded.open_stores import close_with_program, open_stores
from reput.embedded.reading_engine import ReadingEngine
from reput.embedded.slow_reader import SlowReader
from reput.embedded.store_status import with_statistics
from reput.embedded.topic_deletion import GoneDirectory, forget_topic_config
from reput.embedded.views import CONSUME_QUEUE, Mode, StoreViews
from reput.errors import ConfigError, DamagedStore
from reput.process.control.configuration import Configuration
from reput.process.control.group_status import GroupStatus, WriterRow, status_of_group
from reput.process.owner.process_group import ProcessGroup
from reput.process.owner.supervisor_process import SupervisorProcess
from reput.settings import Settings
from reput.store.config.consumer_offset_manager import consumer_offset_manager
from reput.store.config.topic_config_manager import TopicConfigManager
from reput.store.disk.shortages import do_all, go_back, tell_read_error, tell_store_error
from reput.store.message_store import MessageStore
from reput.store.reader.message_reader import MessageReader
from reput.store.reader.readable_store import ReadableStore
from reput.store.record.message import Message, PutMessageResult, check_topic
from reput.store.record.multi_dispatch import LMQ_PREFIX
from reput.store.recovery.found_damage import FoundDamages
from reput.store.service.threads import Threads
from reput.store.state.recorded_settings import meaning_of
from reput.store.state.store_checkpoint import write_checkpoint
from reput.store.writer.publisher import Publisher
from reput_hooks import Cursor

if TYPE_CHECKING:
    from reput.consume.delivery.transaction_service import TransactionService
    from reput.consume.delivery.transactional_message_service import TransactionalMessageService
    from reput.consume.registry.statistics import StoreStatistics
    from reput.consume.services import ConsumeServices
    from reput.embedded.grouped_puts import GroupedPuts

__all__ = ["StoreEngine"]

# The consume queue may take this long to have everything that was put.
QUEUE_WAIT_S = 60.0
# Bytes of JSON that another process is told about topics at most, and as many about groups: some ten thousand rows.
STATISTICS_SIZE_MAX = 1 << 20


class StoreEngine(ReadingEngine):
    """The engine of one store. Any number of threads may use it.

    Attributes:
        delivers: this store delivers its delayed messages; a copy of another store does not.
    """

    delivers = True

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        mode: Mode,
        configuration: Configuration | None = None,
        hooks: Sequence[object] = (),
        change_settings: Collection[str] = (),
        lock_timeout: float | None = 0.0,
    ) -> None:
        """Recover the log, start the dispatchers, then the services; `reput.open` documents arguments and errors."""
        self.directory = directory
        # It loads its modules while the log is recovered.
        supervisor = SupervisorProcess() if mode == "processes" else None
        try:
            self.writer = self.open_writer(directory, settings, hooks, change_settings, lock_timeout)
        except BaseException:
            if supervisor is not None:
                supervisor.end()
            raise
        self.settings = self.writer.settings
        self.started = time.time_ns() // 1_000_000
        self.read_lock = threading.Lock()
        self.slow_reader = SlowReader(self.new_reader, self.require_open)
        self.growth = LogGrowth(self.attach_publisher)
        self.found_damages = FoundDamages(directory)
        # Per thread: the `GroupedPuts` of its event loop.
        self.here = threading.local()
        # Up to where each follower has the log, by a name that operators are shown.
        self.cursors_of_followers: Callable[[], Mapping[str, int | None]] = dict
        self.closed = False
        self.attaching = threading.Lock()
        self.consuming_lock = threading.Lock()
        self.consuming: ConsumeServices | None = None
        self.transacting_lock = threading.Lock()
        self.transacting: TransactionalMessageService | None = None
        self.transaction_service: TransactionService | None = None
        self.transaction_reader: MessageReader | None = None
        try:
            self.views = StoreViews(directory, self.writer, mode, configuration, self.attach_publisher, supervisor)
            self.group = self.views.group
            self.views.start()
            self.attach_publisher()
            self.writer.threads.on_death = self.on_thread_death
        except BaseException as error:
            go_back(error, self.writer.give_back, *(() if supervisor is None else (supervisor.end,)))
            raise
        try:
            # Record that new dispatchers have nothing yet.
            self.views.keep_cursors(dict.fromkeys(self.settings.dispatchers))
            self.start_services()
        except BaseException as error:
            go_back(
                error,
                self.group.drain_and_stop,
                lambda: self.writer.give_back(views_complete=self.views.are_complete()),
                self.views.close_ring,
            )
            raise
        close_with_program(self)

    def open_writer(
        self,
        directory: Path,
        settings: Settings,
        hooks: Sequence[object],
        change_settings: Collection[str],
        lock_timeout: float | None,
    ) -> MessageStore:
        """Return the writer of a store. Without hooks, it is one without code for them."""
        if not hooks:
            return MessageStore(directory, settings, change_settings=change_settings, lock_timeout=lock_timeout)
        from reput.store.put_hooks import HookedMessageStore

        return HookedMessageStore(
            directory, settings, hooks, change_settings=change_settings, lock_timeout=lock_timeout
        )

    def start_services(self) -> None:
        """Start retention and the delivery of delayed messages."""
        self.bring_back_offsets()
        self.reader = self.new_reader()
        self.reads = self.reader.store.reads
        self.schedule: ScheduleService | None = None
        if self.delivers and CONSUME_QUEUE in self.settings.dispatchers:
            self.schedule = ScheduleService(self.writer, self.new_reader(), partial(self.group.wait_for, CONSUME_QUEUE))
            self.writer.appender.on_delayed = self.schedule.notice
            if self.schedule.has_waiting:
                self.schedule.start()
        self.writer.durability.durable_views = self.views.durable_views
        self.writer.retention.watch(
            lambda: {**self.views.cursors_needed(), **self.cursors_of_followers()}, self.release_log
        )
        if isinstance(self.group, ProcessGroup):
            self.group.on_clean = self.writer.retention.clean
            self.group.on_statistics = self.sent_statistics

    def bring_back_offsets(self) -> None:
        """Move back consumer groups that would go on past the end of a queue whose messages the log has lost.

        This comes before the first put: a new message may get the queue offset of a lost one.
        """
        writer = self.writer
        if writer.store_files.adopted_clean and writer.store_files.closed_at == writer.appended:
            # A log that ends where it was closed has lost nothing.
            return
        offsets = consumer_offset_manager(self.directory, self.settings, writer.files)
        # Unreadable offsets move no group. The services report them when somebody consumes.
        with contextlib.suppress(DamagedStore):
            offsets.load()
            if bring_back_offsets(offsets, writer.queue_offsets, self.is_foreign):
                offsets.persist()

    def is_foreign(self, topic: str) -> bool:
        """Tell whether this store never puts to *topic*: RocketMQ's batch queues, and light queues not put to yet."""
        writer = self.writer
        unknown_light = topic.startswith(LMQ_PREFIX) and topic not in writer.queue_offsets.queues
        return unknown_light or writer.topic_table.batch_topics.has(topic)

    def attach_publisher(self) -> None:
        """Connect the writer to the group and to listeners in this process. Called whenever these change."""
        with self.attaching:
            publisher: Publisher = self.views.publisher
            if self.growth.follower_count:
                publisher = ArrivalPublisher(publisher, self.growth.tell)
            if self.consuming is not None:
                publisher = ArrivalPublisher(publisher, self.consuming.arrival_service.arrived)
            self.writer.attach(
                publisher,
                needs_properties=self.group.needs_properties,
                reads_durable=self.group.reads_durable,
            )

    @property
    def threads(self) -> Threads:
        """The threads of the store, and which of them have died."""
        return self.writer.threads

    def on_thread_death(self) -> None:
        """Show the death in `reput status`, and let waiting consumers see whether a message can still come."""
        self.views.tell_read_only(self.writer.reason)
        consuming = self.consuming
        if consuming is not None:
            consuming.wake_all()

    # Reading.

    def new_reader(self) -> MessageReader:
        """Return a reader of this store, for one thread at a time."""
        store = ReadableStore(
            self.directory,
            self.settings,
            self.readable_up_to,
            self.generation,
            self.commit_log_offset_min,
            lambda: self.writer.appender.deleted_at,
            self.writer.opened_at,
            self.found_damages.note,
            self.queue_end_at,
            writer=self.writer,
            view_words=self.views.words,
        )
        return MessageReader(store)

    def readable_up_to(self, view: str) -> int:
        """Return the progress of a view; 0 if no dispatcher builds it."""
        return self.views.readable_up_to(view)

    def has_begun(self, view: str) -> bool:
        """Whether `readable_up_to` answers without waiting for the view's dispatcher to start."""
        return self.views.has_begun(view)

    def generation(self, view: str) -> int:
        """Return the generation number of a view."""
        return self.views.generation(view)

    def queue_end_at(self, topic: str, queue_id: int, progress: int) -> int:
        """Return where a queue ends whose view has reached *progress*; 0 if more was put than that."""
        following = self.writer.queue_offsets.next_offset(topic, queue_id)
        # Checked last: messages put meanwhile may not be in the view yet.
        return following if progress >= self.writer.appended else 0

    def found_damage(self, error: DamagedStore) -> None:
        """Note damage that a reader found; `status` shows it."""
        self.found_damages.note(error)

    def commit_log_offset_min(self) -> int:
        """Return the commit-log offset of the first byte that retention has left."""
        return self.writer.commit_log_offset_min

    @property
    def appended(self) -> int:
        """Commit-log offset up to which messages were put."""
        return self.writer.appended

    def log_end(self) -> int:
        """Return the committed end of the log, with SYNC_FLUSH the durable one: readers see nothing beyond it."""
        return self.writer.shown

    def following(self) -> contextlib.AbstractContextManager[None]:
        """Count as a follower of the log inside a ``with`` block."""
        return self.growth.following()

    def wait_for_growth(self, end: int) -> bool:
        """Wait until the log has grown past *end*; return False once the store is closed."""
        return self.growth.wait(lambda: self.log_end() > end)

    async def await_growth(self, end: int) -> bool:
        """Like `wait_for_growth`, for a task."""
        return await self.growth.await_growth(lambda: self.log_end() > end)

    def log_cursor(self) -> Cursor:
        """Return the end of the log, in its history."""
        return Cursor(self.writer.store_id, self.writer.epochs.epoch, self.writer.appended, 0)

    def parted_from(self, cursor: Cursor) -> int | None:
        """Return the commit-log offset at which the log has changed since it ended at *cursor*.

        None: it still has all that it had then. A log of another store differs from offset 0 on.
        """
        if cursor.store_id != self.writer.store_id:
            return 0
        difference = self.writer.epochs.first_difference(cursor, self.writer.commit_log_offset_min)
        return None if difference is None else difference.commit_log_offset

    def queue_offset_from(self, topic: str, queue_id: int, commit_log_offset: int) -> int:
        """Return the queue offset of the first message of a queue at or after *commit_log_offset*, or of its next.

        Raises:
            DispatcherError: no dispatcher builds the queues, or not in time.
            DamagedStore: the queue has lost the unit that contains it.
        """
        self.group.wait_for(CONSUME_QUEUE, min(commit_log_offset, self.writer.appended), QUEUE_WAIT_S)
        with self.read_lock:
            return self.reader.queue(topic, queue_id).first_from(commit_log_offset)

    def release_log(self) -> None:
        """Close removed segments: the disk reclaims their space only when no descriptor is open."""
        of_schedule = None if self.schedule is None else self.schedule.reader
        for reader in (self.reader, of_schedule, self.transaction_reader, self.slow_reader.reader):
            if reader is not None:
                reader.store.files.forget(str(self.directory / "commitlog"))

    # Writing.

    def put(self, message: Message) -> PutMessageResult:
        """Store one message."""
        return self.writer.put(message)

    def grouped_puts(self) -> GroupedPuts:
        """Return the `GroupedPuts` of the running event loop."""
        puts: GroupedPuts | None = getattr(self.here, "puts", None)
        if puts is None or not puts.is_here():
            # A program without coroutines opens its store sooner without asyncio.
            import asyncio

            from reput.embedded.durable_waits import DurableWaits
            from reput.embedded.grouped_puts import GroupedPuts

            loop = asyncio.get_running_loop()
            puts = self.here.puts = GroupedPuts(self.writer, DurableWaits(self.writer, loop), loop)
        return puts

    @tell_store_error("the topic cannot be deleted")
    def delete_topic(self, topic: str, timeout: float | None = 5.0) -> int:
        """Delete *topic* and return the commit-log offset of the deletion; `Store.delete_topic` promises the rest."""
        if is_system_topic(topic):
            raise ConfigError(f"the topic is the system's own: topic={topic!r}", "It cannot be deleted.")
        check_topic(topic)
        gone = GoneDirectory(self.directory / "consumequeue" / topic)
        try:
            offset = self.writer.delete_topic(topic)
            if self.consuming is not None:
                self.consuming.topic_goes(topic)
                managers = self.consuming.managers
                forget_topic_config(topic, managers.topics, managers.offsets, self.consuming.topics.on_change)
            else:
                topics = TopicConfigManager(self.directory)
                offsets = consumer_offset_manager(self.directory, self.settings)
                topics.load()
                offsets.load()
                forget_topic_config(topic, topics, offsets, self.topic_changed)
            if CONSUME_QUEUE in self.settings.dispatchers:
                gone.wait(timeout)
                with self.read_lock:
                    # The dispatcher publishes a moment later that files have gone.
                    self.reader.store.forget()
                self.slow_reader.forget()
        finally:
            gone.close()
        if self.consuming is not None:
            # Not earlier: until now the queues had the old messages at the new offsets.
            self.consuming.topic_deleted(topic)
        return offset

    def topic_changed(self, topic: str) -> None:
        """Distribute new messages over the queues of the topic's current description."""
        self.writer.topic_table.topic_changed(topic)

    # Views.

    def wait_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Wait until a view is readable up to *commit_log_offset*."""
        self.require_open()
        self.group.wait_for(dispatcher, commit_log_offset, timeout)

    @property
    def loops_wait_for_progress(self) -> bool:
        """Whether an event loop waits for a dispatcher itself, without a thread."""
        return self.views.loops_wait_for_progress

    async def await_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Like `wait_for`, for a task."""
        self.require_open()
        await self.group.await_for(dispatcher, commit_log_offset, timeout)

    # Consuming.

    @property
    @tell_store_error("consumers and topics cannot be served")
    def services(self) -> ConsumeServices:
        """Topics, groups, offsets and pulls, for consumers and brokers. Created at the first use.

        Raises:
            DamagedStore: a configuration file cannot be read, nor its backup.
            StoreError: the system refuses a file or a thread.
        """
        self.require_open()
        with self.consuming_lock:
            if self.consuming is None:
                from reput.consume.services import ConsumeServices

                self.consuming = ConsumeServices(self)
                self.attach_publisher()
            return self.consuming

    @property
    @tell_store_error("transactions cannot be served")
    def transactions(self) -> TransactionService:
        """The public methods of `transactional_messages`; the errors are the same."""
        from reput.consume.delivery.transaction_service import TransactionService

        service = self.transactional_messages
        if self.transaction_service is None:
            self.transaction_service = TransactionService(service)
        return self.transaction_service

    @property
    @tell_store_error("transactions cannot be served")
    def transactional_messages(self) -> TransactionalMessageService:
        """Transactional messages. Created at the first use.

        Raises:
            DispatcherError: the consume queue is not built, or not up to the log's end.
            DamagedStore: a half message, or a configuration file, cannot be read.
            StoreError: the system refuses a file or a thread.
        """
        self.require_open()
        with self.transacting_lock:
            if self.transacting is None:
                from reput.consume.delivery.transactional_message_service import TransactionalMessageService

                reader = self.new_reader()
                self.transacting = TransactionalMessageService(self, reader)
                self.transaction_reader = reader
            return self.transacting

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of *topic* that messages were put to."""
        return list(self.writer.queue_offsets.queues.get(topic, ()))

    def next_queue_offset(self, topic: str, queue_id: int = 0) -> int:
        """Return the queue offset of the next message of a queue."""
        return self.writer.queue_offsets.next_offset(topic, queue_id)

    # Statistics.

    def put_totals(self) -> dict[str, int]:
        """Return per topic how many messages were ever put to it; for a deleted topic, since it was created again."""
        return self.writer.queue_offsets.totals()

    def put_nums(self, topic: str) -> int | None:
        """Return how many messages were put to *topic* since the opening; None if there never was one."""
        return self.writer.topic_table.put_nums_of(topic) if self.writer.queue_offsets.queues.get(topic) else None

    @tell_store_error("the statistics cannot be read")
    def statistics(self) -> StoreStatistics:
        """Return the messages put and consumed since the opening; unknown values are None."""
        from reput.consume.registry.statistics import StoreStatistics, TopicRow

        topics = self.writer.topic_table.topics
        return StoreStatistics(
            started=self.started,
            put=self.writer.put_totals(),
            topics=[
                TopicRow(name, nums, topics[name].put_size if name in topics else None)
                for name, nums in sorted(self.writer.topic_table.put_nums().items())
            ],
            groups=[] if self.consuming is None else self.consuming.group_rows(),
            waiting_delays=self.waiting_delays(),
            half_messages=self.half_messages(),
            forces=self.writer.force_totals(),
            lease=self.writer.lease_row(),
        )

    def sent_statistics(self) -> StoreStatistics:
        """Return `statistics` for another process: only the busiest topics and groups, if there are very many."""
        from reput.consume.registry.statistics import within

        return within(self.statistics(), STATISTICS_SIZE_MAX)

    def waiting_delays(self) -> dict[int, int] | None:
        """Return how many messages wait for their time, by delay level; None if that is not known (yet)."""
        return None if self.schedule is None else self.schedule.waiting()

    def half_messages(self) -> int | None:
        """Return how many transactions are open; None if they were not counted yet, which `transactions` does."""
        if self.transacting is not None:
            return len(self.transacting.open_transactions.pending)
        # If no transaction was ever begun, none is open.
        return None if self.queue_ids(HALF_TOPIC) else 0

    def group_status(self) -> GroupStatus:
        """Return the store, its writer and a row per dispatcher."""
        writer = self.writer
        return status_of_group(
            self.directory,
            writer.store_id,
            WriterRow(
                pid=os.getpid(),
                appended=writer.committed,
                durable=writer.durable,
                commit_log_offset_min=writer.commit_log_offset_min,
                epoch=writer.epochs.epoch,
                state=writer.state,
                reason=writer.reason or writer.notice,
            ),
            self.group.status(),
            meaning_of(self.settings),
            started=self.started,
        )

    @tell_read_error("the status cannot be read")
    def status(self) -> GroupStatus:
        """Return `group_status` with the counts."""
        return with_statistics(self.group_status(), self.statistics())

    # Life.

    @property
    def forked_from(self) -> int | None:
        """In a forked child, the process that opened the store; else None."""
        return self.writer.appender.forked_from

    def close(self, timeout: float | None = None) -> None:
        """Close the store; `Store.close` promises the rest."""
        if self.closed:
            return
        self.closed, self.reads = True, None
        open_stores.discard(self)
        drain_time = self.settings.dispatcher_drain_time_max / 1000 if timeout is None else timeout
        self.growth.close()
        with tell_store_error(f"the store could not be closed cleanly: store={self.directory}"):
            self.close_everything(drain_time)

    def close_everything(self, drain_time: float) -> None:
        """Drain and close all parts. Each is closed even if one before it fails."""
        schedule, views = self.schedule, self.views
        complete = False

        def settle() -> None:
            nonlocal complete
            do_all(
                self.stop_transactions,
                self.close_consumers,
                *(() if schedule is None else (schedule.stop,)),
                # This forces the last bytes, so that dispatchers which read only durable records get them, too.
                self.writer.stop_puts,
                views.end_release,
                partial(self.group.drain_and_stop, drain_time),
            )
            complete = views.are_complete()
            if self.writer.appender.read_only_reason is None:
                if schedule is not None:
                    schedule.keep()
                self.write_checkpoint(complete)
                views.keep_cursors(views.durable_cursors())

        do_all(
            settle,
            *(() if schedule is None else (schedule.close,)),
            self.reader.close,
            self.slow_reader.close,
            lambda: self.writer.close(views_complete=complete),
            views.close_ring,
        )

    def stop_transactions(self) -> None:
        """Stop asking senders about their transactions, and store the progress."""
        with self.transacting_lock:
            if self.transacting is not None:
                self.transacting.stop()

    def close_consumers(self) -> None:
        """Close the consumers, and store their offsets."""
        with self.consuming_lock:
            if self.consuming is not None:
                self.consuming.close()

    def write_checkpoint(self, complete: bool) -> None:
        """Write up to which store times log and views are on disk, for RocketMQ."""
        timestamp = self.writer.durability.durable_timestamp
        write_checkpoint(self.directory, timestamp, timestamp if complete else 0, self.writer.files)

    def forget(self) -> None:
        """Called in a forked child: close this copy; the parent's store stays open."""
        self.closed, self.reads = True, None
        self.writer.forget()
        self.growth.forget()
        self.group.forget()
        if self.schedule is not None:
            self.schedule.forget()
        if self.consuming is not None:
            self.consuming.forget()

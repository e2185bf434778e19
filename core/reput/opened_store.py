"""Store: a log with its process group, as `reput.open` gives it; ReadOnlyStore: one that is only looked at.

    Store          writer (this process) ── ring ──▶ supervisor ──▶ dispatchers, one process each
    ReadOnlyStore  files, and beside a live writer its published progress

This is where the parts meet: `reput.store` writes and reads bytes, `reput.ring` hands out what was written,
`reput.process` runs the views.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import msgspec

import reput
from reput.arguments import OFFSET_MAX, require_messages, require_path, require_seconds, require_text, require_whole
from reput.consume.delivery.schedule_service import HALF_TOPIC, DelayLevelRow, ScheduleService
from reput.consume.groups.cut_offsets import bring_back_offsets
from reput.consume.pull.arrivals import ArrivalPublisher
from reput.consume.registry.topics import is_system_topic
from reput.errors import ConfigError, DamagedStore, DispatcherError, MessageIllegal, ReputError
from reput.filter import TagMessageFilter, parse_plain_tags
from reput.open_stores import close_with_program, open_stores
from reput.process.control.configuration import Configuration
from reput.process.control.control_messages import GroupStatus, RebuiltView, WriterRow
from reput.process.control.control_socket import connect_observer
from reput.process.group.group_context import GroupContext
from reput.process.owner.process_group import ProcessGroup
from reput.settings import Settings
from reput.store.config.consumer_offset_manager import consumer_offset_manager
from reput.store.config.topic_config_manager import TopicConfigManager
from reput.store.disk.shortages import do_all, go_back, store_error, tell_read_error, tell_store_error
from reput.store.message_store import MessageStore
from reput.store.publisher import Publisher
from reput.store.reader.message_reader import MessageReader
from reput.store.reader.readable_store import ReadableStore
from reput.store.reader.results import GetMessageResult
from reput.store.record.message import Message, PutMessageResult, check_topic
from reput.store.record.multi_dispatch import LMQ_PREFIX
from reput.store.record.record import decode_message_id
from reput.store.recovery.found_damage import FoundDamages, known_damage
from reput.store.retention.retention_plan import SegmentFate
from reput.store.service.threads import Threads
from reput.store.state.closed_store import closed_store
from reput.store.state.dispatcher_cursors import keep_dispatcher_cursors, keep_dispatcher_plugins
from reput.store.state.identity import require_store
from reput.store.state.recorded_settings import changed_settings, load_store_settings, meaning_of
from reput.store.state.store_checkpoint import write_checkpoint
from reput_hooks import Cursor, Record

if TYPE_CHECKING:
    from reput.consume import Beginning, Consumer, ConsumeServices, Filter
    from reput.consume.delivery.transaction_service import TransactionService
    from reput.consume.registry.statistics import StoreStatistics
    from reput.grouped_puts import GroupedPuts
    from reput.process.frames.frame_publisher import FramePublisher
    from reput.process.frames.holding_publisher import HoldingPublisher
    from reput.process.frames.release_service import ReleaseService
    from reput.process.owner.inline_group import InlineGroup

__all__ = ["ReadOnlyStore", "Store", "open", "owners_statistics"]

Mode = Literal["processes", "inline"]
CONSUME_QUEUE = "consume_queue"
INDEX = "index"
# The views that RocketMQ reads: only with these durable up to the log's end is a store cleanly shut down.
ROCKETMQ_VIEWS = (CONSUME_QUEUE, "consume_queue_ext", INDEX)
TIMESTAMP_MAX = 0x7FFFFFFFFFFFFFFF
FOLLOW_WAIT_S = 0.1
# For the consume queue to have all that was put.
QUEUE_WAIT_S = 60.0
# A dispatcher that has not begun by then has some trouble.
BEGIN_WAIT_S = 30.0
# Bytes of JSON that another process is told of topics and of groups each: rows of some ten thousand.
STATISTICS_SIZE_MAX = 1 << 20
GONE_LOOK_S = 0.002


@overload
def open(
    path: str | os.PathLike[str],
    *,
    dispatchers: Sequence[str] | None = None,
    mode: Mode = "processes",
    read_only: Literal[False] = False,
    config: str | os.PathLike[str] | None = None,
    hooks: Sequence[object] = (),
    change_settings: Sequence[str] = (),
    lock_timeout: float | None = 0.0,
    **settings: Any,
) -> Store: ...


@overload
def open(
    path: str | os.PathLike[str],
    *,
    dispatchers: Sequence[str] | None = None,
    mode: Mode = "processes",
    read_only: Literal[True],
    config: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> ReadOnlyStore: ...


def open(
    path: str | os.PathLike[str],
    *,
    dispatchers: Sequence[str] | None = None,
    mode: Mode = "processes",
    read_only: bool = False,
    config: str | os.PathLike[str] | None = None,
    hooks: Sequence[object] = (),
    change_settings: Sequence[str] = (),
    lock_timeout: float | None = 0.0,
    **settings: Any,
) -> Store | ReadOnlyStore:
    """Open the store in directory *path*; one that is absent or empty is made.

    Args:
        dispatchers: names of those that run; None: as configured, by default ``consume_queue`` and ``index``.
        mode: "processes": each dispatcher in a process of its own; "inline": all on one thread of this program.
        read_only: look at the store, beside a running writer or without one. Not a byte of it changes.
        config: a TOML file, or a broker's own ``.properties``.
        hooks: modules or objects with ``reput_before_put`` or ``reput_after_put``, which every put goes through.
        change_settings: names of settings that are recorded with the store and get the value that is given here: what
            is put from now on goes by it. Without, a value other than the recorded one is refused.
        lock_timeout: seconds to wait while another process writes the store, as in a deployment whose new process
            starts before the old one has ended; None: without limit.
        settings: RocketMQ's settings in snake case; they win over *config*.

    Raises:
        ConfigError: a setting, a dispatcher or one of its options is wrong, or a setting differs from what is recorded
            with the store.
        NotAStore: the directory holds something else; with *read_only*, or holds nothing.
        StoreLocked: another process writes the store, and went on with it for *lock_timeout*.
        StoreFull: the disk has no room for the store's own files.
        DamagedStore: the log is damaged, and nobody has decided about that yet.
        StoreError: the system refuses something else: a file cannot be read, or there are too few descriptors, threads
            or too little memory.
    """
    directory = require_path("path", path)
    if not os.fspath(path):
        raise ConfigError("path is empty: path=''", "Name the store's directory; the current one is called '.'.")
    if mode not in ("processes", "inline"):
        raise ConfigError(f"mode is unknown: mode={mode!r} known=processes,inline", "Give one of the known ones.")
    if isinstance(dispatchers, str) or not isinstance(dispatchers, (Iterable, NoneType)):
        raise ConfigError(f"dispatchers are a list of names: dispatchers={dispatchers!r}")
    config_path = None if config is None else require_path("config", config)
    require_seconds("lock_timeout", lock_timeout)
    if not isinstance(hooks, Iterable):
        raise ConfigError(f"hooks are a list of modules or objects: hooks={hooks!r}")
    if dispatchers is not None:
        settings["dispatchers"] = tuple(dispatchers)
    changes = changed_settings(change_settings)
    if read_only and changes:
        raise ConfigError(
            f"a store that is only read keeps its settings: change_settings={','.join(changes)}",
            "Leave change_settings out, or open the store for writing.",
        )
    read = partial(load_store_settings, directory, config_path, changes=changes, **settings)
    with tell_read_error(f"the store cannot be opened: store={directory}"):
        loaded = read()
    if read_only:
        from reput.process.owner.stopped_status import as_run_last

        with tell_read_error(f"the store cannot be opened: store={directory}"):
            return ReadOnlyStore(directory, as_run_last(directory, loaded))
    configuration = Configuration(loaded.settings, lambda: read().settings)
    with tell_store_error(f"the store cannot be opened: store={directory}"):
        return Store(directory, loaded.settings, mode, configuration, hooks, changes, lock_timeout)


class Reading:
    """What a store is read with, whoever writes it."""

    directory: Path
    settings: Settings
    reader: MessageReader
    read_lock: threading.Lock
    closed: bool
    # In a forked child of the writer, the process that opened the store.
    forked_from: int | None = None

    def require_open(self) -> None:
        """Refuse a store that was closed.

        Raises:
            StoreClosed: it was, or this is a forked child of its writer.
        """
        if self.closed:
            raise closed_store(self.directory, self.forked_from)

    def found_damage(self, error: DamagedStore) -> None:
        """Take note of damage that was met. Who only reads the store keeps it to himself."""

    def log_end(self) -> int:
        """Return the commit-log offset up to which records can be read."""
        raise NotImplementedError

    def get(
        self, topic: str, queue_id: int = 0, queue_offset: int = 0, count_max: int = 32, *, tags: str | None = None
    ) -> GetMessageResult:
        """Return up to *count_max* messages of a queue, from *queue_offset* on, in its order.

        The result tells RocketMQ's status and the queue offset to go on from. *tags* is an expression like ``a || b``.

        Raises:
            FilterSyntaxError: *tags* does not parse.
            DamagedStore: a record is not what the queue says of it.
        """
        self.require_open()
        require_text("topic", topic)
        require_whole("queue_id", queue_id)
        require_whole("queue_offset", queue_offset, None)
        require_whole("count_max", count_max)
        message_filter = None
        if tags is not None:
            require_text("tags", tags)
            message_filter = TagMessageFilter(parse_plain_tags(tags))
        try:
            with self.read_lock:
                return self.reader.get_message(topic, queue_id, queue_offset, count_max, message_filter=message_filter)
        except OSError as error:
            raise store_error(f"the queue cannot be read: topic={topic} queue_id={queue_id}", error) from error

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
        """Return the newest *count_max* messages of *topic* with this key, or with these tags, in commit-log order.

        Args:
            topic: None, where *key* is a `message_id`.
            key: one of a message's keys, the unique one that clients give, or the store's own `message_id`.
            tags: what the message was put with as its tags. Only an index with ``index_tags`` finds it.
            begin, end: store time in ms since 1970, both included; the index knows it to the second.

        Raises:
            ConfigError: there is neither *key* nor *tags*, or both; or the index of this store has no tags. Or there is
                no topic, and *key* is no message id.
        """
        self.require_open()
        if topic is not None:
            require_text("topic", topic)
        if (key is None) == (tags is None):
            raise ConfigError(f"a query has a key or tags: key={key!r} tags={tags!r}", "Give one of the two.")
        require_text("key" if tags is None else "tags", key if tags is None else tags)
        require_whole("count_max", count_max)
        require_whole("begin", begin, None)
        require_whole("end", end, None)
        if topic is None and (key is None or decode_message_id(key) is None):
            raise ConfigError(
                f"a query without a topic is for a message id: key={key!r} tags={tags!r}",
                "Name the topic, or give the message_id that put has returned.",
            )
        with self.read_lock, tell_read_error(f"the index cannot be read: topic={topic}"):
            if topic is None:
                assert key is not None
                record = self.reader.store.record_of_id(key)
                return [record] if record and count_max and begin <= record.store_timestamp <= end else []
            if tags is not None:
                return self.reader.index.query_tags(topic, tags, count_max, begin, end).records
            assert key is not None
            return self.reader.index.query_message(topic, key, count_max, begin, end).records

    def topics(self) -> dict[str, list[int]]:
        """Return the queue ids of every topic that has a consume queue."""
        self.require_open()
        with tell_read_error("the queues cannot be listed"):
            return self.reader.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queue ids of one topic that has a consume queue, ascending."""
        self.require_open()
        require_text("topic", topic)
        with tell_read_error(f"the queues cannot be listed: topic={topic}"):
            return self.reader.queue_ids(topic)

    def queue_range(self, topic: str, queue_id: int = 0) -> tuple[int, int]:
        """Return the first queue offset that can be read, and the one behind the last."""
        self.require_open()
        require_text("topic", topic)
        require_whole("queue_id", queue_id)
        with self.read_lock, tell_read_error(f"the queue cannot be read: topic={topic} queue_id={queue_id}"):
            return self.reader.queue_range(topic, queue_id)

    def records(self, commit_log_offset: int = 0, *, follow: bool = False) -> Iterator[Record]:
        """Yield the records of the log itself, in order, from the first one at or behind *commit_log_offset*.

        Args:
            follow: go on with what is put later, until the store is closed.

        Raises:
            DamagedStore: the bytes at the next offset are no record.
            StoreClosed: the store was closed.
        """
        self.require_open()
        require_whole("commit_log_offset", commit_log_offset)
        return self.told_records(commit_log_offset, follow)

    def told_records(self, commit_log_offset: int, follow: bool) -> Iterator[Record]:
        """Yield what `records` promises, with its errors."""
        with tell_read_error(f"the log cannot be read: store={self.directory}"):
            yield from self.walk_records(commit_log_offset, follow)

    def walk_records(self, commit_log_offset: int, follow: bool) -> Iterator[Record]:
        """Yield what `records` promises."""
        from reput.store.log.log_scan import LogScan
        from reput.store.record.record import decode_record
        from reput.store.recovery.recovery import read_damage

        scan = LogScan(self.directory, passed_over=read_damage(self.directory).accepted(), verify=True)
        try:
            wanted = max(commit_log_offset, scan.offset_min)
            segment = scan.segments.find(wanted)
            # Records are found from the beginning of their segment on; the offset may lie inside of one.
            at = segment.begin if segment is not None else wanted
            while True:
                end = self.log_end()
                while at < end:
                    if at in scan.passed_over:
                        at = scan.passed_over[at]
                        continue
                    try:
                        columns, following = scan.locate(at, end)
                    except DamagedStore as error:
                        error.place = (at, None)
                        self.found_damage(error)
                        raise
                    for position in columns.position.tolist():
                        if at + position >= wanted:
                            yield decode_record(columns.data, position)
                    at = following
                if not follow or not self.wait_for_growth(end):
                    return
        finally:
            scan.close()

    def wait_for_growth(self, end: int) -> bool:
        """Wait until the log has grown behind *end*; False once it never will."""
        raise NotImplementedError


class Store(Reading):
    """A store that this process writes. Any number of threads may use it; `close` it, or use ``with``.

    A program that ends without `close` has it closed, with a ResourceWarning. One that is killed loses nothing that was
    promised: the next opening recovers.
    """

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
        self.directory = directory
        self.configuration = configuration
        self.writer = open_writer(directory, settings, hooks, change_settings, lock_timeout)
        self.settings = self.writer.settings
        self.started = time.time_ns() // 1_000_000
        # Views whose progress nobody has asked for yet; those of an empty log have none to wait for.
        begun = self.writer.appended == self.writer.commit_log_offset_min
        self.not_begun = set() if begun else set(self.settings.dispatchers)
        self.read_lock = threading.Lock()
        self.grown = threading.Condition()
        self.found_damages = FoundDamages(directory)
        # What the event loop of each thread puts and waits with.
        self.here = threading.local()
        self.closed = False
        self.consuming_lock = threading.Lock()
        self.consuming: ConsumeServices | None = None
        self.transacting_lock = threading.Lock()
        self.transacting: TransactionService | None = None
        try:
            self.start_group(mode)
        except BaseException as error:
            go_back(error, self.writer.give_back)
            raise
        try:
            # Of those that are new it is known from now on that they have nothing yet.
            self.keep_cursors(dict.fromkeys(self.settings.dispatchers))
            self.start_services()
        except BaseException as error:
            go_back(
                error,
                self.group.drain_and_stop,
                lambda: self.writer.give_back(views_complete=self.views_complete()),
                self.close_ring,
            )
            raise
        close_with_program(self)

    def start_services(self) -> None:
        """Have the store trim itself, and deliver what is delayed."""
        self.bring_back_offsets()
        self.reader = self.new_reader()
        self.schedule: ScheduleService | None = None
        if CONSUME_QUEUE in self.settings.dispatchers:
            self.schedule = ScheduleService(
                self.writer,
                self.new_reader(),
                lambda commit_log_offset, timeout: self.group.wait_for(CONSUME_QUEUE, commit_log_offset, timeout),
            )
            self.writer.on_delayed = self.schedule.notice
            if self.schedule.has_waiting:
                self.schedule.start()
        self.writer.durable_views = self.durable_views
        self.writer.retention.start(self.cursors_needed, self.release_log)
        if isinstance(self.group, ProcessGroup):
            self.group.on_clean = self.writer.retention.clean
            self.group.on_statistics = self.sent_statistics

    def bring_back_offsets(self) -> None:
        """Have no consumer group go on behind the end of a queue that the log has lost messages of.

        Before anything is put: a new message may have the offset of a lost one.
        """
        writer = self.writer
        if writer.adopted_clean and writer.closed_at == writer.appended:
            # Nothing can be lost of a log that ends where we have closed it.
            return
        offsets = consumer_offset_manager(self.directory, self.settings, writer.files)
        # Offsets that cannot be read move nobody; whoever consumes is told.
        with contextlib.suppress(DamagedStore):
            offsets.load()
            if bring_back_offsets(offsets, writer.queue_offsets, self.is_foreign):
                offsets.persist()

    def is_foreign(self, topic: str) -> bool:
        """Whether nothing is put here to *topic*: RocketMQ's batch queues, and light queues that were never put to."""
        writer = self.writer
        unknown_light = topic.startswith(LMQ_PREFIX) and topic not in writer.queue_offsets.queues
        return unknown_light or writer.batch_topics.has(topic)

    def log_cursor(self) -> Cursor:
        """Return the end of the log, in its history."""
        return Cursor(self.writer.store_id, self.writer.epochs.epoch, self.writer.appended, 0)

    def parted_from(self, cursor: Cursor) -> int | None:
        """Return the commit-log offset from which on the log is another one than when it ended at *cursor*.

        None: it has all that it had then. A log of another store has nothing of it.
        """
        if cursor.store_id != self.writer.store_id:
            return 0
        difference = self.writer.epochs.first_difference(cursor, self.writer.commit_log_offset_min)
        return None if difference is None else difference.commit_log_offset

    def queue_offset_from(self, topic: str, queue_id: int, commit_log_offset: int) -> int:
        """Return the queue offset of the first message of a queue at or behind *commit_log_offset*, or of its next.

        Raises:
            DispatcherError: nobody builds the queues, or not in time.
            DamagedStore: the queue has lost a unit that would say it.
        """
        self.wait_for(CONSUME_QUEUE, min(commit_log_offset, self.writer.appended), QUEUE_WAIT_S)
        with self.read_lock:
            queue = self.reader.queue(topic, queue_id)
            low, high = queue.range()

            def begin_of(queue_offset: int) -> int:
                unit = queue.units.unit(queue_offset)
                if unit is None:
                    queue.refuse_missing_file(queue_offset)
                    # Retention has taken it meanwhile.
                    return -1
                return unit[0]

            return low + bisect_left(range(low, high), commit_log_offset, key=begin_of)

    def found_damage(self, error: DamagedStore) -> None:
        """Have `status` tell of damage that was met."""
        self.found_damages.note(error)

    def new_reader(self) -> MessageReader:
        """Return a reader of this store, for one thread at a time."""
        store = ReadableStore(
            self.directory,
            self.settings,
            self.readable_up_to,
            self.generation,
            self.commit_log_offset_min,
            lambda: self.writer.deleted_at,
            self.writer.opened_at,
            self.found_damages.note,
            self.queue_end_at,
        )
        return MessageReader(store)

    def queue_end_at(self, topic: str, queue_id: int, progress: int) -> int:
        """Return where a queue ends whose view has come to *progress*, 0 where that is not all that was put."""
        following = self.writer.queue_offsets.next_offset(topic, queue_id)
        # Asked last: what was put meanwhile may not be in the view yet.
        return following if progress >= self.writer.appended else 0

    def start_group(self, mode: Mode) -> None:
        """Start the dispatchers, behind the log as it is now, and tell them of all that follows."""
        writer = self.writer
        context = GroupContext(self.directory, writer.store_id, self.settings)
        self.ring: OpenRing | None = None
        if mode == "processes":
            self.ring = OpenRing(writer, self.settings)
            self.group: ProcessGroup | InlineGroup = ProcessGroup(
                context,
                self.ring.memory,
                configuration=self.configuration,
                on_members=self.attach_publisher,
                threads=writer.threads,
            )
            self.publisher: FramePublisher = self.ring.start_publisher(writer, self.tell_read_only)
        else:
            from reput.process.owner.inline_group import InlineGroup, InlineRing

            inline_ring = InlineRing(capacity=self.settings.ring_size, **positions(writer))
            self.group = InlineGroup(context, inline_ring, on_durable_awaited=writer.force_soon, threads=writer.threads)
            self.publisher = self.group.publisher()
        try:
            self.group.start()
        except BaseException as error:
            go_back(error, self.close_ring)
            raise
        self.attach_publisher()
        writer.threads.on_death = self.on_thread_death

    @property
    def threads(self) -> Threads:
        """The threads of the store, and which of them have died."""
        return self.writer.threads

    def on_thread_death(self) -> None:
        """Have `reput status` tell of it, and whoever waits for a message look whether one can still come."""
        self.tell_read_only(self.writer.reason)
        consuming = self.consuming
        if consuming is not None:
            consuming.wake_all()

    def attach_publisher(self) -> None:
        """Have the writer tell the group; also whenever dispatchers have come or gone."""
        publisher: Publisher = self.publisher
        if self.consuming is not None:
            publisher = ArrivalPublisher(publisher, self.consuming.hold_service.arrived)
        self.writer.attach(
            publisher,
            needs_properties=self.group.needs_properties,
            reads_durable=self.group.reads_durable,
        )

    def tell_read_only(self, reason: str | None) -> None:
        """Have `reput status` in other processes show whether anything can be put, and why not."""
        if isinstance(self.group, ProcessGroup):
            self.group.tell_writer_state(self.writer.state, reason or self.writer.notice)

    def durable_cursors(self) -> dict[str, int | None]:
        """Return the commit-log offset up to which the view of each enabled dispatcher is durable; None: not known."""
        return {name: self.group.durable_cursor(name) for name in list(self.group.members)}

    def keep_cursors(self, cursors: Mapping[str, int | None]) -> None:
        """Note which dispatchers run, and where their views stand, for times when nobody has the store open."""
        keep_dispatcher_cursors(self.directory, cursors, self.writer.files)
        keep_dispatcher_plugins(self.directory, self.group.plugins, self.writer.files)

    def durable_views(self) -> tuple[int, int]:
        """Return up to which store time the views that RocketMQ reads are on disk, and up to where the index is."""
        enabled = [view for view in ROCKETMQ_VIEWS if view in self.group.members]
        if CONSUME_QUEUE not in enabled:
            return 0, 0
        timestamps = [self.group.durable_timestamp(view) or 0 for view in enabled]
        return min(timestamps), (self.group.durable_cursor(INDEX) or 0) if INDEX in enabled else 0

    def cursors_needed(self) -> dict[str, int | None]:
        """Return from where on each enabled dispatcher still needs the log, that of a rebuild included."""
        return {name: self.group.needed_from(name) for name in list(self.group.members)}

    def release_log(self) -> None:
        """Let go of segments that were removed: as long as they are open here, the disk has no room from it."""
        self.reader.store.files.forget(str(self.directory / "commitlog"))
        for service in (self.schedule, self.transacting):
            if service is not None:
                service.reader.store.files.forget(str(self.directory / "commitlog"))

    def clean(self) -> list[SegmentFate]:
        """Have segments go whose time has come, without waiting for the hour of ``delete_when``.

        They go one after the other, as always. Returned is what becomes of each segment of the log, and why.
        """
        self.require_open()
        return self.writer.retention.clean()

    def close_ring(self) -> None:
        """Release the shared memory."""
        if self.ring is not None:
            self.ring.close()

    # Writing.

    def put(self, message: Message) -> PutMessageResult:
        """Store one message and return where. With SYNC_FLUSH it returns once the message is on disk.

        Raises:
            MessageIllegal: it breaks a limit of RocketMQ's.
            StoreFull: the disk has no room. Nothing was stored, as with every error but a failed force.
            StoreReadOnly: the disk has refused to force the log, before or now.
            StoreClosed: the store was closed, or this is a forked child of its writer.
        """
        try:
            return self.writer.put(message)
        except (AttributeError, TypeError):
            # Looked at only now: a put that succeeds pays nothing for it.
            require_messages([message])
            raise

    def put_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Store *messages* one behind the other: one lock, one publication. All are checked before the first is stored.

        Raises:
            As `put`.
        """
        if not isinstance(messages, Iterable):
            raise MessageIllegal(f"messages are none: type={type(messages).__name__}", "Give a list of reput.Message.")
        batch = list(messages)
        try:
            return self.writer.put_batch(batch)
        except (AttributeError, TypeError):
            require_messages(batch)
            raise

    async def aput(self, message: Message) -> PutMessageResult:
        """Store one message as `put` does; the event loop goes on while the disk is waited for.

        With SYNC_FLUSH it is stored at the end of the loop's turn, together with whatever else was put in that turn.
        A task that is cancelled before that stores nothing; later, its message is stored all the same.

        Raises:
            As `put`.
        """
        writer = self.writer
        try:
            if not writer.sync_flush:
                return writer.append(message)
            message, prepared = writer.admit(message)
        except (AttributeError, TypeError):
            require_messages([message])
            raise
        return await self.grouped_puts().put(message, prepared)

    async def durable(self, commit_log_offset: int) -> None:
        """Wait until the log is on disk up to *commit_log_offset*.

        Raises:
            StoreError: the disk refused, or the store was closed first.
        """
        require_whole("commit_log_offset", commit_log_offset, 0, OFFSET_MAX)
        if self.writer.durable >= commit_log_offset:
            return
        # Of a forked child nobody forces anything.
        self.require_open()
        await self.grouped_puts().waits.wait(commit_log_offset)
        if self.writer.durable < commit_log_offset:
            raise self.writer.refusal()

    def grouped_puts(self) -> GroupedPuts:
        """Return what the running event loop puts and waits for the disk with."""
        puts: GroupedPuts | None = getattr(self.here, "puts", None)
        if puts is None or not puts.is_here():
            # Who opens a store without a coroutine is ready sooner without asyncio.
            import asyncio

            from reput.durable_waits import DurableWaits
            from reput.grouped_puts import GroupedPuts

            loop = asyncio.get_running_loop()
            puts = self.here.puts = GroupedPuts(self.writer, DurableWaits(self.writer, loop), loop)
        return puts

    def delete_topic(self, topic: str, timeout: float | None = 5.0) -> int:
        """Delete *topic* and return the commit-log offset of that.

        Its consume queues go, and so do its entry in ``topics.json`` and what consumer groups have committed of it. Its
        records stay in the log until retention takes them, and are found by key so long. What is put to it from now on
        is a new topic's, whose queue offsets begin with 0. No rebuild of a view brings back what was deleted.

        Returns when the queues are gone, or after *timeout* seconds; they follow as soon as their dispatcher runs.

        Raises:
            ConfigError: the topic is RocketMQ's own.
            MessageIllegal: no topic is called so.
            StoreError: the deletion cannot be kept.
        """
        self.require_open()
        require_text("topic", topic)
        require_seconds("timeout", timeout)
        if is_system_topic(topic):
            raise ConfigError(f"the topic is the system's own: topic={topic!r}", "It cannot be deleted.")
        check_topic(topic)
        gone = GoneDirectory(self.directory / "consumequeue" / topic)
        try:
            offset = self.writer.delete_topic(topic)
            if self.consuming is not None:
                self.consuming.topic_goes(topic)
            self.forget_topic_config(topic)
            if CONSUME_QUEUE in self.settings.dispatchers:
                gone.wait(timeout)
                with self.read_lock:
                    # The dispatcher says a moment later that files have gone.
                    self.reader.store.forget()
        finally:
            gone.close()
        if self.consuming is not None:
            # Not before: until then the queues have the old messages under the new offsets.
            self.consuming.topic_deleted(topic)
        return offset

    def forget_topic_config(self, topic: str) -> None:
        """Take a topic out of the stored configuration."""
        if self.consuming is not None:
            topics, offsets = self.consuming.managers.topics, self.consuming.managers.offsets
        else:
            topics = TopicConfigManager(self.directory)
            offsets = consumer_offset_manager(self.directory, self.settings)
            topics.load()
            offsets.load()
        with topics.lock:
            if topic in topics.entries:
                topics.remove(topic)
                topics.persist()
                self.topic_changed(topic)
        with offsets.lock:
            if offsets.clean_offset_by_topic(topic):
                offsets.persist()

    def topic_changed(self, topic: str) -> None:
        """Spread what is put over the queues that a topic is described with now."""
        self.writer.topic_changed(topic)

    def flush(self) -> int:
        """Force to disk what was put so far, and return the offset up to which the log is durable.

        Raises:
            StoreError: the disk refused.
            StoreClosed: the store was closed, or this is a forked child of its writer.
        """
        self.require_open()
        return self.writer.flush()

    # Views.

    def commit_log_offset_min(self) -> int:
        """Return the commit-log offset of the first byte that retention has left."""
        return self.writer.commit_log_offset_min

    @property
    def appended(self) -> int:
        """Commit-log offset up to which messages were put. With a transient pool not all can be read yet."""
        return self.writer.appended

    def progress(self, dispatcher: str) -> int | None:
        """Return the commit-log offset up to which a view is readable, None if that is not known yet.

        Raises:
            DispatcherError: it is not enabled.
        """
        self.require_open()
        require_text("dispatcher", dispatcher)
        return self.group.progress(dispatcher)

    def wait_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Return when a view is readable up to *commit_log_offset*.

        Raises:
            WaitTimeout: it was not in *timeout* seconds.
            DispatcherError: it is not enabled, or does not run and never will by itself.
        """
        self.require_wait(dispatcher, commit_log_offset, timeout)
        self.group.wait_for(dispatcher, commit_log_offset, timeout)

    def require_wait(self, dispatcher: str, commit_log_offset: int, timeout: float | None) -> None:
        """Refuse to wait where the store is closed, or for what is no place."""
        self.require_open()
        require_text("dispatcher", dispatcher)
        require_whole("commit_log_offset", commit_log_offset, 0, OFFSET_MAX)
        require_seconds("timeout", timeout)

    @property
    def loops_wait_for_progress(self) -> bool:
        """Whether an event loop waits for a dispatcher by itself, and not through a thread."""
        return isinstance(self.group, ProcessGroup)

    async def wait_for_async(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """As `wait_for`, for a task: other tasks go on meanwhile."""
        self.require_wait(dispatcher, commit_log_offset, timeout)
        await self.group.wait_for_async(dispatcher, commit_log_offset, timeout)

    def readable_up_to(self, view: str) -> int:
        """Return the progress of a view; 0 where nobody builds it.

        How far the views of a store go that was there before is known a moment after its opening. Whoever asks at once
        waits for it: "there is nothing" would be a wrong answer.
        """
        try:
            if view in self.not_begun:
                self.group.wait_for(view, 0, BEGIN_WAIT_S)
                self.not_begun.discard(view)
            return self.group.progress(view) or 0
        except DispatcherError:
            self.not_begun.discard(view)
            return 0

    def generation(self, view: str) -> int:
        """Return the number of a view, which is raised whenever another one takes its place; 0: nobody builds it."""
        try:
            return self.group.generation(view)
        except DispatcherError:
            return 0

    def rebuild(self, *views: str, force: bool = False) -> list[RebuiltView]:
        """Build views again from the log beside those that run, and swap them in; return when that is done.

        Readers read the old views until then, and puts go on. Views that lead into one of these are rebuilt with it.

        Args:
            force: a view that lies elsewhere, too, as a server that would be sent all of the log once more.

        Raises:
            ConfigError: a view lies elsewhere, and *force* is not set.
            DispatcherError: a view is not enabled or could not be built; the old ones hold.
        """
        self.require_open()
        for view in views:
            require_text("view", view)
        return self.group.rebuild(views, force=force)

    def log_end(self) -> int:
        """Return what is committed, or with SYNC_FLUSH durable, beyond which nothing is shown."""
        return self.writer.shown

    def wait_for_growth(self, end: int) -> bool:
        """Wait until the log has grown behind *end*; False once the store is closed."""
        with self.grown:
            while self.log_end() <= end:
                if self.closed:
                    return False
                self.grown.wait(FOLLOW_WAIT_S)
        return True

    def pids(self) -> list[int]:
        """Return the processes of the group: this one, the supervisor, and those of the dispatchers.

        Raises:
            StoreClosed: the store was closed, or this is a forked child of its writer.
        """
        self.require_open()
        others = [self.group.process.pid] if isinstance(self.group, ProcessGroup) and self.group.process else []
        return [os.getpid(), *others, *(row.pid for row in self.group.status() if row.pid is not None)]

    def status(self) -> GroupStatus:
        """Return the store, its writer and a row per dispatcher; what is not known is None."""
        self.require_open()
        writer = self.writer
        status = GroupStatus(
            store=str(self.directory),
            store_id=writer.store_id,
            version=reput.__version__,
            started=self.started,
            writer=WriterRow(
                pid=os.getpid(),
                appended=writer.committed,
                durable=writer.durable,
                commit_log_offset_min=writer.commit_log_offset_min,
                epoch=writer.epochs.epoch,
                state=writer.state,
                reason=writer.reason or writer.notice,
            ),
            dispatchers=self.group.status(),
            damage=known_damage(self.directory, writer.committed),
            settings=meaning_of(self.settings),
        )
        return with_statistics(status, self.statistics())

    # Consuming.

    @property
    def services(self) -> ConsumeServices:
        """What consumers and brokers need: topics, groups, offsets, pulls. Made when it is asked for first.

        Raises:
            DamagedStore: a configuration file cannot be read, nor its backup.
        """
        self.require_open()
        with self.consuming_lock:
            if self.consuming is None:
                from reput.consume import ConsumeServices

                self.consuming = ConsumeServices(self)
                self.attach_publisher()
            return self.consuming

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
        """Let a consumer of *group* in, which shares the messages of *topics* with the group's others in this program.

        Args:
            filter: tags like ``a || b``, or an SQL92 expression as `reput.filter.parse` returns it; None: all messages.
            begin: where the group begins in queues that it never consumed: "earliest", "latest", or ms since 1970.
            in_flight_max: messages that are given and not acknowledged at most.
            broadcast: it shares with nobody, but is given every message, as each of the group's consumers is
                (RocketMQ's MessageModel.BROADCASTING). Nothing is sent back then: what fails is dropped.
            offset_store: the file that says where a broadcasting consumer goes on after a start; None: it keeps that in
                memory, and begins anew each time.

        Raises:
            RequestRefused: the group's name is illegal, or the group may not consume, or not by broadcasting.
            FilterSyntaxError: the filter does not parse.
            ConfigError: the group's other consumers want something else of a topic, or consume the other way; or the
                *offset_store* is another consumer's.
            DamagedStore: neither *offset_store* nor its backup can be read.
        """
        path = None if offset_store is None else require_path("offset_store", offset_store)
        return self.services.consumer(
            group,
            topics,
            filter,
            begin=begin,
            in_flight_max=in_flight_max,
            broadcast=broadcast,
            offset_store=path,
        )

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of *topic* that messages were put to."""
        require_text("topic", topic)
        return list(self.writer.queue_offsets.queues.get(topic, ()))

    def put_totals(self) -> dict[str, int]:
        """Return by topic how many messages were ever put to it; of a deleted topic, since it is there again."""
        return self.writer.queue_offsets.totals()

    def put_nums(self, topic: str) -> int | None:
        """Return how many messages were put to *topic* since the store was opened, None if nobody ever put one."""
        require_text("topic", topic)
        return self.writer.put_nums_of(topic) if self.writer.queue_offsets.queues.get(topic) else None

    def statistics(self) -> StoreStatistics:
        """Return what was put and consumed since the store was opened; what is not known is None."""
        self.require_open()
        from reput.consume.registry.statistics import StoreStatistics, TopicRow

        topics = self.writer.topics
        return StoreStatistics(
            started=self.started,
            put=self.writer.put_totals(),
            topics=[
                TopicRow(name, nums, topics[name].put_size if name in topics else None)
                for name, nums in sorted(self.writer.put_nums().items())
            ],
            groups=[] if self.consuming is None else self.consuming.statistics.group_rows(),
            waiting_delays=self.waiting_delays(),
            half_messages=self.half_messages(),
        )

    def sent_statistics(self) -> StoreStatistics:
        """Return `statistics` as other processes get it: the busiest topics and groups, if there are very many."""
        from reput.consume.registry.statistics import within

        return within(self.statistics(), STATISTICS_SIZE_MAX)

    def waiting_delays(self) -> dict[int, int] | None:
        """Return how many messages wait for their time by delay level, None if that is not known (yet)."""
        return None if self.schedule is None else self.schedule.waiting()

    def half_messages(self) -> int | None:
        """Return how many transactions are open, None if they were not counted yet: `transactions` does."""
        if self.transacting is not None:
            return len(self.transacting.pending)
        # Without any that was ever begun there is none open.
        return None if self.queue_ids(HALF_TOPIC) else 0

    def next_queue_offset(self, topic: str, queue_id: int = 0) -> int:
        """Return the queue offset that the next message of a queue gets; the queue may not be built so far yet."""
        require_text("topic", topic)
        require_whole("queue_id", queue_id)
        return self.writer.queue_offsets.next_offset(topic, queue_id)

    @property
    def transactions(self) -> TransactionService:
        """Messages that are delivered only when their sender says so. Made when it is asked for first.

        Raises:
            DispatcherError: the consume queue is not built, or not up to the log's end.
            DamagedStore: a half message, or a configuration file, cannot be read.
        """
        self.require_open()
        with self.transacting_lock:
            if self.transacting is None:
                from reput.consume.delivery.transaction_service import TransactionService

                self.transacting = TransactionService(self, self.new_reader())
            return self.transacting

    def delays(self) -> list[DelayLevelRow]:
        """Return what waits in each delay level that ever had a message.

        Nothing is delivered without the dispatcher ``consume_queue``, and nothing is returned then.
        """
        self.require_open()
        return [] if self.schedule is None else self.schedule.status()

    # Life.

    def close(self, timeout: float | None = None) -> None:
        """Drain the dispatchers, force everything to disk, and leave a store that RocketMQ opens as cleanly shut down.

        What a dispatcher has not taken in after *timeout* seconds it takes in after the next opening. Nothing is lost
        by that; but with a view of its own behind, RocketMQ recovers such a store as after a crash.

        Args:
            timeout: seconds that the dispatchers may take to catch up, `math.inf` for as long as they need; None: as
                the setting ``dispatcher_drain_time_max`` says. A warning every five seconds says what is waited for.

        Raises:
            ConfigError: *timeout* is no number of seconds.
            StoreError: the disk refused; what was durable before is safe. StoreFull, if it has no room.
        """
        require_seconds("timeout", timeout)
        if self.closed:
            return
        self.closed = True
        open_stores.discard(self)
        drain_time = self.settings.dispatcher_drain_time_max / 1000 if timeout is None else timeout
        with self.grown:
            self.grown.notify_all()
        with tell_store_error(f"the store could not be closed cleanly: store={self.directory}"):
            self.close_everything(drain_time)

    def close_everything(self, drain_time: float) -> None:
        """Do what `close` promises; whatever fails, all is given back."""
        schedule, ring = self.schedule, self.ring
        complete = False

        def settle() -> None:
            nonlocal complete
            do_all(
                self.stop_transactions,
                self.close_consumers,
                *(() if schedule is None else (schedule.stop,)),
                # The last bytes become durable here, so that dispatchers which read nothing else get them, too.
                self.writer.stop_puts,
                *(() if ring is None else (ring.end_release,)),
                partial(self.group.drain_and_stop, drain_time),
            )
            complete = self.views_complete()
            if self.writer.read_only_reason is None:
                if schedule is not None:
                    schedule.keep()
                self.write_checkpoint(complete)
                self.keep_cursors(self.durable_cursors())

        do_all(
            settle,
            *(() if schedule is None else (schedule.close,)),
            self.reader.close,
            lambda: self.writer.close(views_complete=complete),
            self.close_ring,
        )

    def stop_transactions(self) -> None:
        """Ask no sender any more about its transactions, and keep how far they were looked at."""
        with self.transacting_lock:
            if self.transacting is not None:
                self.transacting.stop()

    def close_consumers(self) -> None:
        """End the consumers, and keep how far they have come."""
        with self.consuming_lock:
            if self.consuming is not None:
                self.consuming.close()

    def views_complete(self) -> bool:
        """Whether the views that RocketMQ reads are durable up to the log's end.

        One that was enabled and has left the group meanwhile is not.
        """
        end, durable = self.writer.appended, self.durable_cursors()
        enabled = [view for view in ROCKETMQ_VIEWS if view in self.settings.dispatchers or view in durable]
        return all((durable.get(view) or 0) >= end for view in enabled)

    def write_checkpoint(self, complete: bool) -> None:
        """Tell RocketMQ up to which store times log and views are on disk."""
        timestamp = self.writer.durable_timestamp
        write_checkpoint(self.directory, timestamp, timestamp if complete else 0, self.writer.files)

    def __enter__(self) -> Self:
        self.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def forget(self) -> None:
        """In a forked child: this copy is closed, the parent's store goes on."""
        self.closed = True
        self.forked_from = os.getppid()
        self.writer.forget()
        self.group.forget()
        if self.schedule is not None:
            self.schedule.forget()
        if self.consuming is not None:
            self.consuming.forget()


class ReadOnlyStore(Reading):
    """A store that is only looked at: one of RocketMQ's, one that nobody has open, or one that another process writes.

    Beside a live writer of reput's the views' progress comes from its cells; otherwise from the log's end.
    """

    def __init__(self, directory: Path, settings: Settings) -> None:
        require_store(directory)
        self.directory = directory
        self.settings = settings
        self.read_lock = threading.Lock()
        self.end = 0
        with tell_read_error(f"the store cannot be opened: store={directory}"):
            self.observed = connect_observer(directory)
            if self.observed is None:
                from reput.store.log.segments import Segments
                from reput.store.recovery.log_end import find_log_end

                self.end = find_log_end(directory, Segments(directory / "commitlog"))
        store = ReadableStore(directory, settings, self.readable_up_to, self.generation, at_rest=self.observed is None)
        self.reader = MessageReader(store)
        self.closing = threading.Event()
        self.closed = False

    def readable_up_to(self, view: str) -> int:
        """Return the progress of a view."""
        if self.observed is None:
            return self.end
        return self.observed.progress(view) or 0

    def generation(self, view: str) -> int:
        """Return the number of a view, which is raised whenever another one takes its place."""
        return 0 if self.observed is None else self.observed.generation(view)

    def log_end(self) -> int:
        """Return the commit-log offset up to which records can be read."""
        return self.end if self.observed is None else self.observed.memory.header.appended or 0

    def wait_for_growth(self, end: int) -> bool:
        """Wait until a live writer has appended behind *end*; False where none writes, or it has gone."""
        if self.observed is None:
            return False
        while self.log_end() <= end:
            if self.observed.memory.header.closed or self.closing.wait(FOLLOW_WAIT_S):
                return False
        return True

    def status(self) -> GroupStatus:
        """Return what is known of the store and of whoever writes it.

        Raises:
            StoreError: one of the files that say so cannot be read.
        """
        with tell_read_error(f"the status cannot be read: store={self.directory}"):
            status = self.group_status()
        if status.started is not None:
            statistics = self.statistics()
            return status if statistics is None else with_statistics(status, statistics)
        if status.writer.state != "STOPPED" or self.observed is not None:
            return status
        from reput.consume.delivery.stopped_counts import count_stopped

        with self.read_lock, contextlib.suppress(ReputError, OSError):
            # Who asks how the store stands is told what can be told. What is wrong with a file of the configuration
            # says whoever reads it for its own sake: `reput group list`, and the next opening.
            counts = count_stopped(self.directory, self.settings, self.reader, self.end)
            return msgspec.structs.replace(status, **msgspec.structs.asdict(counts))
        return status

    def group_status(self) -> GroupStatus:
        """Return what is known of the store's group."""
        from reput.process.owner.stopped_status import stopped_status

        return stopped_status(self.directory, self.settings)

    def statistics(self) -> StoreStatistics | None:
        """Return what was put and consumed since the store was opened; None: nobody who can be asked has it open."""
        return owners_statistics(self.directory)

    def view_behind(self, view: str) -> int | None:
        """Return up to which commit-log offset *view* goes, if it is known to be behind the log; else None."""
        row = next((row for row in self.group_status().dispatchers if row.name == view), None)
        if row is None or not row.lag_bytes:
            return None
        return row.durable_cursor if row.progress is None else row.progress

    def close(self) -> None:
        """Close the files."""
        if self.closed:
            return
        self.closed = True
        self.closing.set()
        self.reader.close()
        if self.observed is not None:
            self.observed.memory.close()

    def __enter__(self) -> Self:
        self.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def owners_statistics(directory: Path) -> StoreStatistics | None:
    """Return what the program counts that has a store open; None: nobody has who can be asked."""
    from reput.process.control.control_socket import owner_statistics

    answer = owner_statistics(directory)
    if answer is None:
        return None
    from reput.consume.registry.statistics import StoreStatistics

    return msgspec.json.decode(answer, type=StoreStatistics)


def with_statistics(status: GroupStatus, statistics: StoreStatistics) -> GroupStatus:
    """Return the status of a store with what its owner counts."""
    counts = msgspec.to_builtins(statistics)
    return msgspec.structs.replace(
        status,
        waiting_delays=counts.pop("waiting_delays"),
        half_messages=counts.pop("half_messages"),
        statistics=counts,
    )


def open_writer(
    directory: Path,
    settings: Settings,
    hooks: Sequence[object],
    change_settings: Collection[str],
    lock_timeout: float | None,
) -> MessageStore:
    """Return the writer of a store; one that knows of no hooks where there are none."""
    if not hooks:
        return MessageStore(directory, settings, change_settings=change_settings, lock_timeout=lock_timeout)
    from reput.store.put_hooks import HookedMessageStore

    return HookedMessageStore(directory, settings, hooks, change_settings=change_settings, lock_timeout=lock_timeout)


class GoneDirectory:
    """Waits until a directory is removed, also if another one of its name is made at once."""

    def __init__(self, path: Path) -> None:
        self.descriptor: int | None = None
        with contextlib.suppress(FileNotFoundError):
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def wait(self, timeout: float | None) -> bool:
        """Return True once it is gone, False if that took longer than *timeout* seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = threading.Event()
        while self.descriptor is not None and os.fstat(self.descriptor).st_nlink:
            if end is not None and time.monotonic() >= end:
                return False
            pause.wait(GONE_LOOK_S)
        return True

    def close(self) -> None:
        """Let go of it."""
        if self.descriptor is not None:
            os.close(self.descriptor)


class OpenRing:
    """The dispatch ring of one writer, with its memory."""

    def __init__(self, writer: MessageStore, settings: Settings) -> None:
        from reput.ring import RingMemory, RingWriter

        self.memory = RingMemory.create(settings.ring_size, settings.dispatcher_count_max)
        self.writer = RingWriter(self.memory, **positions(writer))
        self.release_service: ReleaseService | None = None

    def start_publisher(self, writer: MessageStore, on_read_only: Callable[[str | None], None]) -> HoldingPublisher:
        """Return what is to be told of what *writer* does; *on_read_only* is as `FramePublisher` calls it."""
        from reput.process.frames.holding_publisher import HoldingPublisher
        from reput.process.frames.release_service import ReleaseService

        descriptor = self.memory.release_descriptor
        publisher = HoldingPublisher(
            self.writer,
            writer.epochs.epoch,
            on_read_only,
            lambda: os.eventfd_write(descriptor, 1),
            writer.segment_size,
        )

        def on_asked() -> None:
            awaited = self.writer.durable_awaited
            if awaited is not None and awaited <= writer.appended:
                writer.force_soon()

        self.release_service = ReleaseService(publisher, writer.put_lock, descriptor, writer.threads, on_asked)
        return publisher

    def end_release(self) -> None:
        """Have everything published; nothing is put any more."""
        service, self.release_service = self.release_service, None
        if service is not None:
            service.close()

    def close(self) -> None:
        """Say that no frame will follow, and release the memory."""
        self.end_release()
        self.writer.close()
        self.memory.close()


def positions(writer: MessageStore) -> dict[str, int]:
    """Return where the log stands now, as a ring is told."""
    return {
        "appended": writer.appended,
        "durable": writer.durable,
        "commit_log_offset_min": writer.commit_log_offset_min,
        "epoch": writer.epochs.epoch,
        "ordinal": writer.ordinal,
    }

"""MessageStore: the writer of one store. The only thing that appends to, forces, rolls and describes the commit log.

Any number of threads may put. Each message is encoded outside of the put lock as far as it can be; under it are given
the queue offset, the commit-log offset and the store time, the record is copied into the log, and its DispatchRequest
is handed to the publisher. A put never waits for a view, and for the disk only with SYNC_FLUSH.

Source: RocketMQ store, DefaultMessageStore, CommitLog.asyncPutMessage and asyncPutMessages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

import msgspec
from isal.isal_zlib import crc32

from reput.errors import (
    ConfigError,
    DamagedStore,
    MessageIllegal,
    NotAStore,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from reput.filter.string_hash import string_hash
from reput.settings import Settings, require_recorded
from reput.settings.settings import SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN
from reput.store.disk.disk_space import DiskSpace
from reput.store.disk.files import Clock, Files
from reput.store.disk.sealed_file import seal
from reput.store.disk.shortages import tell_store_error
from reput.store.log.commit_log import CommitLog
from reput.store.log.commit_service import CommitService
from reput.store.log.flush_service import FlushService
from reput.store.log.group_commit_log import GroupCommitLog
from reput.store.log.log_clock import LogClock
from reput.store.log.page_cache_watch import PageCacheWatch
from reput.store.log.pooled_commit_log import PooledCommitLog
from reput.store.log.segments import Segments
from reput.store.publisher import CommittedPublisher, NobodyListens, Publisher
from reput.store.put_statistics import PutStatistics, PutTotals
from reput.store.queue.batch_topics import BatchTopics
from reput.store.queue.queue_offsets import QueueOffsets, QueueOffsetsSnapshot
from reput.store.record.delay_level import SCHEDULE_TOPIC, DelayLevels
from reput.store.record.layout import (
    BLANK_SIZE_MIN,
    BORN_HOST_V6_FLAG,
    INNER_BATCH_FLAG,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    STORE_HOST_V6_FLAG,
    TOPIC_SIZE_MAX_V1,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
)
from reput.store.record.message import (
    Message,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
    check_properties,
    check_topic,
    message_properties,
)
from reput.store.record.multi_dispatch import (
    LMQ_PREFIX,
    QUEUE_OFFSETS_NAME,
    named_queues,
    offsets_size_max,
    own_queue_id,
)
from reput.store.record.properties import PROPERTIES_SIZE_MAX
from reput.store.record.record import CRC_PROPERTY_SIZE, INNER_NUM, crc_property, decode_record, encode_address
from reput.store.recovery.recreated_queues import RECREATED_QUEUES, read_recreated_queues, seal_recreated_queues
from reput.store.retention.retention import Retention
from reput.store.service.threads import Threads
from reput.store.state.closed_store import closed_store
from reput.store.state.epochs import Epoch, Epochs, make_mark
from reput.store.state.identity import (
    LAYOUT_VERSION,
    StoreIdentity,
    has_record,
    is_store,
    is_unfinished,
    new_store_id,
    read_identity,
)
from reput.store.state.recorded_settings import (
    FILE_SIZES,
    delay_history,
    enters_tags,
    recorded_values,
    shown_sizes,
    with_recorded,
)
from reput.store.state.rocksdb_folders import refuse_queues_in_rocksdb
from reput.store.state.store_checkpoint import (
    StoreCheckpoint,
    ahead_of_clock,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from reput.store.state.store_lock import StoreLock, Writer, process_start_time
from reput.store.state.topic_deletions import TopicDeletion, TopicDeletions, last_deletions
from reput_hooks import Record
from reput_hooks.dispatch import ROW

if TYPE_CHECKING:
    from reput.store.recovery.queue_spans import QueueSpan

__all__ = ["MessageStore", "Prepared"]

logger = logging.getLogger("reput.store")

PROPERTIES_SIZE = Struct(">h")
pack_properties_size = PROPERTIES_SIZE.pack
# Looked up once: an enum's attribute costs as much as the result that it stands in.
PUT_OK = PutMessageStatus.PUT_OK
pack_row = ROW.pack
INT_MAX = 2**31 - 1
INT_MIN = -(2**31)
TAGS_KNOWN_MAX = 20_000
KEYS_BEGIN, KEYS_END = b"KEYS\x01", b"\x02"
KEYS_OVERHEAD = len(KEYS_BEGIN + KEYS_END)
# Characters, of four bytes at most. Whatever is longer is looked at as a whole.
PLAIN_KEYS_MAX = 4096
PLAIN_TAGS_MAX = 1024
assert 4 * (PLAIN_KEYS_MAX + PLAIN_TAGS_MAX) + 16 < PROPERTIES_SIZE_MAX
# RocketMQ allows a record this much beyond the largest body.
RECORD_OVERHEAD_MAX = 65536
SNAPSHOT_INTERVAL_S = 10.0
GARBLED_SHOWN = 5


class Topic:
    """What is the same for all messages of one topic.

    Attributes:
        offsets: queue id → next queue offset.
        write_queue_nums: queues that messages without a queue id are spread over; 0: not looked up yet.
        turns: counts the messages that were spread.
        is_scheduled: its messages wait until they are due.
        put_size: bytes of its records since the store was opened.
    """

    __slots__ = (
        "field",
        "is_scheduled",
        "magic_code",
        "name",
        "offsets",
        "put_size",
        "queues",
        "turns",
        "write_queue_nums",
    )

    def __init__(self, name: str, data: bytes, offsets: dict[int, int]) -> None:
        self.name = name
        self.offsets = offsets
        self.write_queue_nums = 0
        self.turns = count()
        self.is_scheduled = name == SCHEDULE_TOPIC
        self.put_size = 0
        self.queues: dict[int, list[tuple[str, int]]] = {}
        long = len(data) > TOPIC_SIZE_MAX_V1
        self.magic_code = MESSAGE_MAGIC_CODE_V2 if long else MESSAGE_MAGIC_CODE
        self.field = len(data).to_bytes(2 if long else 1, "big") + data


class TagsField(msgspec.Struct, frozen=True, gc=False):
    """What tags make of a record: their code, the property as it is stored, and their text as dispatchers get it."""

    code: int
    data: bytes
    text: bytes


NO_TAGS = TagsField(0, b"", b"")


class RecordHead(msgspec.Struct, frozen=True):
    """What a record says besides its message: one for all messages of this program, others for `MessageExtBrokerInner`.

    Attributes:
        pack: packs fields 1 to 15 of the record, of which 8 to 14 come as what `origin` returns.
        record_size_min: bytes of the record up to its body.
        born_timestamp: None stands for the store time.
    """

    pack: Callable[..., bytes]
    pack_origin: Callable[..., bytes]
    record_size_min: int
    sys_flag: int
    born_timestamp: int | None
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int

    def origin(self, store_timestamp: int) -> bytes:
        """Return fields 8 to 14 of a record that is stored at that time: where and when it came from."""
        return self.pack_origin(
            self.sys_flag,
            store_timestamp if self.born_timestamp is None else self.born_timestamp,
            self.born_host,
            store_timestamp,
            self.store_host,
            self.reconsume_times,
            self.prepared_transaction_offset,
        )


class Prepared(msgspec.Struct, gc=False):
    """One message, encoded as far as that is possible without the put lock.

    Attributes:
        further: names of the queues that it is to be in, too; the rest is known under the lock: the offsets there make
            the record longer.
        further_offsets: of each of them the table, the queue id and the queue offset.
    """

    topic: Topic
    head: RecordHead
    queue_id: int
    body: bytes
    crc: int
    flag: int
    after_body: bytes
    record_size: int
    tags_code: int
    texts: bytes
    keys_size: int
    uniq_key_size: int = -1
    deliver_after: int = -1
    properties_size: int = -1
    further: tuple[str, ...] = ()
    multi_dispatch_size: int = -1
    further_offsets: Sequence[tuple[dict[int, int], int, int]] = ()

    def take_further_offsets(self) -> None:
        """Have the next message in the further queues come behind this one. Under the put lock."""
        for table, queue_id, queue_offset in self.further_offsets:
            table[queue_id] = queue_offset + 1


class MessageStore:
    """The writer. Open it once in one process; `close` leaves a store that RocketMQ opens as cleanly shut down."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        disk_space: DiskSpace | None = None,
        threads: Threads | None = None,
        change_settings: Collection[str] = (),
        lock_timeout: float | None = 0.0,
    ) -> None:
        """Take the lock, after waiting up to *lock_timeout* seconds for it, recover the log, and be ready to put.

        *change_settings*: settings that are recorded with the store and whose value becomes another; see
        `recorded_settings`.

        Raises:
            NotAStore: the directory has files in it, but no commit log.
            StoreReadOnly: this user may not write there, or nobody may.
            StoreLocked: another process writes it.
            StoreFull: the disk has no room for the store's own files.
            DamagedStore: the log is damaged before its end and nobody has accepted that.
            ConfigError: the settings do not fit the store's files, or what is recorded with it.
        """
        self.directory = directory
        self.change_settings = frozenset(change_settings)
        self.files = files or Files()
        self.clock = clock or Clock()
        self.disk_space = disk_space or DiskSpace()
        self.threads = threads or Threads()
        fresh = not is_store(directory)
        if fresh and directory.exists() and not (directory.is_dir() and is_unfinished(directory)):
            raise NotAStore(
                f"the directory is not empty and holds no commit log: store={directory}",
                "Name an empty or new directory, or one that has commitlog/ in it.",
            )
        self.own = directory / "reput"
        self.topic_deletions = TopicDeletions(directory)
        with tell_store_error(f"the store's directories cannot be made: store={directory}"):
            self.make_own_directory()
        with contextlib.ExitStack() as undo:
            self.store_lock = StoreLock(directory, lock_timeout)
            undo.callback(self.store_lock.close)
            with tell_store_error(f"the store cannot be opened for writing: store={directory}"):
                self.open(settings, undo)
            undo.pop_all()

    def make_own_directory(self) -> None:
        """Have the directories of the store, and their names on disk: what is forced into a new directory is lost with
        its name."""
        directory = self.directory.absolute()
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        self.files.make_directory(self.own)
        if (self.own / "store.json").exists():
            return
        # The newest that was there may be of a making that was killed before it had forced the name.
        for path in (*missing, missing[-1].parent if missing else directory):
            # A parent that we may not read is none that we made.
            with contextlib.suppress(PermissionError):
                self.files.force_directory(path.parent)

    def open(self, settings: Settings, undo: contextlib.ExitStack) -> None:
        """Do what the constructor promises, under the lock; *undo* is to know what must be given back if it fails."""
        log_directory = self.directory / "commitlog"
        identity = read_identity(self.directory)
        try:
            segments = Segments(log_directory)
        except NotAStore:
            segments = None
            if identity is not None:
                raise DamagedStore(
                    f"the commit log of this store is gone: store={self.directory} store_id={identity.store_id}",
                    "Put commitlog/ back, or move the directory away and begin anew.",
                ) from None
        # Of a log of our own more is known: recovery says what is missing.
        is_own = identity is not None
        if segments is not None and not is_own and not SEGMENT_SIZE_MIN <= segments.segment_size <= SEGMENT_SIZE_MAX:
            raise DamagedStore(
                f"the segments have a size that none can have: segment_size={segments.segment_size} "
                f"size_min={SEGMENT_SIZE_MIN} size_max={SEGMENT_SIZE_MAX} path={segments.list[0].path}",
                "Copy the whole files here, or move what is no segment out of commitlog/.",
            )
        # A making of ours that was interrupted leaves a log, too; there is nothing in it to take over.
        found = segments is not None and has_record(segments)
        store_id = new_store_id() if identity is None else identity.store_id
        self.adopted_clean = not (self.directory / "abort").exists() if found else None
        refuse_queues_in_rocksdb(self.directory)
        settings = self.fitting(settings, identity, segments)
        self.settings = settings
        self.store_id = store_id
        self.segment_size = settings.mapped_file_size_commit_log
        # Of what is put from now on.
        self.delay_levels = DelayLevels(settings.message_delay_level)
        self.body_size_max = settings.max_message_size
        self.appends_crc = settings.enabled_append_prop_crc
        self.multi_dispatch = settings.enable_multi_dispatch
        self.sync_flush = settings.flush_disk_type == "SYNC_FLUSH"
        self.record_size_max = min(settings.max_message_size + RECORD_OVERHEAD_MAX, self.segment_size - BLANK_SIZE_MIN)
        self.set_hosts(settings)
        self.recover(segments)
        undo.callback(self.commit_log.close)
        self.put_lock = threading.Lock()
        # Held while a topic's description is looked up, and while it is told that one has changed.
        self.description_lock = threading.Lock()
        self.publisher: Publisher = NobodyListens()
        # What nobody may see yet waits there: with SYNC_FLUSH until it is durable, with a transient pool for the files.
        self.committed_publisher: CommittedPublisher | None = None
        if self.sync_flush:
            self.publisher = self.committed_publisher = CommittedPublisher(self.publisher, lambda end: None)
        self.commit_service: CommitService | None = None
        self.needs_properties = False
        # Nothing is added to what a message says itself.
        self.is_plain = not self.appends_crc and not self.multi_dispatch
        self.topics: dict[str, Topic] = {}
        # Topic → commit-log offset of its last deletion.
        self.deleted_at = last_deletions(self.topic_deletions.following(0))
        # What it cannot read the dispatcher of the consume queue complains about.
        self.batch_topics = BatchTopics(self.directory)
        self.light_queues = {name for name in self.queue_offsets.queues if name.startswith(LMQ_PREFIX)}
        # Tags that were checked: they have no control character.
        self.known_tags: dict[str | None, TagsField] = {None: NO_TAGS}
        # Told the delay level and the deliver time (ms) of each delayed message, under the put lock.
        self.on_delayed: Callable[[int, int], None] = lambda level, deliver_timestamp: None
        self.closed = False
        # In a forked child, the process that opened the store.
        self.forked_from: int | None = None
        # Store time of a record that is on disk, as are all before it.
        self.durable_timestamp = self.store_timestamp
        self.read_only_reason: str | None = None
        self.disk_full_reason: str | None = None
        # What others were told last of `notice`.
        self.told_notice = ""
        # Tells up to which store time the views that RocketMQ reads are on disk, and up to which commit-log offset the
        # index is.
        self.durable_views: Callable[[], tuple[int, int]] = lambda: (0, 0)
        # What lies before it was there when the store was opened.
        self.opened_at = self.commit_log.appended
        self.snapshot_at = self.clock.monotonic()
        self.snapshot_offset = self.commit_log.appended
        self.write_own_files(identity)
        self.monotonic = self.clock.monotonic
        # By topic, what its queues had when the store was opened.
        self.put_before = self.queue_offsets.totals()
        self.put_statistics = PutStatistics(self.monotonic, lambda: self.ordinal, tells_all=self.sync_flush)
        self.page_cache = PageCacheWatch(
            self.put_lock, self.commit_log, self.clock, settings.os_page_cache_busy_time_out_mills
        )
        self.flush_service = FlushService(
            self.commit_log,
            self.clock,
            interval_ms=settings.flush_interval_commit_log,
            least_pages=settings.flush_commit_log_least_pages,
            thorough_interval_ms=settings.flush_commit_log_thorough_interval,
            before_flush=lambda: self.store_timestamp,
            on_durable=self.on_durable,
            on_failure=self.on_flush_failure,
            on_idle=self.after_each_round,
            threads=self.threads,
        )
        self.flush_service.hides_unforced = self.sync_flush
        if isinstance(self.commit_log, PooledCommitLog):
            self.open_commit_service(self.commit_log)
        self.retention = Retention(self.directory, settings, self, self.log_clock, self.disk_space, self.threads)

    def fitting(self, settings: Settings, identity: StoreIdentity | None, segments: Segments | None) -> Settings:
        """Return *settings* with the sizes that the files have, and refuse what would give them another meaning.

        Raises:
            ConfigError: a value differs from the recorded one and is not to change, or from what the files show.
        """
        recorded = {} if identity is None else recorded_values(identity)
        # The log always says how large its files are; the views of a store that is taken over do, and so do those of
        # one whose record is to change.
        recorded.pop("mapped_file_size_commit_log", None)
        unknown = [name for name in FILE_SIZES if name not in recorded or name in self.change_settings]
        shown = shown_sizes(self.directory, settings, unknown) if segments is not None else {}
        for name in self.change_settings & shown.keys():
            if shown[name] != getattr(settings, name):
                raise ConfigError(
                    f"the files of the store have another size: {name}={getattr(settings, name)} shown={shown[name]}",
                    "A store keeps the size of its files; put its messages into a new one, or rebuild views elsewhere.",
                )
        require_recorded(settings, recorded, self.change_settings)
        settings = msgspec.structs.replace(settings, **shown)
        if segments is None or "index_tags" in self.change_settings:
            return settings
        return msgspec.structs.replace(settings, index_tags=enters_tags(self.directory, settings, identity))

    def open_commit_service(self, commit_log: PooledCommitLog) -> None:
        """Have what is put committed, and made known only then."""
        self.commit_service = CommitService(
            commit_log,
            self.clock,
            interval_ms=self.settings.commit_interval_commit_log,
            least_pages=self.settings.commit_commit_log_least_pages,
            thorough_interval_ms=self.settings.commit_commit_log_thorough_interval,
            on_committed=self.publish_committed,
            on_failure=self.flush_service.wake.set,
            on_death=self.flush_service.fail,
            threads=self.threads,
        )
        self.publisher = self.committed_publisher = CommittedPublisher(self.publisher, self.commit_service.appended)

    def set_hosts(self, settings: Settings) -> None:
        """Have the stored form of both hosts, and the head of all records whose message says nothing else."""
        self.born_host = stored_host(settings.born_host)
        self.store_host = stored_host(settings.store_host)
        self.head = record_head(0, None, self.born_host, self.store_host, 0, 0)

    def head_of(self, message: Message) -> RecordHead:
        """Return what the record of *message* says besides it.

        Raises:
            MessageIllegal: a number does not fit its field, or the transaction type is one that is not stored.
        """
        if not isinstance(message, MessageExtBrokerInner):
            return self.head
        for name, bits in (
            ("born_timestamp", 64),
            ("sys_flag", 32),
            ("reconsume_times", 32),
            ("prepared_transaction_offset", 64),
        ):
            value = getattr(message, name)
            if value is None and name == "born_timestamp":
                continue
            if type(value) is not int or not -(1 << bits - 1) <= value < 1 << bits - 1:
                raise MessageIllegal(f"{name} is not a number of {bits} bits: {name}={value!r}")
        if message.sys_flag & TRANSACTION_ROLLBACK_TYPE not in (0, TRANSACTION_COMMIT_TYPE):
            raise MessageIllegal(f"a transaction's type is none or committed: sys_flag={message.sys_flag:#x}")
        if message.sys_flag & INNER_BATCH_FLAG:
            # Its queue offsets would be counted by the messages in it.
            raise MessageIllegal(
                f"several messages under one record are for topics with batch queues: sys_flag={message.sys_flag:#x} "
                f"topic={message.topic}"
            )
        return record_head(
            message.sys_flag,
            message.born_timestamp,
            self.born_host if message.born_host is None else message.born_host,
            self.store_host if message.store_host is None else message.store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
        )

    def recover(self, segments: Segments | None) -> None:
        """Find the end of the log and the next queue offsets, and open the log there."""
        log_directory = self.directory / "commitlog"
        self.was_cut = False
        # Where the log was closed, if the last to write it was reput and closed it.
        self.closed_at: int | None = None
        self.found_queues: dict[str, dict[int, QueueSpan]] | None = None
        if segments is None:
            self.files.make_directory(log_directory)
            self.epochs = Epochs(self.store_id, [Epoch(1, 0, self.clock.now_ms())])
            self.queue_offsets = QueueOffsets()
            self.ordinal = 0
            self.store_timestamp = 0
            self.commit_log_offset_min = 0
            end = 0
        else:
            from reput.store.recovery.cut_log import cut_behind
            from reput.store.recovery.recovery import recover

            recovered = recover(
                self.directory,
                segments,
                self.store_id,
                self.clock.now_ms(),
                self.clock.boot_id(),
                demand_crc=self.settings.force_verify_prop_crc,
            )
            kept = cut_behind(self.directory, segments, recovered.end, self.files)
            self.was_cut = bool(kept)
            if kept:
                logger.warning(
                    "what lay behind the log's end was put away: log_end=%d reason=%s files=%s",
                    recovered.end,
                    recovered.lost,
                    ", ".join(map(str, kept)),
                )
            for found in recovered.garbled[:GARBLED_SHOWN]:
                logger.warning(
                    "a record has a field that those around it contradict, and is left as it is: from=%d until=%d "
                    "reason=%s count=%d (`reput check` names them all)",
                    found.begin,
                    found.end,
                    found.reason,
                    len(recovered.garbled),
                )
            self.topic_deletions.move_before(recovered.common_end, self.files)
            if recovered.recreated_queues != read_recreated_queues(self.directory):
                self.files.replace(self.own / RECREATED_QUEUES, seal_recreated_queues(recovered.recreated_queues))
            self.force_recovered(segments, recovered.known_durable, recovered.end)
            self.closed_at = recovered.epochs.clean_end
            # From here on the log is known to be on disk as it is now.
            self.epochs = recovered.epochs.with_mark(make_mark(segments, recovered.end), clean=False)
            self.queue_offsets = recovered.queue_offsets
            self.ordinal = recovered.ordinal
            self.found_queues = recovered.found_queues
            self.store_timestamp = recovered.store_timestamp
            self.commit_log_offset_min = segments.offset_min
            end = recovered.end
        self.log_clock = LogClock(self.clock, self.store_timestamp)
        notice = self.notice
        if notice is not None:
            logger.warning("%s store=%s", notice, self.directory)
        self.commit_log = self.open_log(log_directory, end)

    def open_log(self, log_directory: Path, end: int) -> CommitLog:
        """Open the log for appending at *end*, of the kind that the settings ask for."""
        settings = self.settings
        if self.sync_flush:
            if settings.transient_store_pool_enable:
                logger.warning(
                    "there is no transient pool, for each put waits for the disk: flush_disk_type=SYNC_FLUSH"
                )
            return GroupCommitLog(
                log_directory,
                self.segment_size,
                end,
                self.files,
                warm_up=settings.warm_maped_file_enable,
                force_pages=settings.flush_least_pages_when_warm_maped_file,
                threads=self.threads,
            )
        if settings.transient_store_pool_enable:
            return PooledCommitLog(
                log_directory,
                self.segment_size,
                end,
                self.files,
                buffer_count=settings.transient_store_pool_size,
                fast_fail=settings.fast_fail_if_no_buffer_in_store_pool,
                warm_up=settings.warm_maped_file_enable,
                threads=self.threads,
            )
        return CommitLog(
            log_directory,
            self.segment_size,
            end,
            self.files,
            warm_up=settings.warm_maped_file_enable,
            threads=self.threads,
        )

    def force_recovered(self, segments: Segments, begin: int, end: int) -> None:
        """Force what a killed writer has appended but not forced; from now on it counts as durable.

        Raises:
            StoreError: the disk refuses.
        """
        path = segments.directory
        try:
            for segment in segments.list:
                path = segment.path
                if segment.begin < end and segment.end > begin:
                    file = self.files.open(path)
                    try:
                        file.force()
                    finally:
                        file.close()
            # A writer that was killed between making a segment and forcing its name leaves that to us.
            self.files.force_directory(segments.directory)
        except OSError as error:
            raise StoreError(f"the log could not be forced to disk: path={path} error={error.strerror}") from error

    def write_own_files(self, identity: StoreIdentity | None) -> None:
        """Write who we are, before the first put: identity, epochs, writer, checkpoint, abort; and claim the store."""
        self.clean_checkpoint = self.found_clean_checkpoint()
        found = identity or StoreIdentity(LAYOUT_VERSION, self.store_id, {}, self.adopted_clean)
        kept = with_recorded(found, self.settings, self.commit_log.appended)
        if identity is None:
            # With an identity but without the name of its log, a store is refused as one whose log was taken away.
            self.files.force_directory(self.directory)
            if self.adopted_clean and self.found_queues is not None:
                # Before the store is called ours: the log will not be read whole again.
                from reput.store.recovery.queue_spans import FOUND_QUEUES

                self.files.replace(self.own / FOUND_QUEUES, seal(self.found_queues))
        if kept != identity:
            self.files.replace(self.own / "store.json", seal(kept))
        self.delay_history = delay_history(kept, self.settings.message_delay_level)
        for draft in sorted((self.directory / "config").glob("*.json*.draft")):
            # Of a file whose writing was killed; it may not be written again.
            self.files.remove(draft)
        self.epochs = msgspec.structs.replace(self.epochs, clean_end=None)
        self.files.replace(self.own / "epochs", self.epochs.seal())
        writer = Writer(os.getpid(), process_start_time(os.getpid()), self.clock.boot_id())
        self.files.replace(self.own / "writer.json", msgspec.json.encode(writer))
        # What a checkpoint says of the views holds no more, now that they change: after a crash RocketMQ is to build
        # them from the log, and not to trust what it, or we, had built up to some time.
        write_checkpoint(self.directory, self.store_timestamp, 0, self.files)
        self.files.replace(self.directory / "abort", str(os.getpid()).encode())
        self.store_lock.claim()

    def found_clean_checkpoint(self) -> StoreCheckpoint | None:
        """Return the checkpoint of a store that was cleanly closed, or is new; None: its views may not fit its log."""
        if self.was_cut or (self.directory / "abort").exists():
            return None
        return read_checkpoint(self.directory)

    @property
    def appended(self) -> int:
        """Commit-log offset up to which messages were put."""
        return self.commit_log.appended

    @property
    def committed(self) -> int:
        """Commit-log offset up to which records are readable: `appended`, but for what is in the transient pool."""
        return self.commit_log.committed

    @property
    def shown(self) -> int:
        """Commit-log offset beyond which nothing is shown to anybody: `committed`, or with SYNC_FLUSH `durable`."""
        return self.commit_log.durable if self.sync_flush else self.commit_log.committed

    @property
    def durable(self) -> int:
        """Commit-log offset up to which the log is forced to disk."""
        return self.commit_log.durable

    @property
    def state(self) -> str:
        """``RUNNING``, ``READ_ONLY`` or ``STOPPED``."""
        if self.closed:
            return "STOPPED"
        return "RUNNING" if self.reason is None else "READ_ONLY"

    @property
    def reason(self) -> str | None:
        """Why nothing can be put, None if something can."""
        return self.read_only_reason or self.disk_full_reason

    @property
    def notice(self) -> str | None:
        """What whoever runs the store should know, though it takes messages; None: there is nothing."""
        for reason in self.threads.deaths.values():
            return reason
        return ahead_of_clock(self.store_timestamp, self.clock.now_ms()) or self.log_clock.notice()

    def put_nums_of(self, topic: str) -> int:
        """Return how many messages the queues of *topic* were given since the store was opened."""
        return self.queue_offsets.total(topic) - self.put_before.get(topic, 0)

    def put_nums(self) -> dict[str, int]:
        """Return by topic how many messages its queues were given since the store was opened, where there were any."""
        before = self.put_before
        totals = self.queue_offsets.totals()
        return {topic: nums for topic, total in totals.items() if (nums := total - before.get(topic, 0))}

    def put_totals(self) -> PutTotals:
        """Return what was put since the store was opened."""
        return self.put_statistics.totals(sum(topic.put_size for topic in list(self.topics.values())))

    def attach(
        self,
        publisher: Publisher,
        *,
        needs_properties: bool,
        reads_durable: bool = False,
    ) -> None:
        """Have *publisher* told from now on.

        Args:
            needs_properties: rows carry the raw properties.
            reads_durable: whoever listens is shown only what is durable, so the flusher does not wait for whole pages.
        """
        with self.put_lock:
            if self.committed_publisher is None:
                self.publisher = publisher
            else:
                if self.commit_service is not None:
                    # What was put for the one before is told to that one: the new one may need more of a record.
                    self.commit_service.try_commit()
                self.committed_publisher.change(publisher, self.shown)
            self.needs_properties = needs_properties
            self.is_plain = not (needs_properties or self.appends_crc or self.multi_dispatch)
        self.told_notice = ""
        self.flush_service.durable_wanted = reads_durable

    def force_soon(self) -> None:
        """Have what was appended forced without waiting for the flusher's time. Returns at once."""
        self.flush_service.ask()

    def topic(self, name: str) -> Topic:
        """Return the topic, checked when it is met first."""
        found = self.topics.get(name)
        if found is None:
            data = check_topic(name)
            if self.batch_topics.has(name):
                raise MessageIllegal(
                    f"the topic has batch consume queues (RocketMQ 5, queue.type=BatchCQ): topic={name}",
                    "reput leaves them alone, so nobody could read the message: put it to another topic.",
                )
            with self.put_lock:
                offsets = self.queue_offsets.queues.setdefault(name, {})
                found = self.topics.setdefault(name, Topic(name, data, offsets))
        return found

    def topic_changed(self, name: str) -> None:
        """Look up again over how many queues a topic is spread: ``topics.json`` describes it in another way now."""
        with self.description_lock:
            found = self.topics.get(name)
            if found is not None:
                found.write_queue_nums = 0

    def look_up_queues(self, topic: Topic) -> int:
        """Return over how many queues a topic is spread, and keep that until `topic_changed`."""
        # Without the lock a description that changes meanwhile would be told first, and the old one kept after it.
        with self.description_lock:
            config = self.batch_topics.described.find(topic.name)
            topic.write_queue_nums = 1 if config is None else max(config.write_queue_nums, 1)
            return topic.write_queue_nums

    def choose_queue(self, message: Message) -> int:
        """Return the queue of a message that names none: by its sharding key, or the next in turn.

        Raises:
            MessageIllegal: no topic is called so, or the key is no text.

        Source: RocketMQ client, SelectMessageQueueByHash and TopicPublishInfo.selectOneMessageQueue.
        """
        topic = self.topics.get(message.topic) or self.topic(message.topic)
        queue_nums = topic.write_queue_nums or self.look_up_queues(topic)
        key = message.sharding_key
        if key is not None:
            if not isinstance(key, str):
                raise MessageIllegal(f"sharding_key is not text: sharding_key={key!r}")
            return abs(string_hash(key)) % queue_nums
        return 0 if queue_nums == 1 else next(topic.turns) % queue_nums

    def with_queue(self, message: Message) -> Message:
        """Return *message* with the queue that it goes to, for what keeps the queue's number beside the message.

        Raises:
            MessageIllegal: as `choose_queue`.
        """
        if message.queue_id is not None:
            return message
        return msgspec.structs.replace(message, queue_id=self.choose_queue(message), sharding_key=None)

    def prepare(self, message: Message) -> Prepared:
        """Encode and check *message* as far as that is possible without the put lock.

        Raises:
            MessageIllegal: it breaks a limit.
        """
        flag, queue_id = message.flag, message.queue_id
        if type(flag) is not int or not INT_MIN <= flag <= INT_MAX:
            raise MessageIllegal(f"flag is not a number of 32 bits: flag={flag!r}")
        topic = self.topics.get(message.topic)
        if queue_id is None:
            if topic is not None and topic.write_queue_nums == 1 and message.sharding_key is None:
                queue_id = 0
            else:
                queue_id = self.choose_queue(message)
        elif type(queue_id) is not int or not 0 <= queue_id <= INT_MAX:
            raise MessageIllegal(f"queue_id is not a number from 0 to {INT_MAX}: queue_id={queue_id!r}")
        elif message.sharding_key is not None:
            raise MessageIllegal(
                f"a message has a queue id or a sharding key: queue_id={queue_id} "
                f"sharding_key={message.sharding_key!r}",
                "Leave one of them out.",
            )
        # Nearly every message has no more than keys, and a topic and tags that were met before.
        body, keys = message.body, message.keys
        is_plain = self.is_plain and message.properties is None and not message.delay_level
        if topic is None or not is_plain or type(message) is not Message or type(body) is not bytes:
            return self.prepare_any(message, queue_id)
        try:
            tags = self.known_tags[message.tags]
            data = tags.data
            if keys is None:
                texts, keys_size = tags.text, -1 if data else 0
                after_body = b"".join((topic.field, pack_properties_size(len(data)), data))
            else:
                text = keys
                if type(keys) is list or type(keys) is tuple:
                    text = " ".join(keys)
                    if " " in text and text.count(" ") >= len(keys):
                        # A key has a blank in it, which is refused there.
                        return self.prepare_any(message, queue_id)
                # What is printable has no separator, no zero byte and no lone surrogate in it.
                if type(text) is not str or not text.isprintable() or not 0 < len(text) <= PLAIN_KEYS_MAX:
                    return self.prepare_any(message, queue_id)
                stored_keys = text.encode()
                keys_size = len(stored_keys)
                properties_size = pack_properties_size(keys_size + KEYS_OVERHEAD + len(data))
                after_body = b"".join((topic.field, properties_size, KEYS_BEGIN, stored_keys, KEYS_END, data))
                texts = stored_keys + tags.text
        except (KeyError, TypeError):
            # They are met now, or are no text.
            return self.prepare_any(message, queue_id)
        head = self.head
        record_size = head.record_size_min + len(body) + len(after_body)
        if len(body) > self.body_size_max or record_size > self.record_size_max:
            return self.prepare_any(message, queue_id)
        crc = crc32(body) & 0x7FFFFFFF
        return Prepared(topic, head, queue_id, body, crc, flag, after_body, record_size, tags.code, texts, keys_size)

    def prepare_any(self, message: Message, queue_id: int) -> Prepared:
        """Do what `prepare` does, for a message of any kind that goes to *queue_id*, and whose numbers were checked."""
        given = message.properties
        if given is not None or message.delay_level:
            message, queue_id = self.as_stored(message, queue_id)
            given = message.properties
        topic = self.topics.get(message.topic) or self.topic(message.topic)
        head = self.head if type(message) is Message else self.head_of(message)
        body = message.body
        if type(body) is not bytes:
            body = plain_bytes(body)
        properties, tags, texts, uniq_key_size, keys_size = self.properties_of(message)
        size = len(body)
        if size > self.body_size_max:
            raise MessageIllegal(f"body is too long: body_size={size} max_message_size={self.body_size_max}")
        if self.appends_crc:
            # Room for the CRC of the record; its digits are known once the offsets are.
            properties += bytes(CRC_PROPERTY_SIZE)
            if len(properties) > PROPERTIES_SIZE_MAX:
                raise MessageIllegal(f"properties are too long with their CRC: properties_size={len(properties)}")
        further: tuple[str, ...] = ()
        if self.multi_dispatch:
            further = named_queues(topic.name, given, len(properties))
        after_body = b"".join((topic.field, pack_properties_size(len(properties)), properties))
        record_size = head.record_size_min + size + len(after_body)
        if record_size + (offsets_size_max(further) if further else 0) > self.record_size_max:
            raise MessageIllegal(
                f"record is too long: record_size={record_size} record_size_max={self.record_size_max}"
            )
        properties_size = -1
        if self.needs_properties:
            texts += properties
            properties_size = len(properties)
        texts += tags.text
        return Prepared(
            topic,
            head,
            queue_id,
            body,
            crc32(body) & 0x7FFFFFFF,
            message.flag,
            after_body,
            record_size,
            tags.code,
            texts,
            keys_size,
            uniq_key_size,
            self.delay_of_scheduled(message) if topic.is_scheduled else -1,
            properties_size,
            further,
        )

    def as_stored(self, message: Message, queue_id: int) -> tuple[Message, int]:
        """Return *message*, which has properties or a delay, as it is to be put, and the queue that takes it.

        Raises:
            MessageIllegal: they are none, or its delay is none.
        """
        given = message.properties
        if given is not None and type(given) is not dict:
            check_properties(given)
        if message.delay_level or (given and "DELAY" in given):
            level = self.delay_levels.level_of(message)
            if level:
                message, queue_id = self.delayed(message, queue_id, level), level - 1
                given = message.properties
        if given and INNER_NUM in given:
            raise MessageIllegal(
                f"the property is for several messages under one record: name={INNER_NUM} value={given[INNER_NUM]!r} "
                f"topic={message.topic}"
            )
        if given and QUEUE_OFFSETS_NAME in given:
            # Of a message that is put again; its offsets are others now, and without multi-dispatch it has none.
            given = {name: text for name, text in given.items() if name != QUEUE_OFFSETS_NAME}
            message = msgspec.structs.replace(message, properties=given)
        return message, queue_id

    def with_queue_offsets(self, prepared: Prepared) -> Prepared:
        """Return *prepared* with its offsets in the further queues that it names. Under the put lock.

        Raises:
            MessageIllegal: there are as many light queues as there may be.
        """
        further_offsets = []
        for name in prepared.further:
            if self.settings.enable_lmq and name.startswith(LMQ_PREFIX) and name not in self.light_queues:
                if len(self.light_queues) >= self.settings.max_lmq_consume_queue_num:
                    raise MessageIllegal(
                        f"there are as many light queues as there may be: status=LMQ_CONSUME_QUEUE_NUM_EXCEEDED "
                        f"name={name} max_lmq_consume_queue_num={self.settings.max_lmq_consume_queue_num}"
                    )
                self.light_queues.add(name)
            table = self.queue_offsets.queues.setdefault(name, {})
            queue_id = own_queue_id(name, prepared.queue_id)
            further_offsets.append((table, queue_id, table.get(queue_id, 0)))
        values = ",".join([str(queue_offset) for _, _, queue_offset in further_offsets])
        added = f"{QUEUE_OFFSETS_NAME}\x01{values}\x02".encode()
        field = prepared.topic.field
        properties = prepared.after_body[len(field) + PROPERTIES_SIZE.size :]
        # The record's CRC comes last.
        end = len(properties) - CRC_PROPERTY_SIZE if self.appends_crc else len(properties)
        properties = properties[:end] + added + properties[end:]
        multi_dispatch = f"{','.join(prepared.further)}\x02{values}".encode()
        keys_end = max(prepared.uniq_key_size, 0) + max(prepared.keys_size, 0)
        told = prepared.properties_size >= 0
        tags = prepared.texts[keys_end + max(prepared.properties_size, 0) :]
        texts = b"".join((prepared.texts[:keys_end], multi_dispatch, properties if told else b"", tags))
        return msgspec.structs.replace(
            prepared,
            after_body=field + PROPERTIES_SIZE.pack(len(properties)) + properties,
            record_size=prepared.record_size + len(added),
            texts=texts,
            properties_size=len(properties) if told else -1,
            multi_dispatch_size=len(multi_dispatch),
            further_offsets=further_offsets,
        )

    def properties_of(self, message: Message) -> tuple[bytes, TagsField, bytes, int, int]:
        """Return the properties string of *message*; its tags, its unique key and keys, and the sizes of these.

        Raises:
            MessageIllegal: as `message_properties`.
        """
        properties, tags, keys, uniq_key = message_properties(message)
        texts = b""
        uniq_key_size = keys_size = -1
        if uniq_key:
            texts = uniq_key.encode()
            uniq_key_size = len(texts)
        if keys:
            data = keys.encode()
            keys_size = len(data)
            texts += data
        elif not properties:
            keys_size = 0
        known = self.known_tags.get(tags) or self.learn_tags(tags or "")
        return properties, known, texts, uniq_key_size, keys_size

    def learn_tags(self, tags: str) -> TagsField:
        """Return what these tags, which were checked, make of a record; keep it if they are ordinary."""
        if len(self.known_tags) > TAGS_KNOWN_MAX:
            self.known_tags = {None: NO_TAGS}
        text = tags.encode()
        field = TagsField(string_hash(tags), b"TAGS\x01" + text + b"\x02", text)
        if len(tags) <= PLAIN_TAGS_MAX and tags.isprintable():
            self.known_tags[tags] = field
        return field

    def delayed(self, message: Message, queue_id: int, level: int) -> Message:
        """Return *message*, which is to go to *queue_id*, as the schedule topic keeps it until it is due.

        Source: RocketMQ store, 4.9 CommitLog.asyncPutMessage and 5.x HookUtils.transformDelayLevelMessage.
        """
        check_topic(message.topic)
        return msgspec.structs.replace(
            message,
            topic=SCHEDULE_TOPIC,
            delay_level=level,
            properties={
                **(message.properties or {}),
                "DELAY": str(level),
                "REAL_TOPIC": message.topic,
                "REAL_QID": str(queue_id),
            },
        )

    def delay_of_scheduled(self, message: Message) -> int:
        """Return how long a message waits that is put to the schedule topic as it stands, ms; -1: it names no delay.

        Raises:
            MessageIllegal: its delay is no number. RocketMQ takes no such record for one, and its log ends there.

        Source: RocketMQ store, CommitLog.checkMessageAndReturnSize.
        """
        level = (message.properties or {}).get("DELAY")
        if not level:
            return -1
        try:
            delay_ms = self.delay_levels.delay_of(level)
        except ConfigError:
            raise MessageIllegal(f"a delay level is a number: topic={message.topic} DELAY={level!r}") from None
        return -1 if delay_ms is None else delay_ms

    def put(self, message: Message) -> PutMessageResult:
        """Store one message and return where; with SYNC_FLUSH, once it is on disk.

        Raises:
            MessageIllegal: it breaks a limit. Nothing was stored, as with every error here but the last.
            StoreFull: the disk has no room.
            StoreReadOnly, StoreClosed: the store takes nothing any more, or could not force the message to disk.
        """
        if not self.sync_flush:
            return self.append(message)
        begin = self.monotonic()
        result = self.forced(self.append(message))
        self.put_statistics.note(self.monotonic() - begin, 1)
        return result

    def forced(self, result: PutMessageResult) -> PutMessageResult:
        """Return *result*, which `append` gave; with SYNC_FLUSH, once its message is on disk.

        Raises:
            StoreReadOnly: the disk refused; what was appended may be lost.
        """
        if not self.sync_flush or self.wait_durable(result.next_commit_log_offset):
            return result
        return msgspec.structs.replace(result, status=PutMessageStatus.FLUSH_DISK_TIMEOUT)

    def peek(self, commit_log_offset: int) -> Record | None:
        """Return the record that begins there and is in no file yet; None: whoever reads the files finds what is there.

        Raises:
            DamagedStore: no record begins there.
        """
        with self.put_lock:
            data = self.commit_log.peek(commit_log_offset)
            return None if data is None else decode_record(data)

    def append(self, message: Message) -> PutMessageResult:
        """Store one message as `put` does, without waiting for the disk."""
        called = self.monotonic()
        if self.put_lock.locked() and self.page_cache.is_stuck():
            raise self.busy_refusal()
        prepared = self.prepare(message)
        with self.put_lock:
            if self.closed or self.read_only_reason is not None or self.disk_full_reason is not None:
                raise self.refusal()
            if prepared.further:
                prepared = self.with_queue_offsets(prepared)
            topic, head, queue_id = prepared.topic, prepared.head, prepared.queue_id
            record_size, body, after_body = prepared.record_size, prepared.body, prepared.after_body
            texts, tags_code = prepared.texts, prepared.tags_code
            sys_flag, prepared_transaction_offset = head.sys_flag, head.prepared_transaction_offset
            commit_log = self.commit_log
            before = commit_log.appended
            begin = commit_log.room(record_size)
            timestamp = self.now()
            queue_offset = topic.offsets.get(queue_id, 0)
            header = head.pack(
                record_size,
                topic.magic_code,
                prepared.crc,
                queue_id,
                prepared.flag,
                queue_offset,
                begin,
                head.origin(timestamp),
                len(body),
            )
            if self.appends_crc:
                after_body = with_record_crc(header, body, after_body)
            end = commit_log.append(b"".join((header, body, after_body)))
            topic.offsets[queue_id] = queue_offset + 1
            topic.put_size += record_size
            if prepared.further_offsets:
                prepared.take_further_offsets()
            if prepared.deliver_after >= 0:
                tags_code = timestamp + prepared.deliver_after
                self.on_delayed(queue_id + 1, tags_code)
            row = pack_row(
                begin,
                queue_offset,
                tags_code,
                timestamp,
                prepared_transaction_offset,
                record_size,
                0,
                sys_flag,
                len(texts),
                prepared.uniq_key_size,
                prepared.keys_size,
                prepared.multi_dispatch_size,
                prepared.properties_size,
            )
            self.ordinal += 1
            queues = topic.queues.get(queue_id)
            if queues is None:
                queues = topic.queues[queue_id] = [(topic.name, queue_id)]
            self.publisher.publish(before, end, timestamp, self.ordinal, queues, row, texts)
        taken = self.monotonic() - called
        if taken > self.put_statistics.threshold and not self.sync_flush:
            self.put_statistics.note(taken, 1)
        return PutMessageResult(PUT_OK, begin, end, record_size, queue_id, queue_offset, timestamp, head.store_host)

    def put_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Store *messages* one behind the other: one lock, one publication, one wait for the disk with SYNC_FLUSH.

        All are checked before the first is stored.

        Raises:
            As `put`; when the disk is full in the middle, the messages before are stored and the error says how many.
        """
        if not self.sync_flush:
            return self.append_batch(messages)
        begin = self.monotonic()
        try:
            results = self.append_batch(messages)
        except StoreError as error:
            if error.stored_count:
                # Whoever is told that some are stored is told of no others than are on disk.
                self.wait_durable(self.commit_log.appended)
            raise
        if results and not self.wait_durable(results[-1].next_commit_log_offset):
            status = PutMessageStatus.FLUSH_DISK_TIMEOUT
            results = [msgspec.structs.replace(result, status=status) for result in results]
        self.put_statistics.note(self.monotonic() - begin, len(results))
        return results

    def append_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Store *messages* as `put_batch` does, without waiting for the disk."""
        called = self.monotonic()
        if self.put_lock.locked() and self.page_cache.is_stuck():
            raise self.busy_refusal()
        batch = [self.prepare(message) for message in messages]
        if not batch:
            return []
        results: list[PutMessageResult] = []
        with self.put_lock:
            if self.closed or self.read_only_reason is not None or self.disk_full_reason is not None:
                raise self.refusal()
            timestamp = self.now()
            try:
                if self.multi_dispatch and any(prepared.further for prepared in batch):
                    # What one puts into a further queue moves the next one's place there, and with it its size.
                    for prepared in batch:
                        results += self.put_each(prepared, timestamp)
                else:
                    for run, size in self.runs_of_batch(batch):
                        results += self.put_run(run, size, timestamp)
            except StoreError as error:
                error.args = (f"{error} stored_count={len(results)}",)
                error.stored_count = len(results)
                raise
        taken = self.monotonic() - called
        if taken > self.put_statistics.threshold and not self.sync_flush:
            self.put_statistics.note(taken, len(results))
        return results

    def admit(self, message: Message) -> tuple[Message, Prepared]:
        """Check and encode *message*, to be stored by `append_each`; return what is stored, and that encoded.

        Raises:
            MessageIllegal: it breaks a limit.
            StoreBusy: another put is stuck.
        """
        if self.put_lock.locked() and self.page_cache.is_stuck():
            raise self.busy_refusal()
        return message, self.prepare(message)

    def append_each(
        self, messages: Sequence[Message], batch: list[Prepared]
    ) -> Sequence[PutMessageResult | StoreError]:
        """Store *messages*, admitted as *batch*, each as a put of its own, under one lock. Nobody waits for the disk.

        Returns:
            for each where it is, or why it is not stored.
        """
        outcomes: list[PutMessageResult | StoreError] = []
        with self.put_lock:
            if self.closed or self.read_only_reason is not None or self.disk_full_reason is not None:
                return [self.refusal() for _ in batch]
            timestamp = self.now()
            if self.multi_dispatch and any(prepared.further for prepared in batch):
                return [self.put_alone(prepared, timestamp) for prepared in batch]
            for run, size in self.runs(batch):
                try:
                    outcomes += self.put_run(run, size, timestamp)
                except StoreError:
                    # Nothing of the run is stored; there may be room for one of them, though not for all.
                    outcomes += [self.put_alone(prepared, timestamp) for prepared in run]
        return outcomes

    def put_alone(self, prepared: Prepared, timestamp: int) -> PutMessageResult | StoreError:
        """Append one message, or say why not. Under the put lock."""
        try:
            return self.put_each(prepared, timestamp)[0]
        except StoreError as error:
            return error

    def put_each(self, prepared: Prepared, timestamp: int) -> list[PutMessageResult]:
        """Append one message, with its offsets in further queues. Under the put lock."""
        if prepared.further:
            prepared = self.with_queue_offsets(prepared)
        return self.put_run([prepared], prepared.record_size, timestamp)

    def runs_of_batch(self, batch: list[Prepared]) -> Iterator[tuple[list[Prepared], int]]:
        """Yield *batch* whole, though the segment may have no room for it, as RocketMQ moves a batch to the next one.

        One that is larger than RocketMQ takes is split.
        """
        size = sum([prepared.record_size for prepared in batch])
        if size <= self.record_size_max:
            yield batch, size
        else:
            yield from self.runs(batch)

    def runs(self, batch: list[Prepared]) -> Iterator[tuple[list[Prepared], int]]:
        """Split *batch* where a segment ends; yield each run with its bytes."""
        left = self.commit_log.limit - self.commit_log.appended
        size = sum([prepared.record_size for prepared in batch])
        if size <= left:
            yield batch, size
            return
        run: list[Prepared] = []
        size = 0
        for prepared in batch:
            record_size = prepared.record_size
            if size + record_size > left and run:
                yield run, size
                run, size = [], 0
                left = self.commit_log.limit - self.commit_log.appended
            run.append(prepared)
            size += record_size
        yield run, size

    def put_run(self, run: list[Prepared], size: int, timestamp: int) -> list[PutMessageResult]:
        """Append *run*, which takes *size* bytes, into one segment and publish it as one frame."""
        commit_log = self.commit_log
        before = commit_log.appended
        at = commit_log.room(size)
        results: list[PutMessageResult] = []
        number_of: dict[tuple[str, int], int] = {}
        pieces: list[bytes] = []
        rows: list[bytes] = []
        texts: list[bytes] = []
        topic, head = run[0].topic, run[0].head
        queue_id, queue_index, queue_offset = -1, 0, 0
        origin, sys_flag, store_host = head.origin(timestamp), head.sys_flag, head.store_host
        prepared_transaction_offset = head.prepared_transaction_offset
        for prepared in run:
            if prepared.queue_id != queue_id or prepared.topic is not topic:
                if queue_id >= 0:
                    topic.offsets[queue_id] = queue_offset
                topic, queue_id = prepared.topic, prepared.queue_id
                queue_offset = topic.offsets.get(queue_id, 0)
                queue_index = number_of.setdefault((topic.name, queue_id), len(number_of))
            if prepared.head is not head:
                head = prepared.head
                origin, sys_flag, store_host = head.origin(timestamp), head.sys_flag, head.store_host
                prepared_transaction_offset = head.prepared_transaction_offset
            record_size, body, after_body = prepared.record_size, prepared.body, prepared.after_body
            header = head.pack(
                record_size,
                topic.magic_code,
                prepared.crc,
                queue_id,
                prepared.flag,
                queue_offset,
                at,
                origin,
                len(body),
            )
            if self.appends_crc:
                after_body = with_record_crc(header, body, after_body)
            pieces += (header, body, after_body)
            topic.put_size += record_size
            if prepared.further_offsets:
                prepared.take_further_offsets()
            tags_code = prepared.tags_code
            if prepared.deliver_after >= 0:
                tags_code = timestamp + prepared.deliver_after
                self.on_delayed(queue_id + 1, tags_code)
            own_texts = prepared.texts
            texts.append(own_texts)
            rows.append(
                pack_row(
                    at,
                    queue_offset,
                    tags_code,
                    timestamp,
                    prepared_transaction_offset,
                    record_size,
                    queue_index,
                    sys_flag,
                    len(own_texts),
                    prepared.uniq_key_size,
                    prepared.keys_size,
                    prepared.multi_dispatch_size,
                    prepared.properties_size,
                )
            )
            end = at + record_size
            results.append(
                PutMessageResult(PUT_OK, at, end, record_size, queue_id, queue_offset, timestamp, store_host)
            )
            at = end
            queue_offset += 1
        topic.offsets[queue_id] = queue_offset
        commit_log.append(b"".join(pieces))
        self.ordinal += len(run)
        self.publisher.publish(before, at, timestamp, self.ordinal, list(number_of), b"".join(rows), b"".join(texts))
        return results

    def now(self) -> int:
        """Return the store time of the next record, which never goes back within a log. Under the put lock."""
        timestamp = self.clock.now_ms()
        if timestamp < self.store_timestamp:
            return self.store_timestamp
        self.store_timestamp = timestamp
        return timestamp

    def refusal(self) -> StoreError:
        """Return why nothing can be put."""
        if self.closed:
            return closed_store(self.directory, self.forked_from)
        if self.read_only_reason is None:
            return StoreFull(
                f"the store takes no writes: reason={self.disk_full_reason!r} store={self.directory}",
                "Free room on the disk; the store takes messages again by itself. Nothing was stored.",
            )
        return StoreReadOnly(
            f"the store takes no writes: reason={self.read_only_reason!r} store={self.directory}",
            "Mend the disk, then close and open the store again: it recovers from what is on disk.",
        )

    def busy_refusal(self) -> StoreBusy:
        """Return why nothing is put while another put is stuck."""
        return StoreBusy(
            f"another put has been waiting for the disk: status=OS_PAGECACHE_BUSY store={self.directory} "
            f"os_page_cache_busy_time_out_mills={self.settings.os_page_cache_busy_time_out_mills}"
        )

    def wait_durable(self, end: int) -> bool:
        """Wait until *end* is on disk; False when ``sync_flush_timeout`` went by first.

        Raises:
            StoreReadOnly: the disk refused; what was appended may be lost.
        """
        try:
            return self.flush_service.wait_durable(end, self.settings.sync_flush_timeout / 1000)
        except StoreError:
            raise self.refusal() from None

    def begin_flush(self, patience: float) -> None:
        """Have what was appended forced; return once that begins, or after *patience* seconds."""
        self.flush_service.begin(patience)

    def call_when_durable(self, offset: int, done: Callable[[], None]) -> None:
        """Have *done* called, by another thread, once the log is durable up to *offset* or never will be."""
        self.flush_service.call_when_durable(offset, done)

    def flush(self, timeout: float = 60.0) -> int:
        """Force what was appended so far and return the durable offset.

        Raises:
            StoreError: the disk refused, or did not answer within *timeout* seconds.
        """
        target = self.commit_log.appended
        if not self.flush_service.wait_durable(target, timeout):
            raise StoreError(f"the disk did not answer in time: durable={self.durable} appended={target}")
        return self.durable

    def publish_committed(self) -> None:
        """Make known what may be seen by now, where that has waited."""
        if self.committed_publisher is not None:
            with self.put_lock:
                self.committed_publisher.release(self.shown)

    def on_durable(self, durable: int, store_timestamp: int) -> None:
        """Called by the flusher after each success; *store_timestamp* was the last record's when it began."""
        self.publish_committed()
        self.durable_timestamp = store_timestamp
        self.publisher.durable(durable)

    def on_flush_failure(self, reason: str) -> None:
        """Called by the flusher once: from here on nothing is trusted, and nothing is put."""
        with self.put_lock:
            self.read_only_reason = reason
        self.publisher.read_only(reason)

    def trim(self, path: Path, commit_log_offset_min: int) -> None:
        """Remove the oldest segment; the log begins at *commit_log_offset_min* then.

        Readers here know first: none of them finds the half of what it looks for. The views know last: after a crash
        they may have more than the log, never less.
        """
        before, self.commit_log_offset_min = self.commit_log_offset_min, commit_log_offset_min
        try:
            self.files.remove(path)
        except OSError:
            self.commit_log_offset_min = before
            raise
        self.files.force_directory(path.parent)
        with self.put_lock:
            self.publisher.expire(commit_log_offset_min, self.commit_log.appended, self.ordinal)
        # With nothing before it to wait for, nobody else would make it known.
        self.publish_committed()

    def delete_topic(self, topic: str) -> int:
        """Delete *topic* as of now and return the commit-log offset of that; views follow.

        Its records stay in the log until retention takes them. What is put to it from now on is a new topic's, whose
        queue offsets begin with 0.

        Raises:
            MessageIllegal: no topic is called so.
            StoreReadOnly, StoreFull, StoreClosed: as `put`; or the deletion cannot be kept.
        """
        check_topic(topic)
        with self.put_lock:
            if self.closed or self.read_only_reason is not None or self.disk_full_reason is not None:
                raise self.refusal()
            appended = self.commit_log.appended
            with tell_store_error(f"the deletion cannot be kept, so the topic is there still: topic={topic}"):
                self.topic_deletions.add(TopicDeletion(self.clock.now_ms(), appended, topic))
            self.deleted_at[topic] = appended
            # What was put before is still counted; the queues begin with 0 again.
            self.put_before[topic] = self.put_before.get(topic, 0) - self.queue_offsets.total(topic)
            self.queue_offsets.forget_topic(topic)
            self.topic_changed(topic)
            self.publisher.delete_topic(topic, appended, self.ordinal)
        self.publish_committed()
        return appended

    def set_disk_full(self, reason: str | None) -> None:
        """Refuse puts because the disk is too full, or take them again."""
        with self.put_lock:
            changed = (reason is None) != (self.disk_full_reason is None)
            self.disk_full_reason = reason
        if changed and self.read_only_reason is None:
            self.publisher.read_only(reason)

    def after_each_round(self) -> None:
        """Called by the flusher, every time that it has looked whether there is something to force."""
        self.page_cache.look()
        self.put_statistics.sample()
        self.tell_notice()
        self.snapshot_when_due()

    def tell_notice(self) -> None:
        """Have `reput status` show what is to be known, or that it is over."""
        # Its numbers change from round to round; told is what is the matter.
        notice = (self.notice or "").partition(":")[0]
        if notice != self.told_notice:
            self.told_notice = notice
            self.publisher.read_only(self.reason)

    def snapshot_when_due(self) -> None:
        """Keep what a recovery would otherwise have to scan for, RocketMQ's with its checkpoint included."""
        now = self.clock.monotonic()
        if now - self.snapshot_at >= SNAPSHOT_INTERVAL_S and self.durable > self.snapshot_offset:
            self.snapshot_at = now
            # A snapshot is only a help: a disk that is full for it still has the log it can be made from.
            with contextlib.suppress(OSError):
                self.write_snapshot(clean=False)
                queue_timestamp, index_durable = self.durable_views()
                write_checkpoint(
                    self.directory, self.durable_timestamp, queue_timestamp, self.files, index_durable=index_durable
                )

    def write_snapshot(self, *, clean: bool) -> None:
        """Write the queue offsets as of a durable offset, and the mark by which it is known again."""
        with self.put_lock:
            snapshot = QueueOffsetsSnapshot(
                self.epochs.epoch,
                self.commit_log.appended,
                self.ordinal,
                self.store_timestamp,
                self.queue_offsets.snapshot(),
            )
        if self.commit_log.durable < snapshot.commit_log_offset:
            self.flush_service.flush()
            if self.commit_log.durable < snapshot.commit_log_offset:
                return
        mark = make_mark(Segments(self.directory / "commitlog", self.segment_size), snapshot.commit_log_offset)
        epochs = self.epochs.with_mark(mark, clean=clean)
        self.files.replace(self.own / "queue_offsets", snapshot.seal())
        self.files.replace(self.own / "epochs", epochs.seal())
        self.epochs = epochs
        self.snapshot_offset = snapshot.commit_log_offset

    def stop_puts(self) -> None:
        """Take no message any more, and force what there is. The views may then catch up, and `close` follows."""
        with self.put_lock:
            if self.closed:
                return
            self.closed = True
        self.retention.stop()
        if self.commit_service is not None:
            self.commit_service.stop()
        self.flush_service.stop()

    def close(self, *, views_complete: bool) -> None:
        """Close the log. *views_complete*: consume queue, ext and index, where enabled, are durable up to its end.

        Only then, and if the log is durable itself, is ``abort`` removed, so that a RocketMQ recovers what is missing.
        """
        self.stop_puts()
        try:
            if self.commit_log.failed is None:
                self.write_snapshot(clean=True)
                if views_complete:
                    self.files.remove(self.directory / "abort")
                    self.files.force_directory(self.directory)
        finally:
            try:
                self.commit_log.close()
            finally:
                self.store_lock.close()

    def give_back(self, *, views_complete: bool = True) -> None:
        """Close a log whose opening is refused after all: nothing was put, so it is as cleanly closed as it was found.

        *views_complete*: as of `close`, if dispatchers have run already.
        """
        self.stop_puts()
        found = self.clean_checkpoint if views_complete else None
        try:
            if found is not None:
                # What it says of the views holds again: they were complete, and no record has come.
                self.files.replace(self.directory / "checkpoint", encode_checkpoint(found))
        finally:
            self.close(views_complete=found is not None)

    def forget(self) -> None:
        """In a forked child: this copy is closed, the parent's store goes on."""
        self.closed = True
        self.forked_from = os.getppid()
        # Another thread may have held it as the process forked, and there is no such thread here.
        self.put_lock = threading.Lock()
        self.description_lock = threading.Lock()
        self.commit_log.forget()
        self.store_lock.close()


def record_head(
    sys_flag: int,
    born_timestamp: int | None,
    born_host: bytes,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
) -> RecordHead:
    """Return a head whose bits of *sys_flag* agree with the sizes of the hosts."""
    sys_flag &= ~(BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG)
    sys_flag |= BORN_HOST_V6_FLAG if len(born_host) > 8 else 0
    sys_flag |= STORE_HOST_V6_FLAG if len(store_host) > 8 else 0
    header, origin = headers(len(born_host), len(store_host))
    return RecordHead(
        header.pack,
        origin.pack,
        header.size,
        sys_flag,
        born_timestamp,
        born_host,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
    )


@cache
def headers(born_host_size: int, store_host_size: int) -> tuple[Struct, Struct]:
    """Return fields 1 to 15 of a record whose hosts have these sizes, with 8 to 14 in one, and these by themselves."""
    origin = Struct(f">iq{born_host_size}sq{store_host_size}siq")
    return Struct(f">iIIiiqq{origin.size}si"), origin


def with_record_crc(header: bytes, body: bytes, after_body: bytes) -> bytes:
    """Return *after_body* with the CRC of the whole record in the room that was left for it."""
    after_body = after_body[:-CRC_PROPERTY_SIZE]
    crc = crc32(after_body, crc32(body, crc32(header))) & 0x7FFFFFFF
    return after_body + crc_property(crc)


def plain_bytes(body: object) -> bytes:
    """Return *body* as bytes.

    Raises:
        MessageIllegal: it is something else than bytes.
    """
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise MessageIllegal(f"body is not bytes: type={type(body).__name__}")


def stored_host(address: str) -> bytes:
    """Return the stored form of ``host:port``.

    Raises:
        ConfigError: it is no numeric address with a port.
    """
    try:
        return encode_address(address)
    except ValueError:
        raise ConfigError(f"a host is a numeric address and a port: address={address!r}") from None

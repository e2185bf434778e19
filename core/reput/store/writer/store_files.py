"""StoreFiles: opens the files of a store for writing: settings that fit them, the recovered log, and reput's own files.

    reput/store.json    identity and recorded settings      replaced if something new is recorded
    commitlog/          recovered, cut behind its end, forced
    reput/epochs        the history of the log
    reput/writer.json   the process that writes
    checkpoint, abort   for RocketMQ: the store is in use

The order counts: a store that was killed at any point of its opening opens again.

Source: RocketMQ store, DefaultMessageStore.load and recover.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reput.errors import ConfigError, DamagedStore, NotAStore
from reput.kernel import kernel_version
from reput.settings import Settings, require_recorded
from reput.settings.settings import SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN
from reput.store.disk.files import Clock, Files
from reput.store.disk.sealed_file import seal
from reput.store.disk.shortages import tell_store_error
from reput.store.log.commit_log import CommitLog
from reput.store.log.force_log import force_log
from reput.store.log.group_commit_log import GroupCommitLog
from reput.store.log.pooled_commit_log import PooledCommitLog
from reput.store.log.segments import Segments
from reput.store.queue.queue_offsets import QueueOffsets
from reput.store.recovery.recreated_queues import RECREATED_QUEUES, read_recreated_queues, seal_recreated_queues
from reput.store.service.threads import Threads
from reput.store.state.epochs import Epoch, Epochs, make_mark
from reput.store.state.identity import (
    LAYOUT_VERSION,
    StoreIdentity,
    has_record,
    may_be_store,
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
from reput.store.state.store_checkpoint import StoreCheckpoint, encode_checkpoint, read_checkpoint, write_checkpoint
from reput.store.state.store_lock import StoreLock, Writer, process_start_time
from reput.store.state.topic_deletions import TopicDeletions

if TYPE_CHECKING:
    from reput.store.recovery.queue_spans import QueueSpan

__all__ = ["StoreFiles"]

logger = logging.getLogger("reput.store")

GARBLED_SHOWN = 5


class StoreFiles:
    """The files of one store that is open for writing.

    Attributes:
        settings: with the sizes that the files have.
        adopted_clean: another program wrote the log last, and closed it; None: it has no log, or reput wrote it last.
        closed_at: where the log was closed, if reput wrote and closed it last.
        was_cut: something lay behind the end of the log and was put away.
        epochs, queue_offsets, ordinal, store_timestamp, commit_log_offset_min: what the recovery found.
        clean_checkpoint: of a store that was cleanly closed, or is new; None: its views may not fit its log.
        delay_history: which delays the delay levels had, and from where on in the log.
    """

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        files: Files,
        clock: Clock,
        threads: Threads,
        *,
        change_settings: Collection[str],
        lock_timeout: float | None,
    ) -> None:
        """Take the lock, recover the log, and claim the store. Arguments and errors as `MessageStore`."""
        self.directory = directory
        self.own = directory / "reput"
        self.log_directory = directory / "commitlog"
        self.files = files
        self.clock = clock
        self.threads = threads
        self.change_settings = frozenset(change_settings)
        self.topic_deletions = TopicDeletions(directory)
        if not may_be_store(directory):
            raise NotAStore(
                f"the directory is not empty and holds no commit log: store={directory}",
                "Name an empty or new directory, or one that has commitlog/ in it.",
            )
        with tell_store_error(f"the store's directories cannot be made: store={directory}"):
            self.make_own_directory()
        with contextlib.ExitStack() as undo:
            self.store_lock = StoreLock(directory, lock_timeout)
            undo.callback(self.store_lock.close)
            with tell_store_error(f"the store cannot be opened for writing: store={directory}"):
                self.open(settings, undo)
            undo.pop_all()

    def make_own_directory(self) -> None:
        """Make the directories of the store, and force their names: a file forced into a new directory is lost with the
        directory's name."""
        directory = self.directory.absolute()
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        self.files.make_directory(self.own)
        if (self.own / "store.json").exists():
            return
        # The newest that exists may come from a making that was killed before it forced the name.
        for path in (*missing, missing[-1].parent if missing else directory):
            # We did not make a parent that we may not read.
            with contextlib.suppress(PermissionError):
                self.files.force_directory(path.parent)

    def open(self, settings: Settings, undo: contextlib.ExitStack) -> None:
        """Do what the constructor promises, under the lock; *undo* learns what must be given back if it fails."""
        identity = read_identity(self.directory)
        segments = self.find_segments(identity)
        # A making of ours that was interrupted leaves a log, too, with nothing in it to adopt.
        found = segments is not None and has_record(segments)
        self.adopted_clean = not (self.directory / "abort").exists() if found else None
        refuse_queues_in_rocksdb(self.directory)
        self.settings = settings = self.fitting(settings, identity, segments)
        self.store_id = new_store_id() if identity is None else identity.store_id
        self.segment_size = settings.mapped_file_size_commit_log
        self.was_cut = False
        self.closed_at: int | None = None
        self.found_queues: dict[str, dict[int, QueueSpan]] | None = None
        if segments is None:
            self.files.make_directory(self.log_directory)
            self.epochs = Epochs(self.store_id, [Epoch(1, 0, self.clock.now_ms())])
            self.queue_offsets = QueueOffsets()
            self.ordinal = self.store_timestamp = self.commit_log_offset_min = 0
            end = 0
        else:
            end = self.recover(segments)
        self.commit_log = self.open_log(end)
        undo.callback(self.commit_log.close)
        self.write_own_files(identity)

    def find_segments(self, identity: StoreIdentity | None) -> Segments | None:
        """Return the segments of the log, None for a store that has none yet.

        Raises:
            DamagedStore: the log of a known store is gone, or the files have a size that no segment has.
        """
        try:
            segments = Segments(self.log_directory)
        except NotAStore:
            if identity is None:
                return None
            raise DamagedStore(
                f"the commit log of this store is gone: store={self.directory} store_id={identity.store_id}",
                "Put commitlog/ back, or move the directory away and start with a new store.",
            ) from None
        # For a store that reput wrote, recovery has more information, and reports what is missing.
        if identity is None and not SEGMENT_SIZE_MIN <= segments.segment_size <= SEGMENT_SIZE_MAX:
            raise DamagedStore(
                f"the segments have an impossible size: segment_size={segments.segment_size} "
                f"size_min={SEGMENT_SIZE_MIN} size_max={SEGMENT_SIZE_MAX} path={segments.list[0].path}",
                "Copy the whole files here, or move files that are not segments out of commitlog/.",
            )
        return segments

    def fitting(self, settings: Settings, identity: StoreIdentity | None, segments: Segments | None) -> Settings:
        """Return *settings* with the sizes that the files have, and refuse values that would change what files mean.

        Raises:
            ConfigError: a value differs from the recorded one and is not among those to change, or from the files.
        """
        recorded = {} if identity is None else recorded_values(identity)
        # The log always shows the size of its files. The views do so in a store that is adopted, and where the recorded
        # size is among the settings to change.
        recorded.pop("mapped_file_size_commit_log", None)
        unknown = [name for name in FILE_SIZES if name not in recorded or name in self.change_settings]
        shown = shown_sizes(self.directory, settings, unknown) if segments is not None else {}
        for name in self.change_settings & shown.keys():
            if shown[name] != getattr(settings, name):
                raise ConfigError(
                    f"the files of the store have a different size: {name}={getattr(settings, name)} "
                    f"shown={shown[name]}",
                    "A store cannot change the size of its files; put its messages into a new store, or rebuild views "
                    "elsewhere.",
                )
        require_recorded(settings, recorded, self.change_settings)
        settings = msgspec.structs.replace(settings, **shown)
        if segments is None or "index_tags" in self.change_settings:
            return settings
        return msgspec.structs.replace(settings, index_tags=enters_tags(self.directory, settings, identity))

    def recover(self, segments: Segments) -> int:
        """Find the end of the log and the next queue offsets, cut what lies behind, and return that end."""
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
        put_away = cut_behind(self.directory, segments, recovered.end, self.files)
        self.was_cut = bool(put_away)
        if put_away:
            logger.warning(
                "bytes after the log's end were moved away: log_end=%d reason=%s files=%s",
                recovered.end,
                recovered.lost,
                ", ".join(map(str, put_away)),
            )
        for found in recovered.garbled[:GARBLED_SHOWN]:
            logger.warning(
                "a record's field contradicts the neighbouring records, and is left unchanged: from=%d until=%d "
                "reason=%s count=%d (`reput check` names them all)",
                found.begin,
                found.end,
                found.reason,
                len(recovered.garbled),
            )
        self.topic_deletions.move_before(recovered.common_end, self.files)
        if recovered.recreated_queues != read_recreated_queues(self.directory):
            self.files.replace(self.own / RECREATED_QUEUES, seal_recreated_queues(recovered.recreated_queues))
        force_log(self.files, segments, recovered.known_durable, recovered.end)
        self.closed_at = recovered.epochs.clean_end
        # From here on the log is known to be on disk as it is now.
        self.epochs = recovered.epochs.with_mark(make_mark(segments, recovered.end), clean=False)
        self.queue_offsets = recovered.queue_offsets
        self.ordinal = recovered.ordinal
        self.found_queues = recovered.found_queues
        self.store_timestamp = recovered.store_timestamp
        self.commit_log_offset_min = segments.offset_min
        return recovered.end

    def open_log(self, end: int) -> CommitLog:
        """Open the log for appending at *end*, as the kind of log that the settings ask for."""
        settings = self.settings
        warm_up = settings.warm_maped_file_enable
        if settings.flush_disk_type == "SYNC_FLUSH":
            if settings.transient_store_pool_enable:
                logger.warning(
                    "transient_store_pool_enable has no effect, because each put waits for the disk: "
                    "flush_disk_type=SYNC_FLUSH"
                )
            return GroupCommitLog(
                self.log_directory,
                self.segment_size,
                end,
                self.files,
                warm_up=warm_up,
                force_pages=settings.flush_least_pages_when_warm_maped_file,
                threads=self.threads,
            )
        if settings.transient_store_pool_enable:
            return PooledCommitLog(
                self.log_directory,
                self.segment_size,
                end,
                self.files,
                buffer_count=settings.transient_store_pool_size,
                fast_fail=settings.fast_fail_if_no_buffer_in_store_pool,
                warm_up=warm_up,
                threads=self.threads,
            )
        return CommitLog(self.log_directory, self.segment_size, end, self.files, warm_up=warm_up, threads=self.threads)

    def write_own_files(self, identity: StoreIdentity | None) -> None:
        """Write reput's files before the first put: identity, epochs, writer, checkpoint, abort; and claim the
        store."""
        self.clean_checkpoint = self.find_clean_checkpoint()
        found = identity or StoreIdentity(LAYOUT_VERSION, self.store_id, {}, self.adopted_clean)
        recorded = with_recorded(found, self.settings, self.commit_log.appended)
        if identity is None:
            # A store with an identity but without the name of its log would be refused: its log counts as taken away.
            self.files.force_directory(self.directory)
            if self.adopted_clean and self.found_queues is not None:
                # Before the store has an identity: later openings do not read the whole log again.
                from reput.store.recovery.queue_spans import FOUND_QUEUES

                self.files.replace(self.own / FOUND_QUEUES, seal(self.found_queues))
        if recorded != identity:
            self.files.replace(self.own / "store.json", seal(recorded))
        self.delay_history = delay_history(recorded, self.settings.message_delay_level)
        for draft in sorted([*(self.directory / "config").glob("*.json*.draft"), *self.own.glob("*.draft")]):
            # A killed write left it, and the file may never be written again.
            self.files.remove(draft)
        self.epochs = msgspec.structs.replace(self.epochs, clean_end=None)
        self.files.replace(self.own / "epochs", self.epochs.seal())
        pid = os.getpid()
        writer = Writer(pid, process_start_time(pid), self.clock.boot_id(), kernel_version())
        self.files.replace(self.own / "writer.json", msgspec.json.encode(writer))
        # A checkpoint's times of the views do not hold while the views change: after a crash RocketMQ has to build them
        # from the log, and must not trust what was built up to some time.
        write_checkpoint(self.directory, self.store_timestamp, 0, self.files)
        self.files.replace(self.directory / "abort", str(os.getpid()).encode())
        self.store_lock.claim()

    def find_clean_checkpoint(self) -> StoreCheckpoint | None:
        """Return the checkpoint of a store that was cleanly closed, or is new; None: its views may not fit its log."""
        if self.was_cut or (self.directory / "abort").exists():
            return None
        return read_checkpoint(self.directory)

    def restore_checkpoint(self, checkpoint: StoreCheckpoint) -> None:
        """Write the checkpoint as it was found: no record has come, and the views are still complete."""
        self.files.replace(self.directory / "checkpoint", encode_checkpoint(checkpoint))

    def close(self) -> None:
        """Close the log, and give the lock back."""
        try:
            self.commit_log.close()
        finally:
            self.store_lock.close()

    def remove_abort(self) -> None:
        """Mark the store as cleanly closed: RocketMQ then trusts its views."""
        self.files.remove(self.directory / "abort")
        self.files.force_directory(self.directory)

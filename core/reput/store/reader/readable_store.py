"""ReadableStore: what the readers of one store share.

That is: its segments and open files, how far its views are readable, and records by their place in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from reput.errors import DamagedStore, OffsetOutOfRange, StoreError
from reput.kernel import ViewWords, kernel
from reput.settings import Settings
from reput.store.disk.open_files import DirectoryStamp, OpenFiles
from reput.store.log.segments import Segment, Segments
from reput.store.queue.consume_queue import Unit
from reput.store.queue.consume_queue_builder import shown_queue_file_size
from reput.store.reader.kernel_reads import ReadWriter, kernel_reads
from reput.store.record.layout import MAGIC_CODE_AT, MESSAGE_MAGIC_CODES, SIZE, SIZE_AND_MAGIC
from reput.store.record.record import body_crc, decode_message_id, decode_record
from reput.store.recovery.damage_list import accepted_damage, accepted_end
from reput.store.recovery.queue_proof import QueueProof
from reput.store.state.topic_deletions import LastDeletions
from reput_hooks import Record

__all__ = ["NOT_ITS_CRC", "ReadableStore"]

NOT_ITS_CRC = "a message's body does not have its CRC"
# Mostly a whole record.
FIRST_READ_SIZE = 2048


class ReadableStore:
    """One store as its readers see it. Use it from one thread at a time."""

    def __init__(
        self,
        store_directory: Path,
        settings: Settings,
        progress: Callable[[str], int],
        generation: Callable[[str], int] = lambda view: 0,
        log_begin: Callable[[], int] | None = None,
        deletions: Callable[[], Mapping[str, int]] | None = None,
        own_from: int = (1 << 63) - 1,
        on_damage: Callable[[DamagedStore], None] = lambda error: None,
        queue_end_at: Callable[[str, int, int], int] | None = None,
        at_rest: bool = False,
        writer: ReadWriter | None = None,
        view_words: Callable[[str], ViewWords | None] = lambda view: None,
    ) -> None:
        """Read the store in *store_directory*.

        Args:
            progress: returns the commit-log offset up to which the view of that name is readable now.
            generation: returns a number that grows whenever another view replaces the one of that name, or files of
                the view that may be open here are removed.
            log_begin: returns the commit-log offset of the first byte that the log still has; only in the writer's
                process, where *generation* never lags behind. None: each read looks at the directories instead.
            deletions: returns where in the log each topic was deleted last; None: a file is read instead.
            own_from: commit-log offset from which on this process has put all records. The bodies of earlier records
                come from a disk, and are compared with their CRC.
            on_damage: called with each error that names a damaged place of the log, before it is raised.
            queue_end_at: returns the end of a queue (topic, queue id) that is built up to a commit-log offset, 0 if
                unknown; in the writer's process it is known once all records are built. None: the view's cursor is
                read instead.
            at_rest: no dispatcher builds the queues, so bytes behind a queue's end are not just a write in progress.
            writer: the writer that this process has of the store; None: it has none.
            view_words: returns where the numbers of a view stand in shared memory; None: they do not.

        Raises:
            ConfigError: REPUT_KERNEL asks for a kernel that cannot be used.
        """
        self.directory = store_directory
        self.settings = settings
        self.view_progress = progress
        self.view_generation = generation
        self.generations: dict[str, int] = {}
        self.files = OpenFiles()
        self.kernel = kernel()
        self.log_begin = log_begin
        self.own_from = own_from
        self.on_damage = on_damage
        self.queue_end_at = queue_end_at
        self.at_rest = at_rest
        self.proof = QueueProof(store_directory)
        self.deletions = deletions or LastDeletions(store_directory)
        # Result of `log_begin` when the segments were listed.
        self.known_log_begin = -1
        self.segments: Segments | None = None
        self.log_directory = str(store_directory / "commitlog")
        self.log_stamp = DirectoryStamp(store_directory / "commitlog")
        self.file_sizes: tuple[int, int] | None = None
        # Queue, queue offset, unit and bytes of the newest record, if the present get has compared it with its unit.
        self.agreed: tuple[object, int, Unit, bytes] | None = None
        self.view_words = view_words
        # What the kernel reads alone; None: every read takes the Python path.
        self.reads = None
        if self.kernel is not None and writer is not None:
            count_max = settings.max_msgs_num_batch
            self.reads = kernel_reads(self.kernel, self.files, writer, self.find_segment, own_from, count_max)
            self.files.on_close = self.reads.close_file
        # Called by `forget`, for what readers keep of the files.
        self.on_forget: list[Callable[[], None]] = []

    def close(self) -> None:
        """Close the files."""
        self.files.close()

    def progress(self, view: str) -> int:
        """Return up to where *view* is readable. If another view has replaced it, its files are opened again.

        The progress is read first: that of a new view is published after its generation was raised.
        """
        progress, generation = self.view_progress(view), self.view_generation(view)
        if self.generations.setdefault(view, generation) != generation:
            self.generations[view] = generation
            self.forget()
        return progress

    def forget(self) -> None:
        """Read everything again: drop open files and what readers derived from them."""
        self.files.forget()
        self.file_sizes = None
        if self.reads is not None:
            self.reads.forget()
        for forget in self.on_forget:
            forget()

    def log(self) -> Segments:
        """Return the segments, as the directory has them now."""
        begin = -1
        # A system call for each directory would be half the cost of a read.
        if self.log_begin is None:
            if self.segments is not None and not self.log_stamp.changed():
                return self.segments
        else:
            begin = self.log_begin()
            if self.segments is not None and begin == self.known_log_begin:
                return self.segments
        try:
            self.segments = Segments(self.directory / "commitlog")
        except StoreError:
            # The earlier list must not pass for the present one.
            self.log_stamp.forget()
            raise
        # The writer says where the log begins before the file goes.
        self.segments.leave_out_below(begin)
        self.known_log_begin = begin
        self.files.forget(self.log_directory)
        return self.segments

    def queue_file_sizes(self) -> tuple[int, int]:
        """Return the size of the queues' files and of their ext files: as they show it, or else as configured."""
        if self.file_sizes is None:
            shown = shown_queue_file_size(self.directory / "consumequeue")
            ext_shown = shown_queue_file_size(self.directory / "consumequeue_ext")
            sizes = (
                shown or self.settings.mapped_file_size_consume_queue,
                ext_shown or self.settings.mapped_file_size_consume_queue_ext,
            )
            if shown is None:
                return sizes
            self.file_sizes = sizes
        return self.file_sizes

    def find_segment(self, commit_log_offset: int) -> Segment | None:
        """Return the segment that holds this byte; None: there is none."""
        return (self.segments or self.log()).find(commit_log_offset)

    def read_log(self, commit_log_offset: int, size: int) -> bytes:
        """Return *size* bytes of one segment.

        Raises:
            OffsetOutOfRange: the log does not hold them all.
        """
        segments = self.segments or self.log()
        segment = segments.find(commit_log_offset)
        data = b""
        if segment is not None:
            try:
                data = self.files.read(str(segment.path), size, commit_log_offset - segment.begin)
            except FileNotFoundError:
                # Retention removes a segment first and says so then.
                segments.refresh()
        if len(data) < size:
            raise OffsetOutOfRange(
                f"the log does not hold these bytes: commit_log_offset={commit_log_offset} size={size} "
                f"offset_min={segments.offset_min}"
            )
        return data

    def record_at(self, commit_log_offset: int) -> Record | None:
        """Return the record that begins at this offset, None if it lies before the log's first byte, also by now.

        Raises:
            DamagedStore: the bytes there are no record.
            OffsetOutOfRange: the log does not reach so far.
        """
        try:
            try:
                data = self.read_log(commit_log_offset, FIRST_READ_SIZE)
            except OffsetOutOfRange:
                # Near the end of its segment.
                data = self.read_log(commit_log_offset, SIZE.size)
            size = int.from_bytes(data[: SIZE.size], "big")
            if size > len(data):
                # A message id may name any place, and in the middle of a record a size may be that of a segment.
                magic = data[MAGIC_CODE_AT : SIZE_AND_MAGIC.size]
                if not magic or int.from_bytes(magic, "big") in MESSAGE_MAGIC_CODES:
                    data = self.read_log(commit_log_offset, size)
        except OffsetOutOfRange:
            # Retention may have removed it since the caller saw it in the log.
            if self.segments is not None and commit_log_offset < self.segments.offset_min:
                return None
            raise
        return decode_record(data[:size])

    def record_of_id(self, message_id: str) -> Record | None:
        """Return the record that the store gave this id, None if the log has no such record.

        Source: RocketMQ broker, QueryMessageProcessor.viewMessageById.
        """
        commit_log_offset = decode_message_id(message_id)
        readable = max(self.progress("consume_queue"), self.progress("index"))
        if commit_log_offset is None or not self.log().offset_min <= commit_log_offset < readable:
            return None
        try:
            record = self.record_at(commit_log_offset)
        except (DamagedStore, OffsetOutOfRange):
            # An id that a client gives looks the same, and names any byte.
            return None
        if record is None or record.message_id != message_id.upper() or not self.has_whole_body(record):
            return None
        return record

    def has_whole_body(self, record: Record) -> bool:
        """Tell whether the body of *record* has its CRC; False only if an operator has accepted the damage.

        Raises:
            DamagedStore: no operator has.
        """
        commit_log_offset = record.commit_log_offset
        if commit_log_offset >= self.own_from or not record.body or body_crc(record.body) == record.body_crc:
            return True
        if self.is_accepted(commit_log_offset):
            return False
        raise self.told(
            DamagedStore.at(
                commit_log_offset,
                record.record_size,
                f"{NOT_ITS_CRC}: topic={record.topic} queue_id={record.queue_id} queue_offset={record.queue_offset} "
                f"commit_log_offset={commit_log_offset}",
                "See `reput check STORE`; other messages can be read.",
            )
        )

    def is_accepted(self, commit_log_offset: int) -> bool:
        """Tell whether an operator has accepted that the log is damaged there, so that reads pass that record over."""
        return accepted_end(accepted_damage(self.directory), commit_log_offset) is not None

    def told(self, error: DamagedStore) -> DamagedStore:
        """Report *error* and return it."""
        self.on_damage(error)
        return error

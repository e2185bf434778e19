"""LogCopy: bytes of a store's log into pieces of a target, every record verified on the way.

One pass: the walk that `reput check` makes reads and verifies the records, and what it has read is written. What it
cannot read is damage: it is copied as it was found, as far as the disk gives it, and named in the manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from isal.isal_zlib import crc32

from reput.backup.layout import LOG, Piece
from reput.backup.target import CHUNK_SIZE, BackupTarget, Bytes, ObjectWriter
from reput.errors import DamagedStore
from reput.store.disk.file_name import file_name
from reput.store.disk.files import Clock
from reput.store.log.segments import Segments
from reput.store.record.layout import SIZE_AND_MAGIC
from reput.store.record.record_columns import RecordColumns
from reput.store.recovery.check_fields import FieldsCheck
from reput.store.recovery.damage_list import DamagedRange
from reput.store.recovery.log_end import begun_anew
from reput.store.recovery.log_tail import find_unforced, judge_tail
from reput.store.recovery.log_walk import Extent, LogWalk
from reput.store.state.store_lock import is_claimed

__all__ = ["LogCopy"]


class LogCopy:
    """One copying, from *begin* on.

    Attributes:
        log_end: up to where the log was copied.
        pieces: those that were made, ascending.
        damage: what is no record, or contradicts its neighbours, ascending.
        trimmed_to: retention has removed everything before it meanwhile; None: nothing.
        copied: bytes written.
        store_timestamp: of the last record, or the one that was given.
    """

    def __init__(
        self,
        store_directory: Path,
        segments: Segments,
        target: BackupTarget,
        run: str,
        begin: int,
        *,
        store_timestamp: int,
        demand_crc: bool,
        on_progress: Callable[[int], None],
    ) -> None:
        """
        Args:
            run: what the names of this copying's pieces end with.
            begin: where a record, a blank or a damaged range begins.
            store_timestamp: of the record before *begin*.
            on_progress: called now and then with how many bytes of the log are done.
        """
        self.store_directory = store_directory
        self.segments = segments
        self.target = target
        self.run = run
        self.begin = self.log_end = begin
        self.store_timestamp = store_timestamp
        self.demand_crc = demand_crc
        self.on_progress = on_progress
        self.pieces: list[Piece] = []
        self.damage: list[DamagedRange] = []
        self.trimmed_to: int | None = None
        self.copied = 0
        # The piece in the making.
        self.writer: ObjectWriter | None = None
        self.piece_begin = self.piece_end = 0
        self.crc = self.records = self.piece_timestamp = 0

    def copy(self, until: int | None) -> None:
        """Copy up to *until*, the log's end beside a writer; None: no program writes the store, find its end.

        Raises:
            OffsetOutOfRange: a segment exists but cannot be opened.
            DamagedStore: no record goes on from before *until*, so that what lies behind cannot be told from leftovers.
            OSError, StoreError: the target does not take it. Nothing refers to what was written.
        """
        unclean = until is None and not self.is_clean
        walk = LogWalk(
            self.segments,
            store_timestamp=self.store_timestamp,
            unclean=unclean,
            deletions=begun_anew(self.store_directory, self.begin),
            unforced_from=find_unforced(self.store_directory, Clock().boot_id()) if until is None else None,
            demand_crc=self.demand_crc,
            # reput records its deletions; RocketMQ does not.
            finds_restarts=not is_claimed(self.store_directory),
        )
        fields = FieldsCheck(self.begin, Clock().now_ms())
        tail: Extent | None = None
        try:
            if until is None or until > self.begin:
                for extent in walk.walk_what_is_left(self.begin, until, self.leave_out):
                    if until is not None and extent.begin >= until:
                        break
                    if extent.kind in ("stale", "tail"):
                        tail = extent
                        break
                    self.take(extent, until, fields)
                    self.on_progress(self.log_end - self.begin)
                    if until is not None and self.log_end >= until:
                        break
            if until is not None and self.log_end < until:
                raise DamagedStore(
                    f"the log ends before where its writer is: store={self.store_directory} log_end={self.log_end} "
                    f"expected={until} reason={tail.reason if tail is not None else 'there are only zeros'!r}",
                    "Run `reput check` on the store; the earlier backups are as they were.",
                )
            self.finish_piece()
        finally:
            self.abort_piece()
        if until is None:
            judged = judge_tail(self.store_directory, walk, tail)
            if judged is not None and judged.kind == "damage":
                self.damage.append(DamagedRange(judged.begin, judged.end, judged.reason))
        self.damage += [DamagedRange(found.begin, found.end, found.reason) for found in fields.finish()]
        self.damage.sort(key=lambda damaged: damaged.begin)

    @property
    def is_clean(self) -> bool:
        """Whether the store's last writer has closed it."""
        return not (self.store_directory / "abort").exists()

    def leave_out(self, begin: int, end: int) -> None:
        """Retention has removed [begin, end) before it was read: the backup begins behind it."""
        self.abort_piece()
        self.pieces.clear()
        self.damage.clear()
        self.trimmed_to = self.log_end = end

    def take(self, extent: Extent, until: int | None, fields: FieldsCheck) -> None:
        """Copy one extent."""
        if extent.columns is not None:
            columns = extent.columns
            if until is not None and extent.end > until:
                begins = columns.header["commit_log_offset"].astype(np.int64)
                columns = columns.until(int(np.searchsorted(begins, until)))
            fields.take(columns)
            self.take_records(extent.begin, columns)
        elif extent.kind == "blank":
            segment = self.segments.holding(extent.begin)
            # Only its head means something.
            size = min(SIZE_AND_MAGIC.size, extent.end - extent.begin)
            self.write(extent.begin, segment.begin, self.read(extent.begin, size))
            self.log_end = extent.end
        else:
            end = extent.end if until is None else min(extent.end, until)
            fields.pass_damage(end)
            self.damage.append(DamagedRange(extent.begin, end, extent.reason))
            self.take_damaged(extent.begin, end)

    def take_records(self, begin: int, columns: RecordColumns) -> None:
        """Copy whole records."""
        segment = self.segments.holding(begin)
        self.write(begin, segment.begin, memoryview(columns.data)[: columns.end])
        self.records += len(columns)
        self.piece_timestamp = self.store_timestamp = int(columns.store_timestamp[-1])
        self.log_end = begin + columns.end

    def take_damaged(self, begin: int, end: int) -> None:
        """Copy bytes that are no records; those that cannot be read become zeros, or are left out."""
        at = begin
        while at < end:
            segment = self.segments.find(at)
            if segment is None:
                following = self.segments.following(at)
                at = end if following is None else following.begin
                continue
            size = min(CHUNK_SIZE, end - at, segment.begin + segment.size - at)
            try:
                data = self.read(at, size)
            except DamagedStore:
                data = bytes(size)
            self.write(at, segment.begin, data)
            at += size
        self.log_end = end

    def read(self, commit_log_offset: int, size: int) -> bytes:
        """Return bytes of one segment."""
        with self.segments.open(self.segments.holding(commit_log_offset)) as file:
            return file.read(commit_log_offset, size)

    def write(self, begin: int, segment_begin: int, data: Bytes) -> None:
        """Add *data* to the piece in the making, or to a new one, if it does not follow or lies in another segment."""
        if self.writer is not None and (begin != self.piece_end or segment_begin > self.piece_begin):
            self.finish_piece()
        if self.writer is None:
            self.writer = self.target.begin(piece_name(begin, self.run))
            self.piece_begin = self.piece_end = begin
            self.crc = self.records = self.piece_timestamp = 0
        self.writer.write(data)
        self.crc = crc32(data, self.crc)
        self.piece_end += len(data)
        self.copied += len(data)

    def finish_piece(self) -> None:
        """Let the piece in the making appear."""
        if self.writer is None:
            return
        self.writer.commit()
        self.writer = None
        name = piece_name(self.piece_begin, self.run)
        size = self.piece_end - self.piece_begin
        self.pieces.append(Piece(name, self.piece_begin, size, self.crc, self.records, self.piece_timestamp))

    def abort_piece(self) -> None:
        """Give up the piece in the making."""
        if self.writer is not None:
            self.writer.abort()
            self.writer = None


def piece_name(begin: int, run: str) -> str:
    """Return the name of the object with the bytes from *begin* on that *run* has made."""
    return f"{LOG}/{file_name(begin)}-{run}"

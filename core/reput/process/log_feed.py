"""LogFeed: the commit log as a dispatcher's loop reads it when the ring does not reach back far enough.

The scan works with numpy, which is loaded at the first use: a dispatcher that is never late does without.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.settings import Settings
from reput.store.segments import Segments
from reput.store.topic_deletions import TopicDeletions
from reput_hooks import DispatchColumns

if TYPE_CHECKING:
    from reput.store.log_scan import LogScan

__all__ = ["ROWS_WANTED", "ROWS_WANTED_ANEW", "LogFeed", "LogRange"]

CHUNK_SIZE = 4 << 20
# Bytes of the log are read by the chunk, which bounds the memory. Requests are handed out by so many chunks as have
# about these rows: a view of a thousand queues pays for each queue that a batch touches.
ROWS_WANTED = 16384
# The same where RocketMQ's own views are built anew. Their dispatchers take any number of rows in little time; one that
# works on each row for a millisecond would exceed its time limit.
ROWS_WANTED_ANEW = 65536
# A batch of positions alone may be long: who reads the log itself would rather have one segment than 256 pieces.
POSITIONS_SIZE_MAX = 1 << 30


class LogRange(NamedTuple):
    """What one reading found: *parts* up to *end*; *store_timestamp* of the last record, 0 if there was none."""

    parts: list[DispatchColumns]
    end: int
    store_timestamp: int


class LogFeed:
    """Reads requests, or only positions, from the log of a store. Use it from one thread."""

    def __init__(
        self,
        store_directory: Path,
        settings: Settings,
        *,
        needs_properties: bool = False,
        positions: bool = False,
        verify: bool = False,
        rows_wanted: int = ROWS_WANTED,
    ) -> None:
        """
        Args:
            verify: a record whose CRC does not fit is damage, as it is for a check of the log.
            rows_wanted: a batch has about so many, if the log has.
        """
        self.store_directory = store_directory
        self.settings = settings
        self.needs_properties = needs_properties
        self.positions = positions
        self.verify = verify
        self.rows_wanted = rows_wanted
        self.topic_deletions = TopicDeletions(store_directory)
        self.scan: LogScan | None = None

    def read(self, commit_log_offset: int, until: int) -> LogRange:
        """Return whole records from *commit_log_offset* on, at least one, never beyond *until*.

        Raises:
            DamagedStore: there is no record there, and no operator has accepted that.
            OffsetOutOfRange: the log does not hold that offset any more.
        """
        scan = self.scan or self.open()
        if self.positions:
            return self.read_positions(scan, commit_log_offset, until)
        parts: list[DispatchColumns] = []
        end, store_timestamp, row_count = commit_log_offset, 0, 0
        while row_count < self.rows_wanted and (end < until or end == commit_log_offset):
            try:
                scanned = scan.scan(end, until, CHUNK_SIZE)
            except (DamagedStore, OffsetOutOfRange):
                # What was found before comes first.
                if end > commit_log_offset:
                    break
                raise
            if scanned.end == end:
                break
            if len(scanned.columns):
                parts.append(scanned.columns)
                row_count += len(scanned.columns)
                store_timestamp = scanned.store_timestamp
            end = scanned.end
        return LogRange(parts, end, store_timestamp)

    def read_record(self, commit_log_offset: int, data: bytes) -> DispatchColumns | None:
        """Return the request of one record, None if the log does not hold *data* at this offset."""
        scan = self.scan or self.open()
        segment = scan.segments.find(commit_log_offset)
        end = commit_log_offset + len(data)
        if segment is None or scan.pread(segment.path, len(data), commit_log_offset - segment.begin) != data:
            return None
        return scan.scan(commit_log_offset, end, len(data)).columns

    def read_positions(self, scan: LogScan, commit_log_offset: int, until: int) -> LogRange:
        """Find where the last of many records ends; their requests are not made."""
        end, timestamp = commit_log_offset, 0
        until = min(until, commit_log_offset + POSITIONS_SIZE_MAX)
        while end < until:
            if end in scan.passed_over:
                end = min(scan.passed_over[end], until)
                continue
            try:
                located, end = scan.locate(end, until, CHUNK_SIZE)
            except DamagedStore:
                if end > commit_log_offset:
                    break
                raise
            if len(located):
                timestamp = int(located.store_timestamp[-1])
        return LogRange([], end, timestamp)

    def begins_behind(self, commit_log_offset: int) -> bool:
        """Tell whether the first segment that is there begins behind this offset."""
        return Segments(self.store_directory / "commitlog").offset_min > commit_log_offset

    def open(self) -> LogScan:
        """Open the log, with the damage that has been accepted by now."""
        from reput.store.delay_level import DelayLevels
        from reput.store.log_scan import LogScan
        from reput.store.recovery import read_damage

        self.scan = LogScan(
            self.store_directory,
            needs_properties=self.needs_properties,
            delay_levels=DelayLevels(self.settings.message_delay_level),
            passed_over=read_damage(self.store_directory).accepted(),
            verify=self.verify,
        )
        return self.scan

    def close(self) -> None:
        """Release the log; `read` opens it again."""
        if self.scan is not None:
            self.scan.close()
            self.scan = None

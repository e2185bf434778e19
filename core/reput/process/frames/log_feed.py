"""LogFeed: reads the commit log for a dispatcher's loop when the ring does not reach back far enough.

The scan uses numpy, which is loaded at the first use: a dispatcher that is never late does not need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.process.frames.frame import cut_columns
from reput.settings import Settings
from reput.store.log.segments import Segments
from reput.store.state.topic_deletions import TopicDeletions
from reput_hooks import DispatchColumns

if TYPE_CHECKING:
    from reput.store.log.log_scan import LogScan

__all__ = ["LogFeed", "LogRange"]

# The log is read in chunks, which bounds the memory.
CHUNK_SIZE = 4 << 20
CHUNK_SIZE_MIN = 64 << 10
# A chunk has about the wanted number of records; surplus records would be read again for the next batch.
CHUNK_MARGIN = 1.25


class LogRange(NamedTuple):
    """The result of one read: *parts* up to *end*; *store_timestamp* of the last record, 0 if there was none."""

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
    ) -> None:
        """
        Args:
            verify: treat a record with a wrong CRC as damage, as a check of the log does.
        """
        self.store_directory = store_directory
        self.settings = settings
        self.needs_properties = needs_properties
        self.positions = positions
        self.verify = verify
        self.record_size = 0.0
        self.topic_deletions = TopicDeletions(store_directory)
        self.scan: LogScan | None = None

    def read(self, commit_log_offset: int, until: int, record_count_max: int, size_max: int) -> LogRange:
        """Return whole records from *commit_log_offset* on, at least one, never beyond *until*.

        Args:
            record_count_max: ignored if only positions are read.
            size_max: maximum log bytes; one record is always allowed, whatever its size.

        Raises:
            DamagedStore: there is no record at the offset, and no operator has accepted that.
            OffsetOutOfRange: the log no longer holds that offset.
        """
        scan = self.scan or self.open()
        if self.positions:
            return self.read_positions(scan, commit_log_offset, until, size_max)
        parts: list[DispatchColumns] = []
        end, store_timestamp, row_count = commit_log_offset, 0, 0
        limit = commit_log_offset + size_max
        while row_count < record_count_max and (end < min(until, limit) or end == commit_log_offset):
            wanted = record_count_max - row_count
            try:
                scanned = scan.scan(end, until, min(self.chunk_size(wanted), limit - end))
            except (DamagedStore, OffsetOutOfRange):
                # Return the records found before the error first.
                if end > commit_log_offset:
                    break
                raise
            found = len(scanned.columns)
            if scanned.end == end or (found and scanned.end > limit and end > commit_log_offset):
                break
            if found:
                self.record_size = (scanned.end - end) / found
            if found > wanted:
                cut = cut_columns(scanned.columns, end, scanned.end, wanted)
                return LogRange([*parts, cut.columns], cut.end, cut.store_timestamp)
            if found:
                parts.append(scanned.columns)
                row_count += found
                store_timestamp = scanned.store_timestamp
            end = scanned.end
        return LogRange(parts, end, store_timestamp)

    def chunk_size(self, record_count: int) -> int:
        """Return the number of bytes to read for *record_count* records."""
        wanted = round(record_count * self.record_size * CHUNK_MARGIN)
        return min(max(wanted, CHUNK_SIZE_MIN), CHUNK_SIZE)

    def read_record(self, commit_log_offset: int, data: bytes) -> DispatchColumns | None:
        """Return the request of one record, None if the log does not hold *data* at this offset."""
        scan = self.scan or self.open()
        end = commit_log_offset + len(data)
        if scan.segments.find(commit_log_offset) is None or scan.read_bytes(commit_log_offset, len(data)) != data:
            return None
        return scan.scan(commit_log_offset, end, len(data)).columns

    def read_positions(self, scan: LogScan, commit_log_offset: int, until: int, size_max: int) -> LogRange:
        """Find the end of the last record in the range, without building requests."""
        end, timestamp = commit_log_offset, 0
        limit = commit_log_offset + size_max
        while end < min(until, limit):
            if end in scan.passed_over:
                end = min(scan.passed_over[end], until)
                continue
            try:
                located, located_end = scan.locate(end, until, min(CHUNK_SIZE, limit - end))
            except DamagedStore:
                if end > commit_log_offset:
                    break
                raise
            if len(located):
                if located_end > limit and end > commit_log_offset:
                    break
                timestamp = int(located.store_timestamp[-1])
            end = located_end
        return LogRange([], end, timestamp)

    def begins_behind(self, commit_log_offset: int) -> bool:
        """Tell whether the first existing segment begins behind this offset."""
        return Segments(self.store_directory / "commitlog").offset_min > commit_log_offset

    def open(self) -> LogScan:
        """Open the log, with the damage accepted so far."""
        from reput.store.log.log_scan import LogScan
        from reput.store.recovery.damage_list import accepted_damage
        from reput.store.state.recorded_settings import read_delay_history

        self.scan = LogScan(
            self.store_directory,
            needs_properties=self.needs_properties,
            delay_history=read_delay_history(self.store_directory, self.settings.message_delay_level),
            passed_over=accepted_damage(self.store_directory),
            verify=self.verify,
        )
        return self.scan

    def close(self) -> None:
        """Release the log; `read` opens it again."""
        if self.scan is not None:
            self.scan.close()
            self.scan = None

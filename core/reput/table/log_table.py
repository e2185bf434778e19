"""LogTable: the commit log of a store directory as a table of Arrow record batches.

One row per record, in log order. It can read while another process writes the store, and changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from reput.errors import ConfigError
from reput.store.log.bad_range import BadRange
from reput.store.log.segments import Segments
from reput.store.recovery.damage_list import accepted_damage
from reput.store.recovery.log_end import find_log_end, force_log
from reput.store.state.identity import read_store_id, require_store
from reput.store.state.store_lock import StoreLock
from reput.table.batch_decoder import BatchDecoder
from reput.table.range_reader import RangeReader, pass_trimmed
from reput.table.record_parts import RecordParts
from reput.table.row_filter import RowFilter
from reput.table.row_format import RowFormat
from reput.table.splits import Split, begins_blank, next_record, plan_splits
from reput.table.time_search import offset_of_time

__all__ = ["LogLag", "LogTable", "TableOptions", "table_options"]

Array = np.ndarray[Any, Any]

# A search by time widens the range by this, because the broker's clock may have been set back a little.
CLOCK_SLACK_MS = 60_000
# Batches are joined until they reach this fraction (one n-th) of the requested size.
SMALL_BATCH_PART = 4
# To count messages, their headers are read, which takes some 50 ms for so many bytes.
LAG_BYTES_COUNTED = 64 << 20

logger = logging.getLogger(__name__)


class LogLag(msgspec.Struct, frozen=True):
    """What a reader of the log has not read yet: *messages* in *byte_count* bytes of the log.

    *seconds* is the age of the oldest one. Behind `LAG_BYTES_COUNTED` bytes messages are estimated, by the size of
    those before; then they are not *exact*.
    """

    byte_count: int
    messages: int
    seconds: float
    exact: bool = True


class TableOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The selection of records to read from the log, and their format.

    Attributes:
        verify_crc: "all": compare every record with its CRCs; "none", "tail": only those at the end of a log that was
            not closed, which a crash may have torn. A body that changed on disk is then returned as it is.
        on_corruption: "fail": raise at bytes that are not records, or at a CRC mismatch; "report": log the range, keep
            it in `LogTable.damage`, and continue after it.
        fail_on_data_loss: raise if the log was trimmed above the requested offset; else begin where it begins now.
        batch_rows, batch_bytes: bounds of a record batch; the second counts bytes of the log.
    """

    row_format: RowFormat = RowFormat()
    row_filter: RowFilter = RowFilter()
    verify_crc: Literal["none", "tail", "all"] = "all"
    on_corruption: Literal["fail", "report"] = "fail"
    fail_on_data_loss: bool = True
    batch_rows: int = 4096
    batch_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        for name in ("batch_rows", "batch_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"a record batch holds at least one record: {name}={getattr(self, name)}")


def table_options(**options: Any) -> TableOptions:
    """Return the options from fields of all three structs (`RowFormat`, `RowFilter`, `TableOptions`) by name.

    Raises:
        ConfigError: a name is unknown, or a value is wrong.
    """
    structs: tuple[type[RowFormat | RowFilter | TableOptions], ...] = (RowFormat, RowFilter, TableOptions)
    chosen: dict[type, dict[str, Any]] = {struct: {} for struct in structs}
    names = {name: struct for struct in structs for name in struct.__struct_fields__ if not name.startswith("row_f")}
    for name, value in options.items():
        if name not in names:
            raise ConfigError(f"no such option: option={name} options={','.join(sorted(names))}")
        chosen[names[name]][name] = value
    try:
        return msgspec.convert(
            {
                "row_format": msgspec.convert(chosen[RowFormat], RowFormat),
                "row_filter": msgspec.convert(chosen[RowFilter], RowFilter),
                **chosen[TableOptions],
            },
            TableOptions,
        )
    except msgspec.ValidationError as error:
        raise ConfigError(f"an option has a wrong value: {error}") from None


class LogTable:
    """The log of one store. Use it from one thread at a time.

    Attributes:
        store_id: 32 hex digits.
        schema: the schema of every batch.
        damage: damaged ranges found so far; with ``on_corruption="report"``.
    """

    def __init__(self, store_directory: Path | str, options: TableOptions | None = None) -> None:
        """
        Raises:
            NotAStore: there is no commit log in *store_directory*.
            ConfigError: an option names a column that does not exist.
        """
        self.store_directory = Path(store_directory)
        self.options = options or TableOptions()
        require_store(self.store_directory)
        self.segments = Segments(self.store_directory / "commitlog")
        self.decoder = BatchDecoder(self.options.row_format)
        self.schema = self.decoder.schema
        self.damage: list[BadRange] = []
        self.log_end: int | None = None
        self.durable_end: int | None = None

    @property
    def store_id(self) -> str:
        """The store's id; if it has none yet, the id derived from its first record."""
        return read_store_id(self.store_directory)

    @property
    def offset_min(self) -> int:
        """Commit-log offset of the first byte that still exists."""
        self.segments.refresh()
        return self.segments.offset_min

    def find_end(self) -> int:
        """Return the log's end. The first call reads the last segment, later ones only what is new."""
        self.segments.refresh()
        self.log_end = find_log_end(self.store_directory, self.segments, self.log_end)
        return self.log_end

    def find_durable_end(self) -> int:
        """Return the log's end; every byte below it survives a power cut.

        If a process is writing the store, new bytes may be in memory only, so this forces them to disk first.

        Raises:
            StoreError: the disk cannot force them.
        """
        being_written = StoreLock.may_be_held(self.store_directory)
        end = self.find_end()
        if being_written:
            known = self.segments.offset_min if self.durable_end is None else self.durable_end
            if end > known:
                force_log(self.segments, known, end)
        self.durable_end = end
        return end

    def bounds(self, begin: int | None = None, until: int | None = None) -> tuple[int, int]:
        """Return the range to read for [begin, until) and the filter; None: where the log begins or ends."""
        low = self.offset_min if begin is None else begin
        high = self.find_end() if until is None else until
        wanted = self.options.row_filter
        if wanted.commit_log_offset_min is not None and wanted.commit_log_offset_min > low:
            low = self.next_record(wanted.commit_log_offset_min, high)
        if wanted.commit_log_offset_until is not None and wanted.commit_log_offset_until < high:
            high = self.next_record(wanted.commit_log_offset_until, high)
        present = max(low, self.segments.offset_min)
        if wanted.store_timestamp_min is not None and present < high:
            earliest = wanted.store_timestamp_min - CLOCK_SLACK_MS
            low = max(low, self.offset_of_time(earliest, present, high))
        if wanted.store_timestamp_until is not None and present < high:
            latest = wanted.store_timestamp_until + CLOCK_SLACK_MS
            high = self.offset_of_time(latest, max(low, present), high)
        return low, max(low, high)

    def next_record(self, commit_log_offset: int, until: int) -> int:
        """Return where the first record at or after an offset begins; at most *until*."""
        return next_record(self.segments, commit_log_offset, until)

    def aligned(self, commit_log_offset: int, until: int) -> int:
        """Return an offset where a record or a blank begins, or one before the log, unchanged; else the next record."""
        if commit_log_offset <= self.offset_min or begins_blank(self.segments, commit_log_offset):
            return commit_log_offset
        return self.next_record(commit_log_offset, until)

    def offset_of_time(self, store_timestamp: int, begin: int, until: int) -> int:
        """Return the offset of the first record in [begin, until) stored at that time (ms) or later, else *until*."""
        return offset_of_time(self.searcher(), begin, until, store_timestamp)

    def offset_after(self, begin: int, until: int, row_count: int, row_filter: RowFilter | None = None) -> int:
        """Return the offset after *row_count* rows from *begin* on, where the next row begins; at most *until*.

        Args:
            row_filter: which records are rows; None: the table's filter.
        """
        chosen = row_filter or self.options.row_filter
        for columns in self.searcher().read(begin, until):
            rows = chosen.rows(RecordParts(columns))
            if len(rows) > row_count:
                return int(columns.header["commit_log_offset"][rows[row_count]])
            row_count -= len(rows)
        return until

    def count_rows(self, begin: int, until: int, row_filter: RowFilter | None = None) -> int:
        """Return how many rows the records that begin in [begin, until) have; *row_filter* as in `offset_after`."""
        chosen = row_filter or self.options.row_filter
        return sum(len(chosen.rows(RecordParts(columns))) for columns in self.searcher().read(begin, until))

    def lag(self, begin: int, until: int, row_filter: RowFilter | None = None) -> LogLag:
        """Return how far a reader at *begin* is behind *until*; records begin at both offsets.

        Args:
            row_filter: which messages count; None: all.
        """
        counted_until = (
            until if until - begin <= LAG_BYTES_COUNTED else self.next_record(begin + LAG_BYTES_COUNTED, until)
        )
        messages, oldest_ms = 0, None
        # The reader of the rows reports damage.
        for columns in self.reader(False, False, pass_over).read(begin, counted_until):
            if oldest_ms is None:
                oldest_ms = int(columns.store_timestamp[0])
            messages += len(columns) if row_filter is None else len(row_filter.rows(RecordParts(columns)))
        if counted_until < until:
            messages = messages * (until - begin) // (counted_until - begin)
        seconds = 0.0 if oldest_ms is None else max(time.time() - oldest_ms / 1000, 0.0)
        return LogLag(until - begin, messages, round(seconds, 3), counted_until >= until)

    def splits(
        self,
        begin: int | None = None,
        until: int | None = None,
        *,
        split_bytes: int = 64 << 20,
        split_count_min: int = 1,
    ) -> list[Split]:
        """Return the parts of [begin, until) for parallel reading; see `plan_splits`.

        Raises:
            OffsetOutOfRange: the log was trimmed above *begin*.
        """
        low, high = self.bounds(begin, until)
        low = pass_trimmed(low, self.segments.offset_min, self.options.fail_on_data_loss)
        return plan_splits(self.segments, low, high, split_bytes, split_count_min)

    def batches(self, begin: int, until: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the records that begin in [begin, until); records must begin at both offsets.

        Raises:
            DamagedStore: some bytes are not records, and ``on_corruption`` is "fail".
            OffsetOutOfRange: the log was trimmed above *begin*.
        """
        options = self.options
        rows_min, bytes_min = options.batch_rows // SMALL_BATCH_PART, options.batch_bytes // SMALL_BATCH_PART
        return joined(self.decoded(begin, until), rows_min, bytes_min)

    def decoded(self, begin: int, until: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows as they are decoded, a window of bytes at a time."""
        batch_rows = self.options.batch_rows
        kept_packed = self.decoder.kept_packed
        for parts, rows in self.records(begin, until):
            for first in range(0, len(rows), batch_rows):
                yield from self.decoder.decode(parts, rows[first : first + batch_rows])
        if self.decoder.kept_packed > kept_packed:
            logger.warning(
                "bodies are not compressed as their flags say, and stay as stored: count=%d from=%d until=%d",
                self.decoder.kept_packed - kept_packed,
                begin,
                until,
            )

    def records(self, begin: int, until: int) -> Iterator[tuple[RecordParts, Array]]:
        """Yield runs of records and the row numbers that pass the filter; a run is valid until the next one."""
        options = self.options
        on_damage = self.report if options.on_corruption == "report" else None
        reader = self.reader(options.verify_crc == "all", options.fail_on_data_loss, on_damage)
        for columns in reader.read(begin, until):
            parts = RecordParts(columns)
            rows = options.row_filter.rows(parts)
            if len(rows):
                yield parts, rows

    def searcher(self) -> RangeReader:
        """Return a reader for searches. It reports no damage, because reading the rows will."""
        return self.reader(False, False, pass_over if self.options.on_corruption == "report" else None)

    def reader(
        self, verify: bool, fail_on_data_loss: bool, on_damage: Callable[[BadRange], None] | None
    ) -> RangeReader:
        """Return a range reader that skips damage that an operator has accepted."""
        options = self.options
        return RangeReader(
            self.segments,
            rows_wanted=options.batch_rows,
            window_size_max=options.batch_bytes,
            verify=verify,
            fail_on_data_loss=fail_on_data_loss,
            passed_over=accepted_damage(self.store_directory),
            on_damage=on_damage,
        )

    def report(self, damaged: BadRange) -> None:
        """Record and log a damaged range that is skipped."""
        self.damage.append(damaged)
        logger.warning("the log is damaged: from=%d until=%d reason=%s", damaged.begin, damaged.end, damaged.reason)


def pass_over(damaged: BadRange) -> None:
    """Skip a damaged range silently."""


def joined(batches: Iterable[pa.RecordBatch], rows_min: int, bytes_min: int) -> Iterator[pa.RecordBatch]:
    """Yield *batches*, joining small ones until they have *rows_min* rows or *bytes_min* bytes."""
    pending: list[pa.RecordBatch] = []
    row_count = byte_count = 0
    for batch in batches:
        pending.append(batch)
        row_count += batch.num_rows
        byte_count += batch.nbytes
        if row_count >= rows_min or byte_count >= bytes_min:
            yield from join(pending)
            pending, row_count, byte_count = [], 0, 0
    if pending:
        yield from join(pending)


def join(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Combine *batches* into one, or as few as Arrow's offsets allow."""
    if len(batches) == 1:
        return batches
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found

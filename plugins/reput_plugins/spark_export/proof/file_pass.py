"""The pass over the lake: every row of one file compared with the record at its offset.

The rows are read in the order of the file, a batch at a time, and their records are looked up by offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reput.store.log.segments import Segments
from reput.store.record.record_columns import RecordColumns
from reput.table.batch_decoder import BatchDecoder
from reput.table.record_lookup import RecordLookup
from reput.table.record_parts import TOPIC, RecordParts
from reput_plugins.spark_export.lake_marks import LogColumns
from reput_plugins.spark_export.lakes.deletion_vectors import read_rows
from reput_plugins.spark_export.lakes.delta_deleting import without_deleted
from reput_plugins.spark_export.parquet_files import DAY_MAX, DAY_MIN, DAY_MS, EPOCH_DAY, STORE_COLUMN, STORED_AS
from reput_plugins.spark_export.proof.findings import FileFindings
from reput_plugins.spark_export.proof.proof_plan import OFFSET_COLUMN, LakeFile, ProofPlan
from reput_plugins.spark_export.proof.row_comparison import different_rows
from reput_plugins.spark_export.proof.row_crc import row_crc

__all__ = ["deleted_in", "log_batches", "names_in", "open_file", "pass_file", "rows_of_store"]

Array = np.ndarray[Any, Any]

SIZE_COLUMN, CRC_COLUMN = "storeSize", "bodyCRC"
# Rows are read in batches of about this many bytes. Both constants bound the buffer for their scattered records.
BATCH_BYTES = 4 << 20
BATCH_ROWS_MAX = 4096
LOCAL_BUFFER_SIZE = 256 << 10
# Larger, because each read of an object store costs a request.
REMOTE_BUFFER_SIZE = 1 << 20


def pass_file(plan: ProofPlan, file: LakeFile) -> FileFindings:
    """Compare the rows of one file with the log."""
    work = FilePass(plan, file)
    try:
        work.run()
    except (OSError, pa.ArrowInvalid) as error:
        text = " ".join(str(error).split())
        place = file.offset_min or 0
        work.findings.differences.note(
            "unreadable", place, f"a file of the lake cannot be read: file={file.path} error={text}"
        )
    finally:
        work.lookup.close()
    return work.findings


def open_file(plan: ProofPlan, file: LakeFile) -> pq.ParquetFile:
    """Open one file of the lake."""
    lake = plan.parts[file.part].lake
    if lake.folder is not None:
        # Stream the file: a mapping would hold the whole file in memory, and a plain read a whole row group.
        local = pa.OSFile(str(lake.folder / file.path))
        return pq.ParquetFile(local, pre_buffer=False, buffer_size=LOCAL_BUFFER_SIZE)
    source = lake.filesystem().open_input_file(file.path)
    return pq.ParquetFile(source, pre_buffer=False, buffer_size=REMOTE_BUFFER_SIZE)


def names_in(schema: pa.Schema, names: LogColumns) -> set[str]:
    """Return the columns that a file has, those of the log under the log's own names."""
    if names.struct is not None:
        at = schema.get_field_index(names.struct)
        return set() if at < 0 else {field.name for field in schema.field(at).type}
    return {name.removeprefix(names.prefix) for name in schema.names if name.startswith(names.prefix)}


def deleted_in(plan: ProofPlan, file: LakeFile) -> Array:
    """Return the numbers of the rows of a file that are deleted, ascending."""
    return read_rows(plan.parts[file.part].lake, file.deletion)


def log_batches(
    parquet: pq.ParquetFile,
    names: LogColumns,
    columns: Sequence[str],
    deleted: Array,
    row_count: int = BATCH_ROWS_MAX,
) -> Iterator[pa.RecordBatch]:
    """Yield rows with *columns* of the log under the log's own names. *deleted*: numbers of rows that are left out."""
    return without_deleted(all_batches(parquet, names, columns, row_count), deleted)


def all_batches(
    parquet: pq.ParquetFile, names: LogColumns, columns: Sequence[str], row_count: int
) -> Iterator[pa.RecordBatch]:
    """Yield all rows as `log_batches`."""
    stored = [names.name(column) for column in columns]
    for batch in parquet.iter_batches(row_count, columns=stored, use_threads=False):
        if names.struct is None:
            found = [batch[name] for name in stored]
        else:
            fields = batch[names.struct]
            parts = dict(zip((field.name for field in fields.type), fields.flatten(), strict=True))
            found = [parts[column] for column in columns]
        yield pa.RecordBatch.from_arrays([without_view(values) for values in found], names=list(columns))


def without_view(values: pa.Array) -> pa.Array:
    """Return texts and bytes in Arrow's plain types. The Delta library writes views, which fewer functions take."""
    kind = STORED_AS.get(values.type)
    return values if kind is None else values.cast(kind)


def rows_of_store(plan: ProofPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of the store of *plan*."""
    if plan.store_name is None:
        return batch
    own = pc.fill_null(pc.equal(batch[STORE_COLUMN], plan.store_name), False)
    return batch if pc.all(own).as_py() else batch.filter(own)


class FilePass:
    """The comparison of one file."""

    def __init__(self, plan: ProofPlan, file: LakeFile) -> None:
        self.plan = plan
        self.part = plan.parts[file.part]
        self.file = file
        self.findings = FileFindings(file, len(self.part.watermarks))
        self.lookup = RecordLookup(Segments(Path(plan.store) / "commitlog"))
        self.watermark_begins = np.array([begin for begin, _ in self.part.watermarks], np.int64)
        self.watermark_ends = np.array([until for _, until in self.part.watermarks], np.int64)
        self.decoder: BatchDecoder | None = None
        self.day = None if file.date is None else date.fromisoformat(file.date).toordinal() - EPOCH_DAY

    def run(self) -> None:
        """Compare every row."""
        for batch in self.batches():
            self.note_strangers(batch)
            batch = self.without_null_offsets(rows_of_store(self.plan, batch))
            if batch.num_rows:
                self.take(batch)
        self.check_statistics()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns that are compared."""
        parquet = open_file(self.plan, self.file)
        present = names_in(parquet.schema_arrow, self.part.names)
        below = self.file.offset_max is not None and self.file.offset_max < self.plan.offset_min
        names = [name for name in self.part.columns if name in present]
        if below:
            # Their records are no longer in the log, so the other columns cannot be compared.
            names = [name for name in names if name in (OFFSET_COLUMN, SIZE_COLUMN, CRC_COLUMN)]
        self.decoder = BatchDecoder(msgspec.structs.replace(self.plan.table.row_format, columns=tuple(names)))
        if self.plan.store_name is not None:
            names = [*names, STORE_COLUMN]
        metadata = parquet.metadata
        total = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        size = min(max(int(BATCH_BYTES * metadata.num_rows / max(total, 1)), 1), BATCH_ROWS_MAX)
        self.findings.bytes_read = self.file.size
        yield from log_batches(parquet, self.part.names, names, deleted_in(self.plan, self.file), size)

    def note_strangers(self, batch: pa.RecordBatch) -> None:
        """Note rows of stores that the lake's transactions do not know."""
        if self.plan.store_name is None:
            return
        for name in pc.unique(batch[STORE_COLUMN]).to_pylist():
            if name != self.plan.store_name and name not in self.plan.other_names:
                own = pc.is_null(batch[STORE_COLUMN]) if name is None else pc.equal(batch[STORE_COLUMN], name)
                offsets = batch.filter(own)[OFFSET_COLUMN].drop_null().to_pylist()
                text = f"row of a store that is not in the lake: store={'null' if name is None else name}"
                for at in sorted(offsets)[:1]:
                    self.findings.differences.note("foreign", at, f"{text} commit_log_offset={at}", 0)
                self.findings.differences.counts["foreign"] += len(offsets)

    def without_null_offsets(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that have an offset; note the others."""
        offsets = batch[OFFSET_COLUMN]
        if offsets.null_count:
            text = f"row without a commit-log offset: file={self.file.path} rows={offsets.null_count}"
            self.findings.row_count += offsets.null_count
            self.findings.differences.note("extra", self.file.offset_min or 0, text, offsets.null_count)
            batch = batch.filter(pc.is_valid(offsets))
        return batch

    def take(self, batch: pa.RecordBatch) -> None:
        """Compare rows of the store."""
        plan, findings = self.plan, self.findings
        offsets = batch[OFFSET_COLUMN].to_numpy().astype(np.int64)
        findings.row_count += len(offsets)
        least, greatest = int(offsets.min()), int(offsets.max())
        findings.offset_min = least if findings.offset_min is None else min(findings.offset_min, least)
        findings.offset_max = greatest if findings.offset_max is None else max(findings.offset_max, greatest)
        self.add_to_watermarks(batch, offsets)
        if least < plan.offset_min or greatest >= plan.until:
            below, behind = offsets < plan.offset_min, offsets >= plan.until
            findings.below_count += int(below.sum())
            # Dead letters are committed before rows, so they may be ahead after a crash.
            cut, beyond = behind & (offsets < plan.lake_end), behind & (offsets >= self.part.end)
            findings.differences.note_rows("cut", offsets[cut].tolist(), "row of cut history")
            findings.differences.note_rows("extra", offsets[beyond].tolist(), "row behind the lake's end")
            kept = ~(below | behind)
            batch, offsets = batch.filter(pa.array(kept)), offsets[kept]
        damaged = np.zeros(len(offsets), np.bool_)
        for found in plan.damage:
            damaged |= (offsets >= found.begin) & (offsets < found.end)
        if damaged.any():
            # The damaged bytes may look like a record, but not like the one that was stored.
            findings.without_record += offsets[damaged].tolist()
            batch, offsets = batch.filter(pa.array(~damaged)), offsets[~damaged]
        if len(offsets):
            self.compare(batch, offsets)

    def add_to_watermarks(self, batch: pa.RecordBatch, offsets: Array) -> None:
        """Add the rows' checksums to the watermarks that they belong to."""
        if not len(self.watermark_begins):
            return
        # A null is a difference: either it was reported before, or the sum shows it.
        sizes, crcs = (pc.fill_null(batch[name], 0).to_numpy() for name in (SIZE_COLUMN, CRC_COLUMN))
        number = np.searchsorted(self.watermark_begins, offsets, "right") - 1
        inside = (number >= 0) & (offsets < self.watermark_ends[number])
        np.add.at(self.findings.watermark_rows, number[inside], 1)
        np.add.at(self.findings.watermark_sums, number[inside], row_crc(offsets, sizes, crcs)[inside])

    def compare(self, batch: pa.RecordBatch, offsets: Array) -> None:
        """Compare rows whose records are in the log."""
        sizes = pc.fill_null(batch[SIZE_COLUMN], 0).to_numpy().astype(np.int64)
        distinct, first_row, record_of = np.unique(offsets, return_index=True, return_inverse=True)
        columns, found = self.lookup.find(distinct, sizes[first_row])
        if not found.all():
            has_record = found[record_of]
            self.findings.without_record += offsets[~has_record].tolist()
            batch, offsets = batch.filter(pa.array(has_record)), offsets[has_record]
            if not len(offsets):
                return
            record_of = (np.cumsum(found) - 1)[record_of[has_record]]
        self.findings.sums.add(offsets)
        parts = RecordParts(columns)
        changed = np.zeros(len(offsets), np.bool_)
        self.compare_folder(columns, parts, record_of, offsets, changed)
        assert self.decoder is not None
        first = 0
        for expected in self.decoder.decode(parts, record_of):
            rows = batch.slice(first, expected.num_rows)
            for name, numbers in different_rows(expected, rows):
                self.note_changed(offsets, numbers + first, name, changed)
            first += expected.num_rows
        self.findings.differences.counts["changed"] += int(changed.sum())

    def compare_folder(
        self, columns: RecordColumns, parts: RecordParts, record_of: Array, offsets: Array, changed: Array
    ) -> None:
        """Compare topic and day of the records with those of the file, if its folder names them."""
        if self.part.has_topics:
            topics = parts.take(TOPIC, record_of).dictionary_encode()
            names = [topic.decode("utf-8", "replace") for topic in topics.dictionary.to_pylist()]
            other = np.array([name != (self.file.topic or "") for name in names])[topics.indices.to_numpy()]
            self.note_changed(offsets, np.flatnonzero(other), "topic", changed)
        if self.part.day_column is None:
            return
        days = columns.store_timestamp[record_of].astype(np.int64) // DAY_MS
        in_calendar = (days >= DAY_MIN) & (days <= DAY_MAX)
        other = in_calendar if self.day is None else ~in_calendar | (days != self.day)
        self.note_changed(offsets, np.flatnonzero(other), self.part.day_column, changed)

    def note_changed(self, offsets: Array, numbers: Array, column: str, changed: Array) -> None:
        """Note rows that differ from their records in one column."""
        if len(numbers):
            changed[numbers] = True
            for at in np.sort(offsets[numbers])[:3].tolist():
                text = f"row differs from its record: commit_log_offset={at} column={column}"
                self.findings.differences.note("changed", at, text, 0)

    def check_statistics(self) -> None:
        """Note rows that readers skip because the table describes the file wrongly."""
        file, findings = self.file, self.findings
        low, high = findings.offset_min, findings.offset_max
        if low is None or high is None or file.offset_min is None or file.offset_max is None:
            return
        if file.offset_min <= low and high <= file.offset_max:
            return
        at = low if low < file.offset_min else high
        text = f"row outside the statistics of its file: commit_log_offset={at} file={file.path} "
        findings.differences.note("hidden", at, f"{text}told_min={file.offset_min} told_max={file.offset_max}")

"""Parquet files of a lake: a range of the log, decoded and written by one worker, a file per topic and day.

    topic=orders/date=2026-11-21/00000000000000000000-00000000000067108864-3f9c2a41.parquet
                                 └ first byte         └ behind the last    └ of this attempt

The day is that of the store time, in UTC. Topic and date are in the folder names, not in the files. Readers see a file
only once a transaction of the lake names it; a file that is never named is an orphan, and maintenance removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reput.store.disk.files import Files
from reput.table import BadRange, LogTable, RowFormat, TableOptions
from reput.table.batch_decoder import BatchDecoder
from reput.table.record_parts import TOPIC, RecordParts
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.lake_table import ParquetFile
from reput_plugins.spark_export.proof.row_crc import row_crc
from reput_plugins.spark_export.typed.column_types import conform

__all__ = [
    "CLUSTER_SETTING",
    "CRC_COLUMNS",
    "EPOCH_DAY",
    "FOLDER_NAME_SIZE_MAX",
    "NULL_PARTITION",
    "PARTITION_COLUMNS",
    "STATISTICS_COLUMNS",
    "STORED_AS",
    "STORE_COLUMN",
    "TARGET_SIZE",
    "UNKNOWN_RANGE",
    "FileLayout",
    "PartitionWriters",
    "file_format",
    "lake_schema",
    "layout_like",
    "partition_days",
    "values_of",
    "write_range",
]

PARTITION_COLUMNS = ("topic", "date")
STORE_COLUMN = "store"
# The columns from which a row's checksum is computed.
CRC_COLUMNS = ("commitLogOffset", "storeSize", "bodyCRC")
# Types that differ in memory, but not in the table.
STORED_AS = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
# In the name of a file whose rows are not those of one range.
UNKNOWN_RANGE = f"{0:020d}-{0:020d}"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
# Hive and Spark escape these in folder names.
ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^" + "".join(map(chr, range(32))))
FOLDER_NAME_SIZE_MAX = 255
DAY_MS = 86_400_000
# The dates that every lake reader can represent: years 1 to 9999.
EPOCH_DAY = date(1970, 1, 1).toordinal()
DAY_MIN, DAY_MAX = date.min.toordinal() - EPOCH_DAY, date.max.toordinal() - EPOCH_DAY
# A file that has grown to this size is complete; further rows of its partition go to another file.
TARGET_SIZE = 128 << 20
# A worker buffers this much before it writes row groups.
BUFFERED_BYTES_MAX = 64 << 20
# A worker writes so many files at once; many systems allow a process 1,024 open files.
OPEN_FILES_MAX = 256
COMPRESSION, COMPRESSION_LEVEL = "zstd", 1
# Columns whose values seldom repeat gain nothing from a dictionary, and the body would fill it first.
DICTIONARY_COLUMNS = (
    *PARTITION_COLUMNS,
    STORE_COLUMN,
    "queueId",
    "tags",
    "bornHost",
    "storeHost",
    "brokerName",
    "flag",
    "sysFlag",
    "reconsumeTimes",
)
# The columns that readers filter by.
STATISTICS_COLUMNS = (STORE_COLUMN, "queueId", "queueOffset", "commitLogOffset", "storeTimestamp")
# Property of a table: the columns by which the rows of its files are sorted, separated by commas.
CLUSTER_SETTING = "reput.cluster_by"

Array = np.ndarray[Any, Any]
# The values of the partition columns, as text.
Partition = tuple[str | None, ...]


class FileLayout(msgspec.Struct, frozen=True):
    """How rows are laid out in the files of a table.

    Attributes:
        partition_columns: the columns whose values are in the names of the folders.
        dictionary: columns whose values repeat; the fields of a struct are named with a point.
        statistics: columns by which readers skip files; fields of a struct are named in the same way.
        store_time: the column of the store time, which has no statistics in files without a date.
        cluster_by: columns by which the rows of a file are sorted.
        checksum: the columns from which a row's checksum is computed; empty: the rows have none.
    """

    partition_columns: tuple[str, ...] = PARTITION_COLUMNS
    dictionary: tuple[str, ...] = DICTIONARY_COLUMNS
    statistics: tuple[str, ...] = STATISTICS_COLUMNS
    store_time: str = "storeTimestamp"
    cluster_by: tuple[str, ...] = ()
    checksum: tuple[str, ...] = CRC_COLUMNS


def layout_like(
    schema: pa.Schema, partition_columns: Sequence[str], statistics: Collection[str], properties: Mapping[str, str]
) -> FileLayout:
    """Return the layout for writing files of a table anew, whatever its columns of the log are called.

    *statistics*: the columns that have statistics in its present files.
    """
    names = [
        part
        for field in schema
        for part in (
            [f"{field.name}.{inner.name}" for inner in field.type] if pa.types.is_struct(field.type) else [field.name]
        )
    ]
    return FileLayout(
        tuple(partition_columns),
        tuple(name for name in names if name.endswith(DICTIONARY_COLUMNS)),
        tuple(name for name in names if name in statistics),
        next((name for name in names if name in statistics and name.endswith("storeTimestamp")), "storeTimestamp"),
        tuple(name for name in properties.get(CLUSTER_SETTING, "").split(",") if name),
    )


def lake_schema(row_format: RowFormat) -> pa.Schema:
    """Return the columns of the lake: those of the log, the date, and the store."""
    return row_format.schema().append(pa.field("date", pa.date32())).append(pa.field(STORE_COLUMN, pa.string()))


def file_format(row_format: RowFormat) -> RowFormat:
    """Return the format of the rows in a file, without the columns whose values are in its folder's name."""
    names = tuple(name for name in row_format.schema().names if name not in PARTITION_COLUMNS)
    return msgspec.structs.replace(row_format, columns=names)


def write_range(
    lake: LakeLocation,
    store: str,
    store_id: str,
    options: TableOptions,
    begin: int,
    until: int,
    run: str = "",
    file_schema: pa.Schema | None = None,
) -> tuple[list[ParquetFile], list[BadRange]]:
    """Write the rows of the records that begin in [begin, until) into files of *lake* and force them to disk.

    Args:
        store_id: value of the column ``store``.
        run: part of the name of all files of an export, by which they can be found.
        file_schema: the columns of the files, in order; None: all except those in the folders' names.

    Returns:
        The files, and the damaged ranges that were skipped.

    Raises:
        DamagedStore: some bytes are not records, or fail their CRC, and the options do not allow skipping them.
        OSError: a file cannot be written. The files of this call are removed.
    """
    table = LogTable(store, options)
    attempt = f"{run}-{uuid.uuid4().hex[:8]}" if run else uuid.uuid4().hex[:8]
    writers = PartitionWriters(lake, f"{begin:020d}-{until:020d}-{attempt}.parquet", FileLayout())
    decoder = BatchDecoder(file_format(options.row_format))
    try:
        for parts, rows in table.records(begin, until):
            for partition, batch in by_partition(decoder, parts, rows):
                named = pa.repeat(pa.scalar(store_id), batch.num_rows)
                batch = batch.append_column(STORE_COLUMN, named)
                writers.add(partition, batch if file_schema is None else with_partition(batch, partition, file_schema))
        return writers.finish(), table.damage
    except BaseException:
        writers.abandon()
        raise


def partitions(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[Partition, pa.Table]]:
    """Yield the values of the partition columns, in the form of transactions, with the rows of each partition."""
    if not table.num_rows:
        return
    group = np.zeros(table.num_rows, np.int64)
    texts: list[list[str | None]] = []
    for name in columns:
        column = table[name].combine_chunks()
        encoded = column.dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.cast(pa.string()).to_pylist()
        texts.append(values)
        group = group * max(len(values), 1) + encoded.indices.to_numpy()
    cuts = [0, len(group)]
    if not (group == group[0]).all():
        order = np.argsort(group, kind="stable")
        group = group[order]
        cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
        table = table.take(pa.array(order))
    for begin, end in itertools.pairwise(cuts):
        number, found = int(group[begin]), []
        for values in reversed(texts):
            number, at = divmod(number, max(len(values), 1))
            # Delta's transactions store an empty text as null.
            found.append(values[at] or None)
        yield tuple(reversed(found)), table.slice(begin, end - begin)


def partition_days(store_timestamps: Array) -> Array:
    """Return the days since 1970 of store times in ms; `DAY_MAX` + 1 for days that readers cannot represent."""
    days = store_timestamps.astype(np.int64) // DAY_MS
    return np.where((days >= DAY_MIN) & (days <= DAY_MAX), days, DAY_MAX + 1)


def day_text(day: int) -> str | None:
    """Return a day of `partition_days` as text; None for a day that readers cannot represent."""
    return None if day > DAY_MAX else date.fromordinal(EPOCH_DAY + day).isoformat()


def by_partition(decoder: BatchDecoder, parts: RecordParts, rows: Array) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Yield *rows* decoded and grouped by (topic, day).

    The rows are sorted before decoding, so that each value is copied once.
    """
    encoded = parts.take(TOPIC, rows).dictionary_encode()
    topics = [topic.decode("utf-8", "replace") for topic in encoded.dictionary.to_pylist()]
    days = partition_days(parts.columns.store_timestamp[rows])
    distinct_days, day_of = np.unique(days, return_inverse=True)
    group = encoded.indices.to_numpy() * len(distinct_days) + day_of
    order = np.argsort(group, kind="stable")
    group = group[order]
    first = 0
    for batch in decoder.decode(parts, rows[order]):
        groups = group[first : first + batch.num_rows]
        cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), batch.num_rows]
        for begin, end in itertools.pairwise(cuts):
            topic, day = divmod(int(groups[begin]), len(distinct_days))
            yield (topics[topic], day_text(int(distinct_days[day]))), batch.slice(begin, end - begin)
        first += batch.num_rows


def with_partition(batch: pa.RecordBatch, partition: Partition, schema: pa.Schema) -> pa.RecordBatch:
    """Return *batch* with the columns of *schema*, which may include those in the folder's name."""
    for name, value, kind in zip(PARTITION_COLUMNS, partition, (pa.string(), pa.date32()), strict=True):
        batch = batch.append_column(name, pa.repeat(pa.scalar(value, pa.string()).cast(kind), batch.num_rows))
    return pa.RecordBatch.from_arrays([batch[name] for name in schema.names], schema=schema)


class PartitionWriters:
    """The files of one range, one or more for each partition, with their buffered rows."""

    def __init__(self, lake: LakeLocation, file_name: str, layout: FileLayout) -> None:
        self.lake = lake
        self.layout = layout
        self.filesystem = lake.filesystem()
        self.file_name = file_name
        self.files: dict[Partition, PartitionFile] = {}
        self.complete: list[tuple[PartitionFile, ParquetFile]] = []
        self.buffered_bytes = 0

    def add(self, partition: Partition, batch: pa.RecordBatch) -> None:
        """Buffer rows of one partition; write everything once the buffer is full."""
        file = self.files.get(partition)
        if file is None:
            if len(self.files) == OPEN_FILES_MAX:
                self.complete_files()
            file = self.files[partition] = PartitionFile(
                self.lake, self.filesystem, partition, self.file_name, batch.schema, self.layout
            )
        file.add(batch)
        self.buffered_bytes += batch.nbytes
        if self.buffered_bytes >= BUFFERED_BYTES_MAX:
            self.write()

    def add_table(self, table: pa.Table, file_schema: pa.Schema | None) -> None:
        """Buffer rows of any partitions, with their partition columns.

        *file_schema*: the columns of the files, in order; None: all except those in the folders' names.
        """
        columns = self.layout.partition_columns
        for values, part in partitions(table.combine_chunks(), columns):
            if file_schema is None:
                part = part.drop_columns(list(columns))
            else:
                # An empty text is null here as well; see `partitions`.
                empty = [name for name, value in zip(columns, values, strict=True) if value is None]
                part = conform(part.drop_columns(empty), file_schema)
            for batch in part.to_batches():
                self.add(values, batch)

    def write(self) -> None:
        """Write the buffered rows as a row group of each file, and complete files that are large enough."""
        for partition, file in list(self.files.items()):
            file.write()
            if file.output.tell() >= TARGET_SIZE:
                self.complete.append((file, file.finish()))
                self.name_next_files()
                del self.files[partition]
        self.buffered_bytes = 0

    def complete_files(self) -> None:
        """Write the buffered rows and complete every file; further rows go to others."""
        for partition, file in list(self.files.items()):
            self.complete.append((file, file.finish()))
            del self.files[partition]
        self.name_next_files()
        self.buffered_bytes = 0

    def name_next_files(self) -> None:
        """Give the next files another name."""
        # The last part of a name is that of the attempt.
        self.file_name = f"{self.file_name.rpartition('-')[0]}-{uuid.uuid4().hex[:8]}.parquet"

    def finish(self) -> list[ParquetFile]:
        """Write the rest, force it to disk, and return the files."""
        self.complete_files()
        files = [file for file, _ in self.complete]
        # Force all files together: a disk needs no more time for many small files than for one.
        Files().force_together(
            [file.path for file in files if file.path is not None],
            sorted({folder for file in files for folder in file.changed_folders}),
        )
        return [written for _, written in self.complete]

    def abandon(self) -> None:
        """Remove every file."""
        for file, _ in self.complete:
            file.remove()
        for file in self.files.values():
            file.abandon()


class PartitionFile:
    """One Parquet file that is being written."""

    def __init__(
        self,
        lake: LakeLocation,
        filesystem: Any,
        partition: Partition,
        file_name: str,
        schema: pa.Schema,
        layout: FileLayout,
    ) -> None:
        self.layout = layout
        self.partition = dict(zip(layout.partition_columns, partition, strict=True))
        folders = [folder_name(column, value) for column, value in self.partition.items()]
        self.name = "/".join([*folders, file_name])
        self.lake = lake
        self.path = None if lake.folder is None else lake.folder / self.name
        self.changed_folders = [] if self.path is None else make_folders(self.path, len(folders))
        self.output = filesystem.open_output_stream(self.name)
        self.batches: list[pa.RecordBatch] = []
        has_checksum = layout.checksum and all(has_column(schema, name) for name in layout.checksum)
        self.crc = 0 if has_checksum else None
        self.metadata: list[pq.FileMetaData] = []
        try:
            self.writer = pq.ParquetWriter(
                self.output,
                schema,
                compression=COMPRESSION,
                compression_level=COMPRESSION_LEVEL,
                use_dictionary=[name for name in layout.dictionary if has_column(schema, name)],
                write_statistics=[name for name in layout.statistics if has_column(schema, name)],
                metadata_collector=self.metadata,
            )
        except BaseException:
            # The constructor has already written the first bytes, and no caller knows the file yet.
            self.remove()
            raise

    def add(self, batch: pa.RecordBatch) -> None:
        """Buffer rows."""
        self.batches.append(batch)
        if self.crc is not None:
            self.crc += int(row_crc(*(values_of(batch, name).to_numpy() for name in self.layout.checksum)).sum())

    def write(self) -> None:
        """Write the buffered rows as one row group."""
        if self.batches:
            table = pa.Table.from_batches(self.batches)
            if self.layout.cluster_by:
                table = table.sort_by([(name, "ascending") for name in self.layout.cluster_by])
            self.writer.write_table(table, row_group_size=table.num_rows)
            self.batches = []

    def finish(self) -> ParquetFile:
        """Close the file, which may not be on disk yet."""
        self.write()
        self.writer.close()
        size = self.output.tell()
        # In an object store the file exists only once this returns, and is then complete and durable.
        self.output.close()
        (metadata,) = self.metadata
        lowest, highest, nulls = self.bounds(metadata)
        return ParquetFile(
            self.name,
            size,
            time.time_ns() // 1_000_000,
            metadata.num_rows,
            self.partition,
            lowest,
            highest,
            nulls,
            self.crc,
        )

    def bounds(self, metadata: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
        """Return the lowest and highest values, and the number of nulls, by which lake readers skip files."""
        lowest: dict[str, Any] = {}
        highest: dict[str, Any] = {}
        nulls: dict[str, int] = {}
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        for number in range(metadata.num_columns):
            name = metadata.schema.column(number).path
            if name not in self.layout.statistics:
                continue
            if name == self.layout.store_time and None in self.partition.values():
                continue
            found = [group.column(number).statistics for group in groups]
            if all(statistics is not None and statistics.has_min_max for statistics in found):
                lowest[name] = min(statistics.min for statistics in found)
                highest[name] = max(statistics.max for statistics in found)
                nulls[name] = sum(statistics.null_count for statistics in found)
        return lowest, highest, nulls

    def abandon(self) -> None:
        """Remove the file."""
        # Closing the writer, or its destructor, would write bytes again that the disk may just have refused.
        self.writer.is_open = False
        self.remove()

    def remove(self) -> None:
        """Close the output stream and remove the partial file."""
        with contextlib.suppress(OSError):
            self.output.close()
        self.lake.remove([self.name])


def has_column(schema: pa.Schema, name: str) -> bool:
    """Return whether *schema* has a column, or a field of a struct column, of that name."""
    column, _, field = name.partition(".")
    at = schema.get_field_index(column)
    return at >= 0 and (not field or schema.field(at).type.get_field_index(field) >= 0)


def values_of(rows: pa.Table | pa.RecordBatch, name: str) -> pa.Array | pa.ChunkedArray:
    """Return the values of a column, or of the field of a struct (``column.field``)."""
    column, _, field = name.partition(".")
    return pc.struct_field(rows[column], field) if field else rows[column]


def folder_name(column: str, value: str | None) -> str:
    """Return ``column=value`` as Hive and Spark write it.

    A value that is too long for a folder name is cut and made unique by its digest. Lake readers take the value from
    the transactions, so only code that parses folder names sees the difference.
    """
    if not value:
        return f"{column}={NULL_PARTITION}"
    name = f"{column}=" + "".join(f"%{ord(letter):02X}" if letter in ESCAPED else letter for letter in value)
    encoded = name.encode()
    if len(encoded) <= FOLDER_NAME_SIZE_MAX:
        return name
    digest = "-" + hashlib.sha256(encoded).hexdigest()[:16]
    return encoded[: FOLDER_NAME_SIZE_MAX - len(digest)].decode("utf-8", "ignore") + digest


def make_folders(path: Path, depth: int) -> list[Path]:
    """Make the *depth* folders of a file's partition, and return the folders that get a new entry."""
    changed = [path.parent]
    if not path.parent.exists():
        changed += list(path.parents)[1 : depth + 1]
        path.parent.mkdir(parents=True, exist_ok=True)
    return changed

"""Files of the typed tables: one range of the log, read once, decoded for each table and written by one worker."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput.table import BadRange, LogTable, RowFilter, TableOptions
from reput.table.batch_decoder import BatchDecoder
from reput.table.record_parts import RecordParts
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_marks import LogColumns
from reput_plugins.spark_export.lakes.lake_table import ParquetFile
from reput_plugins.spark_export.parquet_files import (
    CRC_COLUMNS,
    FOLDER_NAME_SIZE_MAX,
    NULL_PARTITION,
    STORE_COLUMN,
    FileLayout,
    PartitionWriters,
)
from reput_plugins.spark_export.typed.bodies.body_decoders import make_decoder
from reput_plugins.spark_export.typed.bodies.decoding import Decoded
from reput_plugins.spark_export.typed.column_types import conform
from reput_plugins.spark_export.typed.keyed_rows import DELETED, refuse_null_keys, tombstones
from reput_plugins.spark_export.typed.resolved_table import ResolvedTable
from reput_plugins.spark_export.typed.table_specs import DATE_COLUMN, KEY_COLUMN, TableSpec
from reput_plugins.spark_export.typed.typed_lake import STATISTICS_OF_LOG

__all__ = ["DEAD_SCHEMA", "LOG_STRUCT", "TablePlan", "has_tag", "log_columns", "log_fields", "write_tables"]

LOG_STRUCT = "_log"
DEAD_LOG_COLUMNS = ("topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "bodyCRC", "storeTimestamp")
DEAD_LAYOUT = FileLayout(
    partition_columns=(DATE_COLUMN,),
    dictionary=(STORE_COLUMN, "topic", "queueId", "reason"),
    statistics=STATISTICS_OF_LOG,
)
REPEATED = (STORE_COLUMN, "topic", "queueId", "tags", "flag", "reconsumeTimes", "bornHost", "storeHost")
DATE_TYPE = pa.date32()
YEAR_ONE, YEAR_LAST = -719_162, 2_932_896
DAY_MICROSECONDS = 86_400_000_000
PARTITION_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date)

Array = np.ndarray[Any, Any]

LOG_TYPES = BatchDecoder(TableOptions().row_format).schema
DEAD_SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string()),
        *(LOG_TYPES.field(name) for name in DEAD_LOG_COLUMNS),
        LOG_TYPES.field("body"),
        pa.field(STORE_COLUMN, pa.string()),
        pa.field(DATE_COLUMN, DATE_TYPE),
    ]
)


class TablePlan(msgspec.Struct, frozen=True):
    """What a worker needs for one table.

    Attributes:
        rows: the columns that the worker writes for a body, with the table's types.
        store_name: value of the column ``store`` in its rows.
        store_id, dead_store_id: the store's id in the table, and in the dead letters.
        file_schema, dead_file_schema: the columns of the files, in order; None: those of a Delta table, all except the
            columns in the folders' names.
    """

    table: ResolvedTable
    location: LakeLocation
    dead_location: LakeLocation
    rows: pa.Schema
    store_name: str
    store_id: str
    dead_store_id: str
    file_schema: pa.Schema | None = None
    dead_file_schema: pa.Schema | None = None

    @property
    def spec(self) -> TableSpec:
        """The table as described."""
        return self.table.spec


def log_columns(spec: TableSpec) -> LogColumns:
    """Return under which names the table has the columns of the log."""
    return LogColumns(LOG_STRUCT) if spec.prefix is None else LogColumns(None, spec.prefix)


def log_fields(spec: TableSpec) -> list[pa.Field]:
    """Return the columns of the log, and the date, in a typed table."""
    found = [LOG_TYPES.field(name) for name in spec.log_columns] + [pa.field(STORE_COLUMN, pa.string())]
    if spec.prefix is None:
        found = [pa.field(LOG_STRUCT, pa.struct(found))]
    else:
        found = [field.with_name(spec.prefix + field.name) for field in found]
    if KEY_COLUMN in spec.key_columns:
        found.append(pa.field(KEY_COLUMN, pa.string()))
    return [*found, pa.field(DATE_COLUMN, DATE_TYPE)]


def layout_of(spec: TableSpec) -> FileLayout:
    """Return the layout of the table's files."""
    before = f"{LOG_STRUCT}." if spec.prefix is None else spec.prefix
    return FileLayout(
        # The driver partitions the rows of a keyed table when it merges them.
        partition_columns=() if spec.key_columns else spec.partition_by,
        dictionary=tuple(before + name for name in REPEATED),
        statistics=(*(before + name for name in STATISTICS_OF_LOG), *spec.cluster_by),
        store_time=f"{before}storeTimestamp",
        cluster_by=spec.cluster_by,
        checksum=tuple(before + name for name in CRC_COLUMNS),
    )


def write_tables(
    plans: Sequence[TablePlan], store: str, options: TableOptions, begin: int, until: int, run: str
) -> tuple[list[tuple[list[ParquetFile], list[ParquetFile]]], list[BadRange]]:
    """Write the rows of the records that begin in [begin, until) into files of the tables, and force them to disk.

    Returns:
        For each table, its files and the files of its dead letters; and the damaged ranges that were skipped.

    Raises:
        DamagedStore: some bytes are not records, or fail their CRC, and the options do not allow skipping them.
        DispatcherError: a schema registry does not answer.
        OSError: a file cannot be written. The files of this call are removed.
    """
    log = LogTable(store, options)
    name = f"{begin:020d}-{until:020d}-{run}-{uuid.uuid4().hex[:8]}.parquet"
    files = [TableFiles(plan, options, name) for plan in plans]
    try:
        for parts, rows in log.records(begin, until):
            for table in files:
                table.add(parts, rows)
        return [(table.rows.finish(), table.dead.finish()) for table in files], log.damage
    except BaseException:
        for table in files:
            table.rows.abandon()
            table.dead.abandon()
        raise


class TableFiles:
    """The files of one table and of its dead letters, for one range."""

    def __init__(self, plan: TablePlan, options: TableOptions, file_name: str) -> None:
        spec = plan.spec
        self.plan = plan
        self.spec = spec
        self.decoder = make_decoder(plan.table)
        self.batch_rows = options.batch_rows
        topics = frozenset(spec.all_topics)
        # None: the rows of the log are already those of the table's topics, as where it is the only table.
        self.row_filter = None if options.row_filter.topics == topics else RowFilter(topics=topics)
        more = [*(["tags"] if spec.tags else []), *(["keys"] if spec.key_columns else []), "body"]
        needed = dict.fromkeys((*DEAD_LOG_COLUMNS, *spec.log_columns, *more))
        self.records = BatchDecoder(msgspec.structs.replace(options.row_format, columns=tuple(needed)))
        self.rows = PartitionWriters(plan.location, file_name, layout_of(spec))
        self.dead = PartitionWriters(plan.dead_location, file_name, DEAD_LAYOUT)

    def add(self, parts: RecordParts, chosen: Array) -> None:
        """Write those records of one window that belong to the table."""
        rows = chosen
        if self.row_filter is not None:
            rows = np.intersect1d(self.row_filter.rows(parts), chosen, assume_unique=True)
        for first in range(0, len(rows), self.batch_rows):
            for batch in self.records.decode(parts, rows[first : first + self.batch_rows]):
                self.add_batch(batch)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Write one batch of the log."""
        tags = self.spec.wanted_tags
        if tags is not None:
            batch = batch.filter(has_tag(batch, tags))
        if self.spec.key_columns:
            empty = pc.equal(pc.binary_length(batch["body"]), 0)
            gone = batch.filter(empty)
            if gone.num_rows:
                self.add_decoded(gone, tombstones(gone["keys"], self.spec, self.plan.rows), deleted=True)
            batch = batch.filter(pc.invert(empty))
        if batch.num_rows:
            decoded = refuse_nameless(self.decoder.decode(batch["body"]), self.spec)
            if self.spec.key_columns:
                decoded = refuse_null_keys(decoded, batch["keys"], self.spec)
            self.add_decoded(batch, decoded)

    def add_decoded(self, batch: pa.RecordBatch, decoded: Decoded, deleted: bool = False) -> None:
        """Write the decoded bodies of one batch. *deleted*: the bodies are empty, and remove the rows of their keys."""
        if decoded.refused:
            self.add_dead(batch, decoded.refused)
        if len(decoded.kept):
            self.add_rows(batch, decoded, deleted)

    def add_dead(self, batch: pa.RecordBatch, refused: list[tuple[int, str]]) -> None:
        """Write the bodies that do not fit."""
        found = batch.take(pa.array([number for number, _ in refused]))
        arrays = [
            pa.array([reason for _, reason in refused], pa.string()),
            *(found[name] for name in DEAD_LOG_COLUMNS),
            found["body"],
            pa.repeat(pa.scalar(self.plan.store_name), len(refused)),
            days_of(found["storeTimestamp"]),
        ]
        self.dead.add_table(pa.table(arrays, schema=DEAD_SCHEMA), self.plan.dead_file_schema)

    def add_rows(self, batch: pa.RecordBatch, decoded: Decoded, deleted: bool) -> None:
        """Write the columns of the bodies that fit, beside those of the log."""
        found = batch if len(decoded.kept) == batch.num_rows else batch.take(pa.array(decoded.kept))
        of_log = [found[name] for name in self.spec.log_columns]
        of_log.append(pa.repeat(pa.scalar(self.plan.store_name), found.num_rows))
        fields = log_fields(self.spec)
        if self.spec.prefix is None:
            of_log = [pa.StructArray.from_arrays(of_log, fields=list(fields[0].type))]
        if KEY_COLUMN in self.spec.key_columns:
            of_log.append(found["keys"])
        columns = [*conform(decoded.rows, self.plan.rows).columns, *of_log, days_of(found["storeTimestamp"])]
        table = pa.table(columns, schema=pa.schema([*self.plan.rows, *fields]))
        if self.spec.key_columns:
            table = table.append_column(DELETED, pa.repeat(pa.scalar(deleted), table.num_rows))
            self.rows.add_table(table, None)
        else:
            self.rows.add_table(table, self.plan.file_schema)


def refuse_nameless(decoded: Decoded, spec: TableSpec) -> Decoded:
    """Return *decoded* without the bodies whose texts cannot be part of the name of a partition's folder."""
    for name in spec.partition_by:
        at = decoded.rows.schema.get_field_index(name)
        if at < 0 or not pa.types.is_string(decoded.rows.schema.field(at).type):
            continue
        texts = decoded.rows.column(at)
        # Most texts are far shorter, so few are measured.
        doubtful = pc.fill_null(
            pc.greater(pc.binary_length(texts), (FOLDER_NAME_SIZE_MAX - len(name)) // 3), False
        ).to_numpy()
        # A partition of this name would be that of null, and the Delta library does not find the files beside a tilde.
        reserved = pc.or_(pc.equal(texts, NULL_PARTITION), pc.match_substring(texts, "~"))
        nameless = pc.fill_null(reserved, False).to_numpy().copy()
        for number in np.flatnonzero(doubtful).tolist():
            nameless[number] |= name_size(name, texts[number].as_py()) > FOLDER_NAME_SIZE_MAX
        if nameless.any():
            reason = f"the text is too long, or is no name, for a partition: column={name}"
            refused = [*decoded.refused, *((int(number), reason) for number in decoded.kept[nameless])]
            decoded = Decoded(decoded.rows.filter(pa.array(~nameless)), decoded.kept[~nameless], sorted(refused))
    return decoded


def name_size(column: str, text: str) -> int:
    """Return the bytes of the folder's name ``column=text`` in which the Delta library escapes all but letters."""
    plain = sum(letter.isascii() and letter.isalnum() for letter in column + text)
    return 3 * len(f"{column}={text}".encode()) - 2 * plain


def has_tag(batch: pa.RecordBatch, tags: Sequence[str]) -> pa.BooleanArray:
    """Return for each message of *batch* whether it has one of *tags*."""
    return pc.is_in(batch["tags"], pa.array(tags, pa.string()))


def days_of(store_times: pa.Array) -> pa.Array:
    """Return the days of store times; null for a day that readers cannot represent."""
    days = pc.floor(pc.divide(store_times.cast(pa.int64()).cast(pa.float64()), DAY_MICROSECONDS)).cast(pa.int32())
    held = pc.and_(pc.greater_equal(days, YEAR_ONE), pc.less_equal(days, YEAR_LAST))
    return pc.if_else(held, days, pa.scalar(None, pa.int32())).cast(DATE_TYPE)

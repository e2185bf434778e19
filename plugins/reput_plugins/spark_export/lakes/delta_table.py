"""DeltaTable of a lake: a table of Delta Lake, committed by ``deltalake``, without a JVM.

A recorded number is stored as Delta's ``txn`` action (application id, version), a transaction's info in ``commitInfo``.
The Delta library looks up one application id at a time. To list all of them, this module reads the table's log: its
last checkpoint and the transactions after it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, write_deltalake
from deltalake import Transaction as DeltaTransaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from reput.errors import DispatcherError
from reput.store.disk.files import Files
from reput_plugins.spark_export.lake_location import LAKE_ADVICE, lake_errors, one_line
from reput_plugins.spark_export.lakes.changed_keys import ChangedKeys, columns_in
from reput_plugins.spark_export.lakes.delta_actions import Action, TableState, add_action, commit_actions, state_of
from reput_plugins.spark_export.lakes.delta_deleting import kept_rows
from reput_plugins.spark_export.lakes.delta_marking import (
    FEATURES_KNOWN,
    TIME_FEATURE,
    VECTORS_FEATURE,
    enabling_actions,
    mark_and_add,
    paths_of,
    purge,
    unused_vectors,
)
from reput_plugins.spark_export.lakes.delta_merging import WRITER_PROPERTIES, merge, quoted, sql_name
from reput_plugins.spark_export.lakes.delta_rewriting import rewrite
from reput_plugins.spark_export.lakes.delta_versions import LOG, VERSION_DIGITS, all_files, changes_of, known_versions
from reput_plugins.spark_export.lakes.lake_table import (
    VECTORS_SETTING,
    CommitConflict,
    ParquetFile,
    TableTransaction,
    TableVersion,
    TransactionData,
)
from reput_plugins.spark_export.parquet_files import layout_like

if TYPE_CHECKING:
    from reput_plugins.spark_export.lake_location import LakeLocation

__all__ = ["STATISTICS_SETTING", "DeltaLakeTable", "create_delta_table", "open_delta_table"]

TRANSACTION_LINE = re.compile(rb'\s*\{\s*"txn"')
PARTITION, LOWEST, HIGHEST, NULLS = "partition.", "min.", "max.", "null_count."
# Delta's table property with the names of the columns that have statistics.
STATISTICS_SETTING = "delta.dataSkippingStatsColumns"
STATISTICS_NAME = re.compile("`[^`]*`|[^`,]+")
REFUSED_COMMIT = "the lake refused a commit"
UNREADABLE = "the lake cannot be read"
# As the Delta library does after its own transactions.
CHECKPOINT_INTERVAL = 100


def open_delta_table(location: LakeLocation) -> DeltaLakeTable | None:
    """Return the newest version of the table; None if there is no table yet.

    Raises:
        DispatcherError: the object store does not answer or refuses access, or the table cannot be read.
    """
    try:
        return DeltaLakeTable(location, DeltaTable(location.address, storage_options=location.storage_options))
    except TableNotFoundError:
        return None
    except (OSError, DeltaError) as error:
        raise DispatcherError(
            f"the lake cannot be read: lake={location.address} error={one_line(error)}",
            "Check its address, settings and permissions; the next run continues where the table ends.",
        ) from None


def create_delta_table(
    location: LakeLocation, schema: pa.Schema, partition_columns: Sequence[str], properties: Mapping[str, str]
) -> DeltaLakeTable:
    """Create an empty table, or return the one that another process has just created.

    Raises:
        DispatcherError: it cannot be created.
    """
    with refusals(location, "the lake cannot be created"):
        table = DeltaTable.create(
            location.address,
            schema,
            mode="ignore",
            partition_by=list(partition_columns),
            configuration=dict(properties),
            storage_options=location.storage_options,
            raise_if_key_not_exists=False,
        )
    return DeltaLakeTable(location, table)


class DeltaLakeTable:
    """One version of a Delta table; see `LakeTable`."""

    def __init__(self, location: LakeLocation, delta: DeltaTable) -> None:
        self.location = location
        self.delta = delta
        self.state_found: tuple[int, TableState] | None = None

    def version(self) -> int:
        """Return the table's version."""
        return self.delta.version()

    def update(self) -> None:
        """Load the newest version."""
        self.delta.update_incremental()

    def schema(self) -> pa.Schema:
        """Return the columns."""
        return pa.schema(self.delta.schema().to_arrow())

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns without those in the folders' names."""
        folders = self.partition_columns()
        return pa.schema([field for field in schema if field.name not in folders])

    def partition_columns(self) -> list[str]:
        """Return the partition columns."""
        return list(self.delta.metadata().partition_columns)

    def properties(self) -> Mapping[str, str]:
        """Return the table's configuration."""
        return self.delta.metadata().configuration

    def recorded(self, name: str) -> int | None:
        """Return the version of one application id."""
        return self.delta.transaction_version(name)

    def all_recorded(self) -> dict[str, int]:
        """Return the version of each application id, as the table's log has them now."""
        filesystem = self.location.filesystem()
        names = sorted(info.base_name for info in filesystem.get_file_info(pyarrow.fs.FileSelector(LOG)))
        checkpoints = [name for name in names if name.endswith(".parquet") and ".checkpoint" in name]
        found: dict[str, int] = {}
        checkpointed = max((version_of(name) for name in checkpoints), default=-1)
        for name in checkpoints:
            if version_of(name) == checkpointed:
                rows = pq.read_table(f"{LOG}/{name}", columns=["txn"], filesystem=filesystem)["txn"].to_pylist()
                found.update({row["appId"]: row["version"] for row in rows if row})
        for name in names:
            if name.endswith(".json") and name[:VERSION_DIGITS].isdigit() and version_of(name) > checkpointed:
                found.update(transactions_in(filesystem, f"{LOG}/{name}"))
        return found

    def history(self, count: int | None = None) -> Iterator[TableTransaction]:
        """Yield the newest transactions."""
        entries = self.delta.history(count)
        for number, entry in enumerate(entries, 1):
            yield TableTransaction(
                entry["version"], entry["timestamp"], entry, restored_version(entry, entries[number:])
            )

    def files(self) -> list[ParquetFile]:
        """Return the files from the table's log."""
        rows = pa.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        files = [file_of(row) for row in rows]
        if not self.has_vectors:
            return files
        state = self.state()
        if {file.path for file in files} != set(state.files):
            raise DispatcherError(
                f"{UNREADABLE}: lake={self.location.address} error=its log names other files than the Delta library",
                "See whether another program writes checkpoints of another kind.",
            )
        return [msgspec.structs.replace(file, deletion=state.vector(file.path)) for file in files]

    @property
    def has_vectors(self) -> bool:
        """Whether data files may have deletion vectors."""
        return VECTORS_FEATURE in (self.delta.protocol().reader_features or ())

    def state(self) -> TableState:
        """Return the actions that make up this version."""
        version = self.version()
        if self.state_found is None or self.state_found[0] != version:
            try:
                self.state_found = version, state_of(self.location, version)
            except OSError as error:
                raise DispatcherError(
                    f"{UNREADABLE}: lake={self.location.address} error={one_line(error)}",
                    "Check its address, settings and permissions; the next run continues where the table ends.",
                ) from None
        return self.state_found[1]

    def deleted_row_marks(self) -> str | None:
        """Return the Delta library's sentence about features of tables that it lacks; vectors in files are known."""
        if self.has_vectors:
            unknown = sorted({*(self.delta.protocol().reader_features or ())} - FEATURES_KNOWN)
            elsewhere = sum(file.deletion is not None and file.deletion.path is None for file in self.files())
            if elsewhere:
                return f"deletion vectors of {elsewhere} files lie elsewhere"
            return f"the table has the features {', '.join(unknown)}" if unknown else None
        try:
            self.delta.to_pyarrow_dataset()
        except DeltaProtocolError as error:
            return one_line(error)
        return None

    def dataset(self, columns: Sequence[str] | None = None) -> ds.Dataset:
        """Return the rows.

        The library treats bounds that a file does not have as null. A filter on a column without statistics would then
        skip every file, so this method builds the conditions for skipping files itself.
        """
        files, filesystem = self.files(), self.location.filesystem()
        if any(file.deletion is not None for file in files):
            schema = self.schema() if columns is None else columns_in(self.schema(), columns)
            rows = [rows for file in files for rows in kept_rows(self.location, file, schema, columns)]
            return ds.dataset(pa.concat_tables(rows))
        kind, schema = ds.ParquetFileFormat(), self.schema()
        if not self.has_vectors:
            found = self.delta.to_pyarrow_dataset()
            kind, schema = found.format, found.schema
        fragments = [
            kind.make_fragment(file.path, filesystem, partition_expression=condition_of(file, schema)) for file in files
        ]
        return ds.FileSystemDataset(fragments, schema, kind, filesystem)

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns in a transaction of their own."""
        fields = list(Schema.from_arrow(schema).fields)
        with refusals(self.location, "the lake cannot be extended with columns", f" columns={','.join(schema.names)}"):
            self.delta.alter.add_columns(fields)
        self.force_commits()
        self.update()

    def append(self, files: Sequence[ParquetFile], schema: pa.Schema, transaction: TransactionData) -> None:
        """Add files in one transaction."""
        actions: list[AddAction | RemoveAction] = list(map(add_action, files))
        with refusals(self.location, REFUSED_COMMIT):
            self.delta.create_write_transaction(
                actions, "append", schema, self.partition_columns(), commit_properties=properties_of(transaction)
            )
        self.force_commits()

    def delete_rows(
        self, from_offset: int, offset_column: str, equal: Mapping[str, str], transaction: TransactionData
    ) -> None:
        """Delete rows. Files that keep some of their rows are rewritten."""
        conditions = [f"{sql_name(offset_column)} >= {from_offset}"]
        conditions += [f"{sql_name(name)} = {quoted(value)}" for name, value in equal.items()]
        with refusals(self.location, REFUSED_COMMIT):
            self.delta.delete(
                " and ".join(conditions),
                writer_properties=WRITER_PROPERTIES,
                commit_properties=properties_of(transaction),
            )
        self.force_commits()
        self.record(transaction)

    def merge_rows(
        self,
        rows: pa.Table,
        key: Sequence[str],
        equal: Mapping[str, str],
        deleted: str,
        statistics: Sequence[str],
        transaction: TransactionData,
    ) -> None:
        """Merge rows. Without deletion vectors, a property of the table names the columns with statistics."""
        if self.properties().get(VECTORS_SETTING) == "true":
            with lake_errors(self.location.address):
                mark_and_add(self, rows, ChangedKeys(rows, key, equal), deleted, statistics, transaction)
            return
        before = self.version()
        with refusals(self.location, REFUSED_COMMIT):
            merge(self.delta, rows, key, equal, deleted, properties_of(transaction))
        self.record(transaction)
        self.force_files(before)
        self.force_commits()

    def commit_own(
        self, operation: str, actions: Sequence[Action], transaction: TransactionData, written: Sequence[str]
    ) -> None:
        """Make the next transaction without the Delta library; remove the files *written* for it if it is not made."""
        version = self.version() + 1
        try:
            commit_actions(self.location, version, operation, actions, transaction.info, transaction.recorded)
        except CommitConflict:
            self.location.remove(list(written))
            raise
        self.update()
        if version % CHECKPOINT_INTERVAL == 0:
            with refusals(self.location, REFUSED_COMMIT):
                self.delta.create_checkpoint()
                self.delta.cleanup_metadata()

    def enable_deletion_vectors(self) -> None:
        """Add the table's feature and its setting in one transaction, if they are missing."""
        if self.properties().get(VECTORS_SETTING) != "true":
            with lake_errors(self.location.address):
                self.commit_own("SET TBLPROPERTIES", enabling_actions(self), TransactionData({}), [])

    def record(self, transaction: TransactionData) -> None:
        """Load the newest version; make *transaction* without rows if the Delta library, for want of a row, did not."""
        self.update()
        if any(self.recorded(name) != number for name, number in transaction.recorded.items()):
            self.append([], self.schema(), transaction)

    def add_fields(self, schema: pa.Schema) -> None:
        """Add columns and fields of structs in a transaction of their own."""
        with refusals(self.location, "the lake cannot be extended with columns", f" columns={','.join(schema.names)}"):
            # When no rows are added, the Delta library adds missing columns, also inside of structs.
            write_deltalake(self.delta, schema.empty_table(), mode="append", schema_mode="merge")
        self.force_commits()
        self.update()

    def widen(self, schema: pa.Schema) -> None:
        """Write every file anew with the columns of *schema*, and exchange all files in one transaction.

        Not all readers of Delta tables know the feature "type widening", which would leave the files as they are.
        """
        what = "the types of the lake's columns cannot be widened"
        marks = self.deleted_row_marks()
        if marks is not None:
            raise DispatcherError(
                f"{what}: lake={self.location.address} error={marks}", "Rewrite the table without them."
            )
        with refusals(self.location, what):
            features = self.delta.protocol().writer_features or []
            if any(map(has_time_without_zone, schema.types)) and TIME_FEATURE not in features:
                feature = TableFeatures.TimestampWithoutTimezone
                self.delta.alter.add_feature(feature, allow_protocol_versions_increase=True)
                self.update()
            written: list[ParquetFile] = []
            try:
                with lake_errors(self.location.address):
                    names = STATISTICS_NAME.findall(self.properties().get(STATISTICS_SETTING, ""))
                    names = [name.strip("`") for name in names]
                    layout = layout_like(schema, self.partition_columns(), names, self.properties())
                    columns = self.file_schema(schema)
                    written += (rewrite(self.location, file, columns, layout) for file in self.files())
            except BaseException:
                self.location.remove([file.path for file in written])
                raise
            try:
                self.delta.create_write_transaction(
                    list(map(add_action, written)),
                    "overwrite",
                    schema,
                    self.partition_columns(),
                    # A retry would keep files that another exporter has just added with the old types.
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except BaseException as error:
                # An object store may have made the transaction, lost the answer, and refused it when its client sent it
                # once more. A transaction without any answer may still be made.
                if isinstance(error, CommitFailedError) or not self.location.may_commit_late:
                    self.remove_unnamed(written)
                raise
        self.force_commits()
        self.update()

    def remove_unnamed(self, files: Sequence[ParquetFile]) -> None:
        """Remove those of *files* that the newest version does not name."""
        self.update()
        named = {file.path for file in self.files()}
        self.location.remove([file.path for file in files if file.path not in named])

    def merge_files(self, day: str | None, target_size: int, date_column: str = "date") -> int:
        """Merge the small files of one day, or of all."""
        with refusals(self.location, "the files of the lake cannot be merged"):
            metrics = self.delta.optimize.compact(
                partition_filters=None if day is None else [(date_column, "=", day)],
                target_size=target_size,
                writer_properties=WRITER_PROPERTIES,
            )
        self.update()
        return int(metrics["numFilesRemoved"]) + purge(self, None if day is None else (date_column, day))

    def trim_history(self) -> None:
        """Do nothing: Delta's log has one file per transaction, and the library removes old files after checkpoints."""

    def unnamed_files(self, hours: int) -> list[str]:
        """Return the files that the Delta library would vacuum."""
        with refusals(self.location, "the files of the lake cannot be merged"):
            unnamed = self.delta.vacuum(
                retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True
            )
            # The library also names files that are gone already, for as long as the table's log remembers them.
            there = {info.path: info.mtime for info in all_files(self.location.filesystem())}
        found = [name for name in unnamed if name in there]
        if self.has_vectors:
            found += unused_vectors(self.state(), there, time.time() - hours * 3600)
        return found

    def versions(self, going: Collection[str]) -> Iterator[TableVersion]:
        """Yield the versions that the table's log still describes."""
        files = self.files()
        named = [file.path for file in files]
        named += paths_of([file.deletion for file in files if file.deletion is not None])
        with refusals(self.location, "the versions of the lake cannot be listed"):
            yield from known_versions(self.location.filesystem(), self.version(), named, going)

    def force_files(self, version: int) -> None:
        """Force the files that transactions after *version* added to disk, because the Delta library does not do it.

        An object store makes its files durable itself.
        """
        folder = self.location.folder
        if folder is None:
            return
        filesystem = self.location.filesystem()
        added: set[str] = set()
        for number in range(version + 1, self.version() + 1):
            added |= changes_of(filesystem, f"{LOG}/{number:0{VERSION_DIGITS}}.json").added
        # A file that another process has merged and removed meanwhile need not be durable.
        paths = [folder / name for name in sorted(added) if (folder / name).exists()]
        Files().force_together(paths, sorted({path.parent for path in paths}))

    def force_commits(self) -> None:
        """Force the table's newest transaction to disk, so that it is durable when reported so.

        An object store makes its files durable itself.
        """
        if self.location.folder is None:
            return
        directory = self.location.folder / LOG
        newest = max((name for name in os.listdir(directory) if name.endswith(".json")), default=None)
        Files().force_together([] if newest is None else [directory / newest], [directory])


@contextmanager
def refusals(location: LakeLocation, what: str, more: str = "") -> Iterator[None]:
    """Turn errors of the Delta library inside the block into errors of one sentence.

    Raises:
        DispatcherError: the lake cannot be written.
        CommitConflict: another transaction came first.
    """
    try:
        yield
    except CommitFailedError as error:
        raise CommitConflict(one_line(error)) from None
    except (OSError, DeltaError) as error:
        # deltalake raises its own errors for a full or read-only disk.
        raise DispatcherError(f"{what}: lake={location.address}{more} error={one_line(error)}", LAKE_ADVICE) from None


def restored_version(entry: Mapping[str, Any], older: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the version to which a transaction restored the table; None: to none, or to one that is not in *older*."""
    if entry.get("operation") != "RESTORE":
        return None
    # The Delta library writes all parameters as texts.
    parameters = entry.get("operationParameters", {})
    if "version" in parameters:
        return int(parameters["version"])
    until = int(parameters.get("datetime", 0))
    return next((found["version"] for found in older if found["timestamp"] <= until), None)


def properties_of(transaction: TransactionData) -> CommitProperties:
    """Return a transaction's numbers and info in Delta's form."""
    return CommitProperties(
        custom_metadata=dict(transaction.info),
        app_transactions=[DeltaTransaction(name, number) for name, number in transaction.recorded.items()],
    )


def has_time_without_zone(kind: pa.DataType) -> bool:
    """Return whether a type is a time without a zone, or has one in it."""
    if pa.types.is_nested(kind):
        return any(has_time_without_zone(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind) and kind.tz is None)


def file_of(row: Mapping[str, Any]) -> ParquetFile:
    """Return a file from the row in which the library describes it."""

    def named(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}

    partition = {name: None if value is None else str(value) for name, value in named(PARTITION).items()}
    lowest, highest = named(LOWEST), named(HIGHEST)
    # Transactions hold the paths escaped as in URLs.
    return ParquetFile(
        unquote(row["path"]),
        row["size_bytes"],
        row["modification_time"],
        row["num_records"],
        partition,
        {name: value for name, value in lowest.items() if value is not None},
        {name: value for name, value in highest.items() if value is not None},
        {name: value for name, value in named(NULLS).items() if value is not None},
    )


def condition_of(file: ParquetFile, schema: pa.Schema) -> Any:
    """Return a condition that all rows of a file meet, from the values in its path and the bounds of its numbers."""
    met = ds.scalar(True)
    for name, text in file.partition.items():
        value = pa.scalar(text, pa.string()).cast(schema.field(name).type)
        met &= ds.field(name).is_null() if text is None else ds.field(name) == value
    for name, lowest in file.minimum.items():
        at = schema.get_field_index(name)
        has_bounds = name in file.maximum and file.null_count.get(name) == 0
        # A point stands before the field of a struct. Texts may be cut short, and times are cut to milliseconds.
        if at >= 0 and has_bounds and pa.types.is_integer(schema.field(at).type):
            met &= (ds.field(name) >= lowest) & (ds.field(name) <= file.maximum[name])
    return met


def version_of(name: str) -> int:
    """Return the table version of a file of the table's log."""
    return int(name[:VERSION_DIGITS])


def transactions_in(filesystem: Any, name: str) -> Iterator[tuple[str, int]]:
    """Yield the (application id, version) entries of one transaction of the table."""
    with filesystem.open_input_stream(name) as stream:
        # Each line is an object with one key. Most describe files, whose statistics need not be decoded.
        for line in stream.read().splitlines():
            if TRANSACTION_LINE.match(line):
                found = msgspec.json.decode(line)["txn"]
                yield found["appId"], found["version"]

"""IcebergTable of a lake: a table of Apache Iceberg, committed by ``pyiceberg``, without a JVM.

Iceberg has no place for an application's own numbers, so each snapshot's summary carries all of them:

    reput.recorded    JSON: every recorded number by name, as it is after this snapshot
    reput.info        JSON: the info of the transaction
    (both are also properties of the table, in case another program expires the snapshots)

A commit replaces the table's metadata in the catalog once. It requires that the current snapshot is still the one whose
recorded numbers were compared with the range, so a range is never added twice.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BooleanType, DateType, PrimitiveType, StringType, TimestamptzType
from pyiceberg.utils.datetime import datetime_to_micros, days_to_date, micros_to_timestamptz
from sqlalchemy.exc import SQLAlchemyError

from reput.errors import ConfigError, DispatcherError, ReputError
from reput_plugins.spark_export.lake_location import LAKE_ADVICE, LakeLocation, lake_errors, one_line
from reput_plugins.spark_export.lakes.changed_keys import ChangedKeys
from reput_plugins.spark_export.lakes.iceberg_catalog import open_catalog, refuse_another_catalog, table_name
from reput_plugins.spark_export.lakes.iceberg_columns import arrow_columns, columns_of_files
from reput_plugins.spark_export.lakes.iceberg_merging import holds_key, write_rows
from reput_plugins.spark_export.lakes.iceberg_rewriting import Choose, rewrite
from reput_plugins.spark_export.lakes.lake_table import (
    CommitConflict,
    ParquetFile,
    TableTransaction,
    TableVersion,
    TransactionData,
)

__all__ = ["IcebergLakeTable", "create_iceberg_table", "open_iceberg_table"]

RECORDED, INFO = "reput.recorded", "reput.info"
# Properties of a new table. Each commit reads the list of manifests and rewrites the metadata, so both stay short.
PROPERTIES = {
    "format-version": "2",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}
SNAPSHOTS_MAX = 100
MOVED = "the table of the catalog lies elsewhere"
MOVED_ADVICE = "An Iceberg table cannot be moved. Name its own location, or another table of the catalog."
RETRIES = "commit.retry.num-retries"
KNOWN_ERRORS = (OSError, RESTError, ForbiddenError, NoSuchTableError, SQLAlchemyError, pa.ArrowException)
NAMES_KEPT = "the next run continues where the table ends."


def open_iceberg_table(location: LakeLocation) -> IcebergLakeTable | None:
    """Return the newest snapshot of the table; None if there is no table yet.

    Raises:
        DispatcherError: the catalog does not answer or refuses access, or the table cannot be read.
        ConfigError: the catalog is unknown, its table lies elsewhere, or the location has a table of another catalog.
    """
    with refusals(location, "the lake cannot be read", f"Check its address, catalog and permissions; {NAMES_KEPT}"):
        catalog = open_catalog(location, create=False)
        if catalog is None:
            refuse_another_catalog(location)
            return None
        try:
            table = catalog.load_table(table_name(location))
        except (NoSuchTableError, NoSuchNamespaceError):
            catalog.close()
            refuse_another_catalog(location)
            return None
        except FileNotFoundError as error:
            catalog.close()
            raise ConfigError(
                f"{MOVED}: lake={location.address} table={table_name(location)} error={one_line(error)}", MOVED_ADVICE
            ) from None
    return of_catalog(location, catalog, table)


def create_iceberg_table(
    location: LakeLocation, schema: pa.Schema, partition_columns: Sequence[str], properties: Mapping[str, str]
) -> IcebergLakeTable:
    """Create an empty table, or return the one that another process has just created.

    Raises:
        DispatcherError: it cannot be created.
    """
    name = table_name(location)
    with refusals(location, "the lake cannot be created"):
        catalog = open_catalog(location, create=True)
        assert catalog is not None
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        with contextlib.suppress(TableAlreadyExistsError):
            transaction = catalog.create_table_transaction(
                name, schema, location=location.address, properties={**PROPERTIES, **properties}
            )
            with transaction, transaction.update_spec() as spec:
                for name_of_column in partition_columns:
                    spec.add_field(name_of_column, IdentityTransform(), name_of_column)
        table = catalog.load_table(name)
    return of_catalog(location, catalog, table)


def of_catalog(location: LakeLocation, catalog: Catalog, table: Table) -> IcebergLakeTable:
    """Return a table of a catalog.

    Raises:
        ConfigError: the table does not lie at *location*.
    """
    # The catalog opens its connections again when it needs them.
    catalog.close()
    kept = table.location().removeprefix("file://").rstrip("/")
    if kept != location.address:
        raise ConfigError(
            f"{MOVED}: lake={location.address} table={table_name(location)} location={kept}", MOVED_ADVICE
        )
    return IcebergLakeTable(location, catalog, table)


class IcebergLakeTable:
    """One snapshot of an Iceberg table; see `LakeTable`."""

    def __init__(self, location: LakeLocation, catalog: Catalog, table: Table) -> None:
        self.location = location
        self.catalog = catalog
        self.table = table

    def version(self) -> int:
        """Return the snapshot's sequence number, 0 without one."""
        snapshot = self.table.current_snapshot()
        return 0 if snapshot is None else snapshot.sequence_number or 0

    def update(self) -> None:
        """Load the newest snapshot."""
        with self.refusals("the lake cannot be read"):
            self.table.refresh()

    def schema(self) -> pa.Schema:
        """Return the columns."""
        return arrow_columns(self.table.schema(), with_ids=False)

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return *schema* with the ids of the table's columns, by which readers find them in files."""
        return columns_of_files(self.table.schema(), schema)

    def partition_columns(self) -> list[str]:
        """Return the partition columns. A transformed one has a name that differs from all columns of reput."""
        schema, spec = self.table.schema(), self.table.spec()
        return [
            schema.find_column_name(field.source_id) or field.name
            if isinstance(field.transform, IdentityTransform)
            else f"{field.transform}({schema.find_column_name(field.source_id)})"
            for field in spec.fields
        ]

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""
        return self.table.properties

    def recorded(self, name: str) -> int | None:
        """Return one recorded number."""
        return self.all_recorded().get(name)

    def all_recorded(self) -> dict[str, int]:
        """Return the numbers of the newest snapshot that carries them.

        Snapshots of other programs, for example of a merge, carry no numbers. After a rollback, the numbers are those
        of the snapshot that is current again.
        """
        for snapshot in self.snapshots():
            if snapshot.summary is not None and RECORDED in snapshot.summary.additional_properties:
                return dict(json.loads(snapshot.summary.additional_properties[RECORDED]))
        return dict(json.loads(self.table.properties.get(RECORDED, "{}")))

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield the current snapshot and its ancestors."""
        snapshot = self.table.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self.table.snapshot_by_id(parent)

    def history(self, count: int | None = None) -> Iterator[TableTransaction]:
        """Yield the newest transactions."""
        for number, snapshot in enumerate(self.snapshots()):
            if count is not None and number >= count:
                return
            kept = {} if snapshot.summary is None else snapshot.summary.additional_properties
            yield TableTransaction(
                snapshot.sequence_number or 0, snapshot.timestamp_ms, json.loads(kept.get(INFO, "{}"))
            )

    def tasks(self) -> list[FileScanTask]:
        """Return the data files of this snapshot, with the delete files that apply to each."""
        with self.refusals("the lake cannot be read"):
            return list(self.table.scan().plan_files())

    def files(self) -> list[ParquetFile]:
        """Return the files from the table's manifests."""
        return [self.file_of(task.file) for task in self.tasks()]

    def file_of(self, file: DataFile) -> ParquetFile:
        """Return one file in plain values."""
        schema, spec = self.table.schema(), self.table.specs()[file.spec_id]
        partition: dict[str, str | None] = {}
        for place, field in enumerate(spec.fields):
            value = file.partition[place]
            if value is not None and isinstance(schema.find_type(field.source_id), DateType):
                value = value if isinstance(value, date) else days_to_date(value)
            partition[field.name] = None if value is None else str(value)

        def bounds(encoded: Mapping[int, bytes] | None) -> dict[str, Any]:
            found = {}
            for field_id, data in (encoded or {}).items():
                kind = schema.find_type(field_id)
                assert isinstance(kind, PrimitiveType)
                value: Any = from_bytes(kind, data)
                name = schema.find_column_name(field_id) or ""
                found[name] = micros_to_timestamptz(value) if isinstance(kind, TimestamptzType) else value
            return found

        nulls = {schema.find_column_name(key) or "": count for key, count in (file.null_value_counts or {}).items()}
        name = self.relative(file.file_path)
        return ParquetFile(
            file.file_path if name is None else name,
            file.file_size_in_bytes,
            0,
            file.record_count,
            partition,
            bounds(file.lower_bounds),
            bounds(file.upper_bounds),
            nulls,
        )

    def relative(self, path: str) -> str | None:
        """Return a path relative to the lake; None if the path is not in the lake."""
        plain = path.removeprefix("file://")
        return (
            plain.removeprefix(f"{self.location.address}/") if plain.startswith(f"{self.location.address}/") else None
        )

    def deleted_row_marks(self) -> str | None:
        """Return the number of delete files."""
        count = sum(len(task.delete_files) for task in self.tasks())
        return f"the table has {count} delete files" if count else None

    def dataset(self, columns: Sequence[str] | None = None) -> ds.Dataset:
        """Return the rows; files are read by Arrow, unless another program has deleted single rows in them."""
        tasks, schema = self.tasks(), self.schema()
        files = [self.file_of(task.file) for task in tasks]
        if any(task.delete_files for task in tasks) or any("://" in file.path for file in files):
            with self.refusals("the lake cannot be read"):
                return ds.dataset(self.table.scan().to_arrow().cast(schema))
        kind, filesystem = ds.ParquetFileFormat(), self.location.filesystem()
        fragments = [kind.make_fragment(file.path, filesystem, partition_expression=within(file)) for file in files]
        return ds.FileSystemDataset(fragments, schema, kind, filesystem)

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns in a transaction of their own."""
        with self.refusals("the lake cannot be extended with columns"), self.table.update_schema() as update:
            update.union_by_name(schema)

    def enable_deletion_vectors(self) -> None:
        """Refuse: merges into an Iceberg table write files anew."""
        raise ConfigError(
            f"an Iceberg table cannot have deletion vectors: lake={self.location.address}",
            "Leave out deletion_vectors, or export into a folder of Delta tables.",
        )

    def add_fields(self, schema: pa.Schema) -> None:
        """Add columns, and fields of structs, in a transaction of their own."""
        self.add_columns(schema)

    def widen(self, schema: pa.Schema) -> None:
        """Promote the types in a transaction of their own. Readers convert the values of older files."""
        self.add_columns(schema)

    def append(self, files: Sequence[ParquetFile], schema: pa.Schema, transaction: TransactionData) -> None:
        """Add files in one snapshot. Manifests are merged meanwhile, so that their number stays low."""
        added = [self.data_file(file) for file in files]

        def add(update: Any) -> Any:
            producer = update.merge_append()
            for file in added:
                producer.append_data_file(file)
            return producer

        self.commit(transaction, add)

    def delete_rows(
        self, from_offset: int, offset_column: str, equal: Mapping[str, str], transaction: TransactionData
    ) -> None:
        """Delete rows in one snapshot. Files that keep some of their rows are rewritten."""

        gone = column(offset_column) >= from_offset
        for name, value in equal.items():
            gone &= column(name) == value
        wanted = []
        for task in self.tasks():
            file = self.file_of(task.file)
            reaches = file.maximum.get(offset_column, from_offset) >= from_offset
            holds = all(
                file.minimum.get(name, value) <= value <= file.maximum.get(name, value) for name, value in equal.items()
            )
            if reaches and holds:
                wanted.append([task])
        stays = ~pc.coalesce(gone, ds.scalar(False))
        self.replace(wanted, transaction, lambda rows: rows.filter(stays))

    def merge_rows(
        self,
        rows: pa.Table,
        key: Sequence[str],
        equal: Mapping[str, str],
        deleted: str,
        statistics: Sequence[str],
        transaction: TransactionData,
    ) -> None:
        """Merge rows in one snapshot. Files that hold one of the keys are rewritten without the replaced rows."""
        changed = ChangedKeys(rows, key, equal)
        new = rows.filter(pc.invert(rows[deleted])).drop_columns([deleted])
        with lake_errors(self.location.address):
            holding = [
                [task]
                for task in self.tasks()
                if changed.may_be_in(self.file_of(task.file)) and holds_key(self.table, task, changed)
            ]
            added = write_rows(self.location, self.table, new, self.partition_columns(), statistics)
        self.replace(holding, transaction, changed.without, added)

    def merge_files(self, day: str | None, target_size: int, date_column: str = "date") -> int:
        """Merge small files of one day or of all days, separately for each value of the other partition columns."""
        groups: dict[tuple[str | None, ...], list[FileScanTask]] = {}
        for task in self.tasks():
            partition = self.file_of(task.file).partition
            if day in (None, partition.get(date_column)) and task.file.file_size_in_bytes < target_size // 2:
                groups.setdefault(tuple(partition.values()), []).append(task)
        bins = [found for group in groups.values() for found in packed(group, target_size) if len(found) > 1]
        if bins:
            self.replace(bins, TransactionData({}), None)
        return sum(len(found) for found in bins)

    def replace(
        self,
        groups: Sequence[Sequence[FileScanTask]],
        transaction: TransactionData,
        kept: Choose | None,
        more: Sequence[ParquetFile] = (),
    ) -> None:
        """Rewrite each group of files as one file with the rows that *kept* chooses, and exchange them in one snapshot.

        *more*: further files that the snapshot adds; they are removed if it is refused.
        """
        written = list(more)
        try:
            with lake_errors(self.location.address):
                for group in groups:
                    first = self.file_of(group[0].file)
                    file = rewrite(self.location, self.table, group, first, kept)
                    written += [] if file is None else [file]
            added = [self.data_file(file) for file in written]

            def exchange(update: Any) -> Any:
                producer = update.overwrite() if groups else update.merge_append()
                for group in groups:
                    for task in group:
                        producer.delete_data_file(task.file)
                for file in added:
                    producer.append_data_file(file)
                return producer

            self.commit(transaction, exchange)
        except CommitConflict:
            # A catalog's answer may have been lost, and the transaction sent once more.
            table = open_iceberg_table(self.location)
            named = set() if table is None else {file.path for file in table.files()}
            self.location.remove([file.path for file in written if file.path not in named])
            raise

    def commit(self, transaction: TransactionData, change: Callable[[Any], Any]) -> None:
        """Make one snapshot, provided that the loaded snapshot is still the current one."""
        recorded = json.dumps({**self.all_recorded(), **transaction.recorded})
        summary = {RECORDED: recorded, INFO: json.dumps(dict(transaction.info))}
        with self.refusals("the lake refused a commit"):
            # pyiceberg would repeat an append on top of another exporter's, and add the same rows twice. It looks at
            # this property of the loaded table; the stored one stays as it is.
            self.table.metadata.properties[RETRIES] = "0"
            pending = self.table.transaction()
            change(pending.update_snapshot(snapshot_properties=summary)).commit()
            pending.set_properties({RECORDED: recorded})
            pending.commit_transaction()

    def trim_history(self) -> None:
        """Forget the oldest snapshots, because each commit rewrites the list of all snapshots."""
        old = sorted(self.table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)[:-SNAPSHOTS_MAX]
        held = {ref.snapshot_id for ref in self.table.refs().values()}
        gone = [snapshot.snapshot_id for snapshot in old if snapshot.snapshot_id not in held]
        if gone:
            with self.refusals("the history of the lake cannot be shortened"):
                self.table.maintenance.expire_snapshots().by_ids(gone).commit()

    def unnamed_files(self, hours: int) -> list[str]:
        """Return files that no remaining snapshot names."""
        named = {self.relative(self.table.metadata_location)}
        named |= {self.relative(entry.metadata_file) for entry in self.table.metadata.metadata_log}
        with self.refusals("the lake cannot be read"):
            for snapshot in self.table.snapshots():
                named.add(self.relative(snapshot.manifest_list))
                for manifest in snapshot.manifests(self.table.io):
                    if self.relative(manifest.manifest_path) not in named:
                        named.add(self.relative(manifest.manifest_path))
                        entries = manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
                        named |= {self.relative(entry.data_file.file_path) for entry in entries}
        limit = time.time() - hours * 3600
        found = self.location.filesystem().get_file_info(pa.fs.FileSelector("", recursive=True))
        # A table under construction has a draft of these files as well; they are far younger than the limit.
        return [
            entry.path
            for entry in found
            if entry.is_file and entry.path not in named and entry.mtime.timestamp() < limit
        ]

    def versions(self, going: Collection[str]) -> Iterator[TableVersion]:
        """Yield the remaining snapshots. No snapshot names an unnamed file, so every snapshot stays readable."""
        for entry in self.history():
            yield TableVersion(entry.version, entry.timestamp_ms, readable=True, stays=True)

    def data_file(self, file: ParquetFile) -> DataFile:
        """Return a file in the form in which manifests describe it."""
        schema, spec = self.table.schema(), self.table.spec()

        def encoded(bounds: Mapping[str, Any]) -> dict[int, bytes]:
            kinds: dict[str, Any] = {name: schema.find_type(name) for name in bounds}
            return {
                schema.find_field(name).field_id: to_bytes(kinds[name], number(value)) for name, value in bounds.items()
            }

        values = []
        for field in spec.fields:
            text = file.partition[schema.find_column_name(field.source_id) or field.name]
            values.append(partition_value(text, schema.find_type(field.source_id)))
        nulls = {schema.find_field(name).field_id: count for name, count in file.null_count.items()}
        found = DataFile.from_args(
            _table_format_version=self.table.format_version,
            content=DataFileContent.DATA,
            file_path=f"{self.location.address}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            record_count=file.row_count,
            file_size_in_bytes=file.size,
            column_sizes={},
            value_counts=dict.fromkeys(nulls, file.row_count),
            null_value_counts=nulls,
            nan_value_counts={},
            lower_bounds=encoded(file.minimum),
            upper_bounds=encoded(file.maximum),
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
        )
        found.spec_id = spec.spec_id
        return found

    @contextmanager
    def refusals(self, what: str) -> Iterator[None]:
        """As the function `refusals`; then also close the catalog's connections."""
        try:
            with refusals(self.location, what):
                yield
        finally:
            self.catalog.close()


@contextmanager
def refusals(location: LakeLocation, what: str, advice: str = LAKE_ADVICE) -> Iterator[None]:
    """Turn errors of pyiceberg inside the block into errors of one sentence.

    Raises:
        DispatcherError: the lake or its catalog cannot be read or written.
        CommitConflict: another snapshot came first.
    """
    try:
        yield
    except (CommitFailedException, ValidationException) as error:
        raise CommitConflict(one_line(error)) from None
    except (ReputError, CommitConflict):
        raise
    except Exception as error:
        # pyiceberg lets through what its file system, its catalog's database, and its decoders raise; at damaged
        # metadata these are errors of any kind, which often do not say what they are.
        kind = "" if isinstance(error, KNOWN_ERRORS) else f"{type(error).__name__}: "
        raise DispatcherError(f"{what}: lake={location.address} error={kind}{one_line(error)}", advice) from error


def within(file: ParquetFile) -> Any:
    """Return a condition that all rows of a file meet, with which Arrow skips files."""
    found = ds.scalar(True)
    for name, lowest in file.minimum.items():
        # Manifests may shorten texts, so only bounds of numbers and times are used.
        if not isinstance(lowest, str) and name in file.maximum and file.null_count.get(name) == 0:
            found = found & (column(name) >= lowest) & (column(name) <= file.maximum[name])
    return found


def column(name: str) -> pc.Expression:
    """Return a column, or the field of a struct (``column.field``), as an expression."""
    return pc.field(*name.split("."))


def partition_value(text: str | None, kind: Any) -> Any:
    """Return the value of a partition column as Iceberg has it."""
    if text is None or isinstance(kind, StringType):
        return text
    if isinstance(kind, DateType):
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    return text.lower() == "true" if isinstance(kind, BooleanType) else int(text)


def packed(tasks: Sequence[FileScanTask], target_size: int) -> Iterator[list[FileScanTask]]:
    """Yield files in groups of up to *target_size*, in the order of their names, which is that of the log."""
    group: list[FileScanTask] = []
    size = 0
    for task in sorted(tasks, key=lambda task: task.file.file_path.rpartition("/")[2]):
        if group and size + task.file.file_size_in_bytes > target_size:
            yield group
            group, size = [], 0
        group.append(task)
        size += task.file.file_size_in_bytes
    if group:
        yield group


def number(value: Any) -> Any:
    """Return a bound as pyiceberg encodes it."""
    return datetime_to_micros(value) if hasattr(value, "utcoffset") else value

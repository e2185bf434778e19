"""Lake: the Delta table that an export keeps, committed by ``deltalake``.

Each commit carries ``Transaction("reput:<store id>:<epoch>:<export name>", <end offset>)``, so the table itself records
how far it holds the log. A batch repeated after a crash is recognised and not added twice, for any reader. If two
exporters commit at once, one is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from reput.errors import ConfigError, DispatcherError, StoreError
from reput.store.disk.files import Files
from reput.store.log.segments import Segments
from reput.store.state.epochs import Epochs
from reput.table import BadRange
from reput.table.log_marks import LogMark, joined_marks, last_marks
from reput_hooks import Cursor
from reput_plugins.spark_export.lake_location import LAKE_ADVICE, LakeLocation, one_line
from reput_plugins.spark_export.lake_marks import LogColumns, committed_marks, marks_info
from reput_plugins.spark_export.lake_sources import RETIRED, app_id, row_name_id
from reput_plugins.spark_export.parquet_files import PARTITION_COLUMNS, STORE_COLUMN, ParquetFile

__all__ = ["Commit", "Lake", "lake_errors", "tells_stores_apart"]

COMMIT_INFO = "reput"
HISTORY_COUNT = 16
SELECTION_SETTING = "reput.topics"
FORMAT_SETTING = "reput.format"
# Version 1 has no ``store`` column, so it holds one store.
FORMAT_VERSION, FORMAT_OF_ONE_STORE = "2", "1"


class Commit(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """The additions of one transaction: the records that begin in [begin, until) of a log, except those in *damage*.

    *store* is the id of the store.
    """

    begin: int
    until: int
    records: int
    files: int
    bytes: int
    damage: tuple[BadRange, ...] = ()
    store: str = ""


class Lake:
    """One export of one store into one Delta table.

    Attributes:
        epochs: the store's epochs, under its id in the lake.
        store_name: value of the column ``store`` in its rows: the id under which the lake first held it.
        columns: where a row has the columns of the log.
        partition_columns: the columns that the folders name.
    """

    columns = LogColumns()
    partition_columns: tuple[str, ...] = PARTITION_COLUMNS

    def __init__(self, location: LakeLocation, export_name: str, epochs: Epochs, store_name: str | None = None) -> None:
        self.location = location
        self.export_name = export_name
        self.epochs = epochs
        self.store_name = store_name or epochs.store_id

    def app_id(self, epoch: int) -> str:
        """Return the name under which the table keeps the end offset of an epoch."""
        return app_id(self.epochs.store_id, epoch, self.export_name)

    def create(self, schema: pa.Schema, topics: Sequence[str] | None) -> DeltaTable:
        """Return the table with all columns of *schema*; create it if there is none.

        Raises:
            ConfigError: the table is not a reput lake, keeps other topics, or has a column that does not fit.
            DispatcherError: it cannot be created.
        """
        table = self.location.open()
        if table is None:
            settings: Mapping[str, str | None] = {
                FORMAT_SETTING: FORMAT_VERSION,
                SELECTION_SETTING: selection_text(topics),
            }
            try:
                table = DeltaTable.create(
                    self.location.address,
                    schema,
                    mode="ignore",
                    partition_by=list(self.partition_columns),
                    configuration={**settings, **self.settings()},
                    storage_options=self.location.storage_options,
                    raise_if_key_not_exists=False,
                )
            except (OSError, DeltaError) as error:
                raise DispatcherError(
                    f"the lake cannot be created: lake={self.location.address} error={one_line(error)}", LAKE_ADVICE
                ) from None
        self.refuse_another(table, topics)
        return self.add_columns(table, schema)

    def settings(self) -> dict[str, str]:
        """Return further properties of a new table."""
        return {}

    def add_columns(self, table: DeltaTable, schema: pa.Schema) -> DeltaTable:
        """Return the table with the columns added that an older reput did not write; existing rows have null there.

        Foreign columns stay, and are null in new rows.

        Raises:
            ConfigError: a column has another type, or a foreign column is not nullable.
            DispatcherError: the columns cannot be added.
        """
        kept = {field.name: field for field in table.schema().fields}
        wanted = {field.name: field for field in Schema.from_arrow(fitting(schema, table)).fields}
        for name, field in wanted.items():
            if name in kept and kept[name].type != field.type:
                raise ConfigError(
                    f"a column of the lake has another type: lake={self.location.address} column={name} "
                    f"type={type_name(kept[name])} needed={type_name(field)}",
                    "Name a separate folder.",
                )
        for name, field in kept.items():
            if name not in wanted and not field.nullable:
                raise ConfigError(
                    f"the lake has a column that no message has a value for: lake={self.location.address} "
                    f"column={name} type={type_name(field)}",
                    "Make it nullable, or name a separate folder.",
                )
        missing = [field for name, field in wanted.items() if name not in kept]
        if missing:
            try:
                table.alter.add_columns(missing)
            except (OSError, DeltaError) as error:
                raise DispatcherError(
                    f"the lake cannot be extended with columns: lake={self.location.address} "
                    f"columns={','.join(field.name for field in missing)} error={one_line(error)}",
                    LAKE_ADVICE,
                ) from None
            self.force_commits()
            table.update_incremental()
        return table

    def refuse_another(self, table: DeltaTable, topics: Sequence[str] | None) -> None:
        """Refuse a table that is not a reput lake of this format, partitioning and choice of topics."""
        settings = table.metadata().configuration
        if FORMAT_SETTING not in settings:
            raise ConfigError(
                f"the table was not written by reput: lake={self.location.address}", "Name a separate folder."
            )
        if settings[FORMAT_SETTING] not in (FORMAT_VERSION, FORMAT_OF_ONE_STORE):
            raise ConfigError(f"a newer reput made the lake: format={settings[FORMAT_SETTING]} known={FORMAT_VERSION}")
        partitions = table.metadata().partition_columns
        if partitions != list(self.partition_columns):
            raise ConfigError(
                f"the lake is partitioned differently: lake={self.location.address} columns={','.join(partitions)} "
                f"needed={','.join(self.partition_columns)}",
                "Name a separate folder.",
            )
        kept = settings.get(SELECTION_SETTING)
        if kept != selection_text(topics):
            raise ConfigError(
                f"the lake holds other topics: lake={self.location.address} kept={kept or 'all'} "
                f"asked={selection_text(topics) or 'all'}",
                "Ask for the same ones, or name another folder.",
            )

    def kept_topics(self, table: DeltaTable) -> list[str] | None:
        """Return the topics that the table keeps, None for all."""
        kept = table.metadata().configuration.get(SELECTION_SETTING)
        return None if kept is None else kept.split(",")

    def cursor(self, table: DeltaTable) -> Cursor | None:
        """Return how far *table* holds the log, None if it holds nothing. The table does not know the store time."""
        for epoch in (known.number for known in reversed(self.epochs.history)):
            until = table.transaction_version(self.app_id(epoch))
            if until is not None and until != RETIRED:
                return Cursor(self.epochs.store_id, epoch, until, 0)
        return None

    def committed(self, table: DeltaTable) -> int | None:
        """Return the commit-log offset up to which *table* holds the log, None if it holds nothing.

        Raises:
            StoreError: the log was cut below that, so the table holds records that are gone.
        """
        cursor = self.cursor(table)
        if cursor is None:
            return None
        cut = self.epochs.first_difference(cursor, 0)
        if cut is not None:
            raise StoreError(
                f"the log was cut below what the lake holds: cut_at={cut.commit_log_offset} "
                f"lake_until={cursor.commit_log_offset} lake_epoch={cursor.epoch} epoch={self.epochs.epoch}",
                "Start the export again; it compares lake and log, and reports what to do.",
            )
        return cursor.commit_log_offset

    def commit(
        self,
        schema: pa.Schema,
        begin: int,
        until: int,
        files: Sequence[ParquetFile],
        *,
        damage: Sequence[BadRange] = (),
        gap_allowed: bool = False,
        segments: Segments | None = None,
    ) -> Commit | None:
        """Add *files* as the records that begin in [begin, until), in one transaction; None if already committed.

        *gap_allowed*: the range may begin after the table's end, because retention deleted the records between.
        *segments*: segments of the source log, for the marks by which the lake recognises it.

        Raises:
            DispatcherError: another exporter committed first, or the range does not begin where the table ends.
        """
        table = self.location.table()
        committed = self.committed(table)
        if committed is not None and committed >= until:
            return None
        if committed is not None and (begin < committed or (begin > committed and not gap_allowed)):
            raise self.moved(committed, begin)
        added = Commit(
            begin,
            until,
            sum(file.row_count for file in files),
            len(files),
            sum(file.size for file in files),
            tuple(damage),
            self.epochs.store_id,
        )
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=file.partition,
                modification_time=file.written_ms,
                data_change=True,
                stats=file.statistics,
            )
            for file in files
        ]
        marks: list[LogMark] = []
        if segments is not None:
            known = committed_marks(table, self.epochs.store_id, self.export_name) or []
            known = [mark for mark in known if mark.commit_log_offset < begin]
            marks = joined_marks(known, last_marks(segments, begin, until), segments.segment_size)
        properties = CommitProperties(
            custom_metadata={COMMIT_INFO: msgspec.to_builtins(added), **self.marks_info(marks)},
            app_transactions=[Transaction(self.app_id(self.epochs.epoch), until)],
        )
        try:
            table.create_write_transaction(
                actions, "append", fitting(schema, table), list(self.partition_columns), commit_properties=properties
            )
        except CommitFailedError as error:
            now = self.location.table().transaction_version(self.app_id(self.epochs.epoch))
            if now != committed:
                raise self.moved(now, begin) from None
            raise DispatcherError(
                f"the lake refused a commit: lake={self.location.address} error={one_line(error)}"
            ) from None
        except (OSError, DeltaError) as error:
            # deltalake raises its own errors for a full or read-only disk.
            raise DispatcherError(
                f"the lake refused a commit: lake={self.location.address} error={one_line(error)}", LAKE_ADVICE
            ) from None
        self.force_commits()
        return added

    def moved(self, committed: int | None, begin: int) -> DispatcherError:
        """Return the error for a table that does not end where a range begins."""
        return DispatcherError(
            f"another exporter writes this lake: lake={self.location.address} committed_until={committed} "
            f"range_begins={begin}",
            "Run one of them at a time, or give each its own folder.",
        )

    def marks_info(self, marks: Sequence[LogMark]) -> dict[str, Any]:
        """Return *marks*, which cover everything the table holds of the store, as metadata of a transaction."""
        return marks_info(self.epochs.store_id, self.export_name, marks)

    def go_on(self, table: DeltaTable, cursor: Cursor, marks: Sequence[LogMark], retired: Sequence[Cursor]) -> None:
        """Record the store's end under the id and epoch of *cursor*, in a transaction without rows.

        The transaction also retires the cursors in *retired*.

        Raises:
            DispatcherError: the table takes no transaction.
        """
        properties = CommitProperties(
            custom_metadata=self.marks_info(marks),
            app_transactions=self.transactions(cursor, retired),
        )
        schema = pa.schema(table.schema().to_arrow())
        try:
            table.create_write_transaction(
                [], "append", schema, list(self.partition_columns), commit_properties=properties
            )
        except (OSError, DeltaError) as error:
            raise DispatcherError(
                f"the lake refused a commit: lake={self.location.address} error={one_line(error)}", LAKE_ADVICE
            ) from None
        self.force_commits()

    def truncate(self, cursor: Cursor, marks: Sequence[LogMark], retired: Sequence[Cursor] = ()) -> None:
        """Delete the records that begin at or after the cursor's offset from the table, in one transaction.

        The transaction records *marks* for the remaining rows and retires the cursors in *retired*.

        Raises:
            DispatcherError: the table takes no transaction.
        """
        table = self.location.table()
        of_store = f" and {self.columns.sql(STORE_COLUMN)} = '{self.store_name}'" if tells_stores_apart(table) else ""
        transactions = self.transactions(cursor, retired)
        try:
            table.delete(
                f"{self.columns.sql('commitLogOffset')} >= {cursor.commit_log_offset}{of_store}",
                commit_properties=CommitProperties(
                    custom_metadata=self.marks_info(marks), app_transactions=transactions
                ),
            )
        except (OSError, DeltaError) as error:
            raise DispatcherError(
                f"the lake refused a commit: lake={self.location.address} error={one_line(error)}", LAKE_ADVICE
            ) from None
        self.force_commits()
        table = self.location.table()
        if any(table.transaction_version(known.app_id) != known.version for known in transactions):
            # If no row matches, the Delta library makes no transaction.
            self.go_on(table, cursor, marks, retired)

    def transactions(self, cursor: Cursor, retired: Sequence[Cursor]) -> list[Transaction]:
        """Return the transaction entries that record *cursor* and retire *retired*."""
        forgotten = (Transaction(app_id(old.store_id, old.epoch, self.export_name), RETIRED) for old in retired)
        names = [Transaction(row_name_id(cursor.store_id, self.store_name, self.export_name), 0)]
        if self.store_name == cursor.store_id:
            names.clear()
        return [Transaction(self.app_id(cursor.epoch), cursor.commit_log_offset), *forgotten, *names]

    def rows_of(self, table: DeltaTable) -> str | None:
        """Return the value of the column ``store`` in the store's rows, None if the table has no such column."""
        return self.store_name if tells_stores_apart(table) else None

    def force_commits(self) -> None:
        """Force the table's newest transaction to disk, so that it is durable when reported so.

        An object store makes its files durable itself.
        """
        if self.location.folder is None:
            return
        directory = self.location.folder / "_delta_log"
        newest = max((name for name in os.listdir(directory) if name.endswith(".json")), default=None)
        Files().force_together([] if newest is None else [directory / newest], [directory])

    def last_commit(self, table: DeltaTable, until: int) -> Commit | None:
        """Return what the transaction that brought *table* to *until* added, None if recent history lacks it."""
        for entry in table.history(HISTORY_COUNT):
            found: Any = entry.get(COMMIT_INFO)
            if found and found.get("until") == until and self.is_own(found):
                return msgspec.convert(found, Commit)
        return None

    def commits_since(self, table: DeltaTable, version: int) -> list[tuple[int, Commit]]:
        """Return (table version, what it added) for each transaction after *version* that added records."""
        count = table.version() - version
        entries = table.history(count) if count > 0 else []
        # Transactions that merge files or delete truncated rows lack this field.
        added = [(entry["version"], entry[COMMIT_INFO]) for entry in entries if self.is_own(entry.get(COMMIT_INFO))]
        return [(number, msgspec.convert(found, Commit)) for number, found in sorted(added, key=lambda pair: pair[0])]

    def is_own(self, commit: Any) -> bool:
        """Return whether a transaction added rows of this store."""
        return bool(commit) and commit.get("store", "") in ("", self.epochs.store_id)


def tells_stores_apart(table: DeltaTable) -> bool:
    """Return whether the lake has the column ``store``."""
    return table.metadata().configuration.get(FORMAT_SETTING) != FORMAT_OF_ONE_STORE


def fitting(schema: pa.Schema, table: DeltaTable) -> pa.Schema:
    """Return *schema* without the column ``store`` if the lake has none."""
    return schema if tells_stores_apart(table) else schema.remove(schema.get_field_index(STORE_COLUMN))


@contextmanager
def lake_errors(address: str) -> Iterator[None]:
    """Raise an ``OSError`` from inside the block (disk full or read-only, permission denied) as one error.

    Raises:
        DispatcherError: the lake cannot be written. Readers see none of the new files.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise DispatcherError(f"the lake cannot be written: lake={address} error={reason}", LAKE_ADVICE) from error


def type_name(field: Field) -> str:
    """Return a column's type as text; for a nested type only its kind."""
    kind = field.type
    return kind.type if isinstance(kind, PrimitiveType) else type(kind).__name__.removesuffix("Type").lower()


def selection_text(topics: Sequence[str] | None) -> str | None:
    """Return a choice of topics as the table stores it; None: all."""
    return None if topics is None else ",".join(sorted(set(topics)))

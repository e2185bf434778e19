"""Lake: the table in which an export keeps one store's messages, in any format.

Each commit records ``reput:<store id>:<epoch>:<export name>`` with the end offset, so the table itself records
how far it holds the log. A batch repeated after a crash is recognised and not added twice, for any reader. If two
exporters commit at once, one is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from reput.errors import ConfigError, DispatcherError, StoreError
from reput.store.log.segments import Segments
from reput.store.state.epochs import Epochs
from reput.table import BadRange
from reput.table.log_marks import LogMark, joined_marks, last_marks
from reput_hooks import Cursor
from reput_plugins.spark_export.lake_location import DELTA_FORMAT, LakeLocation
from reput_plugins.spark_export.lake_marks import LogColumns, committed_marks, marks_info
from reput_plugins.spark_export.lake_sources import RETIRED, app_id, row_name_id
from reput_plugins.spark_export.lakes.delta_table import STATISTICS_SETTING
from reput_plugins.spark_export.lakes.lake_table import CommitConflict, LakeTable, ParquetFile, TransactionData
from reput_plugins.spark_export.lakes.opening import create_table, find_table, open_table
from reput_plugins.spark_export.options import EXPORT_NAME
from reput_plugins.spark_export.parquet_files import PARTITION_COLUMNS, STATISTICS_COLUMNS, STORE_COLUMN, STORED_AS
from reput_plugins.spark_export.proof.watermarks import CUT_INFO, catch_up

__all__ = ["OFFSET_COLUMN", "Commit", "Lake", "is_foreign", "refuse_foreign", "stored_type", "tells_stores_apart"]

COMMIT_INFO = "reput"
# What no other transaction has, by which its maker recognises it.
OWN_INFO = "reput_id"
HISTORY_COUNT = 16
COMMITS_MAX = 10
OFFSET_COLUMN = "commitLogOffset"
SELECTION_SETTING = "reput.topics"
FORMAT_SETTING = "reput.format"
# Version 1 has no ``store`` column, so it holds one store.
FORMAT_VERSION, FORMAT_OF_ONE_STORE = "2", "1"


class Commit(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """The additions of one transaction: the records that begin in [begin, until) of a log, except those in *damage*.

    *store* is the id of the store. *crc* is the sum of `row_crc` over the rows; None: an older reput made the commit.
    """

    begin: int
    until: int
    records: int
    files: int
    bytes: int
    damage: tuple[BadRange, ...] = ()
    store: str = ""
    crc: int | None = None


class Lake:
    """One export of one store into one table.

    Attributes:
        epochs: the store's epochs, under its id in the lake.
        store_name: value of the column ``store`` in its rows: the id under which the lake first held it.
        partition_columns: columns by which the table's files are laid out; ``date`` is among them.
        columns: how a row names the columns of the log.
    """

    def __init__(
        self,
        location: LakeLocation,
        export_name: str,
        epochs: Epochs,
        store_name: str | None = None,
        *,
        partition_columns: Sequence[str] = PARTITION_COLUMNS,
        columns: LogColumns | None = None,
    ) -> None:
        self.partition_columns = list(partition_columns)
        self.columns = columns or LogColumns()
        self.location = location
        self.export_name = export_name
        self.epochs = epochs
        self.store_name = store_name or epochs.store_id

    def app_id(self, epoch: int) -> str:
        """Return the name under which the table keeps the end offset of an epoch."""
        return app_id(self.epochs.store_id, epoch, self.export_name)

    def create(self, schema: pa.Schema, topics: Sequence[str] | None) -> LakeTable:
        """Return the table with all columns of *schema*; create it if there is none.

        Raises:
            ConfigError: the table is not a reput lake, keeps other topics, or has a column that does not fit.
            DispatcherError: the table cannot be created.
        """
        for _ in range(COMMITS_MAX):
            try:
                return self.create_once(schema, topics)
            except CommitConflict as error:
                # Another exporter has just created the table, or added columns.
                conflict = error
        raise self.refused(conflict)

    def create_once(self, schema: pa.Schema, topics: Sequence[str] | None) -> LakeTable:
        """Return the table as `create` does; raise `CommitConflict` if another exporter came first."""
        table = find_table(self.location)
        if table is None:
            selection = selection_text(topics)
            settings = {FORMAT_SETTING: FORMAT_VERSION, **self.settings()}
            if self.location.table_format == DELTA_FORMAT:
                # Without this property, the Delta library's Arrow dataset (for DuckDB and pyarrow) treats missing
                # bounds as null, and a filter on a column without statistics finds no row.
                settings[STATISTICS_SETTING] = ",".join(self.statistics())
            if selection is not None:
                settings[SELECTION_SETTING] = selection
            table = create_table(self.location, schema, self.partition_columns, settings)
        self.refuse_another(table, topics)
        return self.add_columns(table, schema)

    @property
    def has_watermarks(self) -> bool:
        """Whether the rows of each transaction stay, so that watermarks can prove them."""
        return True

    def statistics(self) -> Sequence[str]:
        """Return the columns that have statistics, as a property of Delta tables names them."""
        return STATISTICS_COLUMNS

    def settings(self) -> dict[str, str]:
        """Return further properties of a new table."""
        return {}

    def add_columns(self, table: LakeTable, schema: pa.Schema) -> LakeTable:
        """Return the table after adding the columns that an older reput did not write; existing rows have null there.

        Foreign columns stay, and are null in new rows.

        Raises:
            ConfigError: a column has another type, or a foreign column is not nullable.
            DispatcherError: the columns cannot be added.
        """
        kept = {field.name: field for field in table.schema()}
        wanted = {field.name: field for field in fitting(schema, table)}
        for name, field in wanted.items():
            if name in kept and stored_type(kept[name].type) != stored_type(field.type):
                raise ConfigError(
                    f"a column of the lake has another type: lake={self.location.address} column={name} "
                    f"type={type_name(kept[name])} needed={type_name(field)}",
                    "Name a separate folder.",
                )
        for name, field in kept.items():
            if name not in wanted and not field.nullable:
                raise ConfigError(
                    f"the lake has a column that messages have no value for: lake={self.location.address} "
                    f"column={name} type={type_name(field)}",
                    "Make it nullable, or name a separate folder.",
                )
        missing = [field for name, field in wanted.items() if name not in kept]
        if missing:
            table.add_columns(pa.schema(missing))
        return table

    def refuse_another(self, table: LakeTable, topics: Sequence[str] | None) -> None:
        """Refuse a table that is not a reput lake of this format, partitioning and choice of topics."""
        refuse_foreign(table, self.location)
        settings = table.properties()
        partitions = table.partition_columns()
        if partitions != self.partition_columns:
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
                "Ask for the same topics, or name another folder.",
            )

    def kept_topics(self, table: LakeTable) -> list[str] | None:
        """Return the topics that the table keeps; None: all."""
        kept = table.properties().get(SELECTION_SETTING)
        return None if kept is None else kept.split(",")

    def export_words(self, table: LakeTable) -> list[str]:
        """Return the words that follow the store in a `reput export` command for *table*."""
        location, words = self.location, [self.location.address, *self.name_words()]
        if location.table_format != DELTA_FORMAT:
            words += ["--lake-format", location.table_format]
        for option, value in (("--catalog", location.catalog), ("--catalog-table", location.catalog_table)):
            words += [] if value is None else [option, value]
        for topic in self.kept_topics(table) or ():
            words += ["--topic", topic]
        return words

    def name_words(self) -> list[str]:
        """Return the words of the command line for the export's name."""
        return [] if self.export_name == EXPORT_NAME else ["--name", self.export_name]

    def cursor(self, table: LakeTable) -> Cursor | None:
        """Return how far *table* holds the log, None if it holds nothing. The table does not know the store time."""
        for epoch in (known.number for known in reversed(self.epochs.history)):
            until = table.recorded(self.app_id(epoch))
            if until is not None and until != RETIRED:
                return Cursor(self.epochs.store_id, epoch, until, 0)
        return None

    def committed(self, table: LakeTable) -> int | None:
        """Return the commit-log offset up to which *table* holds the log, None if it holds nothing.

        Raises:
            StoreError: the log was cut below that offset, so the table holds records that are gone; or somebody
                restored the table, so it lacks records below that offset.
        """
        cursor = self.cursor(table)
        if cursor is None:
            return None
        self.refuse_restored(table)
        cut = self.epochs.first_difference(cursor, 0)
        if cut is not None:
            raise StoreError(
                f"the log was cut below what the lake holds: cut_at={cut.commit_log_offset} "
                f"lake_until={cursor.commit_log_offset} lake_epoch={cursor.epoch} epoch={self.epochs.epoch}",
                "Start the export again; it compares lake and log, and reports what to do.",
            )
        return cursor.commit_log_offset

    def refuse_restored(self, table: LakeTable) -> None:
        """Refuse a table that was restored to a version before the store's newest rows.

        Delta keeps the recorded numbers in a restore, so no export would add these rows again.

        Raises:
            StoreError: it was.
        """
        # Mostly the newest transaction is the store's own.
        for count in (1, HISTORY_COUNT):
            before, kept = None, table.version()
            for entry in table.history(count):
                if self.is_own(entry.info.get(COMMIT_INFO)):
                    if entry.version <= kept:
                        return
                    raise StoreError(
                        f"somebody restored the lake, so it lacks rows: lake={self.location.address} "
                        f"restored_version={kept} lacks_version={entry.version} "
                        f"lake_until={entry.info[COMMIT_INFO]['until']}",
                        f"Restore its version {before}, which has them, or export into another folder.",
                    )
                if entry.restored_version is not None and entry.version <= kept:
                    before, kept = entry.version - 1, entry.restored_version

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
        attempt, own = 0, uuid.uuid4().hex
        while True:
            attempt += 1
            table = open_table(self.location)
            committed = self.committed(table)
            if committed is not None and committed >= until:
                # There may have been a crash between a transaction and its watermark.
                self.add_watermarks(table)
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
                None if any(file.crc is None for file in files) else sum(file.crc or 0 for file in files),
            )
            marks = [] if segments is None else self.marks_up_to(table, segments, begin, until)
            transaction = TransactionData(
                {self.app_id(self.epochs.epoch): until},
                {COMMIT_INFO: msgspec.to_builtins(added), OWN_INFO: own, **self.marks_info(marks)},
            )
            try:
                self.add_rows(table, files, fitting(schema, table), transaction)
                break
            except CommitConflict as error:
                present = open_table(self.location)
                now = self.committed(present)
                if now == until and self.was_made(present, own):
                    # The answer of an object store was lost, and its client sent the transaction once more.
                    break
                if now != committed:
                    raise self.moved(now, begin) from None
                # Another store's exporter or a merge came first. Nothing of this log has changed, so try again.
                if attempt == COMMITS_MAX:
                    raise self.refused(error) from None
        self.add_watermarks(open_table(self.location))
        return added

    def was_made(self, table: LakeTable, own: str) -> bool:
        """Return whether *table* has the transaction with this info."""
        return any(entry.info.get(OWN_INFO) == own for entry in table.history(HISTORY_COUNT))

    def add_rows(
        self, table: LakeTable, files: Sequence[ParquetFile], schema: pa.Schema, transaction: TransactionData
    ) -> None:
        """Add the rows of *files* to the table in one transaction."""
        table.append(files, schema, transaction)

    def marks_up_to(self, table: LakeTable, segments: Segments, begin: int, until: int) -> list[LogMark]:
        """Return the marks of the log below *until*, of which *table* has those below *begin*."""
        known = committed_marks(table, self.epochs.store_id, self.export_name) or []
        known = [mark for mark in known if mark.commit_log_offset < begin]
        return joined_marks(known, last_marks(segments, begin, until), segments.segment_size)

    def add_watermarks(self, table: LakeTable) -> None:
        """Write the missing watermarks of the store's transactions.

        A lake without the column ``store`` has no watermarks. Neither has a table with a key.

        Raises:
            DispatcherError: the watermarks cannot be written.
        """
        if self.has_watermarks and tells_stores_apart(table):
            ids = (self.epochs.store_id, self.store_name)
            try:
                catch_up(self.location, table, self.columns, self.store_name, ids, self.export_name)
            except CommitConflict as error:
                raise self.refused(error) from None

    def refused(self, error: CommitConflict) -> DispatcherError:
        """Return the error for a transaction that lost against another one."""
        return DispatcherError(f"the lake refused a commit: lake={self.location.address} error={error}")

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

    def go_on(self, table: LakeTable, cursor: Cursor, marks: Sequence[LogMark], retired: Sequence[Cursor]) -> None:
        """Record the store's end under the id and epoch of *cursor*, in a transaction without rows.

        The transaction also retires the cursors in *retired*.

        Raises:
            DispatcherError: the transaction cannot be written.
        """
        try:
            table.append([], table.schema(), TransactionData(self.numbers(cursor, retired), self.marks_info(marks)))
        except CommitConflict as error:
            raise self.refused(error) from None

    def refuse_cut(self, commit_log_offset: int) -> None:
        """Raise an error if the table cannot drop its rows from *commit_log_offset* on. This kind of table can."""

    def truncate(self, cursor: Cursor, marks: Sequence[LogMark], retired: Sequence[Cursor] = ()) -> None:
        """Delete the records that begin at or after the cursor's offset from the table, in one transaction.

        The transaction records *marks* for the remaining rows and retires the cursors in *retired*.

        Raises:
            DispatcherError: the transaction cannot be written.
        """
        table = open_table(self.location)
        of_store = {self.columns.name(STORE_COLUMN): self.store_name} if tells_stores_apart(table) else {}
        cut = {CUT_INFO: {"store": self.store_name, "at": cursor.commit_log_offset}}
        transaction = TransactionData(self.numbers(cursor, retired), {**self.marks_info(marks), **cut})
        try:
            table.delete_rows(cursor.commit_log_offset, self.columns.name(OFFSET_COLUMN), of_store, transaction)
        except CommitConflict as error:
            raise self.refused(error) from None
        self.add_watermarks(open_table(self.location))

    def numbers(self, cursor: Cursor, retired: Sequence[Cursor]) -> dict[str, int]:
        """Return the numbers by which the table records *cursor* and retires *retired*."""
        found = {self.app_id(cursor.epoch): cursor.commit_log_offset}
        found |= {app_id(old.store_id, old.epoch, self.export_name): RETIRED for old in retired}
        if self.store_name != cursor.store_id:
            found[row_name_id(cursor.store_id, self.store_name, self.export_name)] = 0
        return found

    def rows_of(self, table: LakeTable) -> str | None:
        """Return the value of the column ``store`` in the store's rows, None if the table has no such column."""
        return self.store_name if tells_stores_apart(table) else None

    def last_commit(self, table: LakeTable, until: int) -> Commit | None:
        """Return the additions of the transaction that brought *table* to *until*; None if recent history lacks it."""
        for entry in table.history(HISTORY_COUNT):
            found: Any = entry.info.get(COMMIT_INFO)
            if found and found.get("until") == until and self.is_own(found):
                return msgspec.convert(found, Commit)
        return None

    def commits_since(self, table: LakeTable, version: int) -> list[tuple[int, Commit]]:
        """Return (table version, additions) for each transaction after *version* that added records."""
        count = table.version() - version
        entries = table.history(count) if count > 0 else []
        # Transactions that merge files or delete truncated rows lack this field.
        own = [entry for entry in entries if self.is_own(entry.info.get(COMMIT_INFO))]
        added = [(entry.version, entry.info[COMMIT_INFO]) for entry in own]
        return [(number, msgspec.convert(found, Commit)) for number, found in sorted(added, key=lambda pair: pair[0])]

    def is_own(self, commit: Any) -> bool:
        """Return whether a transaction added rows of this store."""
        return bool(commit) and commit.get("store", "") in ("", self.epochs.store_id)


def is_foreign(table: LakeTable) -> bool:
    """Return whether another program than reput made the table."""
    return FORMAT_SETTING not in table.properties()


def refuse_foreign(table: LakeTable, location: LakeLocation) -> None:
    """Refuse a table that this reput cannot handle.

    Raises:
        ConfigError: another program or a newer reput made the table.
    """
    if is_foreign(table):
        raise ConfigError(f"the table was not written by reput: lake={location.address}", "Name a separate folder.")
    kept = table.properties()[FORMAT_SETTING]
    if kept not in (FORMAT_VERSION, FORMAT_OF_ONE_STORE):
        raise ConfigError(f"a newer reput made the lake: format={kept} known={FORMAT_VERSION}")


def tells_stores_apart(table: LakeTable) -> bool:
    """Return whether the lake has the column ``store``."""
    return table.properties().get(FORMAT_SETTING) != FORMAT_OF_ONE_STORE


def fitting(schema: pa.Schema, table: LakeTable) -> pa.Schema:
    """Return *schema* without the column ``store`` if the lake has none."""
    return schema if tells_stores_apart(table) else schema.remove(schema.get_field_index(STORE_COLUMN))


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return a type in its stored form, without widths in memory and names of parts, in which formats differ."""
    if pa.types.is_map(kind):
        return pa.map_(stored_type(kind.key_type), stored_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(stored_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, stored_type(field.type)) for field in kind])
    return STORED_AS.get(kind, kind)


def type_name(field: pa.Field) -> str:
    """Return a column's type as text; for a nested type only its kind."""
    return str(field.type).partition("<")[0] if pa.types.is_nested(field.type) else str(field.type)


def selection_text(topics: Sequence[str] | None) -> str | None:
    """Return a choice of topics as the table stores it; None: all."""
    return None if topics is None else ",".join(sorted(set(topics)))

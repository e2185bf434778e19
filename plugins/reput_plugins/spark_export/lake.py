"""Lake: the Delta table that an export keeps, committed by ``deltalake``.

Each commit carries ``Transaction("reput:<store id>:<epoch>:<export name>", <end offset>)``, so the table itself knows
up to where it holds the log: a batch that comes again after a crash is recognised and not added twice, for every
reader. Of two exporters that commit at once one is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from reput.errors import ConfigError, DispatcherError, StoreError
from reput.store.epochs import Epochs
from reput_hooks import Cursor
from reput_plugins.spark_export.parquet_files import PARTITION_COLUMNS, WrittenFile, force_to_disk

__all__ = ["Commit", "Lake", "lake_errors"]

COMMIT_INFO = "reput"
HISTORY_COUNT = 16
SELECTION_SETTING = "reput.topics"
FORMAT_SETTING = "reput.format"
FORMAT_VERSION = "1"


LAKE_ADVICE = "Make room, or give the right to write; the next run goes on where the table ends."


class Commit(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """What one transaction added: the records that begin in [begin, until) of the log."""

    begin: int
    until: int
    records: int
    files: int
    bytes: int


class Lake:
    """One export into one Delta table."""

    def __init__(self, path: Path, export_name: str, epochs: Epochs) -> None:
        self.path = path
        self.export_name = export_name
        self.epochs = epochs

    def app_id(self, epoch: int) -> str:
        """Return the name under which the table keeps the end offset of an epoch."""
        return f"reput:{self.epochs.store_id}:{epoch}:{self.export_name}"

    def open(self) -> DeltaTable | None:
        """Return the table as it is now, None if there is none yet."""
        try:
            return DeltaTable(self.path)
        except TableNotFoundError:
            return None

    def create(self, schema: pa.Schema, topics: Sequence[str] | None) -> DeltaTable:
        """Return the table, made if there is none.

        Raises:
            ConfigError: the table is another's, or keeps other topics.
            DispatcherError: it cannot be made.
        """
        table = self.open()
        if table is None:
            settings: Mapping[str, str | None] = {
                FORMAT_SETTING: FORMAT_VERSION,
                SELECTION_SETTING: selection_text(topics),
            }
            try:
                table = DeltaTable.create(
                    self.path,
                    schema,
                    mode="ignore",
                    partition_by=list(PARTITION_COLUMNS),
                    configuration=settings,
                    raise_if_key_not_exists=False,
                )
            except (OSError, DeltaError) as error:
                raise DispatcherError(f"the lake cannot be made: lake={self.path} error={error}", LAKE_ADVICE) from None
        self.refuse_another(table, topics)
        return table

    def refuse_another(self, table: DeltaTable, topics: Sequence[str] | None) -> None:
        """Refuse a table that this export did not begin."""
        settings = table.metadata().configuration
        if FORMAT_SETTING not in settings:
            raise ConfigError(f"the table is not a lake of reput's: lake={self.path}", "Name a folder of its own.")
        if settings[FORMAT_SETTING] != FORMAT_VERSION:
            raise ConfigError(f"a newer reput made the lake: format={settings[FORMAT_SETTING]} known={FORMAT_VERSION}")
        kept = settings.get(SELECTION_SETTING)
        if kept != selection_text(topics):
            raise ConfigError(
                f"the lake keeps other topics: lake={self.path} kept={kept or 'all'} "
                f"asked={selection_text(topics) or 'all'}",
                "Ask for the same ones, or name another folder.",
            )

    def cursor(self, table: DeltaTable) -> Cursor | None:
        """Return up to where *table* holds the log, None if it holds nothing. The store time is not known to it."""
        for epoch in (known.number for known in reversed(self.epochs.history)):
            until = table.transaction_version(self.app_id(epoch))
            if until is not None:
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
        cut = self.epochs.first_difference(cursor)
        if cut is not None:
            raise StoreError(
                f"the log was cut below what the lake holds: cut_at={cut.commit_log_offset} "
                f"lake_until={cursor.commit_log_offset} lake_epoch={cursor.epoch} epoch={self.epochs.epoch}",
                "Export into a new folder; the old one keeps what it has.",
            )
        return cursor.commit_log_offset

    def commit(
        self, schema: pa.Schema, begin: int, until: int, files: Sequence[WrittenFile], *, gap_allowed: bool = False
    ) -> Commit | None:
        """Add *files* as the records that begin in [begin, until), in one transaction; None if they are there already.

        *gap_allowed*: the range may begin behind the table's end, because retention deleted what lies between.

        Raises:
            DispatcherError: another exporter committed meanwhile, or the range does not begin where the table ends.
        """
        table = DeltaTable(self.path)
        committed = self.committed(table)
        if committed is not None and committed >= until:
            return None
        if committed is not None and (begin < committed or (begin > committed and not gap_allowed)):
            raise self.moved(committed, begin)
        added = Commit(
            begin, until, sum(file.row_count for file in files), len(files), sum(file.size for file in files)
        )
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=file.partition,
                modification_time=int((self.path / file.path).stat().st_mtime * 1000),
                data_change=True,
                stats=file.statistics,
            )
            for file in files
        ]
        properties = CommitProperties(
            custom_metadata={COMMIT_INFO: msgspec.to_builtins(added)},
            app_transactions=[Transaction(self.app_id(self.epochs.epoch), until)],
        )
        try:
            table.create_write_transaction(
                actions, "append", schema, list(PARTITION_COLUMNS), commit_properties=properties
            )
        except CommitFailedError as error:
            now = DeltaTable(self.path).transaction_version(self.app_id(self.epochs.epoch))
            if now != committed:
                raise self.moved(now, begin) from None
            raise DispatcherError(f"the lake takes no commit: lake={self.path} error={error}") from None
        except DeltaError as error:
            # What deltalake cannot write - a full disk, a read-only one - it tells of in its own words.
            raise DispatcherError(f"the lake takes no commit: lake={self.path} error={error}", LAKE_ADVICE) from None
        self.force_commits()
        return added

    def moved(self, committed: int | None, begin: int) -> DispatcherError:
        """Return the error for a table that does not end where a range begins."""
        return DispatcherError(
            f"another exporter keeps this lake: lake={self.path} committed_until={committed} range_begins={begin}",
            "Let one of them run at a time, or give each a folder of its own.",
        )

    def truncate(self, cursor: Cursor) -> None:
        """Take the records that begin at the cursor's offset or behind it out of the table, in one transaction."""
        DeltaTable(self.path).delete(
            f'"commitLogOffset" >= {cursor.commit_log_offset}',
            commit_properties=CommitProperties(
                app_transactions=[Transaction(self.app_id(cursor.epoch), cursor.commit_log_offset)]
            ),
        )
        self.force_commits()

    def force_commits(self) -> None:
        """Force the table's newest transaction to disk, so that what was said to be durable is."""
        directory = self.path / "_delta_log"
        newest = max((name for name in os.listdir(directory) if name.endswith(".json")), default=None)
        if newest is not None:
            force_to_disk(directory / newest)
        force_to_disk(directory)

    def last_commit(self, table: DeltaTable, until: int) -> Commit | None:
        """Return what the transaction added that brought *table* to *until*."""
        for entry in table.history(HISTORY_COUNT):
            found: Any = entry.get(COMMIT_INFO)
            if found and found.get("until") == until:
                return msgspec.convert(found, Commit)
        return None

    def commits_since(self, table: DeltaTable, version: int) -> list[tuple[int, Commit]]:
        """Return (table version, what it added) of the transactions behind *version* that added records."""
        count = table.version() - version
        entries = table.history(count) if count > 0 else []
        # Merging files and taking out what was cut are transactions, too, without this field.
        added = [(entry["version"], entry[COMMIT_INFO]) for entry in entries if entry.get(COMMIT_INFO)]
        return [(number, msgspec.convert(found, Commit)) for number, found in sorted(added, key=lambda pair: pair[0])]


@contextmanager
def lake_errors(path: Path | str) -> Iterator[None]:
    """Have what the system refuses meanwhile come out as one sentence: a full disk, a read-only one, no right to write.

    Raises:
        DispatcherError: the lake cannot be written. Nothing of it is visible to readers.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise DispatcherError(f"the lake cannot be written: lake={path} error={reason}", LAKE_ADVICE) from error


def selection_text(topics: Sequence[str] | None) -> str | None:
    """Return a choice of topics as the table keeps it; None: all."""
    return None if topics is None else ",".join(sorted(set(topics)))

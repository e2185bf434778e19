"""WriteLedger: records which of Spark's batches are in a store, so that a repeated batch is not put twice.

    reput/spark_writes/ledger              the last batch of each write, and where in the log it begins
    reput/spark_writes/<write>/*.arrow     rows staged by workers; removed once they are in the log

A batch goes into the log in three steps. The ledger records the batch's begin and files. The rows are put, each with
the property `WRITE_PROPERTY`. The log is forced to disk, and the ledger marks the batch as done. If a commit is killed
in between, the next one completes the batch from the same files: it counts the rows that are already in the log, which
are the first ones, and puts the rest.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from pyspark_reput.row_messages import messages_of
from reput.errors import ConfigError, MessageIllegal
from reput.settings import Settings
from reput.store.disk.files import Files
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.log.log_scan import LogScan
from reput.store.message_store import MessageStore
from reput.store.record.properties import decode_properties
from reput.store.state.identity import is_store
from reput.store.state.recorded_settings import load_store_settings
from reput_hooks import replace_durably

__all__ = ["WRITE_PROPERTY", "WriteLedger", "make_store", "stage_rows"]

WRITE_PROPERTY = "REPUT_WRITE"
LEGAL_WRITE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ROWS_OF_BATCH = 1024


class Written(msgspec.Struct, frozen=True):
    """The last batch of one write. It begins in the log at or after *begin*. *done*: the whole batch is durable."""

    batch: int
    begin: int
    files: list[str]
    done: bool


class WriteLedger:
    """The writes into one store. Use it in one process; the store's own lock keeps others out."""

    def __init__(self, store: Path, write_id: str, topic: str | None) -> None:
        self.store = store
        self.write_id = write_id
        self.topic = topic
        self.path = store / "reput" / "spark_writes" / "ledger"
        self.staging = staging_folder(store, write_id)

    def read(self) -> dict[str, Written]:
        """Return the last batch of every write."""
        return read_sealed(self.path, dict[str, Written]) or {}

    def keep(self, written: Written) -> None:
        """Record the progress of this write durably."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(self.path, seal({**self.read(), self.write_id: written}))

    def add(self, batch: int, files: list[str]) -> None:
        """Put the rows of *files* as batch number *batch*, unless the log already has it, and make them durable.

        Raises:
            StoreLocked: another process writes the store.
            StoreFull: the disk is full; the next attempt continues after the rows that were put.
        """
        writer = MessageStore(self.store, store_settings(self.store))
        try:
            last = self.read().get(self.write_id)
            if last is not None and not last.done:
                self.complete(writer, last, self.count_put(writer, last))
                last = self.read()[self.write_id]
            if last is None or last.batch < batch:
                self.force_names(files)
                begun = Written(batch, writer.appended, files, done=False)
                self.keep(begun)
                self.complete(writer, begun, 0)
        finally:
            # The next process that opens the store brings its views up to date.
            writer.close(views_complete=False)
        # No task of this write runs now, so any remaining files come from failed attempts.
        shutil.rmtree(self.staging, ignore_errors=True)

    def force_names(self, files: list[str]) -> None:
        """Force the staged files' names to disk, so that they survive a power cut before the ledger refers to them."""
        if files:
            for folder in (self.staging, *self.staging.parents[:3]):
                Files().force_directory(folder)

    def mark(self, batch: int) -> str:
        """Return the value of `WRITE_PROPERTY` in each row of a batch."""
        return f"{self.write_id}:{batch}"

    def complete(self, writer: MessageStore, begun: Written, put_count: int) -> None:
        """Put all but the first *put_count* rows, and wait until they are durable."""
        to_pass = put_count
        for rows in staged_rows(self.staging, begun.files):
            if to_pass >= rows.num_rows:
                to_pass -= rows.num_rows
                continue
            mark = (WRITE_PROPERTY, self.mark(begun.batch))
            writer.put_batch(messages_of(rows.slice(to_pass), self.topic, mark))
            to_pass = 0
        while not writer.durability.wait(writer.appended):
            # A timeout means that the disk is slow. A failing disk raises.
            continue
        self.keep(msgspec.structs.replace(begun, done=True))

    def count_put(self, writer: MessageStore, begun: Written) -> int:
        """Return how many rows of a batch with a killed commit are in the log."""
        scan = LogScan(self.store, needs_properties=True)
        mark, count, at = self.mark(begun.batch), 0, begun.begin
        try:
            while at < writer.appended:
                found = scan.scan(at, writer.appended)
                at = found.end
                for request in found.columns:
                    properties = decode_properties(request.properties or b"")
                    count += properties.get(WRITE_PROPERTY) == mark
        finally:
            scan.close()
        return count


def make_store(store: Path) -> None:
    """Make a store if there is none, before workers stage rows in it.

    Raises:
        NotAStore: the directory has files in it, but no commit log.
    """
    if not is_store(store):
        MessageStore(store, store_settings(store)).close(views_complete=True)


def staging_folder(store: Path, write_id: str) -> Path:
    """Return the staging folder of one write.

    Raises:
        ConfigError: the name is not usable as a folder name.
    """
    if not LEGAL_WRITE_ID.fullmatch(write_id):
        raise ConfigError(
            f"a write's name has at most 100 letters, digits, '.', '_' and '-': option=writeId value={write_id!r}"
        )
    return store / "reput" / "spark_writes" / write_id


def stage_rows(store: Path, write_id: str, file_name: str, batches: Iterator[pa.RecordBatch], topic: str | None) -> int:
    """Check the rows of one task, write them to the staging folder, and return how many there are.

    Raises:
        MessageIllegal: RocketMQ would refuse a row.
    """
    folder = staging_folder(store, write_id)
    body_size_max = store_settings(store).max_message_size
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with (folder / file_name).open("wb") as file:
        writer: pa.RecordBatchStreamWriter | None = None
        for batch in batches:
            size = max((len(message.body) for message in messages_of(batch, topic)), default=0)
            if size > body_size_max:
                raise MessageIllegal(f"body is too long: body_size={size} max_message_size={body_size_max}")
            writer = writer or pa.ipc.new_stream(file, batch.schema)
            writer.write_batch(batch)
            count += batch.num_rows
        if writer is not None:
            writer.close()
        file.flush()
        os.fsync(file.fileno())
    return count


def staged_rows(folder: Path, files: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *files*, in order."""
    for name in files:
        with pa.OSFile(str(folder / name)) as file:
            for batch in pa.ipc.open_stream(file):
                for at in range(0, batch.num_rows, ROWS_OF_BATCH):
                    yield batch.slice(at, ROWS_OF_BATCH)


def store_settings(store: Path) -> Settings:
    """Return the settings recorded with the store."""
    return load_store_settings(store).settings

"""``df.write.format("reput")`` and ``df.writeStream.format("reput")``: rows into the log of a store.

Workers check the rows and stage them in files. The commit runs beside the driver and puts them, because only one
process may write a log. No other process may have the store open for writing at that time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_reput.read_options import OptionStrings
from pyspark_reput.row_messages import check_columns, check_types
from pyspark_reput.write_ledger import WriteLedger, make_store, stage_rows, staging_folder
from reput.errors import ConfigError
from reput.table.advice_notes import advice_noted

__all__ = ["StoreStreamWriter", "StoreWriter", "WriteOptions"]

# The last option is Spark's own, which Spark passes together with the others.
OPTION_NAMES = ("path", "topic", "writeId", "checkpointLocation")
QUERY_ID_PROPERTY = "sql.streaming.queryId"


class WriteOptions:
    """The target of a write: the store, the topic of rows without one, and the name of the write."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """
        Raises:
            ConfigError: an option or a column is unknown, or the mode is overwrite.
            StoreError: the directory is not a store, and none can be made there.
        """
        if overwrite:
            raise ConfigError("a log can only be appended to: mode=overwrite", 'Write .mode("append").')
        options = OptionStrings(given, OPTION_NAMES)
        self.store = options.store()
        self.topic = options.text("topic")
        self.write_id = options.text("writeId")
        if self.write_id is not None:
            staging_folder(Path(self.store), self.write_id)
        check_columns(schema.names, self.topic)
        check_types({field.name: field.dataType.simpleString() for field in schema.fields})
        make_store(Path(self.store))


class StagedRows(WriterCommitMessage):
    """The staged rows of one task, in one file; *write_id*: the write's name, as determined by the task."""

    def __init__(self, write_id: str, file_name: str, row_count: int) -> None:
        self.write_id = write_id
        self.file_name = file_name
        self.row_count = row_count


class StoreWriter(DataSourceArrowWriter):
    """Writes a batch. If the write has a ``writeId``, a repetition puts nothing."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.write_id = options.write_id or f"batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Hand over the rows of one task."""
        return stage(self.options, self.write_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Put the rows of all tasks, in the order of the frame's partitions."""
        put(self.options, 0, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged files, unless a commit in progress still needs them."""
        remove(self.options, messages)


class StoreStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream. If Spark commits a micro-batch again after a restart, it is not put twice."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Hand over the rows of one task."""
        return stage(self.options, self.options.write_id or query_id(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Put the rows of all tasks, in the order of the frame's partitions."""
        put(self.options, batchId, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged files, unless a commit in progress still needs them."""
        remove(self.options, messages)


@advice_noted()
def query_id() -> str:
    """Return the id of this task's streaming query; its checkpoint keeps the id.

    Raises:
        ConfigError: Spark does not provide it.
    """
    context = TaskContext.get()
    found = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
    if not found:
        raise ConfigError("Spark does not identify the query: option=writeId", "Give the write its own name.")
    return f"query-{found}"


@advice_noted()
def stage(options: WriteOptions, write_id: str, batches: Iterator[pa.RecordBatch]) -> StagedRows:
    """Write the rows of one task to a staged file."""
    name = f"{uuid.uuid4().hex}.arrow"
    return StagedRows(write_id, name, stage_rows(Path(options.store), write_id, name, batches, options.topic))


@advice_noted()
def put(options: WriteOptions, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Put the rows of all tasks as one batch."""
    staged = [message for message in messages if isinstance(message, StagedRows)]
    if staged:
        ledger = WriteLedger(Path(options.store), staged[0].write_id, options.topic)
        ledger.add(batch, [message.file_name for message in staged if message.row_count])


def remove(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove the files of an aborted batch's tasks, unless the ledger's unfinished batch names them."""
    for message in messages:
        if isinstance(message, StagedRows):
            store = Path(options.store)
            last = WriteLedger(store, message.write_id, options.topic).read().get(message.write_id)
            if last is None or last.done or message.file_name not in last.files:
                (staging_folder(store, message.write_id) / message.file_name).unlink(missing_ok=True)

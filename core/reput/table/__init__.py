"""The log as a table: commit-log bytes as Arrow record batches, without Spark and without a JVM.

    import reput.table

    reput.table.read("store", topics=["orders"], columns=["queueOffset", "body"])   # a pyarrow.Table
    polars.from_arrow(reput.table.scan("store"))                                    # batch by batch, never whole
    log = reput.table.scan("store"); duckdb.sql("select topic, count(*) from log group by topic")

Needs the extra ``arrow``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from reput.store.log.bad_range import BadRange
from reput.table.log_table import LogTable, TableOptions, table_options
from reput.table.row_filter import QueueRange, RowFilter, is_user_topic
from reput.table.row_format import RowFormat
from reput.table.splits import Split

__all__ = [
    "BadRange",
    "LogTable",
    "QueueRange",
    "RowFilter",
    "RowFormat",
    "Split",
    "TableOptions",
    "is_user_topic",
    "read",
    "scan",
    "table_options",
]


def scan(
    store: Path | str,
    *,
    columns: Iterable[str] | None = None,
    topics: Iterable[str] | None = None,
    begin: int | None = None,
    until: int | None = None,
    **options: Any,
) -> pa.RecordBatchReader:
    """Return the rows of a store's log, in log order, as a reader that decodes record batches as they are read.

    Args:
        store: a store directory, written by reput or RocketMQ, with or without a running writer.
        columns: names to keep, in this order; None: all of the mode.
        topics: names; None: every topic.
        begin, until: commit-log offsets; the range begins with the first record at or after *begin* and excludes
            *until*, where a record begins or the log ends. None: where the log begins or ends.
        options: any field of `RowFormat`, `RowFilter` and `TableOptions` by name, such as ``schema_mode="kafka"``,
            ``store_timestamp_min=…`` or ``on_corruption="report"``.

    Raises:
        NotAStore: there is no commit log in *store*.
        ConfigError: an option is unknown, or has a wrong value.
        DamagedStore: while it is read, unless ``on_corruption="report"``.
    """
    table = LogTable(
        store,
        table_options(
            columns=None if columns is None else tuple(columns),
            topics=None if topics is None else frozenset(topics),
            **options,
        ),
    )
    if begin is not None:
        begin = table.aligned(begin, table.find_end() if until is None else until)
    return pa.RecordBatchReader.from_batches(table.schema, table.batches(*table.bounds(begin, until)))


def read(store: Path | str, **options: Any) -> pa.Table:
    """Return the rows of a store's log as one `pyarrow.Table`; the arguments are those of `scan`."""
    return scan(store, **options).read_all()

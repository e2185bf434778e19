"""Marking rows of a Delta table as deleted, and writing files anew that have many of them.

The Delta library reads, merges and checkpoints files with deletion vectors, but cannot write a vector. So these
transactions are made here.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from importlib.util import find_spec
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from reput.errors import ConfigError, DispatcherError
from reput_plugins.spark_export.lake_location import LakeLocation, lake_errors
from reput_plugins.spark_export.lakes.changed_keys import ChangedKeys
from reput_plugins.spark_export.lakes.deletion_vectors import (
    FOLDER,
    DeletionVector,
    as_bitmap,
    read_bitmap,
    write_bitmaps,
)
from reput_plugins.spark_export.lakes.delta_actions import (
    Action,
    TableState,
    add_action,
    add_again,
    add_file,
    remove_file,
)
from reput_plugins.spark_export.lakes.delta_deleting import rows_with_keys
from reput_plugins.spark_export.lakes.delta_rewriting import rewrite
from reput_plugins.spark_export.lakes.lake_table import VECTORS_SETTING, LakeTable, ParquetFile, TransactionData
from reput_plugins.spark_export.parquet_files import UNKNOWN_RANGE, PartitionWriters, layout_like

__all__ = [
    "FEATURES_KNOWN",
    "TIME_FEATURE",
    "VECTORS_FEATURE",
    "enabling_actions",
    "mark_and_add",
    "paths_of",
    "purge",
    "unused_vectors",
]

VECTORS_FEATURE, TIME_FEATURE = "deletionVectors", "timestampNtz"
# Features of tables that nothing here depends on. The Delta library adds the last one without need.
FEATURES_KNOWN = frozenset({VECTORS_FEATURE, "appendOnly", "invariants", TIME_FEATURE, "variantType"})
# The features that a table without a list of features has.
FEATURES_OF_OLD = ("appendOnly", "invariants")
WRITER_VERSION_OF_OLD, READER_VERSION, WRITER_VERSION = 2, 3, 7
# Before, not every operation of the Delta library knew deletion vectors.
LIBRARY_VERSION_MIN = (1, 6, 6)
# A file is written anew when maintenance finds a larger part of its rows deleted.
DELETED_PART_MAX = 0.2
REFUSED_COMMIT = "the lake refused a commit"


class MarkedTable(LakeTable, Protocol):
    """A Delta table, as far as it is needed here."""

    location: LakeLocation
    delta: DeltaTable

    @property
    def has_vectors(self) -> bool:
        """Whether data files may have deletion vectors."""

    def state(self) -> TableState:
        """Return the actions that make up this version."""

    def commit_own(
        self, operation: str, actions: Sequence[Action], transaction: TransactionData, written: Sequence[str]
    ) -> None:
        """Make the next transaction without the Delta library; remove the files *written* for it if it is not made."""


def mark_and_add(
    table: MarkedTable,
    rows: pa.Table,
    changed: ChangedKeys,
    deleted: str,
    statistics: Sequence[str],
    transaction: TransactionData,
) -> None:
    """Merge rows as `merge_rows`: mark the replaced rows in deletion vectors, and add a file of the new ones."""
    refuse_unknown_features(table)
    state = table.state()
    files = [file for file in table.files() if changed.may_be_in(file)]
    actions: list[Action] = []
    marked, bitmaps = [], []
    for file, numbers in zip(files, rows_with_keys(table.location, files, table.schema(), changed), strict=True):
        bitmap = as_bitmap(numbers)
        if file.deletion is not None:
            bitmap |= read_bitmap(table.location, file.deletion)
        if len(bitmap) == file.row_count:
            actions.append(remove_file(state.files[file.path]))
        elif len(bitmap) > (0 if file.deletion is None else file.deletion.cardinality):
            marked.append(state.files[file.path])
            bitmaps.append(bitmap)
    new = rows.filter(pc.invert(rows[deleted])).drop_columns([deleted])
    written = write_rows(table, new, statistics)
    try:
        vectors = write_bitmaps(table.location, bitmaps)
    except BaseException:
        table.location.remove([file.path for file in written])
        raise
    for action, vector in zip(marked, vectors, strict=True):
        actions += [remove_file(action), add_again(action, vector)]
    actions += [add_file(add_action(file)) for file in written]
    table.commit_own("MERGE", actions, transaction, [*(file.path for file in written), *paths_of(vectors)])


def write_rows(table: MarkedTable, rows: pa.Table, statistics: Sequence[str]) -> list[ParquetFile]:
    """Write rows into files of their partitions, and force them to disk."""
    layout = layout_like(rows.schema, table.partition_columns(), statistics, table.properties())
    writers = PartitionWriters(table.location, f"{UNKNOWN_RANGE}-{uuid.uuid4().hex[:8]}.parquet", layout)
    try:
        writers.add_table(rows, None)
        return writers.finish()
    except BaseException:
        writers.abandon()
        raise


def purge(table: MarkedTable, partition: tuple[str, str] | None) -> int:
    """Write files anew if many of their rows are deleted; return their number. *partition*: only files of it."""
    files = [
        file
        for file in (table.files() if table.has_vectors else ())
        if file.deletion is not None
        and file.deletion.cardinality > file.row_count * DELETED_PART_MAX
        and (partition is None or file.partition[partition[0]] == partition[1])
    ]
    if not files:
        return 0
    refuse_unknown_features(table)
    written: list[ParquetFile] = []
    with lake_errors(table.location.address):
        try:
            schema = table.schema()
            for file in files:
                names = [*file.minimum, *file.null_count]
                layout = layout_like(schema, table.partition_columns(), names, table.properties())
                written.append(rewrite(table.location, file, table.file_schema(schema), layout))
        except BaseException:
            table.location.remove([file.path for file in written])
            raise
        actions = [remove_file(table.state().files[file.path], data_change=False) for file in files]
        actions += [add_file(add_action(file), data_change=False) for file in written]
        table.commit_own("OPTIMIZE", actions, TransactionData({}), [file.path for file in written])
    return len(files)


def enabling_actions(table: MarkedTable) -> list[Action]:
    """Return the actions that add the feature and the setting to a table."""
    refuse_without_vectors(table.location)
    state, protocol = table.state(), table.delta.protocol()
    features = [set(found or ()) for found in (protocol.reader_features, protocol.writer_features)]
    if protocol.min_writer_version <= WRITER_VERSION_OF_OLD:
        features[1].update(FEATURES_OF_OLD)
    unknown = sorted(features[1] - FEATURES_KNOWN)
    if unknown or WRITER_VERSION_OF_OLD < protocol.min_writer_version < WRITER_VERSION:
        raise DispatcherError(
            f"{REFUSED_COMMIT}: lake={table.location.address} writer_version={protocol.min_writer_version} "
            f"unknown_features={','.join(unknown)}",
            "Another program has added features to the table; export into another folder.",
        )
    readers, writers = (sorted(found | {VECTORS_FEATURE}) for found in features)
    wanted = {
        "minReaderVersion": READER_VERSION,
        "minWriterVersion": WRITER_VERSION,
        "readerFeatures": readers,
        "writerFeatures": writers,
    }
    settings = {**state.metadata.get("configuration", {}), VECTORS_SETTING: "true"}
    return [{"protocol": wanted}, {"metaData": {**state.metadata, "configuration": settings}}]


def refuse_unknown_features(table: MarkedTable) -> None:
    """Refuse a table that asks more of its writers than is done here.

    Raises:
        DispatcherError: another program has given the table such a feature.
    """
    unknown = sorted({*(table.delta.protocol().writer_features or ())} - FEATURES_KNOWN)
    if table.properties().get("delta.appendOnly") == "true":
        unknown.append("appendOnly")
    if unknown:
        raise DispatcherError(
            f"{REFUSED_COMMIT}: lake={table.location.address} unknown_features={','.join(unknown)}",
            "Another program has added them; remove them, or export into another folder.",
        )


def unused_vectors(state: TableState, there: Mapping[str, datetime], limit: float) -> list[str]:
    """Return the files of deletion vectors that were written and last used before *limit*.

    Args:
        there: time of each file below the table.
        limit: seconds since 1970.
    """
    vectors = [state.vector(path) for path in state.files]
    vectors += [vector for at, vector in state.removed if at / 1000 >= limit]
    named = set(paths_of([vector for vector in vectors if vector is not None]))
    return [
        name
        for name, written in there.items()
        if name.startswith(f"{FOLDER}/") and name not in named and written.timestamp() < limit
    ]


def paths_of(vectors: Sequence[DeletionVector]) -> list[str]:
    """Return the files of deletion vectors, each once."""
    return sorted({vector.path for vector in vectors if vector.path is not None})


def refuse_without_vectors(location: LakeLocation) -> None:
    """Refuse deletion vectors where they cannot be written.

    Raises:
        ConfigError: the table lies in an object store.
        DispatcherError: a package is missing or too old.
    """
    if location.folder is None:
        raise ConfigError(
            f"a table in an object store cannot have deletion vectors: lake={location.address}",
            "Leave out deletion_vectors, or name a folder.",
        )
    found = tuple(int(part) for part in re.findall(r"\d+", version("deltalake"))[:3])
    if find_spec("pyroaring") is None or found < LIBRARY_VERSION_MIN:
        raise DispatcherError(
            f"deletion vectors need pyroaring, and deltalake {'.'.join(map(str, LIBRARY_VERSION_MIN))}: "
            f"deltalake={version('deltalake')}",
            'Install them with: pip install "reput[typed]" "deltalake>=1.6.6".',
        )

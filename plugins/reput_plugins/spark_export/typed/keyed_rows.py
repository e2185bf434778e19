"""Changes for keyed tables: the files that workers write for a merge, and how the driver reads them.

A worker writes *changes*: rows with the table's columns, and ``_deleted``. The files lie beside those of the table, but
no transaction ever names them. The driver merges the newest change of each key into the table.

A change with an empty body, a tombstone, removes the row of its key. Because there is no body to take the key from, the
key is the message's KEYS property: the value of the key column, or the values of several key columns, separated by a
space as RocketMQ separates keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.parquet_files import values_of
from reput_plugins.spark_export.typed.bodies.decoding import Decoded, decode_halves
from reput_plugins.spark_export.typed.table_specs import KEY_COLUMN, TableSpec

__all__ = ["DELETED", "newest_changes", "read_changes", "refuse_null_keys", "tombstones"]

DELETED = "_deleted"
NO_KEYS = "the message has no KEYS to use as the key"


def tombstones(keys: pa.Array, spec: TableSpec, rows: pa.Schema) -> Decoded:
    """Return a row of the columns *rows* for each empty body: the key columns have its KEYS property, the others null.

    KEYS that are not a value of the key are refused with a reason.
    """
    if KEY_COLUMN in spec.key_columns:
        # The key does not come from the body, but from the message.
        return without_keys(keys, pa.table([pa.nulls(len(keys), field.type) for field in rows], schema=rows))

    def attempt(texts: pa.Array) -> pa.Table:
        if texts.null_count:
            raise pa.ArrowInvalid(NO_KEYS)
        parts = [texts]
        if len(spec.key_columns) > 1:
            split = pc.split_pattern(texts, " ")
            if not pc.all(pc.equal(pc.list_value_length(split), len(spec.key_columns))).as_py():
                raise pa.ArrowInvalid(f"KEYS are not the {len(spec.key_columns)} values of the key")
            parts = [pc.list_element(split, number) for number in range(len(spec.key_columns))]
        found = dict(zip(spec.key_columns, parts, strict=True))
        columns = [
            found[field.name].cast(field.type) if field.name in found else pa.nulls(len(texts), field.type)
            for field in rows
        ]
        return pa.table(columns, schema=rows)

    return decode_halves(empty_to_null(keys), rows, attempt, (pa.ArrowInvalid, pa.ArrowNotImplementedError))


def refuse_null_keys(decoded: Decoded, keys: pa.Array, spec: TableSpec) -> Decoded:
    """Return *decoded* without the bodies whose key is null. *keys*: the KEYS property of every body."""
    if KEY_COLUMN in spec.key_columns:
        chosen = keys.take(pa.array(decoded.kept))
        found = without_keys(chosen, decoded.rows)
        refused = [(int(decoded.kept[number]), reason) for number, reason in found.refused]
        return Decoded(found.rows, decoded.kept[found.kept], sorted([*decoded.refused, *refused]))
    refused = list(decoded.refused)
    rows, kept = decoded.rows, decoded.kept
    for name in spec.key_columns:
        at = rows.schema.get_field_index(name)
        # A decoder may leave out a column that no body has.
        null = np.ones(len(kept), bool) if at < 0 else rows.column(at).is_null().to_numpy()
        reason = f"the key is null: column={name}"
        if name in spec.partition_by and at >= 0 and pa.types.is_string(rows.schema.field(at).type):
            null |= pc.fill_null(pc.equal(rows.column(at), ""), False).to_numpy()
            reason = f"the key is null or empty, and names a partition: column={name}"
        if null.any():
            refused += [(int(number), reason) for number in kept[null]]
            rows, kept = rows.filter(pa.array(~null)), kept[~null]
    return Decoded(rows, kept, sorted(refused))


def without_keys(keys: pa.Array, rows: pa.Table) -> Decoded:
    """Return *rows* as a `Decoded` in which rows without KEYS are refused."""
    null = empty_to_null(keys).is_null().to_numpy(zero_copy_only=False)
    kept = np.flatnonzero(~null)
    return Decoded(rows.filter(pa.array(~null)), kept, [(int(at), NO_KEYS) for at in np.flatnonzero(null)])


def empty_to_null(texts: pa.Array) -> pa.Array:
    """Return *texts* with empty texts replaced by null."""
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)


def read_changes(location: LakeLocation, names: Sequence[str]) -> list[pa.Table]:
    """Return the changes that workers wrote into files beside the table.

    Raises:
        OSError: a file cannot be read.
    """
    filesystem = location.filesystem()
    found = []
    for name in names:
        with filesystem.open_input_file(name) as stream:
            found.append(pq.ParquetFile(stream).read())
    return found


def newest_changes(changes: Sequence[pa.Table], key: Sequence[str], offset: str) -> pa.Table:
    """Return the last change of each key, in the order of the log.

    *offset*: the column, or field of a struct (``column.field``), with the commit-log offset, which is unique.
    """
    table = pa.concat_tables(changes)
    offsets = values_of(table, offset)
    keyed = table.select(list(key)).append_column("", offsets)
    newest = keyed.group_by(list(key), use_threads=False).aggregate([("", "max")])
    return table.filter(pc.is_in(offsets, value_set=newest.column("_max").combine_chunks()))

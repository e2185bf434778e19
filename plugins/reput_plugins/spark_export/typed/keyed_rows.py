"""Rows of keyed tables on their way: what a worker writes for a merge, and what the driver makes of it.

A worker writes *changes*: the table's columns, and ``_deleted``. Its files lie beside those of the table, and no
transaction ever names them. The driver takes the newest change of each key and merges them into the table.

A change with an empty body removes the row of its key (a tombstone). Its key is the message's KEYS property, because
there is no body to take it from: the value of the key column, or the values of several, separated by a space as
RocketMQ separates keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.typed.bodies.decoding import Decoded, decode_halves
from reput_plugins.spark_export.typed.table_specs import KEY_COLUMN, TableSpec

__all__ = ["DELETED", "newest_changes", "read_changes", "refuse_null_keys", "tombstones"]

DELETED = "_deleted"
NO_KEYS = "the message has no KEYS, which are the key"


def tombstones(keys: pa.Array, spec: TableSpec, rows: pa.Schema) -> Decoded:
    """Return for each empty body, by its KEYS property, the table's own columns: only those of the key are not null.

    *rows*: these columns. The KEYS that are no key are refused with a reason.
    """
    if KEY_COLUMN in spec.key_columns:
        # The key is no column of the body; the row has it from its message.
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
    """Return the bodies that fit, and moreover have a key. *keys*: the KEYS property of every body."""
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
        if null.any():
            refused += [(int(number), f"the key is null: column={name}") for number in kept[null]]
            rows, kept = rows.filter(pa.array(~null)), kept[~null]
    return Decoded(rows, kept, sorted(refused))


def without_keys(keys: pa.Array, rows: pa.Table) -> Decoded:
    """Return *rows* as decoded, those without KEYS refused."""
    null = empty_to_null(keys).is_null().to_numpy(zero_copy_only=False)
    kept = np.flatnonzero(~null)
    return Decoded(rows.filter(pa.array(~null)), kept, [(int(at), NO_KEYS) for at in np.flatnonzero(null)])


def empty_to_null(texts: pa.Array) -> pa.Array:
    """Return *texts* with null in place of empty ones."""
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
    """Return of each key the change that lies last in the log.

    *offset*: the column, or field of a struct (``column.field``), of the offset in the log, which no two changes share.
    """
    table = pa.concat_tables(changes)
    column, _, field = offset.partition(".")
    offsets = pc.struct_field(table[column], field) if field else table[column]
    keyed = table.select(list(key)).append_column("", offsets)
    newest = keyed.group_by(list(key), use_threads=False).aggregate([("", "max")])
    return table.filter(pc.is_in(offsets, value_set=newest.column("_max").combine_chunks()))

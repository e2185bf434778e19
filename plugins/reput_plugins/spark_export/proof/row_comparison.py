"""Compares rows with their decoded records, a column at a time. Only columns that differ are compared row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["different_rows"]

Array = np.ndarray[Any, Any]


def different_rows(expected: pa.RecordBatch, found: pa.RecordBatch) -> Iterator[tuple[str, Array]]:
    """Yield (column, numbers of the rows that differ) for each column of *expected* in which *found* differs."""
    for name in expected.schema.names:
        wanted, stored = expected[name], found[name]
        if stored.type != wanted.type:
            try:
                stored = stored.cast(wanted.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                yield name, np.arange(len(wanted))
                continue
        if not stored.equals(wanted):
            numbers = np.flatnonzero(differs(wanted, stored))
            if len(numbers):
                yield name, numbers


def differs(wanted: pa.Array, stored: pa.Array) -> Array:
    """Return a flag per row that says whether its values differ. Null equals only null."""
    if pa.types.is_nested(wanted.type):
        pairs = zip(wanted.to_pylist(), stored.to_pylist(), strict=True)
        return np.fromiter((one != other for one, other in pairs), np.bool_, len(wanted))
    unequal = pc.fill_null(pc.not_equal(wanted, stored), False)
    null = pc.xor(pc.is_null(wanted), pc.is_null(stored))
    return np.asarray(pc.or_(unequal, null).to_numpy(zero_copy_only=False), np.bool_)

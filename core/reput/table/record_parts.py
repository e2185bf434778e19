"""RecordParts: body, topic and properties of thousands of records, each with one Arrow ``take`` and no further copy.

All variable fields of a run of records lie in one buffer. An array of six offsets per record turns it into an Arrow
array in which every other element is a field, and the elements between are the separating bytes:

    body begin, body end, topic begin, topic end, properties begin, properties end, next record's body begin, …
    └── take 0, 6, 12, …     └── take 2, 8, …       └── take 4, 10, …
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from reput.store.record.record_columns import RecordColumns

__all__ = ["BODY", "PROPERTIES", "TOPIC", "RecordParts"]

BODY, TOPIC, PROPERTIES = 0, 2, 4
OFFSETS_PER_RECORD = 6

Array = np.ndarray[Any, Any]


class RecordParts:
    """The variable fields of *columns*, which must hold at least one record; its data may change afterwards."""

    __slots__ = ("columns", "elements")

    def __init__(self, columns: RecordColumns) -> None:
        self.columns = columns
        size = OFFSETS_PER_RECORD * len(columns)
        offsets = np.empty(size, np.int32)
        offsets[0::6] = columns.body_at
        offsets[1::6] = columns.body_at + columns.body_size
        offsets[2::6] = columns.topic_at
        offsets[3::6] = columns.topic_at + columns.topic_size
        offsets[4::6] = columns.properties_at
        offsets[5::6] = columns.properties_at + columns.properties_size
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(columns.data)]
        self.elements = pa.Array.from_buffers(pa.binary(), size - 1, buffers)

    def __len__(self) -> int:
        return len(self.columns)

    def take(self, part: int, rows: Array) -> pa.BinaryArray:
        """Return one field of the records with the numbers *rows*, in that order, copied."""
        return self.elements.take(pa.array(rows * OFFSETS_PER_RECORD + part))

"""Framing: the bytes before the encoded fields of a body.

    confluent        00 · schema id, 4 bytes big-endian · fields           (protobuf: · message indexes · fields)
    single object    C3 01 · CRC-64-AVRO of the schema, 8 bytes little-endian · fields

Sources: Confluent's "Wire format" page, and the Avro specification's "Single-object encoding".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput_plugins.spark_export.typed.bodies.decoding import Decoded

__all__ = ["Unframed", "no_framing", "split_confluent", "split_single_object", "without_first"]

Array = np.ndarray[Any, Any]

CONFLUENT_SIZE = 5
SINGLE_OBJECT_SIZE = 10


class Unframed:
    """The *payloads* of the bodies with the numbers *at*, with a *mark* each (the schema's id or fingerprint)."""

    def __init__(self, payloads: pa.BinaryArray, at: Array, mark: Array, refused: list[tuple[int, str]]) -> None:
        self.payloads = payloads
        self.at = at
        self.mark = mark
        self.refused = refused

    def chosen(self, known: Array, reason: str) -> Unframed:
        """Return only the payloads where *known* is set; the others are refused for *reason*."""
        refused = [(number, reason) for number in self.at[~known].tolist()]
        return Unframed(
            self.payloads.filter(pa.array(known)), self.at[known], self.mark[known], sorted(self.refused + refused)
        )

    def whole(self, decoded: Decoded) -> Decoded:
        """Return *decoded*, whose numbers are those of payloads, with the numbers of the bodies."""
        refused = [(int(self.at[number]), reason) for number, reason in decoded.refused]
        return Decoded(decoded.rows, self.at[decoded.kept], sorted(self.refused + refused))


def no_framing(bodies: pa.BinaryArray) -> Unframed:
    """Return the unchanged bodies."""
    return Unframed(bodies, np.arange(len(bodies)), np.zeros(len(bodies), np.int64), [])


def split_confluent(bodies: pa.BinaryArray) -> Unframed:
    """Return the bodies after Confluent's prefix, with the ids of their schemas."""
    return split(bodies, b"\0", CONFLUENT_SIZE, 1, ">u4", "the body does not begin with a zero byte and a schema id")


def split_single_object(bodies: pa.BinaryArray) -> Unframed:
    """Return the bodies after Avro's single-object prefix, with the fingerprints of their schemas."""
    reason = "the body does not begin with Avro's single-object mark"
    return split(bodies, b"\xc3\x01", SINGLE_OBJECT_SIZE, 2, "<u8", reason)


def split(bodies: pa.BinaryArray, mark: bytes, size: int, at: int, dtype: str, reason: str) -> Unframed:
    """Return the bodies that begin with *mark* after their first *size* bytes, with the number at *at*."""
    framed = pc.and_(pc.starts_with(bodies, mark), pc.greater_equal(pc.binary_length(bodies), size))
    is_framed = framed.to_numpy(zero_copy_only=False)
    refused = [(number, reason) for number in np.flatnonzero(~is_framed).tolist()]
    chosen = bodies.filter(framed)
    begins, data = bounds(chosen)[:-1], np.frombuffer(chosen.buffers()[2] or b"", np.uint8)
    numbers = data[begins[:, None] + np.arange(at, size)].view(dtype).reshape(-1)
    return Unframed(without_first(chosen, size), np.flatnonzero(is_framed), numbers, refused)


def bounds(values: pa.BinaryArray | pa.StringArray) -> Array:
    """Return where the values begin in their buffer, and where the last one ends."""
    if not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


def without_first(values: pa.BinaryArray | pa.StringArray, count: int) -> pa.BinaryArray | pa.StringArray:
    """Return *values* without their first *count* bytes. No value may be shorter.

    Arrow's own `binary_slice` fails for some arrays.
    """
    if not len(values):
        return values
    offsets = np.empty(2 * len(values), np.int32)
    found = bounds(values)
    offsets[0::2] = found[:-1] + count
    offsets[1::2] = found[1:]
    # Every other element is the gap between two values.
    pieces = pa.Array.from_buffers(
        values.type, len(offsets) - 1, [None, pa.py_buffer(offsets), values.buffers()[2] or pa.py_buffer(b"")]
    )
    return pieces.take(pa.array(np.arange(0, len(offsets), 2)))

"""PropertyPieces: splits the properties of thousands of records at once.

The strings lie one after the other in one buffer, and numpy finds the separators in the whole buffer. The values of one
name, or all names and all values, then take one Arrow ``take`` each. The rules are those of RocketMQ's readers,
including filters: the first 0x01 of a piece separates name and value; a piece without a name or a value is not a
property; if a name repeats, its last value takes the place of the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from reput.store.record.record_columns import take
from reput.table.row_format import HEADERS_TYPE

__all__ = ["PropertyPieces"]

NAME_END = 1
PROPERTY_END = 2
# Sums of powers of two below this many different names cannot wrap into the powers themselves.
DISTINCT_NAMES_MAX = 48

Array = np.ndarray[Any, Any]


class PropertyPieces:
    """The properties of each string of *texts*.

    *texts* is an Arrow string array without nulls that begins at its buffers' start.
    """

    __slots__ = ("begin", "name_size", "offsets", "parts", "text")

    def __init__(self, texts: pa.StringArray) -> None:
        count = len(texts)
        row_ends = np.frombuffer(texts.buffers()[1], np.int32, count + 1)
        total = int(row_ends[-1])
        data = texts.buffers()[2] if total else pa.py_buffer(b"")
        text = np.frombuffer(data, np.uint8, total)

        separator = text == PROPERTY_END
        begins_piece = np.zeros(total + 1, np.bool_)
        begins_piece[1:] = separator
        begins_piece[row_ends[:-1]] = True
        begin = np.flatnonzero(begins_piece[:-1])
        end = np.append(begin[1:], total)
        # A piece ends before its separator; the last one of a string may have none.
        end -= separator[end - 1] if total else 0
        name_ends = np.flatnonzero(text == NAME_END)
        if len(name_ends) == len(begin) and bool(((begin < name_ends) & (name_ends + 1 < end)).all()):
            name_end = name_ends
        else:
            found = np.searchsorted(name_ends, begin)
            name_end = np.append(name_ends, total)[found]
            proper = (begin < name_end) & (name_end + 1 < end)
            begin, end, name_end = begin[proper], end[proper], name_end[proper]

        size = len(begin)
        interleaved = np.empty(4 * size + 1, np.int32)
        for place, offsets in enumerate((begin, name_end, name_end + 1, end)):
            interleaved[place:-1:4] = offsets
        interleaved[-1] = total
        # Of each property: its name, the separator, its value, the bytes up to the next property.
        self.parts = pa.StringArray.from_buffers(4 * size, pa.py_buffer(interleaved), data)
        self.text = text
        self.begin: Array = begin
        self.name_size: Array = name_end - begin
        # The properties of record n, repeated names included, are ``offsets[n]:offsets[n + 1]``.
        self.offsets: Array = np.searchsorted(begin, row_ends).astype(np.int32)

    def names(self, at: Array) -> pa.StringArray:
        """Return the names of the properties with the numbers *at*."""
        return self.parts.take(pa.array(4 * at))

    def values(self, at: Array) -> pa.StringArray:
        """Return the values of the properties with the numbers *at*."""
        return self.parts.take(pa.array(4 * at + 2))

    def value_of(self, name: str) -> pa.StringArray:
        """Return each record's value of *name*, null if it has none. Other names and values are not copied."""
        wanted = name.encode()
        at = np.flatnonzero(self.name_size == len(wanted))
        at = at[take(self.text, self.begin[at], len(wanted)).view(f"S{len(wanted)}").reshape(-1) == wanted]
        begins, ends = self.offsets[:-1], self.offsets[1:]
        if len(at) == len(begins) and bool(((begins <= at) & (at < ends)).all()):
            return self.values(at)
        index = np.full(len(begins), -1)
        # If a name repeats, the last assignment counts.
        index[np.searchsorted(self.offsets, at, "right") - 1] = at
        return self.parts.take(pa.array(4 * index + 2, mask=index < 0))

    def as_map(self) -> pa.MapArray:
        """Return the properties as map<string, string>."""
        return pa.MapArray.from_arrays(*self.as_lists())

    def as_headers(self) -> pa.ListArray:
        """Return the properties as Kafka's headers."""
        offsets, names, values = self.as_lists()
        fields = [HEADERS_TYPE.value_type.field(number) for number in range(2)]
        headers = pa.StructArray.from_arrays([names, values.view(pa.binary())], fields=fields)
        return pa.ListArray.from_arrays(offsets, headers).cast(HEADERS_TYPE)

    def as_lists(self) -> tuple[pa.Array, pa.StringArray, pa.StringArray]:
        """Return names and values, one per record and name, and where those of each record begin."""
        every = np.arange(len(self.begin))
        names = self.names(every)
        encoded = names.dictionary_encode()
        codes, distinct_count = encoded.indices.to_numpy(), len(encoded.dictionary)
        if not self.repeats_a_name(codes, distinct_count):
            return pa.array(self.offsets), names, self.values(every)
        row = self.rows()
        first, last = first_and_last(row * distinct_count + codes)
        offsets = np.searchsorted(row[first], np.arange(len(self.offsets))).astype(np.int32)
        return pa.array(offsets), self.names(first), self.values(last)

    def rows(self) -> Array:
        """Return the record number of each property."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def repeats_a_name(self, codes: Array, distinct_count: int) -> bool:
        """Return whether any record has two properties with the same name; *codes* numbers the names."""
        if distinct_count > DISTINCT_NAMES_MAX:
            return len(np.unique(self.rows() * distinct_count + codes)) < len(codes)
        filled = self.offsets[:-1][np.diff(self.offsets) > 0]
        if not len(filled):
            return False
        # With a record's names as powers of two, their sum equals their bitwise OR if and only if no name repeats.
        bits = np.left_shift(np.uint64(1), codes.astype(np.uint64))
        return bool((np.add.reduceat(bits, filled) != np.bitwise_or.reduceat(bits, filled)).any())


def first_and_last(key: Array) -> tuple[Array, Array]:
    """Return where each different value of *key* is first and last, in the order of the first."""
    order = np.argsort(key, kind="stable")
    begins_group = np.append(True, key[order][1:] != key[order][:-1])
    group = np.flatnonzero(begins_group)
    first, last = np.minimum.reduceat(order, group), order[np.append(group[1:], len(order)) - 1]
    place = np.argsort(first)
    return first[place], last[place]

"""PropertyPieces: splits the properties of thousands of records at once.

The strings lie one after the other in one buffer. numpy finds the separators in the whole buffer, then names and values
take one Arrow ``take`` each. The rules are those of RocketMQ's readers, including filters: the first 0x01 of a piece
separates name and value; a piece without a name or a value is not a property; if a name repeats, its last value takes
the place of the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from reput.table.row_format import HEADERS_TYPE

__all__ = ["PropertyPieces"]

NAME_END = 1
PROPERTY_END = 2
# Sums of powers of two below this many different names cannot wrap into the powers themselves.
DISTINCT_NAMES_MAX = 48

Array = np.ndarray[Any, Any]


class PropertyPieces:
    """The properties of each string of *texts*, an Arrow string array without nulls that begins at its buffers' start.

    Attributes:
        names, values: Arrow string arrays with one element per property, in record order.
        offsets: int32, one more than there are records: the properties of record n are ``offsets[n]:offsets[n + 1]``.
    """

    __slots__ = ("codes", "distinct", "names", "offsets", "values")

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
        parts = pa.StringArray.from_buffers(4 * size, pa.py_buffer(interleaved), data)
        at = np.arange(0, 4 * size, 4)
        self.names: pa.StringArray = parts.take(pa.array(at))
        self.values: pa.StringArray = parts.take(pa.array(at + 2))
        self.offsets: Array = np.searchsorted(begin, row_ends).astype(np.int32)
        encoded = self.names.dictionary_encode()
        self.codes: Array = encoded.indices.to_numpy()
        self.distinct: list[str] = encoded.dictionary.to_pylist()
        if self.repeats_a_name():
            self.keep_the_later()

    def rows(self) -> Array:
        """Return the record number of each property."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def repeats_a_name(self) -> bool:
        """Return whether any record has two properties with the same name."""
        if len(self.distinct) > DISTINCT_NAMES_MAX:
            return len(np.unique(self.rows() * len(self.distinct) + self.codes)) < len(self.codes)
        filled = self.offsets[:-1][np.diff(self.offsets) > 0]
        if not len(filled):
            return False
        # With a record's names as powers of two, their sum equals their bitwise OR if and only if no name repeats.
        bits = np.left_shift(np.uint64(1), self.codes.astype(np.uint64))
        return bool((np.add.reduceat(bits, filled) != np.bitwise_or.reduceat(bits, filled)).any())

    def keep_the_later(self) -> None:
        """Keep one property per record and name: the last value, in the first one's place."""
        row = self.rows()
        key = row * len(self.distinct) + self.codes
        order = np.argsort(key, kind="stable")
        begins_group = np.append(True, key[order][1:] != key[order][:-1])
        group = np.flatnonzero(begins_group)
        first, last = np.minimum.reduceat(order, group), order[np.append(group[1:], len(order)) - 1]
        place = np.argsort(first)
        first, last = first[place], last[place]
        self.names = self.names.take(pa.array(first))
        self.values = self.values.take(pa.array(last))
        self.codes = self.codes[first]
        self.offsets = np.searchsorted(row[first], np.arange(len(self.offsets))).astype(np.int32)

    def value_of(self, name: str) -> pa.StringArray:
        """Return each record's value of *name*, null if it has none."""
        count = len(self.offsets) - 1
        if name not in self.distinct:
            return pa.nulls(count, pa.string())
        at = np.flatnonzero(self.codes == self.distinct.index(name))
        if len(at) == count:
            return self.values.take(pa.array(at))
        index = np.full(count, -1)
        index[np.searchsorted(self.offsets, at, "right") - 1] = at
        return self.values.take(pa.array(index, mask=index < 0))

    def as_map(self) -> pa.MapArray:
        """Return the properties as map<string, string>."""
        return pa.MapArray.from_arrays(pa.array(self.offsets), self.names, self.values)

    def as_headers(self) -> pa.ListArray:
        """Return the properties as Kafka's headers."""
        fields = [HEADERS_TYPE.value_type.field(number) for number in range(2)]
        headers = pa.StructArray.from_arrays([self.names, self.values.view(pa.binary())], fields=fields)
        return pa.ListArray.from_arrays(pa.array(self.offsets), headers).cast(HEADERS_TYPE)

"""DispatchRequest and DispatchBatch: the input of a dispatcher. They tell where each record lies, without its body.

A batch travels as columns: a dispatcher can process all of it with numpy, or row by row without numpy. Each record has
one row of 64 bytes, little-endian:

    at  size  field                        meaning
     0     8  commit_log_offset            bytes
     8     8  queue_offset                 units of (topic, queue id); 0 for prepared and rolled back records
    16     8  tags_code                    Java hashCode of the tag, or the deliver time of a delayed record
    24     8  store_timestamp              ms
    32     8  prepared_transaction_offset  bytes
    40     4  record_size                  bytes
    44     4  queue_index                  row of `DispatchColumns.queues`
    48     4  sys_flag
    52     4  texts_size                   bytes of this record in `DispatchColumns.texts`
    56     2  uniq_key_size                bytes, -1: the record has none
    58     2  keys_size                    bytes, -1: the record has properties but no keys
    60     2  multi_dispatch_size          bytes, -1: none
    62     2  properties_size              bytes, -1: not carried

The texts of a record follow each other in `texts`, in the order of their sizes, UTF-8. The rest of `texts_size` is the
record's tags.

Source of the fields: RocketMQ store, DispatchRequest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

import msgspec

from reput_hooks.cursor import Cursor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ROW", "ROW_FIELDS", "ROW_SIZE", "DispatchBatch", "DispatchColumns", "DispatchRequest"]

ROW = Struct("<qqqqqiiiihhhh")
ROW_SIZE = 64
assert ROW.size == ROW_SIZE

ROW_FIELDS: tuple[tuple[str, str], ...] = (
    ("commit_log_offset", "<i8"),
    ("queue_offset", "<i8"),
    ("tags_code", "<i8"),
    ("store_timestamp", "<i8"),
    ("prepared_transaction_offset", "<i8"),
    ("record_size", "<i4"),
    ("queue_index", "<i4"),
    ("sys_flag", "<i4"),
    ("texts_size", "<i4"),
    ("uniq_key_size", "<i2"),
    ("keys_size", "<i2"),
    ("multi_dispatch_size", "<i2"),
    ("properties_size", "<i2"),
)

MULTI_DISPATCH_SEPARATOR = "\x02"


class DispatchRequest(msgspec.Struct, frozen=True, gc=False):
    """One record, as a dispatcher sees it.

    Attributes:
        keys: the KEYS property, parts separated by spaces; "" if the record has no properties, None if it has
            properties but no keys.
        multi_dispatch: further queues (name, queue offset) of the record, by RocketMQ's multi-dispatch.
        properties: the raw properties string, only if an enabled dispatcher declares ``needs_properties``.
        tags: the whole TAGS property; None if it is missing or empty.
    """

    topic: str
    queue_id: int
    commit_log_offset: int
    record_size: int
    tags_code: int
    store_timestamp: int
    queue_offset: int
    keys: str | None
    uniq_key: str | None
    sys_flag: int
    prepared_transaction_offset: int
    multi_dispatch: tuple[tuple[str, int], ...] = ()
    properties: bytes | None = None
    tags: str | None = None


class DispatchColumns(msgspec.Struct, frozen=True, array_like=True):
    """The requests of one frame, in commit-log order: *queues* are (topic, queue id), *rows* and *texts* as above."""

    queues: list[tuple[str, int]]
    rows: bytes
    texts: bytes

    def __len__(self) -> int:
        return len(self.rows) // ROW_SIZE

    def __iter__(self) -> Iterator[DispatchRequest]:
        queues, texts = self.queues, self.texts
        at = 0
        for (
            commit_log_offset,
            queue_offset,
            tags_code,
            store_timestamp,
            prepared_transaction_offset,
            record_size,
            queue_index,
            sys_flag,
            texts_size,
            uniq_key_size,
            keys_size,
            multi_dispatch_size,
            properties_size,
        ) in ROW.iter_unpack(self.rows):
            topic, queue_id = queues[queue_index]
            keys: str | None = None
            uniq_key: str | None = None
            multi_dispatch: tuple[tuple[str, int], ...] = ()
            properties: bytes | None = None
            start = at
            if uniq_key_size >= 0:
                uniq_key = texts[start : start + uniq_key_size].decode("utf-8", "replace")
                start += uniq_key_size
            if keys_size >= 0:
                keys = texts[start : start + keys_size].decode("utf-8", "replace")
                start += keys_size
            if multi_dispatch_size >= 0:
                multi_dispatch = parse_multi_dispatch(texts[start : start + multi_dispatch_size])
                start += multi_dispatch_size
            if properties_size >= 0:
                properties = texts[start : start + properties_size]
                start += properties_size
            at += texts_size
            tags = texts[start:at].decode("utf-8", "replace") if start < at else None
            yield DispatchRequest(
                topic,
                queue_id,
                commit_log_offset,
                record_size,
                tags_code,
                store_timestamp,
                queue_offset,
                keys,
                uniq_key,
                sys_flag,
                prepared_transaction_offset,
                multi_dispatch,
                properties,
                tags,
            )


def parse_multi_dispatch(text: bytes) -> tuple[tuple[str, int], ...]:
    """Return the (queue name, queue offset) pairs of ``names 0x02 offsets``, both joined by commas.

    Empty if the counts differ or an offset is not a number: RocketMQ then dispatches to none of them.
    """
    names, _, offsets = text.decode("utf-8", "replace").partition(MULTI_DISPATCH_SEPARATOR)
    queue_names, queue_offsets = names.split(","), offsets.split(",")
    if len(queue_names) != len(queue_offsets):
        return ()
    try:
        return tuple((name, int(offset)) for name, offset in zip(queue_names, queue_offsets, strict=True))
    except ValueError:
        return ()


class DispatchBatch:
    """The requests of a range of the commit log, in the order of the log and without gaps.

    Attributes:
        commit_log_offset: first byte of the range, the end of the previous batch.
        end: cursor behind the range. `dispatch` brings the view up to it.
        parts: the requests, as columns. Empty with ``feeds="positions"``, and if the range has no record.
    """

    __slots__ = ("_array", "commit_log_offset", "end", "parts")

    def __init__(self, commit_log_offset: int, end: Cursor, parts: Sequence[DispatchColumns]) -> None:
        self.commit_log_offset = commit_log_offset
        self.end = end
        self.parts = parts
        self._array: tuple[np.ndarray[Any, Any], list[tuple[str, int]], bytes] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[DispatchRequest]:
        for part in self.parts:
            yield from part

    def cursor_behind(self, request: DispatchRequest) -> Cursor:
        """Return the cursor behind one record, for a view that has taken in the batch up to this record."""
        return Cursor(
            self.end.store_id,
            self.end.epoch,
            request.commit_log_offset + request.record_size,
            request.store_timestamp,
        )

    def columns(self) -> tuple[np.ndarray[Any, Any], list[tuple[str, int]], bytes]:
        """Return the whole batch as (rows, queues, texts) for numpy.

        ``rows`` is a read-only structured array with the fields of `ROW_FIELDS`. Its ``queue_index`` is an index into
        ``queues``, a list of distinct (topic, queue id) pairs. Imports numpy.
        """
        if self._array is None:
            self._array = merge(self.parts)
        return self._array


def merge(parts: Sequence[DispatchColumns]) -> tuple[np.ndarray[Any, Any], list[tuple[str, int]], bytes]:
    """Join *parts* into one table of rows, one list of queues and one run of texts."""
    import numpy as np

    dtype = np.dtype(list(ROW_FIELDS))
    if len(parts) == 1:
        part = parts[0]
        return np.frombuffer(part.rows, dtype), part.queues, part.texts
    joined = np.frombuffer(b"".join([part.rows for part in parts]), dtype)
    texts = b"".join([part.texts for part in parts])
    queues = parts[0].queues if parts else []
    if [part.queues for part in parts].count(queues) == len(parts):
        # All frames have the same queues: there is nothing to renumber.
        return joined, queues, texts
    rows = joined.copy()
    index_of: dict[tuple[str, int], int] = {}
    known = index_of.setdefault
    renumbered = [known(queue, len(index_of)) for part in parts for queue in part.queues]
    first_queue = np.cumsum([0] + [len(part.queues) for part in parts[:-1]])
    row_counts = [len(part.rows) // ROW_SIZE for part in parts]
    if len(rows):
        rows["queue_index"] = np.array(renumbered, np.int32)[rows["queue_index"] + np.repeat(first_queue, row_counts)]
    rows.flags.writeable = False
    return rows, list(index_of), texts

"""RecordColumns: the records of a run of bytes, located and judged thousands at a time with numpy.

The one sequential step is the walk over the sizes; everything else is done for all records at once. Records that
do not fit together - lengths, magic, own offset - end the run, with the reason.

Source of the rules: RocketMQ store, CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from reput.kernel import kernel
from reput.store.record.byte_runs import WORD_SIZE, join_runs
from reput.store.record.layout import (
    BLANK_MAGIC_CODE,
    BODY_SIZE,
    BORN_HOST_AT,
    BORN_HOST_V6_FLAG,
    FIXED_FIELDS,
    IPV4_HOST_SIZE,
    IPV6_EXTRA_SIZE,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    MESSAGE_MAGIC_CODES,
    PREPARED_TRANSACTION_OFFSET_BEFORE_BODY,
    RECONSUME_TIMES_BEFORE_BODY,
    RECORD_SIZE_MIN,
    SIZE,
    SIZE_AND_MAGIC,
    STORE_HOST_V6_FLAG,
    STORE_TIMESTAMP,
    STORE_TIMESTAMP_AT,
    TOPIC_SIZE_MAX_V2,
)
from reput.store.record.properties import decode_properties
from reput.store.record.record import CRC_PROPERTY_NAME, CRC_PROPERTY_SIZE, crc_property

__all__ = ["ARRAYS", "RecordColumns", "ScanStop", "locate_records", "locate_records_at", "stop_at"]

HEADER = np.dtype(list(FIXED_FIELDS))
assert HEADER.itemsize == BORN_HOST_AT
# A run of at least this many records of one size is worth examining at once; after a shorter one, as many records pass
# before the next attempt.
RUN_WORTHWHILE = 64
# Up to this many records a dictionary finds their queues sooner, and one record's in a thirtieth of the time.
FEW_RECORDS = 64

# The arrays of numbers, in the kernel's order.
NUMBERS = (
    "position",
    "store_timestamp",
    "prepared_transaction_offset",
    "body_at",
    "body_size",
    "topic_at",
    "topic_size",
    "properties_at",
    "properties_size",
)
ARRAYS = (*NUMBERS, "header")

Array = np.ndarray[Any, Any]

# The powers of an odd number, which weigh the bytes of a topic in a sum; the last one weighs its size. Words wrap.
WEIGHTS: Array = np.cumprod(np.full(TOPIC_SIZE_MAX_V2 + 1, 0x9E3779B97F4A7C15, np.uint64))


class ScanStop:
    """Why a run of records ended before the end of the requested range.

    *kind* is "more" (the record there extends beyond the given bytes, *size* is its size), "blank" (the rest of the
    segment, *size* bytes, is unused) or "damage" with a *reason*.
    """

    __slots__ = ("kind", "reason", "size")

    def __init__(self, kind: str, reason: str = "", size: int = 0) -> None:
        self.kind = kind
        self.reason = reason
        self.size = size


class RecordColumns:
    """Where the fields of each record lie in ``data``; one array element a record, positions relative to ``data``."""

    __slots__ = (
        "body_at",
        "body_size",
        "data",
        "end",
        "header",
        "known_properties",
        "known_queues",
        "position",
        "prepared_transaction_offset",
        "properties_at",
        "properties_size",
        "store_timestamp",
        "topic_at",
        "topic_size",
    )

    data: bytes | bytearray | memoryview
    end: int
    position: Array
    header: Array
    store_timestamp: Array
    prepared_transaction_offset: Array
    body_at: Array
    body_size: Array
    topic_at: Array
    topic_size: Array
    properties_at: Array
    properties_size: Array
    known_properties: Array | None
    known_queues: tuple[list[tuple[bytes, int]], Array] | None

    def __init__(self) -> None:
        self.known_properties = None
        self.known_queues = None

    def __len__(self) -> int:
        return len(self.position)

    def until(self, count: int) -> RecordColumns:
        """Return the first *count* records."""
        columns = RecordColumns()
        columns.data = self.data
        columns.end = int(self.position[count]) if count < len(self) else self.end
        for name in ARRAYS:
            setattr(columns, name, getattr(self, name)[:count])
        return columns

    def behind(self, count: int) -> RecordColumns:
        """Return all but the first *count* records. Positions stay relative to the same ``data``."""
        columns = RecordColumns()
        columns.data = self.data
        columns.end = self.end
        for name in ARRAYS:
            setattr(columns, name, getattr(self, name)[count:])
        return columns

    def chosen(self, mask: Array) -> RecordColumns:
        """Return the records whose flag in *mask* is true. Positions stay relative to the same ``data``."""
        columns = RecordColumns()
        columns.data = self.data
        columns.end = self.end
        for name in ARRAYS:
            setattr(columns, name, getattr(self, name)[mask])
        return columns

    def without_bodies(self) -> RecordColumns:
        """Return the same records without the bytes of their bodies, which makes them small enough to be sent around.

        Everything else of them can be read; the places where they lie behind each other are those in the smaller data.
        """
        view = memoryview(self.data)
        ends = (self.position + self.header["record_size"]).tolist()
        places = zip(
            self.position.tolist(), self.body_at.tolist(), (self.body_at + self.body_size).tolist(), ends, strict=True
        )
        pieces = [piece for begin, body, behind, end in places for piece in (view[begin:body], view[behind:end])]
        columns = RecordColumns()
        columns.data = b"".join(pieces)
        columns.end = len(columns.data)
        sizes = self.header["record_size"] - self.body_size
        # The records need not lie behind each other.
        before = self.position - (np.cumsum(sizes) - sizes)
        left_out = before + self.body_size
        for name in ARRAYS:
            setattr(columns, name, getattr(self, name).copy())
        columns.position -= before
        columns.body_at -= before
        columns.body_size = np.zeros(len(self), np.int64)
        columns.topic_at -= left_out
        columns.properties_at -= left_out
        return columns

    def queues(self) -> tuple[list[tuple[bytes, int]], Array]:
        """Return the different (topic, queue id) pairs, and which of them each record belongs to.

        Each topic gets a number made of its bytes, for all records at once; equal numbers are compared byte by byte.
        """
        if self.known_queues is None and len(self) <= FEW_RECORDS:
            self.known_queues = self.queues_one_by_one()
        if self.known_queues is None:
            buffer = np.frombuffer(self.data, np.uint8)
            topic_numbers = np.zeros(len(self), np.uint64)
            runs = []
            for size in np.flatnonzero(np.bincount(self.topic_size)).tolist():
                chosen = np.flatnonzero(self.topic_size == size)
                letters = take(buffer, self.topic_at[chosen], size)
                topic_numbers[chosen] = letters @ WEIGHTS[:size] + WEIGHTS[-1:] * np.uint64(size)
                runs.append((chosen, letters))
            numbers = topic_numbers + self.header["queue_id"].astype(np.uint64)
            _, first, queue_index = np.unique(numbers, return_index=True, return_inverse=True)
            # A topic has many queues.
            _, first_of_topic, topic_index = np.unique(topic_numbers[first], return_index=True, return_inverse=True)
            first_of_topic = first[first_of_topic]
            like = first_of_topic[topic_index][queue_index]
            same = (self.header["queue_id"] == self.header["queue_id"][first][queue_index]).all()
            same &= (self.topic_size == self.topic_size[like]).all()
            for chosen, letters in runs:
                same &= (letters == take(buffer, self.topic_at[like[chosen]], letters.shape[1])).all()
            if same:
                topics = [self.topic_bytes(number) for number in first_of_topic.tolist()]
                queue_topics = map(topics.__getitem__, topic_index.tolist())
                queue_ids = self.header["queue_id"][first].tolist()
                self.known_queues = list(zip(queue_topics, queue_ids, strict=True)), queue_index
            else:
                self.known_queues = self.queues_one_by_one()
        return self.known_queues

    def queues_one_by_one(self) -> tuple[list[tuple[bytes, int]], Array]:
        """Return what `queues` does, for few records, and where two topics made the same number."""
        index_of: dict[tuple[bytes, int], int] = {}
        pairs = zip(self.topics(), self.header["queue_id"].tolist(), strict=True)
        queue_index = np.array([index_of.setdefault(pair, len(index_of)) for pair in pairs], np.int64)
        return list(index_of), queue_index

    def topics(self) -> list[bytes]:
        """Return the topic of each record, as stored."""
        data, at = self.data, self.topic_at
        return [bytes(data[begin:end]) for begin, end in zip(at.tolist(), (at + self.topic_size).tolist(), strict=True)]

    def topic_bytes(self, number: int) -> bytes:
        """Return the topic of one record, as stored."""
        at = int(self.topic_at[number])
        return bytes(self.data[at : at + int(self.topic_size[number])])

    def topic(self, number: int) -> str:
        """Return the topic of one record."""
        return self.topic_bytes(number).decode("utf-8", "replace")

    def properties_bytes(self, number: int) -> bytes:
        """Return the properties string of one record."""
        at = int(self.properties_at[number])
        return bytes(self.data[at : at + int(self.properties_size[number])])

    def properties(self, number: int) -> dict[str, str]:
        """Return the properties of one record."""
        return decode_properties(self.properties_bytes(number))

    def all_properties(self) -> Array:
        """Return the bytes of the properties of all records, one behind the other, which cost one copy for all.

        To look for a property in them is cheaper than in the data, most of which are bodies.
        """
        if self.known_properties is None:
            buffer = np.frombuffer(self.data, np.uint8)
            joined, _ = join_runs(buffer, self.properties_at, self.properties_size)
            self.known_properties = joined[WORD_SIZE:]
        return self.known_properties

    def may_have_property(self, name: bytes) -> bool:
        """Return False if no record has a property of this name."""
        return name + b"\x01" in self.all_properties().tobytes()

    def first_bad_record(self) -> int | None:
        """Return the number of the first record with a CRC that does not fit, None if all fit.

        That is the body's, and the whole record's where its properties end with one. Costs a CRC per record; a body
        without bytes is not looked at, as in RocketMQ. The kernel does it, where it is installed.
        """
        compiled = kernel()
        if compiled is not None:
            first = compiled.first_bad_record(self.data, self.position.astype("<i8", copy=False).tobytes())
            if first is not None:
                return None if first < 0 else first
        view = memoryview(self.data)
        begins, ends = self.body_at.tolist(), (self.body_at + self.body_size).tolist()
        computed = [crc32(view[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        wrong = (np.array(computed, np.uint32) & 0x7FFFFFFF != self.header["body_crc"]) & (self.body_size > 0)
        for number, is_named, at in self.crc_places():
            crc = crc32(view[int(self.position[number]) : at]) & 0x7FFFFFFF
            digits = slice(len(CRC_PROPERTY_NAME), CRC_PROPERTY_SIZE)
            fits = bytes(view[at : at + CRC_PROPERTY_SIZE])[digits] == crc_property(crc)[digits]
            # Digits that fit under another name: the name is not what was written.
            wrong[number] |= fits != is_named
        return int(wrong.argmax()) if wrong.any() else None

    def without_crc(self) -> Array:
        """Return a flag per record: true if its properties do not end with the CRC of the record."""
        lacks = np.ones(len(self), bool)
        for number, is_named, _ in self.crc_places():
            lacks[number] = not is_named
        return lacks

    def crc_places(self) -> Iterator[tuple[int, bool, int]]:
        """Yield the records whose properties may end with the CRC of the record: number, whether its name is there, and
        where the property begins. Without the name there are as many digits."""
        buffer = np.frombuffer(self.data, np.uint8)
        long = np.flatnonzero(self.properties_size >= CRC_PROPERTY_SIZE)
        begins = (self.properties_at + self.properties_size)[long] - CRC_PROPERTY_SIZE
        name = np.frombuffer(CRC_PROPERTY_NAME, np.uint8)
        named = (take(buffer, begins, len(name)) == name).all(axis=1)
        # Checking two of the digits excludes nearly all other records.
        first, last = begins + len(name), begins + CRC_PROPERTY_SIZE - 2
        others = np.flatnonzero(~named & is_digit(buffer[first]) & is_digit(buffer[last]))
        digits = take(buffer, first[others], CRC_PROPERTY_SIZE - 1 - len(name))
        others = others[is_digit(digits).all(axis=1)]
        for place in np.concatenate((np.flatnonzero(named), others)).tolist():
            yield int(long[place]), bool(named[place]), int(begins[place])

    def first_torn_text(self, begin: int) -> int | None:
        """Return the number of the first record from commit-log offset *begin* on that has a zero byte in its topic or
        properties, where no writer puts one; None: there is no such record. No other sum or size covers these bytes."""
        if not len(self):
            return None
        # One byte more, so that a text that ends with the data has a place behind it.
        buffer = np.append(np.frombuffer(self.data, np.uint8), np.uint8(1))
        bounds = np.column_stack(
            (
                self.topic_at,
                self.topic_at + self.topic_size,
                self.properties_at,
                self.properties_at + self.properties_size,
            )
        )
        least = np.minimum.reduceat(buffer, bounds.ravel())
        torn = (least[0::4] == 0) & (self.topic_size > 0) | (least[2::4] == 0) & (self.properties_size > 0)
        torn &= self.header["commit_log_offset"] >= begin
        return int(torn.argmax()) if torn.any() else None


def locate_records(
    data: bytes | bytearray | memoryview, commit_log_offset: int, remaining: int
) -> tuple[RecordColumns, ScanStop | None]:
    """Locate the records that lie one behind the other from ``data[0]`` on.

    Args:
        commit_log_offset: of ``data[0]``; each record's own offset must agree with its place.
        remaining: bytes from ``data[0]`` to the end of the segment, at least ``len(data)``.

    Returns:
        The records, and why they ended before ``len(data)``; None if they end exactly there.
    """
    compiled = kernel()
    found = None if compiled is None else compiled.locate_records(data, commit_log_offset)
    if found is None:
        columns, reason = judge(data, commit_log_offset, walk(data))
    else:
        columns, reason = columns_of(data, *found), ""
    if columns.end == len(data):
        return columns, None
    if found is not None:
        # The kernel does not say why there is no record.
        _, reason = judge(data, commit_log_offset, record_by_size(data, columns.end))
    return columns, stop_at(data, columns.end, remaining, reason)


def columns_of(data: bytes | bytearray | memoryview, headers: bytes, numbers: bytes, end: int) -> RecordColumns:
    """Return the records that the kernel has located."""
    columns = RecordColumns()
    columns.data = data
    columns.end = end
    columns.header = np.frombuffer(headers, HEADER)
    arrays = np.frombuffer(numbers, np.int64).reshape(len(NUMBERS), len(columns.header))
    for name, array in zip(NUMBERS, arrays, strict=True):
        setattr(columns, name, array)
    return columns


def record_by_size(data: bytes | bytearray | memoryview, at: int) -> Array:
    """Return *at*, if a record may begin there by what its size says, as `walk` does."""
    size = SIZE.unpack_from(data, at)[0] if len(data) - at >= SIZE.size else 0
    fits = RECORD_SIZE_MIN <= size <= len(data) - at
    return np.full(int(fits), at, np.int64)


def walk(data: bytes | bytearray | memoryview) -> Array:
    """Return where records begin that lie one behind the other from ``data[0]`` on, by what their sizes say."""
    limit = len(data)
    pieces: list[Array] = []
    positions: list[int] = []
    append = positions.append
    size_at = SIZE.unpack_from
    at = before = passed = 0
    # One unpack per record, no allocation but the positions. A sender's messages are often of one size, and of those
    # it takes one comparison for all.
    try:
        while True:
            (size,) = size_at(data, at)
            if size < RECORD_SIZE_MIN:
                break
            following = at + size
            if following > limit:
                break
            if size == before:
                if passed:
                    passed -= 1
                    append(at)
                    at = following
                    continue
                count = count_of_size(data, at, size)
                pieces += np.array(positions, np.int64), np.arange(at, at + count * size, size)
                positions.clear()
                at += count * size
                # Where sizes change soon, it is not worth looking often.
                passed = 0 if count >= RUN_WORTHWHILE else RUN_WORTHWHILE
                continue
            append(at)
            at = following
            before = size
    except Exception:
        if limit - at >= SIZE.size:
            raise
    return np.concatenate([*pieces, np.array(positions, np.int64)])


def count_of_size(data: bytes | bytearray | memoryview, at: int, size: int) -> int:
    """Return how many records from ``data[at]`` on lie one behind the other and are all of this size."""
    count = (len(data) - at) // size
    others = np.ndarray((count,), SIZE.format, data, at, (size,)) != size
    first = int(others.argmax()) if count else 0
    return first if count and others[first] else count


def stop_at(data: bytes | bytearray | memoryview, at: int, remaining: int, reason: str) -> ScanStop:
    """Say why there is no record at ``data[at]``; without a *reason*, what may be one is "more".

    *remaining*: as of `locate_records`.
    """
    left_in_segment = remaining - at
    if len(data) - at < SIZE_AND_MAGIC.size:
        if left_in_segment < SIZE_AND_MAGIC.size:
            return ScanStop("damage", f"fewer bytes are left than a blank needs: size={left_in_segment}")
        return ScanStop("more", size=SIZE_AND_MAGIC.size)
    size, magic_code = SIZE_AND_MAGIC.unpack_from(data, at)
    if magic_code == BLANK_MAGIC_CODE:
        if size == left_in_segment:
            return ScanStop("blank", size=size)
        return ScanStop("damage", f"blank does not fill its segment: size={size} remaining={left_in_segment}")
    if magic_code not in MESSAGE_MAGIC_CODES:
        return ScanStop("damage", f"no record begins here: magic_code={magic_code:08X}")
    if size < RECORD_SIZE_MIN or size > left_in_segment:
        return ScanStop("damage", f"impossible size: record_size={size} remaining={left_in_segment}")
    if not reason:
        return ScanStop("more", size=size)
    return ScanStop("damage", reason)


def judge(data: bytes | bytearray | memoryview, commit_log_offset: int, position: Array) -> tuple[RecordColumns, str]:
    """Return the fields of the records at *position*, up to the first inconsistent one, and what is wrong with it."""
    columns, known_magic, consistent = fields_at(data, position)
    in_place = columns.header["commit_log_offset"] == position + commit_log_offset
    good = known_magic & consistent & in_place
    if good.all():
        return columns, ""
    count = int(np.argmin(good))
    if known_magic[count] and consistent[count]:
        reason = (
            f"the record's own offset is not its place: own_offset={int(columns.header['commit_log_offset'][count])}"
        )
    else:
        size = int(columns.header["record_size"][count])
        reason = f"the record's sizes contradict each other: record_size={size}"
    return columns.until(count), reason


def locate_records_at(
    data: bytes | bytearray | memoryview, position: Array, commit_log_offset: Array
) -> tuple[RecordColumns, Array]:
    """Locate the records that are expected at *position* with their own *commit_log_offset*, in any order.

    Returns:
        The records that are there, and a flag for each position: true if there is one.
    """
    fits = (position >= 0) & (position + RECORD_SIZE_MIN <= len(data))
    size = take(np.frombuffer(data, np.uint8), np.where(fits, position, 0), SIZE.size).view(SIZE.format).reshape(-1)
    fits &= (size >= RECORD_SIZE_MIN) & (position + size <= len(data))
    columns, known_magic, consistent = fields_at(data, position[fits])
    good = known_magic & consistent & (columns.header["commit_log_offset"] == commit_log_offset[fits])
    found = np.zeros(len(position), np.bool_)
    found[np.flatnonzero(fits)[good]] = True
    return columns if good.all() else columns.chosen(good), found


def fields_at(data: bytes | bytearray | memoryview, position: Array) -> tuple[RecordColumns, Array, Array]:
    """Return the fields of what lies at *position*, whether it has a record's magic code, and whether its sizes agree.

    By its first field, each lies inside of *data* and is at least as large as the smallest record.
    """
    buffer = np.frombuffer(data, np.uint8)
    header = take(buffer, position, HEADER.itemsize).view(HEADER).reshape(-1)
    size = header["record_size"].astype(np.int64)
    end = position + size
    sys_flag = header["sys_flag"]
    version2 = header["magic_code"] == MESSAGE_MAGIC_CODE_V2
    known_magic = version2 | (header["magic_code"] == MESSAGE_MAGIC_CODE)
    store_at = position + STORE_TIMESTAMP_AT[0] + IPV6_EXTRA_SIZE * ((sys_flag & BORN_HOST_V6_FLAG) != 0)
    rest_at = (
        store_at + STORE_TIMESTAMP.size + IPV4_HOST_SIZE + IPV6_EXTRA_SIZE * ((sys_flag & STORE_HOST_V6_FLAG) != 0)
    )

    # Every place is kept inside of its record before it is read, so that a wrong length reads a wrong number and is
    # then found not to fit, instead of reading past the end.
    last = np.maximum(end - 3, 0)
    rest_at = np.minimum(rest_at, np.maximum(end - RECONSUME_TIMES_BEFORE_BODY, 0))
    body_at = rest_at + RECONSUME_TIMES_BEFORE_BODY
    body_size = take(buffer, body_at - BODY_SIZE.size, 4).view(">i4").reshape(-1).astype(np.int64)
    topic_field = body_at + body_size
    inside = (body_size >= 0) & (topic_field <= last)
    topic_field = np.where(inside, topic_field, last)
    topic_size = np.where(
        version2,
        take(buffer, topic_field, 2).view(">i2").reshape(-1),
        buffer[topic_field].view(np.int8),
    ).astype(np.int64)
    topic_at = topic_field + 1 + version2
    properties_field = topic_at + topic_size
    inside &= (topic_size >= 0) & (properties_field + 2 <= end)
    properties_field = np.where(inside, properties_field, last)
    properties_size = np.maximum(take(buffer, properties_field, 2).view(">i2").reshape(-1).astype(np.int64), 0)
    consistent = inside & (properties_field + 2 + properties_size == end)

    columns = RecordColumns()
    columns.data = data
    columns.end = int(end[-1]) if len(end) else 0
    columns.position = position
    columns.header = header
    columns.store_timestamp = take(buffer, store_at, 8).view(">i8").reshape(-1)
    prepared_at = body_at - PREPARED_TRANSACTION_OFFSET_BEFORE_BODY
    columns.prepared_transaction_offset = take(buffer, prepared_at, 8).view(">i8").reshape(-1)
    columns.body_at = body_at
    columns.body_size = body_size
    columns.topic_at = topic_at
    columns.topic_size = topic_size
    columns.properties_at = properties_field + 2
    columns.properties_size = properties_size
    return columns, known_magic, consistent


def is_digit(letters: Array) -> Array:
    """Tell which of *letters* are decimal digits."""
    # Below "0" the difference wraps.
    found: Array = letters - np.uint8(ord("0")) <= 9
    return found


def take(buffer: Array, at: Array, width: int) -> Array:
    """Return *width* bytes from each place of *at*, a row each."""
    if not len(at) or not width:
        return np.empty((len(at), width), np.uint8)
    # One element of *width* bytes at every place: a third of the cost of a window of so many single bytes.
    elements: Array = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))
    return elements[at].view(np.uint8).reshape(-1, width)

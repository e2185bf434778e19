"""BatchDecoder: records of the commit log as Arrow record batches, a column at a time.

Only rare cases are handled record by record: packed bodies, IPv6 hosts, text that is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput.kernel import kernel
from reput.store.record.body_compression import COMPRESSED_FLAG, unpack_body
from reput.store.record.layout import (
    BORN_HOST_AT,
    BORN_HOST_V6_FLAG,
    IPV4_HOST_SIZE,
    IPV6_EXTRA_SIZE,
    IPV6_HOST_SIZE,
    RECONSUME_TIMES_BEFORE_BODY,
    STORE_HOST_V6_FLAG,
    STORE_TIMESTAMP,
    STORE_TIMESTAMP_AT,
)
from reput.store.record.properties import decode_properties, filled_properties
from reput.store.record.record import decode_host, encode_message_id
from reput.store.record.record_columns import HEADER, RecordColumns, take
from reput.table.property_pieces import PropertyPieces
from reput.table.record_parts import BODY, PROPERTIES, TOPIC, RecordParts
from reput.table.row_format import PROPERTIES_TYPE, TIMESTAMP_TYPE, RowFormat

__all__ = ["BatchDecoder"]

Array = np.ndarray[Any, Any]

MICROSECONDS = 1_000
# The years 1 to 9999. At other times readers in Python fail, and one sender with a wrong clock would be enough.
TIMESTAMP_MS_MIN, TIMESTAMP_MS_END = -62_135_596_800_000, 253_402_300_800_000
CREATE_TIME_TYPE = 0
LOG_APPEND_TIME_TYPE = 1
# A batch is cut before its unpacked bodies exceed this, however many rows it may have.
UNPACKED_SIZE_MAX = 64 << 20
HEX_DIGITS = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)

decode_host_number = lru_cache(4096)(lambda host: decode_host(host.to_bytes(IPV4_HOST_SIZE, "big")))


class BatchDecoder:
    """Makes record batches of one `RowFormat`. Use it from one thread at a time.

    Attributes:
        schema: the schema of every batch.
        kept_packed: the number of bodies so far that did not unpack as their flag says and stayed as stored.
    """

    def __init__(self, row_format: RowFormat) -> None:
        """Raises ConfigError for a column that does not exist."""
        self.row_format = row_format
        self.schema = row_format.schema()
        self.kept_packed = 0
        names = set(self.schema.names)
        self.unpacks = row_format.decompress and not names.isdisjoint({"body", "value"})

    def decode(self, parts: RecordParts, rows: Array) -> Iterator[pa.RecordBatch]:
        """Yield the records with the numbers *rows*, in that order, as one batch, or more if unpacked bodies are large.

        The batches own their memory; the data behind *parts* may be overwritten.
        """
        if not len(rows):
            return
        packed = parts.columns.header["sys_flag"][rows] & COMPRESSED_FLAG != 0 if self.unpacks else None
        if packed is None or not packed.any():
            yield self.batch(Fields(parts, rows, self.row_format, None))
            return
        bodies: list[bytes] = []
        first = size = 0
        for number in range(len(rows)):
            body = self.body(parts.columns, int(rows[number]), bool(packed[number]))
            if bodies and size + len(body) > UNPACKED_SIZE_MAX:
                yield self.batch(Fields(parts, rows[first:number], self.row_format, bodies))
                bodies, first, size = [], number, 0
            bodies.append(body)
            size += len(body)
        yield self.batch(Fields(parts, rows[first:], self.row_format, bodies))

    def body(self, columns: RecordColumns, row: int, packed: bool) -> bytes:
        """Return one body, unpacked if it is packed."""
        at = int(columns.body_at[row])
        stored = bytes(columns.data[at : at + int(columns.body_size[row])])
        if not packed or not stored:
            return stored
        unpacked = unpack_body(stored, int(columns.header["sys_flag"][row]))
        if unpacked is None:
            self.kept_packed += 1
            return stored
        return unpacked

    def batch(self, fields: Fields) -> pa.RecordBatch:
        """Return the record batch of *fields*."""
        makers = ROCKETMQ_COLUMNS if self.row_format.schema_mode == "rocketmq" else KAFKA_COLUMNS
        return pa.record_batch([makers[name](fields) for name in self.schema.names], schema=self.schema)


class Fields:
    """The fields of the chosen rows, each computed on first use."""

    def __init__(self, parts: RecordParts, rows: Array, row_format: RowFormat, bodies: list[bytes] | None) -> None:
        """*bodies*: already unpacked; None: as stored."""
        columns = parts.columns
        self.parts = parts
        self.columns = columns
        self.rows = rows
        self.row_format = row_format
        self.bodies = bodies
        self.buffer = np.frombuffer(columns.data, np.uint8)
        self.kept: dict[str, Any] = {}

    @cached_property
    def header(self) -> Array:
        """The headers, copied as opaque bytes: otherwise numpy copies each record's header field by field."""
        header: Array = self.columns.header.view(f"V{HEADER.itemsize}")[self.rows].view(HEADER)
        return header

    @cached_property
    def position(self) -> Array:
        """Where the records begin."""
        position: Array = self.columns.position[self.rows]
        return position

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the cached value of *name*; *make* computes it on first use."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def binary(self, part: int) -> pa.BinaryArray:
        """Return one variable field as stored."""
        return self.parts.take(part, self.rows)

    def text(self, part: int) -> pa.StringArray:
        """Return one variable field as text; invalid UTF-8 is replaced as Java does."""

        def make() -> pa.StringArray:
            stored = self.binary(part)
            try:
                return stored.cast(pa.string())
            except pa.ArrowInvalid:
                return pa.array([str(value, "utf-8", "replace") for value in stored.to_pylist()], pa.string())

        return self.once(f"text {part}", make)

    def properties(self) -> PropertyPieces:
        """Return the properties, split into names and values."""
        made: PropertyPieces = self.once("properties", lambda: PropertyPieces(self.text(PROPERTIES)))
        return made

    def property(self, name: str) -> pa.StringArray:
        """Return each record's value of the property *name*, null if it has none.

        The kernel looks at the bytes in the window; without it, all properties are copied and split.
        """
        compiled = kernel()
        if compiled is not None:
            at, size = (
                array[self.rows].astype("<i8", copy=False).tobytes()
                for array in (self.columns.properties_at, self.columns.properties_size)
            )
            found = compiled.property_values(self.columns.data, at, size, name.encode())
            if found is not None:
                *buffers, null_count = found
                buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
                return pa.StringArray.from_buffers(len(self.rows), buffers[1], buffers[2], buffers[0], null_count)
        return self.properties().value_of(name)

    def body(self) -> pa.BinaryArray:
        """Return the bodies."""
        return self.binary(BODY) if self.bodies is None else pa.array(self.bodies, pa.binary())

    def number(self, name: str, dtype: type) -> pa.Array:
        """Return a field of the header."""
        return pa.array(self.header[name].astype(dtype))

    def reconsume_times(self) -> pa.Array:
        """Return how often each record was reconsumed."""
        at = self.columns.body_at[self.rows] - RECONSUME_TIMES_BEFORE_BODY
        return pa.array(take(self.buffer, at, 4).view(">i4").reshape(-1).astype(np.int32))

    def store_host_at(self) -> tuple[Array, Array]:
        """Return where the store hosts begin, and which of them are IPv6."""
        sys_flag = self.header["sys_flag"]
        at = self.position + STORE_TIMESTAMP_AT[0] + STORE_TIMESTAMP.size
        at += IPV6_EXTRA_SIZE * (sys_flag & BORN_HOST_V6_FLAG != 0)
        return at, sys_flag & STORE_HOST_V6_FLAG != 0

    def born_host(self) -> pa.StringArray:
        """Return the born hosts as text."""
        is_v6 = self.header["sys_flag"] & BORN_HOST_V6_FLAG != 0
        return self.hosts(self.position + BORN_HOST_AT, is_v6)

    def store_host(self) -> pa.StringArray:
        """Return the store hosts as text."""
        return self.hosts(*self.store_host_at())

    def hosts(self, at: Array, is_v6: Array) -> pa.StringArray:
        """Return hosts as text. Few are distinct, often only one, so each distinct host is formatted once."""
        if is_v6.any():
            return pa.array([decode_host(host) for host in self.stored_hosts(at, is_v6)], pa.string())
        numbers = take(self.buffer, at, IPV4_HOST_SIZE).view(">u8").reshape(-1).astype(np.uint64)
        if (numbers == numbers[0]).all():
            return self.constant(decode_host_number(int(numbers[0])), pa.string())
        encoded = pa.array(numbers).dictionary_encode()
        texts = pa.array([decode_host_number(host) for host in encoded.dictionary.to_pylist()], pa.string())
        return texts.take(encoded.indices)

    def stored_hosts(self, at: Array, is_v6: Array) -> Iterator[bytes]:
        """Yield hosts as stored."""
        data = self.columns.data
        for begin, v6 in zip(at.tolist(), is_v6.tolist(), strict=True):
            yield bytes(data[begin : begin + (IPV6_HOST_SIZE if v6 else IPV4_HOST_SIZE)])

    def offset_message_id(self) -> pa.StringArray:
        """Return the store's own message ids: store host and commit-log offset in upper-case hex."""

        def make() -> pa.StringArray:
            at, is_v6 = self.store_host_at()
            offsets = self.header["commit_log_offset"]
            if is_v6.any():
                hosts = self.stored_hosts(at, is_v6)
                ids = [encode_message_id(host, offset) for host, offset in zip(hosts, offsets.tolist(), strict=True)]
                return pa.array(ids, pa.string())
            count = len(at)
            id_bytes = np.empty((count, 16), np.uint8)
            id_bytes[:, :8] = take(self.buffer, at, IPV4_HOST_SIZE)
            id_bytes[:, 8:] = np.ascontiguousarray(offsets).view(np.uint8).reshape(count, 8)
            digits = HEX_DIGITS[id_bytes]
            ends = np.arange(0, 32 * count + 1, 32, dtype=np.int32)
            return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(digits))

        return self.once("offset message id", make)

    def message_id(self) -> pa.StringArray:
        """Return the ids that clients assigned, else the store's own."""
        unique = self.property("UNIQ_KEY")
        return unique if not unique.null_count else pc.coalesce(unique, self.offset_message_id())

    def born_timestamp(self) -> pa.Array:
        """Return when the messages were sent."""
        return timestamps(self.header["born_timestamp"])

    def store_timestamp(self) -> pa.Array:
        """Return when the records were stored."""
        return timestamps(self.columns.store_timestamp[self.rows])

    def prepared_transaction_offset(self) -> pa.Array:
        """Return the commit-log offsets of the half messages."""
        return pa.array(self.columns.prepared_transaction_offset[self.rows].astype(np.int64))

    def properties_as_asked(self) -> pa.Array:
        """Return the properties in the form of the row format."""
        if self.row_format.properties_format == "map":
            return self.properties().as_map()
        if self.row_format.properties_format == "string":
            return self.text(PROPERTIES)
        encode = msgspec.json.encode
        objects = [encode(filled_properties(decode_properties(value))) for value in self.binary(PROPERTIES).to_pylist()]
        return pa.array(objects, pa.binary()).cast(pa.string())

    def constant(self, value: Any, data_type: pa.DataType) -> pa.Array:
        """Return *value* for each row."""
        return pa.repeat(pa.scalar(value, data_type), len(self.rows))


def timestamps(times: Array) -> pa.Array:
    """Return *times*, in ms, as timestamps; null outside of the years 1 to 9999."""
    times = times.astype(np.int64)
    held = (times >= TIMESTAMP_MS_MIN) & (times < TIMESTAMP_MS_END)
    microseconds = np.where(held, times, 0) * MICROSECONDS
    return pa.array(microseconds, mask=None if held.all() else ~held).view(TIMESTAMP_TYPE)


def kafka_timestamp(fields: Fields) -> pa.Array:
    """Return the time that the row format selects."""
    return fields.store_timestamp() if fields.row_format.timestamp_column == "store" else fields.born_timestamp()


def kafka_timestamp_type(fields: Fields) -> pa.Array:
    """Return Kafka's timestamp type: 0 for the sender's time, 1 for the log's."""
    of_log = fields.row_format.timestamp_column == "store"
    return fields.constant(LOG_APPEND_TIME_TYPE if of_log else CREATE_TIME_TYPE, pa.int32())


Maker = Callable[[Fields], pa.Array]

ROCKETMQ_COLUMNS: dict[str, Maker] = {
    "topic": lambda fields: fields.text(TOPIC),
    "queueId": lambda fields: fields.number("queue_id", np.int32),
    "queueOffset": lambda fields: fields.number("queue_offset", np.int64),
    "commitLogOffset": lambda fields: fields.number("commit_log_offset", np.int64),
    "storeSize": lambda fields: fields.number("record_size", np.int32),
    "msgId": Fields.message_id,
    "offsetMsgId": Fields.offset_message_id,
    "tags": lambda fields: fields.property("TAGS"),
    "keys": lambda fields: fields.property("KEYS"),
    "body": Fields.body,
    "properties": Fields.properties_as_asked,
    "flag": lambda fields: fields.number("flag", np.int32),
    "sysFlag": lambda fields: fields.number("sys_flag", np.int32),
    "bodyCRC": lambda fields: fields.number("body_crc", np.int32),
    "reconsumeTimes": Fields.reconsume_times,
    "bornTimestamp": Fields.born_timestamp,
    "storeTimestamp": Fields.store_timestamp,
    "bornHost": Fields.born_host,
    "storeHost": Fields.store_host,
    "preparedTransactionOffset": Fields.prepared_transaction_offset,
    "brokerName": lambda fields: fields.constant(fields.row_format.broker_name, pa.string()),
}
KAFKA_COLUMNS: dict[str, Maker] = {
    "key": lambda fields: fields.property("KEYS").cast(pa.binary()),
    "value": Fields.body,
    "topic": lambda fields: fields.text(TOPIC),
    "partition": lambda fields: fields.number("queue_id", np.int32),
    "offset": lambda fields: fields.number("queue_offset", np.int64),
    "timestamp": kafka_timestamp,
    "timestampType": kafka_timestamp_type,
    "headers": lambda fields: fields.properties().as_headers(),
}
assert PROPERTIES_TYPE.key_type == pa.string()

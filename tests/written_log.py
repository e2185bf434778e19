"""WrittenLog: a commit log for tests, written record by record into segments as small as the test likes.

It also converts RocketMQ's own listing, or a record of the plain decoder, to the row of a table.
"""

from __future__ import annotations

import base64
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from struct import Struct
from typing import Any

from reput.store.record.layout import BLANK_MAGIC_CODE, BLANK_SIZE_MIN
from reput.store.record.properties import filled_properties
from reput.store.record.record import encode_host, encode_record
from reput_hooks import Record

__all__ = ["HOST", "START_MS", "WrittenLog", "inner_batch_body", "row_of_line", "row_of_record"]

HOST = encode_host("127.0.0.1", 10911)
START_MS = 1_700_000_000_000


class WrittenLog:
    """The log of *store*; `save` writes it as after a clean shutdown.

    Attributes:
        offsets: of the records appended so far.
        end: position of the next record, unless it does not fit its segment.
    """

    def __init__(self, store: Path, segment_size: int = 4096, begin: int = 0) -> None:
        self.store = store
        self.segment_size = segment_size
        self.begin = begin
        self.data = bytearray()
        self.offsets: list[int] = []
        self.queue_offsets: dict[tuple[bytes, int], int] = {}

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def append(self, body: bytes = b"body", **fields: Any) -> int:
        """Append a record; *fields* as in `encode_record`, all with defaults. Returns its commit-log offset."""
        topic, queue_id = fields.setdefault("topic", b"orders"), fields.setdefault("queue_id", 0)
        number = len(self.offsets)
        fields.setdefault("queue_offset", self.queue_offsets.get((topic, queue_id), 0))
        self.queue_offsets[topic, queue_id] = fields["queue_offset"] + 1
        fields.setdefault("properties", b"TAGS\x01t%d\x02KEYS\x01k%d\x02" % (number % 3, number))
        for name, value in (("flag", 0), ("sys_flag", 0), ("born_host", HOST), ("store_host", HOST)):
            fields.setdefault(name, value)
        fields.setdefault("born_timestamp", START_MS + number)
        fields.setdefault("store_timestamp", START_MS + number)
        record = encode_record(body=body, commit_log_offset=self.end, **fields)
        left = self.segment_size - len(self.data) % self.segment_size
        if len(record) + BLANK_SIZE_MIN > left:
            self.blank(left)
            record = encode_record(body=body, commit_log_offset=self.end, **fields)
        self.offsets.append(self.end)
        self.data += record
        return self.offsets[-1]

    def blank(self, size: int) -> None:
        """Fill the segment's last *size* bytes."""
        head = size.to_bytes(4, "big") + BLANK_MAGIC_CODE.to_bytes(4, "big")
        self.data += head + bytes(size - BLANK_SIZE_MIN)

    def save(self) -> Path:
        """Write the segments, the last one filled with zeros, and return the store directory."""
        directory = self.store / "commitlog"
        directory.mkdir(parents=True, exist_ok=True)
        for at in range(0, max(len(self.data), 1), self.segment_size):
            segment = bytes(self.data[at : at + self.segment_size])
            (directory / f"{self.begin + at:020d}").write_bytes(segment.ljust(self.segment_size, b"\0"))
        return self.store


def inner_batch_body(first: int, count: int) -> bytes:
    """Return the body of a batch of *count* messages, ``m0`` for 0 and so on, as RocketMQ 5's client sends it."""
    pieces = []
    for number in range(first, first + count):
        body = b"m%d" % number
        properties = b"TAGS\x01t%d\x02KEYS\x01k%d\x02" % (number % 2, number)
        size = 22 + len(body) + len(properties)
        pieces.append(Struct(">iiiii").pack(size, 0, 0, number, len(body)) + body)
        pieces.append(Struct(">h").pack(len(properties)) + properties)
    return b"".join(pieces)


def row_of_line(line: dict[str, Any]) -> dict[str, Any]:
    """Return the row, bodies as stored, for one line of a golden listing. Listings omit empty properties."""
    return {
        "topic": line["topic"],
        "queueId": line["queueId"],
        "queueOffset": line["queueOffset"],
        "commitLogOffset": line["physicalOffset"],
        "storeSize": line["size"],
        "msgId": line["uniqKey"] or line["msgId"],
        "offsetMsgId": line["msgId"],
        "tags": line["tags"] or None,
        "keys": line["keys"] or None,
        "body": base64.b64decode(line["body"]),
        "properties": line["properties"] or {},
        "flag": line["flag"],
        "sysFlag": line["sysFlag"],
        "bodyCRC": line["bodyCRC"],
        "reconsumeTimes": line["reconsumeTimes"],
        "bornTimestamp": microseconds(line["bornTimestamp"]),
        "storeTimestamp": microseconds(line["storeTimestamp"]),
        "bornHost": short_host(line["bornHost"]),
        "storeHost": short_host(line["storeHost"]),
        "preparedTransactionOffset": line["preparedTransactionOffset"],
        "brokerName": None,
    }


def row_of_record(record: Record) -> dict[str, Any]:
    """Return the row, body as stored, for a record of the plain decoder; its properties as a dict."""
    properties = filled_properties(record.properties)
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.commit_log_offset,
        "storeSize": record.record_size,
        "msgId": properties.get("UNIQ_KEY", record.message_id),
        "offsetMsgId": record.message_id,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "body": record.body,
        "properties": properties,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bodyCRC": record.body_crc,
        "reconsumeTimes": record.reconsume_times,
        "bornTimestamp": microseconds(record.born_timestamp),
        "storeTimestamp": microseconds(record.store_timestamp),
        "bornHost": record.born_host,
        "storeHost": record.store_host,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "brokerName": None,
    }


def microseconds(time_ms: int) -> int | None:
    """Return a time as in the table: null unless Python has it."""
    try:
        datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return None
    return time_ms * 1000


def short_host(host: str) -> str:
    """Return ``[::1]:5000`` for Java's ``[0:0:0:0:0:0:0:1]:5000``."""
    address, _, port = host.rpartition(":")
    return f"[{ipaddress.ip_address(address[1:-1])}]:{port}" if address.startswith("[") else host

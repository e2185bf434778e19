"""RocketMQ's vectors of the writer: what fits into a segment, when to force it, and the CRC of a whole record."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from reput.settings import Settings
from reput.store.disk.files import Clock, Files
from reput.store.log.commit_log import CommitLog
from reput.store.log.flush_service import is_able_to_flush
from reput.store.message_store import MessageStore
from reput.store.record.layout import BLANK_MAGIC_CODE
from reput.store.record.message import Message
from reput.store.record.record import decode_record
from rocketmq_vectors import store_vectors


@store_vectors("append_fit")
def test_a_record_that_does_not_fit_leaves_a_blank_and_starts_the_next_segment(vector, tmp_path):
    """A segment reserves 8 bytes for the blank; a record that would leave less goes to the next one."""
    numbers, expected = vector["input"], vector["expected"]
    size, written = numbers["fileSize"], numbers["wrotePosition"]
    log = CommitLog(tmp_path, size, 0, Files())
    try:
        # A first record fills the segment up to the position; with 8 bytes left it fits exactly.
        assert log.room(written) == 0
        log.append(written.to_bytes(4, "big") + b"\1" * (written - 4))
        at = log.room(numbers["msgLen"])
    finally:
        log.close()
    assert size - written == expected["maxBlank"]
    if expected["status"] == "PUT_OK":
        assert at == written
        assert log.appended == written
        assert expected["wroteBytes"] == numbers["msgLen"]
    else:
        assert expected["status"] == "END_OF_FILE"
        assert at == log.appended == size
        blank = (tmp_path / f"{0:020}").read_bytes()[written:]
        assert len(blank) == expected["wroteBytes"]
        assert blank[:8] == expected["maxBlank"].to_bytes(4, "big") + BLANK_MAGIC_CODE.to_bytes(4, "big")


@store_vectors("is_able_to_flush")
def test_the_log_is_forced_when_enough_pages_were_written(vector):
    """Pages are counted from their begin; a full segment is always forced."""
    numbers = vector["input"]
    able = is_able_to_flush(
        numbers["readPosition"], numbers["flushedPosition"], numbers["leastPages"], is_full=numbers["isFull"]
    )
    assert able is vector["expected"]["ableToFlush"]


class StoppedClock(Clock):
    """A clock that always shows the same time."""

    def __init__(self, now_ms: int) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        """Return that time."""
        return self.time_ms


def put_one(message: dict[str, Any], store: Path) -> bytes:
    """Put the message of a vector as the first of its queue and return the bytes of its record."""
    settings = Settings(
        mapped_file_size_commit_log=4096,
        enabled_append_prop_crc=message["enabledAppendPropCRC"],
        born_host="{}:{}".format(*message["bornHost"]),
        store_host="{}:{}".format(*message["storeHost"]),
    )
    writer = MessageStore(store, settings, clock=StoppedClock(message["storeTimestamp"]))
    try:
        result = writer.put(
            Message(
                message["topic"],
                message["body_utf8"].encode(),
                properties=message["properties"],
                flag=message["flag"],
                queue_id=message["queueId"],
            )
        )
    finally:
        writer.close(views_complete=False)
    return (store / "commitlog" / f"{0:020}").read_bytes()[: result.record_size]


@store_vectors("commitlog_record_prop_crc")
def test_a_record_carries_the_crc_of_all_its_bytes(vector, tmp_path):
    """Ten digits, the least significant first, as the last property; a single wrong byte would change them."""
    message = vector["input"]
    record = put_one(message, tmp_path / "store")
    expected = bytes.fromhex(vector["expected"]["hex"])
    assert len(record) == vector["expected"]["totalSize"]
    # The writer's born time equals the store time, the vector's does not; so the digits differ, and are computed here.
    assert record[:40] == expected[:40]
    assert record[48:-11] == expected[48:-11]
    assert crc_digits(expected) == vector["expected"]["digits"] == decode_record(expected).properties["__CRC32#"]
    assert crc_digits(record) == decode_record(record).properties["__CRC32#"]


def crc_digits(record: bytes) -> str:
    """Return the CRC of all bytes except the CRC property in RocketMQ's form."""
    return f"{zlib.crc32(record[:-20]) & 0x7FFFFFFF:010d}"[::-1]

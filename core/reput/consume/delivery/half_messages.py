"""Half messages as stored: how to find the unsettled ones when transactions are first used.

    RMQ_SYS_TRANS_HALF_TOPIC     0  1  2  3  4'      4' is 1 again, after a check
    RMQ_SYS_TRANS_OP_HALF_TOPIC     "0" "3"          so 1 and 2 wait

Each question about a half message appends it again with a higher count, so one transaction may have several copies. It
is settled as soon as one copy has its op record, or the log has the committed message: a program killed between the two
has delivered the message, so its sender need not be asked again.

Source: RocketMQ broker, TransactionalMessageServiceImpl and TransactionalMessageBridge.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from reput.filter.java_numbers import int_or, long_or
from reput.store.reader.message_reader import MessageReader
from reput.store.record.layout import TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE
from reput.store.record.record import decode_record
from reput_hooks import Record

__all__ = [
    "CHECK_TIMES",
    "DISCARDED_TOPIC",
    "HALF_TOPIC",
    "OP_TOPIC",
    "TRANSACTION_GROUP",
    "Identity",
    "check_times",
    "committed_copies",
    "done_offsets",
    "identity_of",
    "names_real_queue",
    "queue_records",
    "real_queue_id",
]

# Its committed offsets in both topics are the progress up to which all is settled.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
BATCH = 64

# Unique key, born timestamp, born host and CRC of the body: the same in all copies of a half message, and in the
# committed or discarded message.
Identity: TypeAlias = tuple[str | None, int, str, int]


def identity_of(record: Record) -> Identity:
    """Return the fields that identify the transaction of a half or a committed message."""
    return record.uniq_key, record.born_timestamp, record.born_host, record.body_crc


def names_real_queue(half: Record) -> bool:
    """Return whether a half message names its real topic and queue."""
    return bool(half.properties.get("REAL_TOPIC")) and real_queue_id(half) >= 0


def real_queue_id(half: Record) -> int:
    """Return the real queue id of a half message; -1: it names none."""
    return int_or(half.properties.get("REAL_QID"), -1)


def check_times(record: Record) -> int:
    """Return how often the sender was asked about a half message; 0 if the property is no number."""
    return max(int_or(record.properties.get(CHECK_TIMES), 0), 0)


def done_offsets(op: Record) -> list[int]:
    """Return the queue offsets of the half messages that an op record settles.

    RocketMQ 4.3 to 5.0 write one offset, later versions several with commas.
    """
    offsets = (long_or(text, -1) for text in op.body.decode("ascii", "replace").split(","))
    return [offset for offset in offsets if offset >= 0]


def queue_records(reader: MessageReader, topic: str, queue_id: int, queue_offset: int | None) -> Iterator[Record]:
    """Yield the records of a queue from *queue_offset* on, None: from its first, without those that the log has lost.

    Raises:
        DamagedStore: a record's bytes are damaged.
    """
    low, high = reader.queue_range(topic, queue_id)
    at = low if queue_offset is None else max(queue_offset, low)
    while at < high:
        found = reader.get_message(topic, queue_id, at, BATCH)
        yield from found
        if found.next_queue_offset <= at:
            return
        at = found.next_queue_offset


def committed_copies(store_directory: Path, begin: int, end: int) -> Iterator[Record]:
    """Yield the committed and the discarded messages in log [begin, end).

    Raises:
        DamagedStore: there is no record at an offset where one must begin.
    """
    # Imported here because it loads numpy: the log is searched only after a kill, and only if half messages wait.
    from reput.store.log.log_scan import LogScan
    from reput.store.recovery.damage_list import accepted_damage

    discarded = DISCARDED_TOPIC.encode()
    scan = LogScan(store_directory, passed_over=accepted_damage(store_directory))
    try:
        for columns in scan.pieces(begin, end):
            committed = columns.header["sys_flag"] & TRANSACTION_ROLLBACK_TYPE == TRANSACTION_COMMIT_TYPE
            topics, topic_of = columns.queues()
            for number, (topic, _) in enumerate(topics):
                if topic == discarded:
                    committed |= topic_of == number
            for position in columns.position[committed].tolist():
                yield decode_record(columns.data, position)
    finally:
        scan.close()

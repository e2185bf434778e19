"""The unit of a batch consume queue, which RocketMQ 5 keeps for topics with the attribute ``queue.type=BatchCQ``.

    at  size  field
     0     8  commit_log_offset
     8     4  record_size        bytes
    12     8  tags_code
    20     8  store_timestamp    ms
    28     8  base_queue_offset  queue offset of the first message in the record
    36     2  batch_size         messages in the record
    38     4  compacted_offset   -1
    42     4  reserved           0

The record holds several messages under one header. reput reads such records and their queues, but RocketMQ
builds them: reput changes nothing below ``batchconsumequeue/``.

Source: RocketMQ store, BatchConsumeQueue.putBatchMessagePositionInfo.
"""

from __future__ import annotations

from struct import Struct

import msgspec

__all__ = ["BATCH_UNIT_SIZE", "BatchUnit", "decode_batch_unit", "encode_batch_unit"]

UNIT = Struct(">qiqqqhii")
BATCH_UNIT_SIZE = 46
assert UNIT.size == BATCH_UNIT_SIZE
NOT_COMPACTED = -1
RESERVED = 0


class BatchUnit(msgspec.Struct, frozen=True):
    """One unit; a record of *batch_size* messages, of which the first has *base_queue_offset*."""

    commit_log_offset: int
    record_size: int
    tags_code: int
    store_timestamp: int
    base_queue_offset: int
    batch_size: int


def encode_batch_unit(unit: BatchUnit) -> bytes:
    """Return the bytes of a unit."""
    return UNIT.pack(*msgspec.structs.astuple(unit), NOT_COMPACTED, RESERVED)


def decode_batch_unit(data: bytes, at: int = 0) -> BatchUnit | None:
    """Return the unit at ``data[at]``, None if RocketMQ would not accept it as valid."""
    unit = BatchUnit(*UNIT.unpack_from(data, at)[:6])
    valid = unit.commit_log_offset >= 0 and unit.record_size > 0 and unit.base_queue_offset >= 0 and unit.batch_size > 0
    return unit if valid else None

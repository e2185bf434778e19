"""StoppedCounts: the waiting messages of a store that no program has open, counted from its queues and offsets.

    SCHEDULE_TOPIC_XXXX, queue level - 1 ── after the offset in delayOffset.json ──▶ delays
    RMQ_SYS_TRANS_HALF_TOPIC ── after the offset in consumerOffset.json, without an op record ──▶ half messages

Both counts need a clean close, by reput or by RocketMQ. After a kill, the queues may lack the log's end, and the log
must be searched for deliveries: the next opening does both.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.consume.delivery.delay_offsets import DELAY_OFFSETS_NAME, DeliveredUpTo
from reput.consume.delivery.half_messages import (
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
    done_offsets,
    identity_of,
    names_real_queue,
    queue_records,
)
from reput.settings import Settings
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager, consumer_offset_manager
from reput.store.config.delay_offset_manager import DelayOffsetManager
from reput.store.disk.sealed_file import read_sealed
from reput.store.reader.message_reader import MessageReader
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.state.dispatcher_cursors import read_dispatcher_cursors
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import read_store_id
from reput_hooks import Cursor

__all__ = ["StoppedCounts", "count_stopped"]

CONSUME_QUEUE = "consume_queue"


class StoppedCounts(msgspec.Struct, frozen=True):
    """The numbers of waiting messages.

    Attributes:
        waiting_delays: messages not delivered yet, by delay level; None: not known.
        half_messages: of open transactions; None: not known.
    """

    waiting_delays: dict[int, int] | None = None
    half_messages: int | None = None


def count_stopped(store_directory: Path, settings: Settings, reader: MessageReader, log_end: int) -> StoppedCounts:
    """Count the waiting messages of a store that no program has open.

    Raises:
        DamagedStore: neither a file of offsets nor its backup can be read.
    """
    if (store_directory / "abort").exists():
        return StoppedCounts()
    epochs = read_epochs(store_directory, read_store_id(store_directory))
    closed_by_reput = epochs.clean_end == log_end
    if closed_by_reput and read_dispatcher_cursors(store_directory).get(CONSUME_QUEUE) != log_end:
        # The queues were not built up to the log's end.
        return StoppedCounts()
    offsets = consumer_offset_manager(store_directory, settings)
    offsets.load()
    return StoppedCounts(
        waiting_delays(store_directory, reader, log_end if closed_by_reput else None), half_messages(reader, offsets)
    )


def waiting_delays(store_directory: Path, reader: MessageReader, closed_at: int | None) -> dict[int, int] | None:
    """Return the number of waiting messages by delay level, without empty levels; None: not known.

    Args:
        closed_at: the end of the log where reput closed it; None: RocketMQ closed it, and saved its delay offsets.
    """
    manager = DelayOffsetManager(store_directory)
    manager.load()
    kept = read_sealed(store_directory / "reput" / DELAY_OFFSETS_NAME, DeliveredUpTo)
    if kept is not None:
        store_id = read_store_id(store_directory)
        cursor = Cursor(store_id, kept.epoch, kept.commit_log_offset, 0)
        if not read_epochs(store_directory, store_id).holds(cursor):
            kept = None
    waiting = {}
    for queue_id in reader.queue_ids(SCHEDULE_TOPIC):
        level = queue_id + 1
        low, high = reader.queue_range(SCHEDULE_TOPIC, queue_id)
        following = max(low, manager.query_offset(level) or 0, kept.queue_offsets.get(level, 0) if kept else 0)
        if following < high:
            waiting[level] = high - following
    if waiting and closed_at is not None and (kept is None or kept.commit_log_offset != closed_at):
        # The store was opened after a kill, and closed again before the delivery search had finished.
        return None
    return waiting


def half_messages(reader: MessageReader, offsets: ConsumerOffsetManager) -> int:
    """Return the number of unsettled transactions."""
    pending = set()
    settled = set()
    for queue_id in reader.queue_ids(HALF_TOPIC):
        op_progress = offsets.query_offset(TRANSACTION_GROUP, OP_TOPIC, queue_id)
        done: set[int] = set()
        for op in queue_records(reader, OP_TOPIC, queue_id, op_progress):
            done.update(done_offsets(op))
        half_progress = offsets.query_offset(TRANSACTION_GROUP, HALF_TOPIC, queue_id)
        for half in queue_records(reader, HALF_TOPIC, queue_id, half_progress):
            if half.queue_offset in done:
                settled.add(identity_of(half))
            elif names_real_queue(half):
                pending.add(identity_of(half))
    return len(pending - settled)

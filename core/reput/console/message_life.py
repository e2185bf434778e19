"""life_of: what has happened to a message: put, on disk, in each view, acknowledged, delayed, retried, dead.

    put ── stored ── on disk ── in each view ── acknowledged by each group
                                                     │ or sent back
                                                     ▼
                               SCHEDULE_TOPIC_XXXX ─▶ %RETRY%GROUP ─▶ … ─▶ %DLQ%GROUP     a copy of it each time

Copies are found by the message's keys in the index, and without keys among the messages that were stored later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from reput.console.console_target import AnyAdministration, Messages
from reput.console.message_view import time_text
from reput.console.topic_messages import from_time
from reput.consume.administration.stored_queues import GroupProgress
from reput.consume.delivery.half_messages import HALF_TOPIC
from reput.consume.registry.topics import DLQ_PREFIX, RETRY_PREFIX
from reput.errors import ReputError
from reput.process.control.group_status import GroupStatus
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.layout import TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE
from reput_hooks import Record

__all__ = ["LifeStep", "life_of"]

COPIES_MAX = 32
# Of each topic, so many later messages are read for copies of one without keys.
READ_MAX = 1000


class LifeStep(msgspec.Struct, frozen=True):
    """One thing that has happened to a message, or has not yet.

    Attributes:
        state: ``done``, ``waits`` or ``failed``.
        message_id: of the copy that the step is about; empty: none.
    """

    what: str
    state: str
    detail: str
    message_id: str = ""


def life_of(
    record: Record, status: GroupStatus | None, administration: AnyAdministration, messages: Messages
) -> list[LifeStep]:
    """Return what has happened to a message, in this order as far as one thing follows another.

    Args:
        status: of the store that holds it; None: it is at brokers, which do not tell about their views.
    """
    steps = list(put_steps(record))
    steps += stored_steps(record, status) if status is not None else queue_steps(record, messages)
    progress = progress_on(record, administration)
    steps += [group_step(record, row) for row in progress]
    steps += copies(record, [row.group for row in progress], messages)
    return steps


def put_steps(record: Record) -> Iterator[LifeStep]:
    """Yield where the message comes from, and when it was put and stored."""
    origin = record.properties.get("ORIGIN_MESSAGE_ID", "")
    if record.reconsume_times:
        yield LifeStep("redelivered", "done", f"{record.reconsume_times} times before", origin)
    yield LifeStep("put", "done", f"by {record.born_host} at {time_text(record.born_timestamp)}")
    yield LifeStep("stored", "done", f"at {time_text(record.store_timestamp)}, offset {record.commit_log_offset}")
    real_topic, level = record.properties.get("REAL_TOPIC", ""), record.properties.get("DELAY", "")
    if record.topic == SCHEDULE_TOPIC:
        yield LifeStep("delayed", "done", f"for {real_topic}, by level {level}")
    elif record.topic == HALF_TOPIC:
        yield LifeStep("half message", "done", f"for {real_topic}: it is delivered when its transaction is committed")
    elif record.sys_flag & TRANSACTION_ROLLBACK_TYPE == TRANSACTION_COMMIT_TYPE:
        yield LifeStep("committed", "done", "its transaction")
    elif level not in ("", "0") and real_topic == record.topic:
        yield LifeStep("delayed", "done", f"before it was stored here, by level {level}")


def stored_steps(record: Record, status: GroupStatus) -> list[LifeStep]:
    """Return whether the message is on disk, and in each view."""
    end = record.commit_log_offset + record.record_size
    durable = status.writer.durable
    is_forced = durable is not None and durable >= end
    unknown = "unknown: the store was not closed" if durable is None else f"the log is on disk up to {durable}"
    steps = [LifeStep("on disk", "done" if is_forced else "waits", unknown)]
    for row in status.dispatchers:
        progress = row.durable_cursor if row.progress is None else row.progress
        if progress is not None and progress >= end:
            kept = row.durable_cursor is not None and row.durable_cursor >= end
            steps.append(LifeStep(f"in {row.name}", "done", "durably" if kept else "readable, not durable yet"))
        else:
            state = "waits" if row.state in ("RUNNING", "STARTING") else "failed"
            steps.append(LifeStep(f"in {row.name}", state, f"{row.state}, progress {progress}"))
    return steps


def queue_steps(record: Record, messages: Messages) -> list[LifeStep]:
    """Return whether consumers of brokers can read the message."""
    _, end = messages.queue_range(record.topic, record.queue_id)
    is_there = record.queue_offset < end
    return [LifeStep("in consume_queue", "done" if is_there else "waits", f"queue {record.queue_id} ends at {end}")]


def progress_on(record: Record, administration: AnyAdministration) -> list[GroupProgress]:
    """Return the progress of every group on the message's queue."""
    return [
        row
        for rows in administration.progress_of_groups().values()
        for row in rows
        if row.topic == record.topic and row.queue_id == record.queue_id
    ]


def group_step(record: Record, row: GroupProgress) -> LifeStep:
    """Return whether a group has finished with the message."""
    before = record.queue_offset - row.consumer_offset
    if before < 0:
        return LifeStep(f"group {row.group}", "done", f"acknowledged: the group is at {row.consumer_offset}")
    return LifeStep(f"group {row.group}", "waits", f"not acknowledged; {before} messages before it")


def copies(record: Record, groups: Sequence[str], messages: Messages) -> list[LifeStep]:
    """Return the redeliveries and dead letters of the message, by store time: copies in topics of the groups."""
    found: list[tuple[Record, LifeStep]] = []
    waiting = list(copies_in(SCHEDULE_TOPIC, record, messages))
    for group in dict.fromkeys(groups):
        retries = list(copies_in(RETRY_PREFIX + group, record, messages))
        delivered = {copy.reconsume_times for copy in retries}
        found += [(copy, copy_step(f"retried for {group}", "done", copy)) for copy in retries]
        found += [
            (copy, copy_step(f"comes again for {group}", "waits", copy))
            for copy in waiting
            if copy.properties.get("REAL_TOPIC") == RETRY_PREFIX + group and copy.reconsume_times not in delivered
        ]
        dead = copies_in(DLQ_PREFIX + group, record, messages)
        found += [(copy, copy_step(f"dead letter of {group}", "failed", copy)) for copy in dead]
    return [step for _, step in sorted(found, key=lambda item: item[0].commit_log_offset)]


def copy_step(what: str, state: str, copy: Record) -> LifeStep:
    """Return the step of one copy."""
    level = f", by delay level {copy.properties.get('DELAY')}" if state == "waits" else ""
    detail = f"stored at {time_text(copy.store_timestamp)}{level}, {copy.reconsume_times} deliveries before"
    return LifeStep(what, state, detail, copy.message_id)


def copies_in(topic: str, record: Record, messages: Messages) -> Iterable[Record]:
    """Return the copies of a message in *topic*."""
    keys = [key for key in (record.properties.get("UNIQ_KEY"), *record.properties.get("KEYS", "").split(" ")) if key]
    try:
        if keys:
            found = messages.query(topic, keys[0], COPIES_MAX)
        else:
            found = list(islice(from_time(messages, topic, record.store_timestamp), READ_MAX))
    except ReputError:
        # The group has no such topic.
        return ()
    return [copy for copy in found if copy.message_id != record.message_id and has_one_origin(copy, record)]


def has_one_origin(one: Record, other: Record) -> bool:
    """Tell whether two messages are copies of one, or one is a copy of the other."""
    if origin_of(one) == origin_of(other):
        return True
    unique = one.properties.get("UNIQ_KEY")
    return unique is not None and unique == other.properties.get("UNIQ_KEY")


def origin_of(record: Record) -> str:
    """Return the id of the message that a record is a copy of, or its own."""
    return record.properties.get("ORIGIN_MESSAGE_ID", record.message_id)

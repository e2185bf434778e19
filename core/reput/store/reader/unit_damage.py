"""The fault behind a unit within its consume queue's bounds that leads to no record of that queue.

Two files disagree, the queue's and the log's. The error says which of them to repair:

    the unit    was never written, points behind the log or before its neighbours, into the middle of a record, or at
                another queue's, or says that the log has lost a message that it has:
                `reput rebuild STORE consume_queue` builds it again from the log
    the log     has no record where one begins, or not the bytes at all: `reput check STORE`, `reput repair STORE`
"""

from __future__ import annotations

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.store.queue.consume_queue import NO_UNIT, PRE_BLANK_SIZE, Unit, is_garbage
from reput.store.reader.consume_queue_bounds import ConsumeQueueBounds
from reput.store.reader.readable_store import ReadableStore
from reput.store.record.layout import MESSAGE_MAGIC_CODES, SIZE_MAGIC_AND_OFFSET
from reput.store.record.record import decode_record

__all__ = ["begins_no_record", "damage_of_unit", "log_damage", "refuse_blanks", "require_reason"]

# The log between two records of a queue is not walked further than this to find out whether a record begins there.
WALK_SIZE_MAX = 64 << 20


def damage_of_unit(queue: ConsumeQueueBounds, queue_offset: int, unit: Unit) -> DamagedStore:
    """Return the error that says why *unit*, at *queue_offset*, leads to no record of *queue*."""
    commit_log_offset, size, tags_code = unit
    stands = f"commit_log_offset={commit_log_offset} record_size={size}"
    if unit == NO_UNIT or is_garbage(unit):
        return queue.garbled(queue_offset, f"no unit stands there: {stands} tags_code={tags_code}")
    log_end = queue.units.known_progress
    if commit_log_offset + size > log_end:
        return queue.garbled(queue_offset, f"the unit points behind the log's end: {stands} log_end={log_end}")
    if commit_log_offset < max(queue.log_min, queue.deleted_at):
        return queue.garbled(
            queue_offset, f"the unit points before the queue's first message, those before it do not: {stands}"
        )
    try:
        head = queue.store.read_log(commit_log_offset, SIZE_MAGIC_AND_OFFSET.size)
        own_size, magic_code, own_offset = SIZE_MAGIC_AND_OFFSET.unpack(head)
    except OffsetOutOfRange:
        own_size, magic_code, own_offset = 0, 0, -1
    if magic_code not in MESSAGE_MAGIC_CODES or own_offset != commit_log_offset:
        before = record_before(queue, queue_offset, commit_log_offset)
        if begins_no_record(queue.store, before, commit_log_offset):
            return queue.garbled(queue_offset, f"the unit points into the middle of a record: {stands}")
        return log_damage(queue, "the log has no record where the queue says", queue_offset, commit_log_offset, size)
    try:
        # A damaged size may be negative.
        record = decode_record(queue.store.read_log(commit_log_offset, max(own_size, 0)))
    except (DamagedStore, OffsetOutOfRange):
        return log_damage(queue, "the log has no whole record there", queue_offset, commit_log_offset, size)
    if own_size != size:
        return queue.garbled(queue_offset, f"the unit has not its record's size: {stands} expected={own_size}")
    return queue.garbled(
        queue_offset,
        f"the unit points at another record: {stands} found_topic={record.topic} found_queue_id={record.queue_id} "
        f"found_queue_offset={record.queue_offset}",
    )


def require_reason(queue: ConsumeQueueBounds, missing: list[tuple[int, Unit]]) -> bool:
    """Refuse units that were within the queue's bounds and lead to no record of it, unless there is a reason.

    Accepted damage of the log is a reason. So is removal of the record by retention, by deletion of the topic or by a
    truncation since the bounds were read; this function reads the bounds again. Return True if there are other units
    now, which the caller reads instead.

    Raises:
        DamagedStore: there is no reason.
    """
    queue.forget()
    low, high = queue.range()
    for queue_offset, unit in missing:
        if not low <= queue_offset < high or queue.store.is_accepted(unit[0]):
            continue
        now = queue.units.unit(queue_offset)
        if now is not None and now != unit:
            return True
        raise damage_of_unit(queue, queue_offset, unit)
    return False


def refuse_blanks(queue: ConsumeQueueBounds, blanks: list[int]) -> None:
    """Look whether the log has a message at one of these queue offsets, where the queue's units say that it has none.

    Raises:
        DamagedStore: it has.
    """
    low, high = queue.range()
    for queue_offset in blanks:
        if queue_offset in queue.lost or not low <= queue_offset < high:
            continue
        first, last = queue_offset, queue_offset + 1
        while first > low and is_blank(before := queue.units.unit(first - 1)):
            first -= 1
        while last < high and is_blank(after := queue.units.unit(last)):
            last += 1
        if first == low or before is None:
            # What the log lost there it may have lost at its begin.
            continue
        until = queue.units.known_progress if last == high or after is None else after[0]
        found = queue.store.proof.found_between(
            queue.topic, queue.queue_id, range(first, last), before[0] + before[1], until
        )
        if found is not None:
            raise queue.garbled(found, "its unit says that the log has lost the message, which it has")
        queue.lost = range(first, last)


def is_blank(unit: Unit | None) -> bool:
    """Whether a unit says that the log has no message."""
    return unit is not None and unit[1] == PRE_BLANK_SIZE


def log_damage(
    queue: ConsumeQueueBounds, what: str, queue_offset: int, commit_log_offset: int, record_size: int
) -> DamagedStore:
    """Return the error for a place of the log."""
    return DamagedStore.at(
        commit_log_offset,
        record_size,
        f"{what}: topic={queue.topic} queue_id={queue.queue_id} queue_offset={queue_offset} "
        f"commit_log_offset={commit_log_offset}",
        "See `reput check STORE`; later messages can be read.",
    )


def record_before(queue: ConsumeQueueBounds, queue_offset: int, commit_log_offset: int) -> int:
    """Return where a record begins that lies before this offset in its segment; of the queue's last unit if it can."""
    segment = queue.store.log().find(commit_log_offset)
    begin = commit_log_offset if segment is None else segment.begin
    before = queue.units.unit(queue_offset - 1) if queue_offset else None
    if before is not None and begin <= before[0] < commit_log_offset and queue.agrees(queue_offset - 1, before):
        return before[0]
    return begin


def begins_no_record(store: ReadableStore, begin: int, commit_log_offset: int) -> bool:
    """Tell whether the chain of records from *begin* on shows that none begins at this offset."""
    if commit_log_offset - begin > WALK_SIZE_MAX:
        return False
    return not store.proof.is_begin_of_record(commit_log_offset, begin)

"""search_bodies: messages of a topic whose body has a text, newest first, within bounds of time and count."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator

import msgspec

from reput.console.message_view import body_view, inflated
from reput.consume.pull.topic_reader import MessageSource, first_queue_offset
from reput_hooks import Record

__all__ = ["Found", "search_bodies"]

# A person waits, and other pages read the same disk meanwhile.
SECONDS_MAX = 3.0
FOUND_MAX = 50
READ_MAX = 50_000
# Of each queue, so many are in memory.
BLOCK = 16


class Found(msgspec.Struct, frozen=True):
    """What a search found.

    Attributes:
        read_count: messages that were looked at.
        older_than: the search can go on with those stored before this time, ms since 1970; None: the topic is done.
    """

    records: list[Record]
    read_count: int
    older_than: int | None


def search_bodies(
    source: MessageSource,
    topic: str,
    text: str,
    before: int | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Found:
    """Return messages of *topic* whose body has *text*, in whatever case; of JSON, also in what its escapes stand for.

    Args:
        before: only messages stored before this time, ms since 1970; None: all.

    Raises:
        RequestRefused: there is no such topic.
    """
    wanted = text.casefold()
    ends_at = monotonic() + SECONDS_MAX
    found: list[Record] = []
    count = 0
    queues = [backwards(source, topic, queue_id, before) for queue_id in source.queue_ids(topic)]
    for record in heapq.merge(*queues, key=lambda record: (-record.store_timestamp, -record.commit_log_offset)):
        if len(found) == FOUND_MAX or count == READ_MAX or (count and monotonic() > ends_at):
            # Messages of the same millisecond come again rather than never.
            return Found(found, count, record.store_timestamp + 1)
        count += 1
        if has_text(record, wanted):
            found.append(record)
    return Found(found, count, None)


def backwards(source: MessageSource, topic: str, queue_id: int, before: int | None) -> Iterator[Record]:
    """Yield the messages of a queue, newest first."""
    low, high = source.queue_range(topic, queue_id)
    if before is not None:
        high = min(first_queue_offset(source, topic, queue_id, before), high)
    while high > low:
        begin = max(high - BLOCK, low)
        records: list[Record] = []
        at = begin
        while at < high:
            result = source.get(topic, queue_id, at, high - at)
            records += [record for record in result.records if record.queue_offset < high]
            if result.next_queue_offset <= at:
                break
            at = result.next_queue_offset
        yield from reversed(records)
        high = begin


def has_text(record: Record, wanted: str) -> bool:
    """Return whether a body has a text, which is case-folded."""
    body = inflated(record)[0]
    if wanted in body.decode("utf-8", "replace").casefold():
        return True
    return body[:1] in (b"{", b"[") and b"\\" in body and wanted in body_view(record).text.casefold()

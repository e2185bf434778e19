"""The messages of a topic over all of its queues, by store time: newest first, or from a time on; and pages of them.

A page begins at a store time and leaves out those messages of exactly that millisecond that the pages before it have
shown, so that turning pages onward shows each message once, however many share a millisecond.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

import msgspec

from reput.consume.pull.topic_reader import MessageSource, first_queue_offset
from reput_hooks import Record

__all__ = ["MessagePage", "PagePlace", "from_time", "newest_first", "page_of"]

# Of each queue, so many are in memory: one, and more while they are small.
BLOCK = 16
BLOCK_SIZE_MAX = 256 << 10
# A page with so many bytes is full.
PAGE_SIZE_MAX = 8 << 20


class PagePlace(msgspec.Struct, frozen=True):
    """Where a page begins.

    Attributes:
        timestamp: ms since 1970; None: at the newest message, or at the oldest.
        passed: messages of exactly this millisecond that were shown before.
    """

    timestamp: int | None
    passed: int = 0


class MessagePage(msgspec.Struct, frozen=True):
    """Some messages, in the order of the store times, ascending or descending.

    Attributes:
        onward: where the next page begins; None: there are no more.
        back: where the page of the other direction begins; None: there is no message on this page.
    """

    records: list[Record]
    onward: PagePlace | None
    back: PagePlace | None


def newest_first(source: MessageSource, topic: str, before: int | None = None) -> Iterator[Record]:
    """Yield the messages of *topic* that were stored before *before*, ms since 1970; None: all.

    Raises:
        RequestRefused: there is no such topic.
    """
    queues = [backwards(source, topic, queue_id, before) for queue_id in source.queue_ids(topic)]
    return heapq.merge(*queues, key=lambda record: (-record.store_timestamp, -record.commit_log_offset))


def from_time(source: MessageSource, topic: str, timestamp: int | None = None) -> Iterator[Record]:
    """Yield the messages of *topic* that were stored at or after *timestamp*, ms since 1970, oldest first; None: all.

    Raises:
        RequestRefused: there is no such topic.
    """
    queues = [forwards(source, topic, queue_id, timestamp) for queue_id in source.queue_ids(topic)]
    return heapq.merge(*queues, key=lambda record: (record.store_timestamp, record.commit_log_offset))


def page_of(source: MessageSource, topic: str, place: PagePlace, count_max: int, *, ascending: bool) -> MessagePage:
    """Return up to *count_max* messages from *place* on, upwards or downwards in time; fewer if they are large.

    Raises:
        RequestRefused: there is no such topic.
    """
    at = place.timestamp
    # Downwards, those of the millisecond itself as well.
    before = None if at is None else at + 1
    found = from_time(source, topic, at) if ascending else newest_first(source, topic, before)
    records: list[Record] = []
    onward = None
    size = 0
    for record in islice(found, place.passed, None):
        if len(records) == count_max or size >= PAGE_SIZE_MAX:
            onward = behind(records, place)
            break
        records.append(record)
        size += record.record_size
    return MessagePage(records, onward, behind(records[::-1], PagePlace(None)) if records else None)


def behind(records: list[Record], place: PagePlace) -> PagePlace:
    """Return the place behind *records*, which begin at *place*."""
    last = records[-1].store_timestamp
    of_last = sum(1 for _ in takewhile(lambda record: record.store_timestamp == last, reversed(records)))
    return PagePlace(last, of_last + (place.passed if last == place.timestamp else 0))


def backwards(source: MessageSource, topic: str, queue_id: int, before: int | None) -> Iterator[Record]:
    """Yield the messages of a queue, newest first."""
    low, high = source.queue_range(topic, queue_id)
    if before is not None:
        high = min(first_queue_offset(source, topic, queue_id, before), high)
    count = 1
    while high > low:
        begin = max(high - count, low)
        records = list(between(source, topic, queue_id, begin, high, count))
        yield from reversed(records)
        high, count = begin, next_count(count, records)


def forwards(source: MessageSource, topic: str, queue_id: int, timestamp: int | None) -> Iterator[Record]:
    """Yield the messages of a queue, oldest first."""
    low, high = source.queue_range(topic, queue_id)
    if timestamp is not None:
        low = max(first_queue_offset(source, topic, queue_id, timestamp), low)
    return between(source, topic, queue_id, low, high)


def between(source: MessageSource, topic: str, queue_id: int, low: int, high: int, count: int = 1) -> Iterator[Record]:
    """Yield the messages of a queue at the offsets [low, high), *count* of them read at first."""
    while low < high:
        result = source.get(topic, queue_id, low, min(high - low, count))
        yield from (record for record in result.records if record.queue_offset < high)
        if result.next_queue_offset <= low:
            break
        low, count = result.next_queue_offset, next_count(count, result.records)


def next_count(count: int, records: Sequence[Record]) -> int:
    """Return how many messages are read next, after *count* of them were *records*."""
    size = sum(record.record_size for record in records)
    fitting = len(records) * BLOCK_SIZE_MAX // size if size else BLOCK
    return max(min(fitting, 2 * count, BLOCK), 1)

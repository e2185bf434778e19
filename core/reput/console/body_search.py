"""search_bodies: messages of a topic whose body has a text, newest first, within bounds of time and count."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice

import msgspec

from reput.console.message_view import body_view, inflated
from reput.console.topic_messages import PAGE_SIZE_MAX, PagePlace, newest_first
from reput.consume.pull.topic_reader import MessageSource
from reput_hooks import Record

__all__ = ["Found", "search_bodies"]

# A person waits, and other pages read the same disk meanwhile.
SECONDS_MAX = 3.0
FOUND_MAX = 50
READ_MAX = 50_000


class Found(msgspec.Struct, frozen=True):
    """What a search found.

    Attributes:
        read_count: messages that were looked at.
        onward: where the search can go on; None: the topic is done.
    """

    records: list[Record]
    read_count: int
    onward: PagePlace | None


def search_bodies(
    source: MessageSource,
    topic: str,
    text: str,
    place: PagePlace | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Found:
    """Return messages of *topic* whose body has *text*, in whatever case; of JSON, also in what its escapes stand for.

    Args:
        place: where an earlier search ended; None: at the newest message.

    Raises:
        RequestRefused: there is no such topic.
    """
    wanted = text.casefold()
    ends_at = monotonic() + SECONDS_MAX
    found: list[Record] = []
    count = found_size = 0
    at, passed = (None, 0) if place is None else (place.timestamp, place.passed)
    for record in islice(newest_first(source, topic, None if at is None else at + 1), passed, None):
        is_full = len(found) == FOUND_MAX or found_size >= PAGE_SIZE_MAX
        if is_full or count == READ_MAX or (count and monotonic() > ends_at):
            return Found(found, count, PagePlace(at, passed))
        count += 1
        at, passed = record.store_timestamp, passed + 1 if record.store_timestamp == at else 1
        if has_text(record, wanted):
            found.append(record)
            found_size += record.record_size
    return Found(found, count, None)


def has_text(record: Record, wanted: str) -> bool:
    """Return whether a body has a text, which is case-folded."""
    body = inflated(record)[0]
    if wanted in body.decode("utf-8", "replace").casefold():
        return True
    return body[:1] in (b"{", b"[") and b"\\" in body and wanted in body_view(record).text.casefold()

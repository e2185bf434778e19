"""find_messages: what the page of messages shows: by key, by text of the body, by queue position, or by time.

Without a queue, the messages of all queues of the topic are shown in the order of their store times.
"""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlencode

import msgspec

from reput.console.body_search import search_bodies
from reput.console.console_target import Messages
from reput.console.message_view import time_text
from reput.console.topic_messages import PagePlace, page_of
from reput.consume.pull.topic_reader import first_queue_offset
from reput.errors import ConfigError
from reput_hooks import Record

__all__ = ["FoundMessages", "find_messages", "whole"]

PAGE_MAX = 32
KEYED_MAX = 100
# More than any topic has.
PASSED_MAX = 1 << 48
TIMESTAMP_MAX = 0x7FFFFFFFFFFFFFFF
DIGITS_MAX = len(str(TIMESTAMP_MAX))


class FoundMessages(msgspec.Struct, frozen=True):
    """Messages to show.

    Attributes:
        note: what they are.
        links: texts and addresses of pages beside this one.
    """

    records: list[Record]
    note: str
    links: list[tuple[str, str]]


def find_messages(source: Messages, given: dict[str, str]) -> FoundMessages:
    """Return what the fields of a search ask for; *given* names a topic.

    Raises:
        ConfigError: a number or a time is malformed.
        RequestRefused: there is no such topic.
    """
    if given.get("text"):
        return with_text(source, given["topic"], given["text"], place_before(given))
    if given.get("key"):
        found = source.query(given["topic"], given["key"], KEYED_MAX)
        return FoundMessages(found, f"the newest {KEYED_MAX} with this key", [])
    if given.get("queue_id") or given.get("queue_offset"):
        return of_queue(source, given["topic"], given)
    return of_topic(source, given["topic"], given)


def with_text(source: Messages, topic: str, text: str, place: PagePlace) -> FoundMessages:
    """Return messages whose body has a text, from *place* on."""
    found = search_bodies(source, topic, text, place)
    links = []
    if (onward := found.onward) is not None:
        words = f"Search older messages, from {time_text(onward.timestamp)} on"
        links.append((words, address(topic=topic, text=text, before=onward.timestamp, passed=onward.passed)))
    note = f"{len(found.records)} of {found.read_count} messages have this text, newest first"
    return FoundMessages(found.records, note, links)


def of_queue(source: Messages, topic: str, given: dict[str, str]) -> FoundMessages:
    """Return messages of one queue, from a queue offset or a time on; without either, the last ones."""
    queue_id = whole("queue_id", given.get("queue_id") or "0")
    low, high = source.queue_range(topic, queue_id)
    if given.get("time"):
        begin = first_queue_offset(source, topic, queue_id, parse_time(given["time"]))
    elif given.get("queue_offset"):
        begin = whole("queue_offset", given["queue_offset"])
    else:
        begin = high - PAGE_MAX
    begin = max(begin, low)
    result = source.get(topic, queue_id, begin, PAGE_MAX)
    links = []
    if begin > low:
        links.append(("Older", address(topic=topic, queue_id=queue_id, queue_offset=max(begin - PAGE_MAX, low))))
    if low <= result.next_queue_offset < high:
        links.append(("Newer", address(topic=topic, queue_id=queue_id, queue_offset=result.next_queue_offset)))
    note = f"queue {queue_id} has {low} to {high - 1}" if high > low else "the queue is empty"
    return FoundMessages(list(result.records), note, links)


def of_topic(source: Messages, topic: str, given: dict[str, str]) -> FoundMessages:
    """Return messages of all queues: from a time on, or before one; without either, the newest."""
    since, place = optional_time(given.get("time")), place_before(given)
    if since is not None:
        place = PagePlace(since, place.passed)
    page = page_of(source, topic, place, PAGE_MAX, ascending=since is not None)
    older, newer = (page.onward, page.back) if since is None else (page.back, page.onward)
    links = []
    if older is not None:
        links.append(("Older", address(topic=topic, before=older.timestamp, passed=older.passed)))
    if newer is not None:
        links.append(("Newer", address(topic=topic, time=newer.timestamp, passed=newer.passed)))
    order = "newest first" if since is None else f"stored at or after {time_text(since)}, oldest first"
    return FoundMessages(page.records, f"all queues, {order}", links)


def place_before(given: dict[str, str]) -> PagePlace:
    """Return where an earlier page ended; without one, the newest message."""
    return PagePlace(optional_time(given.get("before")), min(whole("passed", given.get("passed") or "0"), PASSED_MAX))


def address(**fields: object) -> str:
    """Return the address of a page of messages."""
    return f"/messages?{urlencode(fields)}"


def optional_time(text: str | None) -> int | None:
    """Return a time that may not be given."""
    return parse_time(text) if text else None


def whole(name: str, text: str) -> int:
    """Return a whole number that was typed.

    Raises:
        ConfigError: it is not a whole number.
    """
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"not a whole number: {name}={text!r}", "Give one of 0 or more.")
    return bounded(text)


def bounded(digits: str) -> int:
    """Return a whole number, or the largest one; Python refuses one of thousands of digits."""
    return min(int(digits.lstrip("0")[: DIGITS_MAX + 1] or "0"), TIMESTAMP_MAX)


def parse_time(text: str) -> int:
    """Return ms since 1970 from such a number, or from an ISO 8601 time, which is UTC without a zone.

    Raises:
        ConfigError: *text* is neither.
    """
    if text.isascii() and text.isdigit():
        return bounded(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"this is no time: time={text!r}", "Give ms since 1970, or a time like 2026-01-31T12:00:00Z."
        ) from None
    if time.tzinfo is None:
        time = datetime.fromisoformat(f"{text}+00:00")
    return max(round(time.timestamp() * 1000), 0)

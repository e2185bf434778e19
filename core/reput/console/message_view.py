"""How a message is shown: its fields, its body decoded as far as that goes, and its life through views and groups."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from reput.console.console_target import AnyAdministration, Messages
from reput.consume.administration.stored_queues import GroupProgress
from reput.consume.registry.topics import DLQ_PREFIX, RETRY_PREFIX
from reput.errors import ReputError
from reput.process.control.group_status import GroupStatus
from reput_hooks import Record

__all__ = ["BodyView", "LifeStep", "body_view", "inflated", "life_of", "message_row", "time_text"]

COMPRESSED_FLAG = 1
# What a page shows of a body at most, and of one line of a table.
BODY_SIZE_MAX = 64 << 10
JSON_SIZE_MAX = 16 << 10
INFLATED_SIZE_MAX = 4 << 20
PREVIEW_SIZE = 100
HEX_WIDTH = 16
COPIES_MAX = 32


class BodyView(msgspec.Struct, frozen=True):
    """A body as text.

    Attributes:
        kind: ``json``, ``text`` or ``bytes`` (a hex dump).
        note: what was done, or left out; empty: nothing.
    """

    kind: str
    text: str
    note: str


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


def time_text(timestamp: int | None) -> str:
    """Return a time in ms since 1970 as ISO 8601 in UTC; the number if it is out of range."""
    if timestamp is None:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(timestamp)


def message_row(record: Record) -> dict[str, object]:
    """Return a message's row in a table of messages."""
    properties = record.properties
    return {
        "message_id": record.message_id,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "stored": time_text(record.store_timestamp),
        "tags": properties.get("TAGS", ""),
        "keys": properties.get("KEYS", ""),
        "size": record.record_size,
        "body": body_view(record).text[:PREVIEW_SIZE].replace("\n", " "),
    }


def body_view(record: Record) -> BodyView:
    """Return a body as text: JSON indented, text as it is, other bytes as a hex dump."""
    body, note = inflated(record)
    notes = [note] if note else []
    kind, text = decoded(body)
    if len(text) > BODY_SIZE_MAX:
        notes.append(f"the first {BODY_SIZE_MAX} of {len(text)} characters")
    return BodyView(kind, text[:BODY_SIZE_MAX], "; ".join(notes))


def inflated(record: Record) -> tuple[bytes, str]:
    """Return a body as its producer gave it, as far as that goes, and what is to be said of it."""
    if not record.sys_flag & COMPRESSED_FLAG:
        return record.body, ""
    try:
        # Bounded: a few bytes may stand for gigabytes.
        body = zlib.decompressobj().decompress(record.body, INFLATED_SIZE_MAX)
    except zlib.error:
        return record.body, "compressed in a way that is not zlib's"
    return body, f"compressed: {len(record.body)} bytes stored"


def decoded(body: bytes) -> tuple[str, str]:
    """Return the kind of a body, and its text."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "bytes", hex_dump(body)
    # A long one is shown as it is: in lines, deep nesting would make of each character a line of blanks.
    if text[:1] in ("{", "[") and len(text) <= JSON_SIZE_MAX:
        try:
            shown = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
            # JSON may name half of a pair of surrogates, which no page can have.
            return "json", shown.encode("utf-8", "replace").decode()
        except (ValueError, RecursionError):
            pass
    if all(character.isprintable() or character in "\t\r\n" for character in text):
        return "text", text
    return "bytes", hex_dump(body)


def hex_dump(body: bytes) -> str:
    """Return bytes as lines of offset, hex digits and characters, as far as a page shows them."""
    lines = []
    for at in range(0, min(len(body), BODY_SIZE_MAX // 4), HEX_WIDTH):
        piece = body[at : at + HEX_WIDTH]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{at:08x}  {piece.hex(' '):<{HEX_WIDTH * 3}} {characters}")
    return "\n".join(lines)


def life_of(
    record: Record, status: GroupStatus | None, administration: AnyAdministration, messages: Messages
) -> list[LifeStep]:
    """Return what has happened to a message: put, forced, in each view, at each group, retried, dead.

    Args:
        status: of the store that holds it; None: it is at brokers, which do not tell.
    """
    steps = [
        LifeStep("put", "done", f"by {record.born_host} at {time_text(record.born_timestamp)}"),
        LifeStep("stored", "done", f"at {time_text(record.store_timestamp)}, offset {record.commit_log_offset}"),
    ]
    if record.reconsume_times:
        origin = record.properties.get("ORIGIN_MESSAGE_ID", "")
        steps.insert(0, LifeStep("redelivered", "done", f"{record.reconsume_times} times before", origin))
    if status is not None:
        steps += stored_steps(record, status)
    progress = progress_on(record, administration)
    steps += [group_step(record, row) for row in progress]
    steps += copies(record, [row.group for row in progress], messages)
    return steps


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
    """Return the redeliveries and dead letters of the message, which are copies in topics of the groups.

    They are found by the message's keys, so a message without any key has none here.
    """
    keys = [key for key in (record.properties.get("UNIQ_KEY"), *record.properties.get("KEYS", "").split(" ")) if key]
    if not keys:
        return []
    steps = []
    for group in dict.fromkeys(groups):
        for prefix, what, state in ((RETRY_PREFIX, "retried for", "done"), (DLQ_PREFIX, "dead letter of", "failed")):
            for copy in found_copies(record, prefix + group, keys[0], messages):
                detail = f"at {time_text(copy.store_timestamp)}, {copy.reconsume_times} deliveries before"
                steps.append(LifeStep(f"{what} {group}", state, detail, copy.message_id))
    return steps


def found_copies(record: Record, topic: str, key: str, messages: Messages) -> Iterable[Record]:
    """Return the copies of a message in *topic*."""
    try:
        found = messages.query(topic, key, COPIES_MAX)
    except ReputError:
        # The group has no such topic.
        return ()
    return (
        copy
        for copy in found
        if copy.properties.get("ORIGIN_MESSAGE_ID") == record.message_id
        or copy.properties.get("UNIQ_KEY", copy) == record.properties.get("UNIQ_KEY")
    )

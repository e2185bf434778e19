"""How a message is shown: its fields, and its body decoded as far as that goes."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec

from reput.store.record.body_compression import COMPRESSED_FLAG, unpack_body
from reput.store.record.sent_record import stored_body
from reput_hooks import Record

__all__ = ["BodyView", "body_view", "inflated", "message_row", "time_text"]

# What a page shows of a body at most, and of one line of a table.
BODY_SIZE_MAX = 64 << 10
JSON_SIZE_MAX = 16 << 10
INFLATED_SIZE_MAX = 4 << 20
PREVIEW_SIZE = 100
HEX_WIDTH = 16
# Each line of a dump has 76 characters.
HEX_SIZE_MAX = BODY_SIZE_MAX // 76 * HEX_WIDTH


class BodyView(msgspec.Struct, frozen=True):
    """A body as text.

    Attributes:
        kind: ``json``, ``text`` or ``bytes`` (a hex dump).
        note: what was done, or left out; empty: nothing.
    """

    kind: str
    text: str
    note: str


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
    if kind == "bytes" and len(body) > HEX_SIZE_MAX:
        notes.append(f"the first {HEX_SIZE_MAX} of {len(body)} bytes")
    elif len(text) > BODY_SIZE_MAX:
        notes.append(f"the first {BODY_SIZE_MAX} of {len(text)} characters")
    return BodyView(kind, text[:BODY_SIZE_MAX], "; ".join(notes))


def inflated(record: Record) -> tuple[bytes, str]:
    """Return a body as its producer gave it, as far as that goes, and what is to be said of it."""
    stored, sys_flag = stored_body(record)
    if not sys_flag & COMPRESSED_FLAG:
        return stored, ""
    # Not `record.body`, which may be larger, and which the records of a page would keep.
    body = unpack_body(stored, sys_flag, INFLATED_SIZE_MAX)
    if body is None:
        return stored, "compressed in a way that is not read here, or too long"
    return body, f"compressed: {len(stored)} bytes stored"


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
    for at in range(0, min(len(body), HEX_SIZE_MAX), HEX_WIDTH):
        piece = body[at : at + HEX_WIDTH]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{at:08x}  {piece.hex(' '):<{HEX_WIDTH * 3}} {characters}")
    return "\n".join(lines)

"""Rows: the engine's results, with the names and units that scripts rely on.

Times are milliseconds since 1970 UTC, bytes are base64, unknown values are None.
"""

from __future__ import annotations

import enum
import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from reput_hooks import Record

__all__ = ["Body", "record_row", "record_text", "time_text"]


class Body(enum.StrEnum):
    """The format of a record's body."""

    NONE = "none"
    BASE64 = "base64"
    TEXT = "text"


def record_row(record: Record, body: Body = Body.BASE64) -> dict[str, Any]:
    """Return the row of one record, with its body as stored, as UTF-8 text, or without it."""
    row = {
        "commit_log_offset": record.commit_log_offset,
        "record_size": record.record_size,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "magic_code": f"{record.magic_code:08X}",
        "born_timestamp": record.born_timestamp,
        "born_host": record.born_host,
        "store_timestamp": record.store_timestamp,
        "store_host": record.store_host,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_crc": record.body_crc,
        "body": None,
        "properties": record.properties,
        "message_id": record.message_id,
    }
    match body:
        case Body.NONE:
            del row["body"]
        case Body.BASE64:
            row["body"] = b64encode(record.body).decode()
        case Body.TEXT:
            row["body"] = record.body.decode("utf-8", "replace")
    return row


def record_text(row: Mapping[str, Any], body_size_max: int | None = None) -> str:
    """Return a record's row as a line of text.

    Args:
        body_size_max: characters of the body to show; None: the whole body.
    """
    words = [
        f"{row['commit_log_offset']:>14}",
        f"{row['record_size']:>8}",
        time_text(row["store_timestamp"]),
        f"{row['topic']} {row['queue_id']}@{row['queue_offset']}",
    ]
    words += [f"{name}={quoted(value)}" for name, value in row["properties"].items()]
    if "body" in row:
        words.append(shortened(row["body"], body_size_max))
    return "  ".join(words)


def time_text(timestamp: int) -> str:
    """Return a time in ms since 1970 as ISO 8601 in UTC, or the number itself if it is out of range."""
    try:
        seconds, milliseconds = divmod(timestamp, 1000)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03}Z"
    except (ValueError, OverflowError, OSError):
        return str(timestamp)


def quoted(text: str) -> str:
    """Return *text* unchanged if that is unambiguous, else as a JSON string; never with a control character."""
    plain = text.isprintable() and not text.isspace() and " " not in text and '"' not in text and text
    return text if plain else json.dumps(text, ensure_ascii=False)


def shortened(body: str, size_max: int | None) -> str:
    """Return the beginning of *body* on one line."""
    beginning = body if size_max is None or len(body) <= size_max else body[: size_max - 1] + "…"
    return beginning if beginning.isprintable() else json.dumps(beginning, ensure_ascii=False)

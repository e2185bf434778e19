"""Rows as messages: the columns that a frame may have when it is written into a store, and their meaning.

    topic                   string; or the option ``topic`` for all rows
    body, value             binary or string; null: no bytes
    tags                    string
    keys, key               string, keys separated by spaces; binary is decoded as UTF-8
    properties              map of strings
    queueId, partition      int, 0 without it
    flag                    int, 0 without it
    bornTimestamp           timestamp; the time of storing without it

Columns that only the store can fill (offsets, ids, sizes, store time and host) are ignored, so rows read from a store
can be written unchanged. Every other column is refused, because its values would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from reput.errors import ConfigError, MessageIllegal
from reput.store.record.message import Message, MessageExtBrokerInner, check_topic, message_properties

__all__ = ["check_columns", "check_types", "messages_of", "plain_rows"]

# The field in the staged rows of each column. Two columns with the same field are refused.
COLUMNS = {
    "topic": "topic",
    "body": "body",
    "value": "body",
    "tags": "tags",
    "keys": "keys",
    "key": "keys",
    "properties": "properties",
    "queueId": "queue_id",
    "partition": "queue_id",
    "flag": "flag",
    "bornTimestamp": "born_timestamp",
}
WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
# The Spark types that each field accepts.
TYPES = {
    "topic": ("string",),
    "body": ("string", "binary"),
    "tags": ("string",),
    "keys": ("string", "binary"),
    "properties": ("map<string,string>",),
    "queue_id": WHOLE_NUMBERS,
    "flag": WHOLE_NUMBERS,
    "born_timestamp": ("timestamp",),
}
# The type of a column that holds only nulls.
NOTHING = "void"
GIVEN_BY_THE_STORE = frozenset(
    (
        "queueOffset",
        "commitLogOffset",
        "storeSize",
        "msgId",
        "offsetMsgId",
        "sysFlag",
        "bodyCRC",
        "reconsumeTimes",
        "storeTimestamp",
        "bornHost",
        "storeHost",
        "preparedTransactionOffset",
        "brokerName",
        # Columns of Kafka's source, and of lakes.
        "offset",
        "timestamp",
        "timestampType",
        "date",
        "store",
    )
)
MICROSECONDS = 1_000


def check_columns(names: list[str], topic: str | None) -> None:
    """Refuse a frame whose rows cannot become messages.

    Raises:
        ConfigError: a column is unknown, two columns are the same field, or the topic or the body is missing.
    """
    seen: dict[str, str] = {}
    for name in names:
        field = COLUMNS.get(name)
        if field is None:
            if name not in GIVEN_BY_THE_STORE:
                raise ConfigError(
                    f"messages have no such column: column={name} columns={','.join(COLUMNS)}",
                    "Drop it, or put it into properties.",
                )
        elif field in seen:
            raise ConfigError(
                f"two columns give the same field of a message: columns={seen[field]},{name}", "Drop one."
            )
        else:
            seen[field] = name
    if "topic" not in seen and topic is None:
        raise ConfigError("a message needs a topic: column=topic", "Add the column, or the option of that name.")
    if "body" not in seen:
        raise ConfigError("a message needs a body: column=body", "Name the column body, or value.")


def check_types(types: Mapping[str, str]) -> None:
    """Refuse columns whose values would be misread, such as a number as a body.

    Args:
        types: Spark's short name of each column's type.

    Raises:
        ConfigError: a column has a type that its message field does not accept.
    """
    for name, given in types.items():
        wanted = TYPES.get(COLUMNS.get(name, ""))
        if wanted is not None and given not in (*wanted, NOTHING):
            raise ConfigError(
                f"the column has another type: column={name} type={given} needed={'|'.join(wanted)}",
                "Cast it, or leave it out.",
            )


def plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows keyed by message field, without the other columns. Times are microseconds since 1970.

    Spark's times go further than those of Python, and need no time zones as numbers.
    """
    kept = batch.select([name for name in batch.schema.names if name in COLUMNS])
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in kept.columns]
    for row in pa.record_batch(columns, kept.schema.names).to_pylist(maps_as_pydicts="strict"):
        yield {COLUMNS[name]: value for name, value in row.items()}


def messages_of(batch: pa.RecordBatch, topic: str | None, mark: tuple[str, str] | None = None) -> list[Message]:
    """Return the message of each row, checked as far as possible without the store.

    Args:
        topic: topic of all rows; None: each row has its own.
        mark: a property to add to each message.

    Raises:
        MessageIllegal: RocketMQ would refuse a message.
    """
    found: list[Message] = []
    for row in plain_rows(batch):
        properties = dict(row.get("properties") or {})
        if mark is not None:
            properties[mark[0]] = mark[1]
        born = row.get("born_timestamp")
        message = MessageExtBrokerInner(
            topic=topic or row.get("topic") or "",
            body=as_bytes(row.get("body")),
            tags=row.get("tags"),
            keys=as_text(row.get("keys")),
            properties=properties or None,
            flag=row.get("flag") or 0,
            queue_id=row.get("queue_id"),
            born_timestamp=None if born is None else born // MICROSECONDS,
        )
        check_topic(message.topic)
        message_properties(message)
        found.append(message)
    return found


def as_bytes(value: Any) -> bytes:
    """Return a body as bytes."""
    return value.encode() if isinstance(value, str) else bytes(value or b"")


def as_text(value: Any) -> str | None:
    """Return keys as text.

    Raises:
        MessageIllegal: the keys are bytes, but not UTF-8.
    """
    if not isinstance(value, bytes):
        return str(value) if value else None
    try:
        return value.decode() or None
    except UnicodeDecodeError:
        raise MessageIllegal(f"keys must be text: key={value[:40]!r}") from None

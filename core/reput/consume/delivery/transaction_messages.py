"""The records of a transaction: the half message, the op record that settles it, and the delivered message.

    sender's message ──▶ `half_message` ──▶ half topic ──▶ `committed_message` ──▶ real topic
                                                     └───▶ `op_message` ─────────▶ op topic

Pure: nothing here stores or reads anything.

Source: RocketMQ broker, TransactionalMessageBridge.
"""

from __future__ import annotations

import enum

import msgspec

from reput.consume.delivery.carried_message import carried_message, carried_properties
from reput.consume.delivery.half_messages import HALF_TOPIC, OP_TOPIC, real_queue_id
from reput.consume.delivery.uniq_key import new_uniq_key
from reput.errors import ConfigError
from reput.filter.java_numbers import int_or
from reput.store.record.layout import TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE
from reput.store.record.message import Message, MessageExtBrokerInner, PutMessageResult
from reput_hooks import Record

__all__ = [
    "SETTLING",
    "HalfMessage",
    "TransactionState",
    "delivered_messages",
    "half_message",
    "op_message",
    "require_half",
]


class TransactionState(enum.IntEnum):
    """A checker's answer about a transaction; the numbers are those of RocketMQ's END_TRANSACTION.

    Attributes:
        UNKNOWN: ask again later.
        COMMIT: deliver the message.
        ROLLBACK: do not deliver it.
    """

    UNKNOWN = 0
    COMMIT = TRANSACTION_COMMIT_TYPE
    ROLLBACK = TRANSACTION_ROLLBACK_TYPE


# The states that settle a transaction; any other leaves it open.
SETTLING = (TransactionState.COMMIT, TransactionState.ROLLBACK)


class HalfMessage(msgspec.Struct, frozen=True):
    """A half message that was stored, to be given to `commit` or `rollback`.

    Attributes:
        transaction_id: the message's unique key.
    """

    producer_group: str
    commit_log_offset: int
    queue_offset: int
    transaction_id: str
    result: PutMessageResult


def op_message(queue_id: int, queue_offset: int, born_host: bytes) -> Message:
    """Return the op record of one half message. Every RocketMQ version can read a single offset without a comma."""
    return MessageExtBrokerInner(
        OP_TOPIC,
        str(queue_offset).encode(),
        properties={"WAIT": "true", "TAGS": "d"},
        queue_id=queue_id,
        born_host=born_host,
    )


def require_half(half: object) -> None:
    """Check the type of *half*.

    Raises:
        ConfigError: it is no half message.
    """
    if not isinstance(half, HalfMessage):
        raise ConfigError(f"this is not a half message: half={half!r:.100}", "Give what `put_half` returned.")


def half_message(message: Message, producer_group: str, born_host: bytes) -> MessageExtBrokerInner:
    """Return *message* as the half topic stores it.

    Source: RocketMQ broker, TransactionalMessageBridge.parseHalfMessageInner.
    """
    properties = dict(message.properties or {})
    if message.keys is not None:
        properties["KEYS"] = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    if message.tags is not None:
        properties["TAGS"] = message.tags
    properties.setdefault("UNIQ_KEY", new_uniq_key(born_host))
    properties |= {
        "TRAN_MSG": "true",
        "PGROUP": producer_group,
        "__transactionId__": properties["UNIQ_KEY"],
        "REAL_TOPIC": message.topic,
        "REAL_QID": str(message.queue_id),
    }
    inner = message if isinstance(message, MessageExtBrokerInner) else MessageExtBrokerInner(message.topic, b"")
    return msgspec.structs.replace(
        inner,
        topic=HALF_TOPIC,
        queue_id=0,
        body=message.body,
        flag=message.flag,
        tags=None,
        keys=None,
        properties=properties,
        sys_flag=inner.sys_flag & ~TRANSACTION_ROLLBACK_TYPE,
    )


def delivered_messages(half: Record, state: TransactionState) -> list[Message]:
    """Return the messages to deliver when a transaction is settled with *state*: its message, or none."""
    return [committed_message(half)] if state == TransactionState.COMMIT else []


def committed_message(half: Record) -> MessageExtBrokerInner:
    """Return the message to deliver for a half message. On disk it keeps all properties, as in RocketMQ.

    If a client set a delay, which RocketMQ's own clients do not, the delay begins now.
    """
    message = carried_message(half, half.properties["REAL_TOPIC"], real_queue_id(half), carried_properties(half))
    return msgspec.structs.replace(
        message,
        sys_flag=half.sys_flag & ~TRANSACTION_ROLLBACK_TYPE | TRANSACTION_COMMIT_TYPE,
        prepared_transaction_offset=half.commit_log_offset,
        delay_level=max(int_or(half.properties.get("DELAY"), 0), 0),
    )

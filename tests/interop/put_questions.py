"""The same message for both stores: questions that make RocketMQ store what reput stores."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from reput.settings import Settings
from reput.store.record.message import Message, message_properties

__all__ = ["batch_question", "put_question"]


def put_question(message: Message, settings: Settings, born_timestamp: int, **fields: object) -> dict[str, object]:
    """Return the question that makes RocketMQ put *message*; *fields* are additional RocketMQ fields."""
    return {
        "do": "put",
        **shared(message, settings, born_timestamp),
        **own(message),
        **fields,
    }


def batch_question(messages: Sequence[Message], settings: Settings, born_timestamp: int) -> dict[str, object]:
    """Return the question that makes RocketMQ put *messages*, of one queue, as one batch."""
    return {
        "do": "put_batch",
        **shared(messages[0], settings, born_timestamp),
        "flag": 0,
        "messages": [own(message) for message in messages],
    }


def shared(message: Message, settings: Settings, born_timestamp: int) -> dict[str, object]:
    """Return the common fields of a batch's messages."""
    return {
        "topic": message.topic,
        # In reput, a topic without a description has one queue.
        "queueId": message.queue_id or 0,
        "sysFlag": 0,
        "bornTimestamp": born_timestamp,
        "bornHost": settings.born_host,
        "storeHost": settings.store_host,
        "reconsumeTimes": 0,
        "preparedTransactionOffset": 0,
    }


def own(message: Message) -> dict[str, object]:
    """Return the individual fields of a message; its properties are the exact string that reput stores."""
    return {
        "body": base64.b64encode(message.body).decode(),
        "flag": message.flag,
        "properties": message_properties(message)[0].decode(),
    }

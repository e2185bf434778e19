"""Queues as clients name them, and the body of LOCK_BATCH_MQ.

Source: RocketMQ common, MessageQueue; RocketMQ remoting, LockBatchRequestBody.
"""

from __future__ import annotations

import msgspec

__all__ = ["LockBatchBody", "LockedQueues", "MessageQueue"]


class MessageQueue(msgspec.Struct, rename="camel", frozen=True, order=True):
    """A queue of a topic at a broker, as clients name it."""

    broker_name: str
    queue_id: int
    topic: str


class LockBatchBody(msgspec.Struct, rename="camel"):
    """The body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue]


class LockedQueues(msgspec.Struct):
    """The response of LOCK_BATCH_MQ: the queues that the client holds now."""

    held: list[MessageQueue] = msgspec.field(name="lockOKMQSet")

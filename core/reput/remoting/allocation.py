"""How the consumers of a group share queues. Each computes the same result from the same lists, without communication.

Source: RocketMQ client, AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle,
AllocateMessageQueueConsistentHash and ConsistentHashRouter.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from reput.remoting.message_queue import MessageQueue

__all__ = [
    "JAVA_STRATEGIES",
    "STRATEGIES",
    "Allocation",
    "allocate_averagely",
    "allocate_by_circle",
    "allocate_by_hash",
]

Allocation: TypeAlias = Literal["averagely", "averagely_by_circle", "consistent_hash"]

# Points of each consumer on the ring.
VIRTUAL_NODES = 10
HASH_SIZE = 4


def allocate_averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Return the queues of a client: consecutive ones, equally many for each client, or one more for the first clients.

    Both lists are sorted, and *client_ids* contains *client_id*.
    """
    index, count = client_ids.index(client_id), len(client_ids)
    share, rest = divmod(len(queues), count)
    begin = index * share + min(index, rest)
    return list(queues[begin : begin + share + (index < rest)])


def allocate_by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Return the queues of a client: each client takes one in turn."""
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def allocate_by_hash(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Return the queues of a client: those whose hashes lie before the client's points on a ring."""
    ring: dict[int, str] = {}
    for other in client_ids:
        for number in range(VIRTUAL_NODES):
            ring[hash_of(f"{other}-{number}")] = other
    points = sorted(ring)
    return [
        queue
        for queue in queues
        if ring[points[bisect_left(points, hash_of(text_of(queue))) % len(points)]] == client_id
    ]


def text_of(queue: MessageQueue) -> str:
    """Return the text of a queue that RocketMQ hashes: its `toString` in Java."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def hash_of(text: str) -> int:
    """Return the first four bytes of the MD5 as a number."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:HASH_SIZE], "big")


STRATEGIES: Mapping[str, Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]] = {
    "averagely": allocate_averagely,
    "averagely_by_circle": allocate_by_circle,
    "consistent_hash": allocate_by_hash,
}
# The names that RocketMQ's clients use.
JAVA_STRATEGIES: Mapping[str, Allocation] = {
    "AVG": "averagely",
    "AVG_BY_CIRCLE": "averagely_by_circle",
    "CONSISTENT_HASH": "consistent_hash",
}

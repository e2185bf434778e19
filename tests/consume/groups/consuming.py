"""What tests of consumers share."""

from __future__ import annotations

import reput
from reput.store.config.config_json import parse_config

WAIT_S = 60.0


def put(store, *bodies: str, topic: str = "orders", queue_id: int = 0, **fields: object) -> None:
    """Put a message per body."""
    for body in bodies:
        store.put(reput.Message(topic, body.encode(), queue_id=queue_id, **fields))


def bodies_of(consumer, count: int) -> list[str]:
    """Receive and acknowledge *count* messages, and return their bodies."""
    bodies = []
    for _ in range(count):
        record = consumer.receive(WAIT_S)
        assert record is not None
        consumer.acknowledge(record)
        bodies.append(record.body.decode())
    return bodies


def offsets(directory, group: str, topic: str = "orders") -> dict[int, int]:
    """Return the committed offsets on disk."""
    fields = parse_config((directory / "config" / "consumerOffset.json").read_text())
    return fields["offsetTable"].get(f"{topic}@{group}", {})

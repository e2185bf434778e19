"""Multi-dispatch: one record in further queues, the light queues (LMQ) among them.

A message names the queues in ``INNER_MULTI_DISPATCH``, joined by commas. With ``enable_multi_dispatch`` the writer adds
``INNER_MULTI_QUEUE_OFFSET``, the message's queue offset in each queue, and increments each; the consume queue's
dispatcher then writes a unit into each queue. A name that begins with ``%LMQ%`` has only queue 0; any other name uses
the message's queue id.

Source: RocketMQ store, MultiDispatch.wrapMultiDispatch, MultiDispatchUtils and ConsumeQueue.multiDispatchLmqQueue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reput.errors import MessageIllegal
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.message import check_topic
from reput.store.record.properties import PROPERTIES_SIZE_MAX
from reput_hooks.dispatch import parse_multi_dispatch

__all__ = [
    "DISPATCH_NAMES",
    "LMQ_PREFIX",
    "QUEUE_OFFSETS_NAME",
    "further_queues",
    "has_further_queues",
    "named_queues",
    "offsets_size_max",
    "own_queue_id",
]

LMQ_PREFIX = "%LMQ%"
DISPATCH_NAMES = "INNER_MULTI_DISPATCH"
QUEUE_OFFSETS_NAME = "INNER_MULTI_QUEUE_OFFSET"
NO_MULTI_DISPATCH = ("%RETRY%", "rmq_sys_")
DIGITS_MAX = len(str(2**63 - 1))


def has_further_queues(topic: str) -> bool:
    """Tell whether records of *topic* may be in further queues; those that wait, and those that come again, are not."""
    return topic != SCHEDULE_TOPIC and not topic.startswith(NO_MULTI_DISPATCH)


def own_queue_id(name: str, queue_id: int) -> int:
    """Return the queue of *name* for a message with *queue_id*."""
    return 0 if name.startswith(LMQ_PREFIX) else queue_id


def further_queues(name: tuple[str, int], text: bytes) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield ((topic, queue id), queue offset) of each queue that multi-dispatch puts a record into.

    *name* is the record's own queue, *text* the names and offsets. That the record carries both says that its store
    had multi-dispatch on, so no setting is asked.
    """
    topic, queue_id = name
    if not has_further_queues(topic):
        return
    for further, queue_offset in parse_multi_dispatch(text):
        if "/" not in further:
            yield (further, own_queue_id(further, queue_id)), queue_offset


def named_queues(topic: str, properties: Mapping[str, str] | None, properties_size: int) -> tuple[str, ...]:
    """Return the names of the further queues that a message names, in its order.

    Args:
        properties_size: bytes of all its properties, without the offsets, which are added later.

    Raises:
        MessageIllegal: a name is not valid for a topic, or there may be no room for the offsets.
    """
    text = (properties or {}).get(DISPATCH_NAMES, "")
    if not text.strip() or not has_further_queues(topic):
        return ()
    names = tuple(text.rstrip(",").split(","))
    for name in names:
        check_topic(name)
    if properties_size + offsets_size_max(names) > PROPERTIES_SIZE_MAX:
        raise MessageIllegal(
            f"properties lack space for the offsets of the additional queues: properties_size={properties_size} "
            f"queue_count={len(names)} properties_size_max={PROPERTIES_SIZE_MAX}"
        )
    return names


def offsets_size_max(names: tuple[str, ...]) -> int:
    """Return the most bytes that the property with the offsets in these queues may take; 0 where there are none."""
    return len(QUEUE_OFFSETS_NAME) + 2 + (DIGITS_MAX + 1) * len(names) if names else 0

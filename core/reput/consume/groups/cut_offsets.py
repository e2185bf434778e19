"""bring_back_offsets: correct committed offsets that are ahead of a log which has lost its end.

    queue             0 1 2 3 4 5 │ 6 7 8 9        messages after │ were not on disk yet when the power failed
    committed                             ▲
    after the cut     0 1 2 3 4 5   the next message gets 6 again, which the group has never seen

RocketMQ leaves such an offset unchanged, and the group misses the messages up to it. A queue that the log has lost
entirely begins with 0 again, and so do its consumers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput.store.queue.queue_offsets import QueueOffsets

__all__ = ["bring_back_offsets", "tell_lost"]

logger = logging.getLogger("reput.consume")


def bring_back_offsets(
    offsets: ConsumerOffsetManager, queue_offsets: QueueOffsets, is_foreign: Callable[[str], bool]
) -> int:
    """Move every offset past its queue's end back to that end; return the number of moved offsets.

    Args:
        queue_offsets: the next queue offset of each queue; 0 for a missing queue.
        is_foreign: whether the writer puts nothing to a topic, and does not know where its queues end.
    """
    count = 0
    for group, committed in offsets.by_group().items():
        for topic, by_queue in committed.items():
            if is_foreign(topic):
                continue
            for queue_id, queue_offset in by_queue.items():
                end = queue_offsets.next_offset(topic, queue_id)
                if queue_offset <= end:
                    continue
                tell_lost(group, topic, queue_id, queue_offset, end)
                offsets.commit_offset(group, topic, queue_id, end)
                count += 1
    return count


def tell_lost(group: str, topic: str, queue_id: int, committed: int, end: int) -> None:
    """Log that the log has lost consumed messages, so that a group continues at *end*."""
    logger.warning(
        "the log lost messages that a group had already consumed: group=%s topic=%s queue_id=%d committed=%d "
        "queue_offset_max=%d",
        group,
        topic,
        queue_id,
        committed,
        end,
    )

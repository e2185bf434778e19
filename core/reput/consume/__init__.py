"""Who reads: the messages of a topic over all of its queues, filtered, from where a group left off.

store that was opened ──▶ TopicReader ──▶ records in the order of the log
                              │ positions
config/consumerOffset.json ◀──┴─▶ GroupOffsets
"""

from __future__ import annotations

from reput.consume.group_offsets import GroupOffsets
from reput.consume.topic_reader import Beginning, MessageSource, TopicReader, first_queue_offset

__all__ = ["Beginning", "GroupOffsets", "MessageSource", "TopicReader", "first_queue_offset"]

"""TopicConfigManager: ``config/topics.json``, the topics that a broker knows.

    {"dataVersion":{"counter":2,"timestamp":1700000000000},
     "topicConfigTable":{"orders":{"order":false,"perm":6,"readQueueNums":4, … ,"writeQueueNums":4}}}

Source: RocketMQ, TopicConfigManager, TopicConfigSerializeWrapper, TopicConfig and PermName.
"""

from __future__ import annotations

from reput.store.config.stored_fields import StoredFields
from reput.store.config.versioned_table import VersionedTable

__all__ = ["PERM_INHERIT", "PERM_PRIORITY", "PERM_READ", "PERM_WRITE", "TopicConfig", "TopicConfigManager"]

PERM_PRIORITY = 8
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1


class TopicConfig(StoredFields, frozen=True):
    """One topic.

    Attributes:
        read_queue_nums: queues that consumers read from.
        write_queue_nums: queues that producers write to.
        perm: permissions, as a sum: 4 to read, 2 to write, 1 to inherit.
        topic_filter_type: ``SINGLE_TAG`` or ``MULTI_TAG``.
        topic_sys_flag: 1 unit, 2 unit-sub.
        attributes: RocketMQ 5's, e.g. ``queue.type``; None in a file of 4.x.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None

    @property
    def has_batch_consume_queue(self) -> bool:
        """Whether RocketMQ 5 keeps this topic's queues under ``batchconsumequeue/``."""
        return (self.attributes or {}).get("queue.type") == "BatchCQ"


class TopicConfigManager(VersionedTable[TopicConfig]):
    """The topics of one broker, by name."""

    file_name = "topics.json"
    table_name = "topicConfigTable"
    name_field = "topicName"
    entry_type = TopicConfig

"""SubscriptionGroupManager: ``config/subscriptionGroup.json``, the consumer groups that a broker knows.

    {"dataVersion":{"counter":1,"timestamp":1700000000000},
     "subscriptionGroupTable":{"billing":{"brokerId":0, … ,"whichBrokerWhenConsumeSlowly":1}}}

Source: RocketMQ, SubscriptionGroupManager and SubscriptionGroupConfig.
"""

from __future__ import annotations

from reput.store.config.stored_fields import StoredFields
from reput.store.config.versioned_table import VersionedTable

__all__ = ["SubscriptionGroupConfig", "SubscriptionGroupManager"]


class SubscriptionGroupConfig(StoredFields, frozen=True):
    """One consumer group. Fields that RocketMQ 5 adds are kept in `unknown`.

    Attributes:
        retry_max_times: deliveries of a message that was sent back, before it goes to the dead letters.
        retry_queue_nums: queues of the group's retry topic.
        which_broker_when_consume_slowly: id of the broker to read from when this one would have to read its disk.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


class SubscriptionGroupManager(VersionedTable[SubscriptionGroupConfig]):
    """The consumer groups of one broker, by name."""

    file_name = "subscriptionGroup.json"
    table_name = "subscriptionGroupTable"
    name_field = "groupName"
    entry_type = SubscriptionGroupConfig

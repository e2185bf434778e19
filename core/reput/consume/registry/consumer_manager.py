"""ConsumerManager: the present consumers, and the subscriptions of their groups.

The member that registers last sets its group's subscriptions, as at a broker: members with different subscriptions
overwrite each other, which is a misuse.

Source: RocketMQ broker, ConsumerManager and ConsumerGroupInfo.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from reput.consume.registry.consumer_filters import ConsumerFilters
from reput.consume.registry.subscription import Subscription

__all__ = ["BROADCASTING", "CLUSTERING", "ConsumerGroupInfo", "ConsumerManager"]

CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"


class ConsumerGroupInfo:
    """One group with present consumers.

    Attributes:
        subscriptions: by topic.
        client_ids: the present consumers, in order of registration.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self.message_model = CLUSTERING
        self.subscriptions: dict[str, Subscription] = {}
        self.client_ids: dict[str, None] = {}


class ConsumerManager:
    """The groups of one store that have present consumers. Any thread may call."""

    def __init__(self, filters: ConsumerFilters | None) -> None:
        """*filters*: where expressions are registered; None: they are not registered."""
        self.filters = filters
        self.lock = threading.Lock()
        self.groups: dict[str, ConsumerGroupInfo] = {}

    def consumes(self, group: str, topic: str) -> bool:
        """Return whether a group has a present consumer and a subscription to *topic*."""
        with self.lock:
            found = self.groups.get(group)
            return found is not None and topic in found.subscriptions

    def find(self, group: str) -> ConsumerGroupInfo | None:
        """Return a group; None: it has no present consumers."""
        return self.groups.get(group)

    def register(
        self,
        group: str,
        client_id: str,
        subscriptions: Iterable[Subscription],
        message_model: str = CLUSTERING,
    ) -> bool:
        """Register or refresh a consumer; return whether the group's members or topics have changed."""
        with self.lock:
            info = self.groups.get(group) or ConsumerGroupInfo(group)
            info.message_model = message_model
            wanted = {subscription.topic: subscription for subscription in subscriptions}
            changed = client_id not in info.client_ids or wanted.keys() != info.subscriptions.keys()
            gone = info.subscriptions.keys() - wanted.keys()
            if self.filters is not None and gone:
                self.filters.unregister(group, set(gone))
            kept: dict[str, Subscription] = {}
            newer: list[Subscription] = []
            for topic, subscription in wanted.items():
                former = info.subscriptions.get(topic)
                if former is None or subscription.sub_version > former.sub_version:
                    kept[topic] = subscription
                    if subscription.is_sql:
                        newer.append(subscription)
                else:
                    kept[topic] = former
            if self.filters is not None and newer:
                self.filters.register(group, newer)
            info.subscriptions = kept
            info.client_ids[client_id] = None
            self.groups[group] = info
        return changed

    def unregister(self, group: str, client_id: str) -> bool:
        """Remove a consumer; return whether it was registered."""
        with self.lock:
            info = self.groups.get(group)
            if info is None or client_id not in info.client_ids:
                return False
            del info.client_ids[client_id]
            if not info.client_ids:
                del self.groups[group]
                if self.filters is not None:
                    self.filters.unregister(group)
        return True

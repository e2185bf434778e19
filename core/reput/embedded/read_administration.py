"""ReadAdministration: topics and groups of a store for reading, from its files; no byte changes."""

from __future__ import annotations

from reput.consume.administration.administration import Administration
from reput.consume.administration.stored_queues import StoredQueues
from reput.consume.registry.config_managers import ConfigManagers
from reput.consume.registry.subscription_groups import SubscriptionGroups
from reput.consume.registry.topics import Topics
from reput.embedded.reading_engine import ReadingEngine

__all__ = ["ReadAdministration"]


class ReadAdministration:
    """A snapshot of a store's configuration files. The ends of queues are read when they are asked for.

    Attributes:
        administration: its methods that change something must not be called.
        queues: the store's queues, and the times of their messages.
    """

    def __init__(self, engine: ReadingEngine) -> None:
        """Read the configuration files.

        Raises:
            DamagedStore: neither one of the files nor its backup can be read.
        """
        settings = engine.settings
        self.managers = ConfigManagers(engine.directory, settings)
        topics = Topics(self.managers.topics, settings, engine.queue_ids, persist=False)
        self.queues = StoredQueues(engine, topics)
        groups = SubscriptionGroups(self.managers.groups, settings, persist=False)
        self.administration = Administration(self.queues, self.managers, topics, groups)

"""ConfigManagers: the configuration files of one store, for the program that writes the store.

config/topics.json             topics                  written at every change
config/subscriptionGroup.json  groups                  written at every change
config/consumerOffset.json     offsets                 written at an interval and at closing
config/consumerFilter.json     filters                 written at an interval and at closing
"""

from __future__ import annotations

from pathlib import Path

from reput.filter import BloomFilter
from reput.settings import Settings
from reput.store.config.consumer_filter_manager import ConsumerFilterManager
from reput.store.config.consumer_offset_manager import consumer_offset_manager
from reput.store.config.subscription_group_manager import SubscriptionGroupManager
from reput.store.config.topic_config_manager import TopicConfigManager
from reput.store.disk.files import Clock, Files

__all__ = ["ConfigManagers"]


class ConfigManagers:
    """The managers of a store's topics, groups, offsets and filters. Any thread may use them."""

    def __init__(
        self, store_directory: Path, settings: Settings, files: Files | None = None, clock: Clock | None = None
    ) -> None:
        """Read the files.

        Raises:
            DamagedStore: neither one of the files nor its backup can be read.
        """
        self.bloom_filter = BloomFilter(
            settings.max_error_rate_of_bloom_filter, settings.expect_consumer_num_use_filter
        )
        self.topics = TopicConfigManager(store_directory, files, clock)
        self.groups = SubscriptionGroupManager(store_directory, files, clock)
        self.offsets = consumer_offset_manager(store_directory, settings, files, clock)
        self.filters = ConsumerFilterManager(
            store_directory, self.bloom_filter, settings.filter_data_clean_time_span, files, clock
        )
        self.topics.load()
        self.groups.load()
        self.offsets.load()
        self.filters.load()

"""BrokerTopics: the system topics, and the topics that the broker creates for a first message.

    send to an unknown topic ──▶ the template it names (TBW102) may be inherited ──▶ described at once, then on disk

Source: RocketMQ broker, TopicConfigManager and TopicValidator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from reput.consume.registry.topics import DLQ_PREFIX, RETRY_PREFIX, Topics
from reput.errors import RequestRefused, StoreError
from reput.remoting.response_code import ResponseCode
from reput.settings import Settings
from reput.store.config.topic_config_manager import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
)

__all__ = ["DEFAULT_TOPIC", "UNIT_SUB_FLAG", "BrokerTopics", "routed"]

DEFAULT_TOPIC = "TBW102"
# Maximum number of topics that clients create by naming them. Administrators may create more.
TOPICS_MAX = 200_000
READ_WRITE = PERM_READ | PERM_WRITE
UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
NOT_SENT_TO = frozenset(
    (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)

logger = logging.getLogger(__name__)


class BrokerTopics:
    """Used in the thread of the broker's loop only."""

    def __init__(self, topics: Topics, settings: Settings) -> None:
        """Create the system topics that the store does not have yet."""
        self.topics = topics
        self.settings = settings
        self.reply_topic = f"{settings.broker_cluster_name}_REPLY_TOPIC"
        self.loop = asyncio.get_running_loop()
        self.is_keep_due = False
        self.add(self.boot_topics())

    def boot_topics(self) -> list[TopicConfig]:
        """Return the system topics, which every broker has."""
        settings = self.settings
        queue_nums = settings.default_topic_queue_nums
        topics = [
            ("SELF_TEST_TOPIC", 1, READ_WRITE),
            ("BenchmarkTest", 1024, READ_WRITE),
            (settings.broker_cluster_name, 16, READ_WRITE | PERM_INHERIT),
            (settings.broker_name, 1, READ_WRITE | PERM_INHERIT),
            ("OFFSET_MOVED_EVENT", 1, READ_WRITE),
            ("SCHEDULE_TOPIC_XXXX", 18, READ_WRITE),
            ("RMQ_SYS_TRACE_TOPIC", 1, READ_WRITE),
            (self.reply_topic, 1, READ_WRITE),
            ("RMQ_SYS_TRANS_HALF_TOPIC", 1, READ_WRITE),
            ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, READ_WRITE),
            ("TRANS_CHECK_MAX_TIME_TOPIC", 1, READ_WRITE),
        ]
        if settings.auto_create_topic_enable:
            topics.append((DEFAULT_TOPIC, queue_nums, READ_WRITE | PERM_INHERIT))
        return [TopicConfig(name, nums, nums, perm) for name, nums, perm in topics]

    def system_topics(self) -> list[str]:
        """Return the names of the system topics."""
        return [config.topic_name for config in self.boot_topics()]

    def find(self, topic: str) -> TopicConfig | None:
        """Return the description of a topic; None: it is unknown."""
        return self.topics.find(topic)

    def found_or_created(
        self, topic: str, default_topic: str, queue_nums: int, *, is_unit: bool = False
    ) -> TopicConfig | None:
        """Return the description of a topic that a message is sent to; create it if its template allows.

        Args:
            default_topic: the template.
            queue_nums: how many queues the client wants.

        Returns:
            None: the topic is unknown, and may not be created.
        """
        found = self.topics.manager.entries.get(topic)
        if found is not None:
            return found
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return self.created(TopicConfig(topic, 1, 1, READ_WRITE, topic_sys_flag=UNIT_SUB_FLAG if is_unit else 0))
        template = self.topics.manager.entries.get(default_topic)
        may_inherit = template is not None and template.perm & PERM_INHERIT
        if default_topic == DEFAULT_TOPIC and not self.settings.auto_create_topic_enable:
            may_inherit = False
        if template is None or not may_inherit:
            # A local program may have put messages to the topic without describing it.
            return self.topics.find(topic)
        nums = max(min(queue_nums, template.write_queue_nums), 0)
        return self.created(
            TopicConfig(
                topic,
                nums,
                nums,
                template.perm & ~PERM_INHERIT,
                template.topic_filter_type,
                UNIT_FLAG if is_unit else template.topic_sys_flag,
            )
        )

    def retry_topic(self, group: str, queue_nums: int, *, is_unit: bool = False) -> TopicConfig | None:
        """Return the description of a group's retry topic, after creating it; None: the group has no retry queues."""
        topic = RETRY_PREFIX + group
        found = self.topics.manager.entries.get(topic)
        if found is not None or queue_nums <= 0:
            return found
        flag = UNIT_SUB_FLAG if is_unit else 0
        return self.created(TopicConfig(topic, queue_nums, queue_nums, READ_WRITE, topic_sys_flag=flag))

    def created(self, config: TopicConfig) -> TopicConfig:
        """Add one topic.

        Raises:
            RequestRefused: SYSTEM_BUSY; clients have created too many.
        """
        if len(self.topics.manager.entries) >= TOPICS_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"clients have created too many topics: topics_max={TOPICS_MAX}",
                "Delete topics, or create this one as an administrator.",
            )
        logger.info("a topic is created: topic=%s queues=%d", config.topic_name, config.write_queue_nums)
        self.add((config,))
        return self.topics.manager.entries[config.topic_name]

    def add(self, configs: Iterable[TopicConfig]) -> None:
        """Add those topics that are new, and write them to disk soon.

        A broker that is killed before has no route for them until the next message: clients would miss them.
        """
        self.topics.add_new(configs)
        if not self.is_keep_due:
            self.is_keep_due = True
            self.loop.call_soon(self.begin_keep)

    def begin_keep(self) -> None:
        """Write new topics to disk in a thread."""
        self.loop.run_in_executor(None, self.keep)

    def keep(self) -> None:
        """Write new topics to disk; a failed write is repeated when the offsets are written."""
        # A topic that comes from now on is written by a further call.
        self.is_keep_due = False
        try:
            self.topics.keep_new()
        except StoreError as error:
            logger.warning("new topics are not on disk yet: error=%s", error)


def routed(config: TopicConfig, settings: Settings) -> TopicConfig:
    """Return a topic as name servers are told of it: a broker that is closed for writing closes all its topics there.

    Producers then use other brokers, and lose no one-way message.

    Source: RocketMQ broker, BrokerController.registerBrokerAll.
    """
    permission = settings.broker_permission
    if permission & READ_WRITE == READ_WRITE:
        return config
    return msgspec.structs.replace(config, perm=config.perm & permission)

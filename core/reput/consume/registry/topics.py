"""Topics: the topics of a store, with their queues and permissions.

A topic is known if ``topics.json`` describes it, or if the store has messages of it: a program that puts without a
broker need not describe its topics first. Such a topic has the queues that were put to, readable and writable.

Source: RocketMQ broker, TopicConfigManager and TopicValidator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from reput.argument_checks import require_whole
from reput.errors import MessageIllegal, RequestRefused
from reput.remoting.response_code import ResponseCode
from reput.settings import Settings
from reput.store.config.topic_config_manager import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig, TopicConfigManager
from reput.store.record.message import check_topic
from reput.store.record.multi_dispatch import LMQ_PREFIX

__all__ = [
    "DLQ_PREFIX",
    "QUEUE_NUMS_MAX",
    "RETRY_PREFIX",
    "Topics",
    "check_consumed_topic",
    "is_system_topic",
    "may_be_topic",
]

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
# The topics that every broker has from its start, with their queue counts.
BOOT_TOPICS = {
    "BenchmarkTest": 1024,
    "OFFSET_MOVED_EVENT": 1,
    "RMQ_SYS_TRANS_HALF_TOPIC": 1,
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
    "SCHEDULE_TOPIC_XXXX": 18,
    "SELF_TEST_TOPIC": 1,
    "TBW102": 8,
    "TRANS_CHECK_MAX_TIME_TOPIC": 1,
}
SYSTEM_TOPICS = frozenset((*BOOT_TOPICS, "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"))
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
# A topic that is described again has the queues of its messages, unless a program has chosen far queue ids.
KEPT_QUEUES_MAX = 1024
# Queues of one topic. Readers and administrators ask for all of them; files may describe topics with more.
QUEUE_NUMS_MAX = 10_000
PERM_MAX = PERM_INHERIT | PERM_READ | PERM_WRITE


def is_system_topic(topic: str) -> bool:
    """Return whether RocketMQ reserves *topic*."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def may_be_topic(topic: str) -> bool:
    """Return whether a topic with that name can have queues, regardless of which program created it."""
    return topic not in ("", ".", "..") and not {"/", "\0"} & {*topic}


def check_consumed_topic(topic: object) -> None:
    """Refuse a name that no topic can have, so that no message could ever arrive.

    Raises:
        RequestRefused: INVALID_PARAMETER. Light queues may have any name that their producers choose, without a slash.
    """
    if isinstance(topic, str) and topic.startswith(LMQ_PREFIX) and may_be_topic(topic):
        return
    check_topic_name(topic)


def check_topic_name(topic: object) -> None:
    """Raise RequestRefused, INVALID_PARAMETER, unless *topic* can be a topic's name."""
    try:
        check_topic(topic)  # type: ignore[arg-type]
    except MessageIllegal as error:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error), "Give a topic's name.") from None


class Topics:
    """The topics of one store. Any thread may call.

    Args:
        queue_ids: returns the queues of a topic that have messages in the store.
        persist: write every change to the file; False for a read-only store.
        on_change: called with a topic's name after its description has changed.
        on_written: called with a topic's name once the file says what has changed.
    """

    def __init__(
        self,
        manager: TopicConfigManager,
        settings: Settings,
        queue_ids: Callable[[str], Collection[int]],
        *,
        persist: bool = True,
        on_change: Callable[[str], None] = lambda topic: None,
        on_written: Callable[[str], None] = lambda topic: None,
    ) -> None:
        self.manager = manager
        self.settings = settings
        self.queue_ids = queue_ids
        self.persist = persist
        self.on_change = on_change
        self.on_written = on_written
        # Topics whose description has changed since the file was written.
        self.unwritten: set[str] = set()

    def find(self, topic: str) -> TopicConfig | None:
        """Return the description of *topic*; None: it is unknown."""
        config = self.manager.entries.get(topic)
        if config is not None:
            return config
        queue_nums = max((*self.queue_ids(topic), BOOT_TOPICS.get(topic, 0) - 1), default=-1) + 1
        if not queue_nums:
            return None
        return TopicConfig(topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums)

    def described_queue_nums(self, topic: str) -> tuple[int, int]:
        """Return the read and write queue counts of a topic in ``topics.json`` or among every broker's own topics."""
        config = self.manager.entries.get(topic)
        if config is None:
            return (BOOT_TOPICS.get(topic, 0),) * 2
        return config.read_queue_nums, config.write_queue_nums

    def all_queue_ids(self, topic: str) -> list[int]:
        """Return the queues that a topic has for readers or writers, ascending.

        The ids may have gaps: a program may put to any queue id of 32 bits.
        """
        return sorted({*range(max(self.described_queue_nums(topic))), *self.queue_ids(topic)})

    def read_queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that consumers read, ascending."""
        read_queue_nums, _ = self.described_queue_nums(topic)
        if topic in self.manager.entries:
            return list(range(read_queue_nums))
        return self.all_queue_ids(topic)

    def create_or_update(self, config: TopicConfig) -> None:
        """Create or change a topic, durably.

        Raises:
            RequestRefused: INVALID_PARAMETER; RocketMQ refuses its name or a number, or it is a system topic.
        """
        check_topic_name(config.topic_name)
        if is_system_topic(config.topic_name):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"topic is the system's own: topic={config.topic_name!r}"
            )
        for name, value in (("read_queue_nums", config.read_queue_nums), ("write_queue_nums", config.write_queue_nums)):
            require_whole(name, value, None)
            if not 1 <= value <= QUEUE_NUMS_MAX:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER,
                    f"a topic has one queue at least, and {QUEUE_NUMS_MAX} at most: {name}={value}",
                )
        require_whole("perm", config.perm, None)
        if not 0 <= config.perm <= PERM_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"perm is a sum of 1 (inherit), 2 (write) and 4 (read): perm={config.perm}",
            )
        self.keep(config)

    def create_when_missing(
        self, topic: str, queue_nums: int, *, perm: int = 6, topic_sys_flag: int = 0
    ) -> TopicConfig:
        """Return a topic's description; add it first if there is none: see `add_new`."""
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=perm,
            topic_sys_flag=topic_sys_flag,
        )
        with self.manager.lock:
            self.add_new((config,))
            return self.manager.entries[topic]

    def add_new(self, configs: Iterable[TopicConfig]) -> None:
        """Add those topics that are not described yet; `keep_new` writes them.

        They are created on the way of a message, which must not wait for the disk, and each write replaces the whole
        file. A kill before that loses the description and no message: the topic then has the queues that its messages
        are in, and keeps them when the next message describes it again.
        """
        added = []
        with self.manager.lock:
            for config in configs:
                if config.topic_name not in self.manager.entries:
                    in_use = max(self.queue_ids(config.topic_name), default=-1) + 1
                    if config.read_queue_nums < in_use <= KEPT_QUEUES_MAX:
                        config = msgspec.structs.replace(config, read_queue_nums=in_use)
                    self.manager.put(config.topic_name, config)
                    self.unwritten.add(config.topic_name)
                    added.append(config.topic_name)
        for topic in added:
            self.on_change(topic)

    def keep_new(self) -> None:
        """Write what has changed since the file was written.

        Raises:
            StoreError: the file could not be written, and is unchanged; the next call tries again.
        """
        with self.manager.lock:
            if not self.unwritten:
                return
            self.manager.persist()
            written, self.unwritten = self.unwritten, set()
        for topic in written:
            self.on_written(topic)

    def keep(self, config: TopicConfig) -> None:
        """Add *config* to the table, and write the table to its file."""
        with self.manager.lock:
            former = self.manager.entries.get(config.topic_name)
            if former is not None:
                config = msgspec.structs.replace(config, unknown={**former.unknown, **config.unknown})
            self.manager.put(config.topic_name, config)
            self.unwritten.add(config.topic_name)
        if self.persist:
            self.keep_new()
        self.on_change(config.topic_name)

    def forget(self, topic: str) -> None:
        """Remove a topic from the table and its file, if it exists."""
        with self.manager.lock:
            if topic in self.manager.entries:
                self.manager.remove(topic)
                self.unwritten.add(topic)
        if self.persist:
            self.keep_new()
        self.on_change(topic)

"""TopicTable: the topics that this writer has met, the queues that their messages go to, and the next queue offsets."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import msgspec

from reput.errors import MessageIllegal
from reput.filter.string_hash import string_hash
from reput.settings import Settings
from reput.store.queue.batch_topics import BatchTopics
from reput.store.queue.queue_offsets import QueueOffsets
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.message import Message, check_topic
from reput.store.record.message_encoder import TopicHead
from reput.store.record.multi_dispatch import LMQ_PREFIX, own_queue_id

__all__ = ["Topic", "TopicTable"]


class Topic(TopicHead):
    """One topic, and what the writer counts of it.

    Attributes:
        write_queue_nums: queues that messages without a queue id are spread over; 0: not looked up yet.
        turns: counts the messages that were spread.
        is_scheduled: its messages wait for their delivery.
        put_size: bytes of its records since the store was opened.
        queues: queue id → the list of this one queue, as a publisher gets it.
    """

    __slots__ = ("is_scheduled", "put_size", "queues", "turns", "write_queue_nums")

    def __init__(self, name: str, data: bytes, offsets: dict[int, int]) -> None:
        super().__init__(name, data, offsets)
        self.write_queue_nums = 0
        self.turns = count()
        self.is_scheduled = name == SCHEDULE_TOPIC
        self.put_size = 0
        self.queues: dict[int, list[tuple[str, int]]] = {}


class TopicTable:
    """The topics of one store.

    Attributes:
        topics: by name, those that were put to since the store was opened.
        queue_offsets: of all topics. Changed under the put lock only.
    """

    def __init__(
        self, directory: Path, settings: Settings, queue_offsets: QueueOffsets, put_lock: threading.Lock
    ) -> None:
        self.settings = settings
        self.queue_offsets = queue_offsets
        self.put_lock = put_lock
        # Held while a topic's description is looked up, and while a changed description is announced.
        self.description_lock = threading.Lock()
        self.topics: dict[str, Topic] = {}
        # The consume queue's dispatcher reports what it cannot read there.
        self.batch_topics = BatchTopics(directory)
        self.light_queues = {name for name in queue_offsets.queues if name.startswith(LMQ_PREFIX)}
        # By topic, the messages that its queues had when the store was opened.
        self.put_before = queue_offsets.totals()

    def topic(self, name: str) -> Topic:
        """Return the topic; the first time it is checked.

        Raises:
            MessageIllegal: no topic may have this name, or reput does not write topics of this kind.
        """
        found = self.topics.get(name)
        if found is None:
            data = check_topic(name)
            if self.batch_topics.has(name):
                raise MessageIllegal(
                    f"the topic has batch consume queues (RocketMQ 5, queue.type=BatchCQ): topic={name}",
                    "reput does not write batch consume queues: put the message to another topic.",
                )
            with self.put_lock:
                offsets = self.queue_offsets.queues.setdefault(name, {})
                found = self.topics.setdefault(name, Topic(name, data, offsets))
        return found

    def topic_changed(self, name: str) -> None:
        """Look up again over how many queues a topic is spread: ``topics.json`` describes it differently now."""
        with self.description_lock:
            found = self.topics.get(name)
            if found is not None:
                found.write_queue_nums = 0

    def look_up_queues(self, topic: Topic) -> int:
        """Return over how many queues a topic is spread, and keep that until `topic_changed`."""
        # Without the lock, a description that changes now could be announced first, and the old one kept after it.
        with self.description_lock:
            config = self.batch_topics.described.find(topic.name)
            topic.write_queue_nums = 1 if config is None else max(config.write_queue_nums, 1)
            return topic.write_queue_nums

    def choose_queue(self, message: Message) -> int:
        """Return the queue of a message that names none: by its sharding key, or the next in turn.

        Raises:
            MessageIllegal: no topic may have this name, or the key is not text.

        Source: RocketMQ client, SelectMessageQueueByHash and TopicPublishInfo.selectOneMessageQueue.
        """
        topic = self.topics.get(message.topic) or self.topic(message.topic)
        queue_nums = topic.write_queue_nums or self.look_up_queues(topic)
        key = message.sharding_key
        if key is not None:
            if not isinstance(key, str):
                raise MessageIllegal(f"sharding_key is not text: sharding_key={key!r}")
            return abs(string_hash(key)) % queue_nums
        return 0 if queue_nums == 1 else next(topic.turns) % queue_nums

    def with_queue(self, message: Message) -> Message:
        """Return *message* with the queue that it goes to, for callers that keep the queue id beside the message.

        Raises:
            MessageIllegal: as `choose_queue`.
        """
        if message.queue_id is not None:
            return message
        return msgspec.structs.replace(message, queue_id=self.choose_queue(message), sharding_key=None)

    def further_offsets(self, names: Sequence[str], queue_id: int) -> list[tuple[dict[int, int], int, int]]:
        """Return of each further queue the table, the queue id and the next queue offset. Under the put lock.

        Args:
            queue_id: of the message's own queue.

        Raises:
            MessageIllegal: the store has as many light queues as the settings allow.
        """
        found = []
        for name in names:
            if self.settings.enable_lmq and name.startswith(LMQ_PREFIX) and name not in self.light_queues:
                if len(self.light_queues) >= self.settings.max_lmq_consume_queue_num:
                    raise MessageIllegal(
                        f"the store has reached its maximum of light queues: status=LMQ_CONSUME_QUEUE_NUM_EXCEEDED "
                        f"name={name} max_lmq_consume_queue_num={self.settings.max_lmq_consume_queue_num}"
                    )
                self.light_queues.add(name)
            table = self.queue_offsets.queues.setdefault(name, {})
            own_id = own_queue_id(name, queue_id)
            found.append((table, own_id, table.get(own_id, 0)))
        return found

    def forget_topic(self, name: str) -> None:
        """Begin the queues of a deleted topic with queue offset 0 again. Under the put lock."""
        # Messages that were put before still count.
        self.put_before[name] = self.put_before.get(name, 0) - self.queue_offsets.total(name)
        self.queue_offsets.forget_topic(name)
        self.topic_changed(name)

    def put_nums_of(self, name: str) -> int:
        """Return how many messages the queues of a topic were given since the store was opened."""
        return self.queue_offsets.total(name) - self.put_before.get(name, 0)

    def put_nums(self) -> dict[str, int]:
        """Return, by topic, how many messages its queues were given since the store was opened, if any."""
        before = self.put_before
        totals = self.queue_offsets.totals()
        return {topic: nums for topic, total in totals.items() if (nums := total - before.get(topic, 0))}

    def put_size(self) -> int:
        """Return the bytes of all records since the store was opened."""
        return sum(topic.put_size for topic in list(self.topics.values()))

    def forget_locks(self) -> None:
        """In a forked child: another thread of the parent may hold them, and there is no such thread here."""
        self.put_lock = threading.Lock()
        self.description_lock = threading.Lock()

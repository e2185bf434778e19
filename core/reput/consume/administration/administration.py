"""Administration: shows and changes topics and consumer groups, for operators.

It works on the services of an open store, and on the files of a store that no program has open: `StoppedStore`.

Source of the terms: RocketMQ admin tools (topicStatus, consumerProgress, resetOffsetByTime, deleteSubGroup).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from reput.argument_checks import require_text, require_whole
from reput.consume.administration.dead_letters import GroupDeadLetters, StoredMarks, StoredMessages
from reput.consume.administration.stored_queues import GroupProgress, StoredQueues
from reput.consume.pull.topic_reader import Beginning, check_beginning
from reput.consume.registry.config_managers import ConfigManagers
from reput.consume.registry.subscription_groups import SubscriptionGroups
from reput.consume.registry.topics import RETRY_PREFIX, Topics, is_system_topic
from reput.errors import RequestRefused
from reput.in_thread import in_thread
from reput.remoting.response_code import ResponseCode
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig
from reput.store.config.topic_config_manager import TopicConfig
from reput.store.record.message import Message, PutMessageResult

__all__ = ["Administration", "QueueStats"]


class QueueStats(msgspec.Struct, frozen=True):
    """One queue of a topic.

    Attributes:
        max_offset: queue offset after the last message.
        last_update_timestamp: store time of the last message, ms since 1970; None: there is no last message (any more),
            or it is damaged.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_timestamp: int | None


class Administration:
    """Shows and changes topics and groups of one store. Get it from `Store.administration`. Any thread may call.

    A topic or group is *described* if ``config/topics.json`` or ``config/subscriptionGroup.json`` in the store has it.

    A method that may wait has a coroutine twin with the prefix ``a``: `topic_stats` and `atopic_stats`.
    """

    def __init__(
        self,
        queues: StoredQueues,
        managers: ConfigManagers,
        topics: Topics,
        groups: SubscriptionGroups,
        move: Callable[[str, str, int, int], None] | None = None,
        delete: Callable[[str], int] | None = None,
        consumes: Callable[[str, str], bool] = lambda group, topic: False,
        put: Callable[[Message], PutMessageResult] | None = None,
    ) -> None:
        """Programs use `Store.administration` instead.

        Args:
            move: sets an offset (group, topic, queue id, queue offset), also for running consumers; None: none run.
            delete: deletes a topic with its queues; None: no dispatcher builds the queues.
            consumes: tells whether a consumer of a group has subscribed to a topic.
            put: stores a message; None: the store is not open for writing.
        """
        self._queues = queues
        self._managers = managers
        self._topics = topics
        self._groups = groups
        self._move = move or managers.offsets.commit_offset
        self._delete = delete
        self._consumes = consumes
        self._put = put

    # Topics.

    def topic_names(self) -> list[str]:
        """Return the topics that are described or have messages, sorted by name."""
        return sorted({*self._managers.topics.entries, *self._queues.stored_topics()})

    async def atopic_names(self) -> list[str]:
        """Like `topic_names`, for a task."""
        return await in_thread(self.topic_names)

    def topic_configs(self) -> list[TopicConfig]:
        """Return the descriptions of all topics, sorted by name; of others that have messages, with their queues."""
        found = [self._topics.find(name) for name in self.topic_names()]
        return [config for config in found if config is not None]

    async def atopic_configs(self) -> list[TopicConfig]:
        """Like `topic_configs`, for a task."""
        return await in_thread(self.topic_configs)

    def topic_config(self, topic: str) -> TopicConfig | None:
        """Return the description of a topic; None: there is no such topic."""
        require_text("topic", topic)
        return self._topics.find(topic)

    async def atopic_config(self, topic: str) -> TopicConfig | None:
        """Like `topic_config`, for a task."""
        return await in_thread(self.topic_config, topic)

    def update_topic(self, config: TopicConfig) -> None:
        """Create or change a topic, durably; the errors are those of `create_topic`."""
        self._topics.create_or_update(config)

    async def aupdate_topic(self, config: TopicConfig) -> None:
        """Like `update_topic`, for a task."""
        await in_thread(self.update_topic, config)

    def create_topic(self, topic: str, queue_nums: int) -> None:
        """Create a topic with *queue_nums* readable and writable queues, durably.

        Raises:
            RequestRefused: INVALID_PARAMETER; RocketMQ refuses the name or the number, or it is a system topic.
        """
        self._topics.create_or_update(
            TopicConfig(topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums)
        )

    async def acreate_topic(self, topic: str, queue_nums: int) -> None:
        """Like `create_topic`, for a task."""
        await in_thread(self.create_topic, topic, queue_nums)

    def topic_stats(self, topic: str) -> list[QueueStats]:
        """Return a row per queue of a topic, by queue id.

        Raises:
            RequestRefused: TOPIC_NOT_EXIST.
        """
        rows = []
        for queue_id in self._queues.queue_ids(topic):
            low, high = self._queues.queue_range(topic, queue_id)
            last = self._queues.readable_timestamp(topic, queue_id, high - 1)
            rows.append(QueueStats(topic, queue_id, low, high, last))
        return rows

    async def atopic_stats(self, topic: str) -> list[QueueStats]:
        """Like `topic_stats`, for a task."""
        return await in_thread(self.topic_stats, topic)

    def has_messages(self, topic: str) -> bool:
        """Return whether the store has queues of *topic* that messages were put to."""
        require_text("topic", topic)
        return any(self._queues.queue_range(topic, queue_id)[1] for queue_id in self._topics.queue_ids(topic))

    async def ahas_messages(self, topic: str) -> bool:
        """Like `has_messages`, for a task."""
        return await in_thread(self.has_messages, topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and the groups' committed offsets for it.

        Raises:
            RequestRefused: the topic is unknown or a system topic; or it has messages and the store is not open, so
                that no dispatcher would remove its queues.
        """
        require_text("topic", topic)
        if is_system_topic(topic):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"topic is the system's own: topic={topic!r}")
        if topic not in self._managers.topics.entries and not self._topics.queue_ids(topic):
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic does not exist: topic={topic!r}")
        if self._delete is not None:
            self._delete(topic)
            return
        if self.has_messages(topic):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the store has messages of the topic: topic={topic!r}",
                "Open the store and call `store.delete_topic`, or close the topic: `reput topic update --perm 0`.",
            )
        self._topics.forget(topic)
        self._managers.offsets.clean_offset_by_topic(topic)
        self._managers.offsets.persist()

    async def adelete_topic(self, topic: str) -> None:
        """Like `delete_topic`, for a task."""
        await in_thread(self.delete_topic, topic)

    # Groups.

    def group_names(self) -> list[str]:
        """Return the groups that are described or have committed offsets, sorted by name."""
        return sorted({*self._managers.groups.entries, *self._managers.offsets.groups()})

    async def agroup_names(self) -> list[str]:
        """Like `group_names`, for a task."""
        return await in_thread(self.group_names)

    def group_config(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the description of a group; None: it is not described."""
        require_text("group", group)
        return self._managers.groups.entries.get(group)

    async def agroup_config(self, group: str) -> SubscriptionGroupConfig | None:
        """Like `group_config`, for a task."""
        return await in_thread(self.group_config, group)

    def update_group(self, config: SubscriptionGroupConfig) -> None:
        """Create or change a group, durably.

        Raises:
            RequestRefused: INVALID_PARAMETER; RocketMQ refuses its name or a number.
        """
        self._groups.create_or_update(config)

    async def aupdate_group(self, config: SubscriptionGroupConfig) -> None:
        """Like `update_group`, for a task."""
        await in_thread(self.update_group, config)

    def group_progress(self, group: str) -> list[GroupProgress]:
        """Return a row per queue for which a group has committed an offset.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        self.require_group(group)
        return self._queues.progress(group, self._managers.offsets.offsets_of_group(group))

    async def agroup_progress(self, group: str) -> list[GroupProgress]:
        """Like `group_progress`, for a task."""
        return await in_thread(self.group_progress, group)

    def progress_of_groups(self) -> dict[str, list[GroupProgress]]:
        """Return the `group_progress` of every group that is described or has committed offsets, by name."""
        committed = self._managers.offsets.by_group()
        return {group: self._queues.progress(group, committed.get(group, {})) for group in self.group_names()}

    async def aprogress_of_groups(self) -> dict[str, list[GroupProgress]]:
        """Like `progress_of_groups`, for a task."""
        return await in_thread(self.progress_of_groups)

    def require_group(self, group: str) -> None:
        """Raise RequestRefused, SUBSCRIPTION_GROUP_NOT_EXIST, unless *group* is known."""
        require_text("group", group)
        if group not in self._managers.groups.entries and group not in self._managers.offsets.groups():
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group does not exist: group={group!r}"
            )

    async def arequire_group(self, group: str) -> None:
        """Like `require_group`, for a task."""
        await in_thread(self.require_group, group)

    def reset_offsets(
        self, group: str, topic: str, to: Beginning, *, queue_id: int | None = None, back_only: bool = False
    ) -> list[GroupProgress]:
        """Move a group in a topic, durably: "earliest", "latest", or a store time in ms since 1970.

        Running consumers continue from there.

        Args:
            queue_id: move only in this queue; None: in all.
            back_only: do not move the group forward in any queue.

        Returns:
            A row per queue, after the reset.

        Raises:
            RequestRefused: group, topic or queue is unknown.
            ConfigError: *to* is not such a place, or *queue_id* not a number.
        """
        check_beginning("to", to)
        if queue_id is not None:
            require_whole("queue_id", queue_id, None)
        self.require_group(group)
        queue_ids = self._queues.queue_ids(topic)
        if queue_id is not None and queue_id not in queue_ids:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the topic has no such queue: topic={topic!r} queue_id={queue_id} queue_nums={len(queue_ids)}",
            )
        rows = []
        for number in queue_ids if queue_id is None else (queue_id,):
            low, high = self._queues.queue_range(topic, number)
            if isinstance(to, int):
                offset = self._queues.offset_by_time(topic, number, to)
            else:
                offset = low if to == "earliest" else high
            committed = self._managers.offsets.query_offset(group, topic, number)
            if back_only and committed is not None:
                offset = min(offset, committed)
            rows.append(self._moved(group, topic, number, offset))
        self._managers.offsets.persist()
        return rows

    def _moved(self, group: str, topic: str, queue_id: int, queue_offset: int) -> GroupProgress:
        """Set one offset, and return the group's progress after that."""
        self._move(group, topic, queue_id, queue_offset)
        return self._queues.progress(group, {topic: {queue_id: queue_offset}})[0]

    def set_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> GroupProgress:
        """Move a group to a queue offset, durably. Running consumers continue there. Return the group's progress.

        Raises:
            RequestRefused: group, topic or queue is unknown, or the queue does not have that offset.
        """
        require_text("topic", topic)
        require_whole("queue_id", queue_id, None)
        require_whole("queue_offset", queue_offset, None)
        self.require_group(group)
        if queue_id not in self._queues.queue_ids(topic):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"the topic has no such queue: topic={topic!r} queue_id={queue_id}"
            )
        low, high = self._queues.queue_range(topic, queue_id)
        if not low <= queue_offset <= high:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the queue does not have the offset: queue_offset={queue_offset} queue_offset_min={low} "
                f"queue_offset_max={high}",
            )
        row = self._moved(group, topic, queue_id, queue_offset)
        self._managers.offsets.persist()
        return row

    async def aset_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> GroupProgress:
        """Like `set_offset`, for a task."""
        return await in_thread(self.set_offset, group, topic, queue_id, queue_offset)

    async def areset_offsets(
        self, group: str, topic: str, to: Beginning, *, queue_id: int | None = None, back_only: bool = False
    ) -> list[GroupProgress]:
        """Like `reset_offsets`, for a task."""
        return await in_thread(self.reset_offsets, group, topic, to, queue_id=queue_id, back_only=back_only)

    def dead_letters(self, group: str) -> GroupDeadLetters:
        """Return the dead letters of a group, to read them and to put them back.

        Raises:
            ConfigError: *group* is not a text.
        """
        return GroupDeadLetters(
            StoredMessages(self._queues, self._put), StoredMarks(self._managers.offsets), group, keeps_birth=True
        )

    def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Delete a group, and with *clean_offsets* its offsets.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        self.require_group(group)
        if group in self._managers.groups.entries:
            self._groups.forget(group)
        if clean_offsets:
            self._managers.offsets.remove_group(group)
            self._managers.offsets.persist()

    async def adelete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Like `delete_group`, for a task."""
        await in_thread(self.delete_group, group, clean_offsets=clean_offsets)

    def clean_offsets(self) -> list[tuple[str, str]]:
        """Delete the offsets of dead groups. A group is dead if retention has removed all messages it would read next.

        A group with present consumers is not dead, however large its lag.

        Returns:
            Group and topic of each.

        Source: RocketMQ broker, ConsumerOffsetManager.scanUnsubscribedTopic.
        """
        removed = []
        for group, committed in self._managers.offsets.by_group().items():
            for topic, offsets in committed.items():
                if topic.startswith(RETRY_PREFIX) or self._consumes(group, topic):
                    continue
                if all(offset < self._queues.queue_range(topic, queue_id)[0] for queue_id, offset in offsets.items()):
                    self._managers.offsets.remove(group, topic)
                    removed.append((group, topic))
        self._managers.offsets.persist()
        return removed

    async def aclean_offsets(self) -> list[tuple[str, str]]:
        """Like `clean_offsets`, for a task."""
        return await in_thread(self.clean_offsets)

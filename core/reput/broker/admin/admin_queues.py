"""AdminQueuesProcessor: what the queues of topics hold, and how far groups have consumed them.

Source: RocketMQ broker, AdminBrokerProcessor; remoting, TopicStatsTable, ConsumeStats, ConsumeStatsList, QueueTimeSpan.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from reput.broker.admin.admin_bodies import json_response, object_keyed
from reput.broker.state.broker_statistics import BrokerStatistics, Growth
from reput.consume.registry.subscription import Subscription
from reput.consume.registry.topics import may_be_topic
from reput.embedded.store_engine import StoreEngine
from reput.errors import RequestRefused
from reput.filter import TagFilter
from reput.remoting.connection import Connection
from reput.remoting.custom_header import text, truth, whole
from reput.remoting.heartbeat import SubscriptionData
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.ext.consume_queue_ext import is_address

__all__ = ["AdminQueuesProcessor", "subscription_data"]

# Maximum number of consume-queue units in one answer.
UNITS_MAX = 10_000


class TopicOffset(msgspec.Struct, frozen=True, rename="camel"):
    """One queue of a topic, in RocketMQ's TopicStatsTable."""

    last_update_timestamp: int
    max_offset: int
    min_offset: int


class OffsetWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """One queue of a group, in RocketMQ's ConsumeStats."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int


class ConsumeStats(msgspec.Struct, frozen=True, rename="camel"):
    """A group's progress."""

    consume_tps: float
    offset_table: msgspec.Raw


class QueueTimeSpan(msgspec.Struct, frozen=True):
    """Store times in a queue: of its first, its last, and a group's last consumed message."""

    message_queue: MessageQueue = msgspec.field(name="messageQueue")
    min_timestamp: int = msgspec.field(name="minTimeStamp")
    max_timestamp: int = msgspec.field(name="maxTimeStamp")
    consume_timestamp: int = msgspec.field(name="consumeTimeStamp")
    delay_time: int = msgspec.field(name="delayTime")


class ConsumeQueueData(msgspec.Struct, frozen=True, rename="camel"):
    """One unit of a consume queue."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False
    msg: str | None = None


class AdminQueuesProcessor:
    """Every request runs in a thread, because store times are read from the log."""

    def __init__(self, engine: StoreEngine, statistics: BrokerStatistics) -> None:
        self.engine = engine
        self.services = engine.services
        self.administration = engine.services.administration
        self.stored_queues = engine.services.stored_queues
        self.offsets = engine.services.managers.offsets
        self.consumers = engine.services.consumer_manager
        self.statistics = statistics
        self.broker_name = engine.settings.broker_name

    def processors(self) -> Mapping[int, Processor]:
        """Return the processor of each request code."""
        table = {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats_data,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
        }
        return {code: Processor(process, in_thread=True) for code, process in table.items()}

    # Topics.

    def topic_stats(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_TOPIC_STATS_INFO."""
        del connection
        topic = text(request.ext_fields, "topic")
        table = (
            (
                self.queue(topic, row.queue_id),
                TopicOffset(row.last_update_timestamp or 0, row.max_offset, row.min_offset),
            )
            for row in self.administration.topic_stats(topic)
        )
        return json_response({"offsetTable": object_keyed(table), "topicPutTps": self.statistics.put_tps(topic)})

    def groups_of_topic(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer QUERY_TOPIC_CONSUME_BY_WHO: connected groups that subscribe to a topic, and groups with offsets."""
        del connection
        topic = text(request.ext_fields, "topic")
        groups = {group: None for group, topics in self.offsets.by_group().items() if topic in topics}
        with self.consumers.lock:
            groups.update({group: None for group, info in self.consumers.groups.items() if topic in info.subscriptions})
        return json_response({"groupList": list(groups)})

    def topics_of_group(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer QUERY_TOPICS_BY_CONSUMER: the topics in which a group has offsets."""
        del connection
        group = text(request.ext_fields, "group")
        return json_response({"topicList": list(self.offsets.offsets_of_group(group))})

    def subscription(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer QUERY_SUBSCRIPTION_BY_CONSUMER."""
        del connection
        group, topic = text(request.ext_fields, "group"), text(request.ext_fields, "topic")
        found = self.subscription_of(group, topic)
        body = {"group": group, "topic": topic}
        return json_response(body if found is None else {**body, "subscriptionData": found})

    def subscription_of(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the subscription of a group's connected consumers to a topic; None: there is none."""
        info = self.consumers.find(group)
        found = None if info is None else info.subscriptions.get(topic)
        return None if found is None else subscription_data(found)

    # Groups.

    def consume_stats(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_CONSUME_STATS."""
        del connection
        fields = request.ext_fields
        group, topic = text(fields, "consumerGroup"), fields.get("topic", "")
        listed = [name for name in fields.get("topicList", "").split(";") if name]
        topics = [topic] if topic else listed or list(self.offsets.offsets_of_group(group))
        shown = [topic for topic in topics if self.shows(group, topic)]
        return json_response(self.stats_of(group, shown))

    def shows(self, group: str, topic: str) -> bool:
        """Return whether a group's statistics list a topic: it exists, and no connected consumer has dropped it."""
        info = self.consumers.find(group)
        leaves = info is not None and bool(info.subscriptions) and topic not in info.subscriptions
        return not leaves and self.services.topics.find(topic) is not None

    def stats_of(self, group: str, topics: Iterable[str]) -> ConsumeStats:
        """Return the progress of a group in some topics."""
        topics = list(topics)
        tps = sum(self.statistics.get_tps(group, topic) for topic in topics)
        return ConsumeStats(tps, object_keyed(row for topic in topics for row in self.progress(group, topic)))

    def progress(self, group: str, topic: str) -> Iterator[tuple[MessageQueue, OffsetWrapper]]:
        """Yield a group's progress in each queue of a topic; a queue without an offset counts as not begun."""
        known = self.offsets.offsets_of_group(group).get(topic, {})
        committed = {queue_id: known.get(queue_id, 0) for queue_id in self.services.topics.read_queue_ids(topic)}
        for row in self.stored_queues.progress(group, {topic: committed}):
            yield (
                self.queue(topic, row.queue_id),
                OffsetWrapper(row.broker_offset, row.consumer_offset, row.last_timestamp or 0, row.consumer_offset),
            )

    def all_consume_stats(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_BROKER_CONSUME_STATS: the progress of every group."""
        del connection
        only_ordered = truth(request.ext_fields, "isOrder")
        stats: list[dict[str, list[ConsumeStats]]] = []
        total = 0
        committed = self.offsets.by_group()
        for group in list(self.services.groups.manager.entries):
            of_group = []
            for topic in committed.get(group, {}):
                config = self.services.topics.find(topic)
                if config is None or (only_ordered and not config.order) or not self.shows(group, topic):
                    continue
                rows = list(self.progress(group, topic))
                total += sum(row.broker_offset - row.consumer_offset for _, row in rows)
                of_group.append(ConsumeStats(self.statistics.get_tps(group, topic), object_keyed(rows)))
            if of_group:
                stats.append({group: of_group})
        return json_response({"consumeStatsList": stats, "totalDiff": total, "totalInflightDiff": 0})

    def time_span(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer QUERY_CONSUME_TIME_SPAN."""
        del connection
        group, topic = text(request.ext_fields, "group"), text(request.ext_fields, "topic")
        committed = self.offsets.offsets_of_group(group).get(topic, {})
        now_ms = time.time_ns() // 1_000_000
        spans = []
        for row in self.administration.topic_stats(topic):
            earliest = self.time_of(topic, row.queue_id, row.min_offset)
            consumed = committed.get(row.queue_id, 0)
            consumed_at = self.time_of(topic, row.queue_id, consumed - 1) if consumed > 0 else earliest
            # The store time of the next message, which waits for the group.
            waits = consumed < row.max_offset
            waiting_since = self.time_of(topic, row.queue_id, max(consumed, row.min_offset)) if waits else now_ms
            spans.append(
                QueueTimeSpan(
                    self.queue(topic, row.queue_id),
                    earliest,
                    row.last_update_timestamp or -1,
                    consumed_at,
                    max(now_ms - waiting_since, 0),
                )
            )
        return json_response({"consumeTimeSpanSet": spans})

    def time_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of one message; -1: it is not there."""
        found = self.stored_queues.store_timestamp(topic, queue_id, queue_offset)
        return -1 if found is None else found

    # Units.

    def consume_queue(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer QUERY_CONSUME_QUEUE: units of a queue, as they are stored."""
        del connection
        fields = request.ext_fields
        topic, queue_id = text(fields, "topic"), whole(fields, "queueId")
        index, count = whole(fields, "index", is_long=True), whole(fields, "count")
        if not may_be_topic(topic) or queue_id not in self.services.topics.all_queue_ids(topic):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        low, high = self.stored_queues.queue_range(topic, queue_id)
        body: dict[str, Any] = {
            "maxQueueIndex": high,
            "minQueueIndex": low,
            "queueData": list(self.units(topic, queue_id, max(index, low), min(index + min(count, UNITS_MAX), high))),
        }
        group = fields.get("consumerGroup")
        if group:
            found = self.subscription_of(group, topic)
            if found is None:
                body["filterData"] = f"{group}@{topic} is not online!"
            else:
                data = self.services.filters.find(group, topic)
                body["subscriptionData"] = found
                body["filterData"] = "null" if data is None else msgspec.json.encode(data.to_fields()).decode()
        return json_response(body)

    def units(self, topic: str, queue_id: int, begin: int, end: int) -> Iterator[ConsumeQueueData]:
        """Yield the units of a queue from *begin* to *end*."""
        for queue_offset in range(begin, end):
            with self.engine.read_lock:
                unit = self.engine.reader.queue(topic, queue_id).units.unit(queue_offset)
            if unit is None:
                return
            offset, size, tags_code = unit
            # The queue's extension file may hold more about a message; the tags code is then the address in that file.
            note = f"Cq extend not exist!addr: {tags_code}" if is_address(tags_code) else None
            yield ConsumeQueueData(offset, size, tags_code, msg=note)

    # Counters.

    def stats_data(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer VIEW_BROKER_STATS_DATA."""
        del connection
        name, key = text(request.ext_fields, "statsName"), text(request.ext_fields, "statsKey")
        found = self.statistics.growths(name, key)
        if found is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        minute, hour, day = map(stats_item, found)
        return json_response({"statsDay": day, "statsHour": hour, "statsMinute": minute})

    def delay_offsets(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_ALL_DELAY_OFFSET: the offset before which each delay level's messages were delivered."""
        del request, connection
        schedule = self.engine.schedule
        offsets = {} if schedule is None else schedule.delivered().queue_offsets
        return json_response({"offsetTable": offsets})

    def queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return a queue of this broker."""
        return MessageQueue(self.broker_name, queue_id, topic)


def subscription_data(subscription: Subscription) -> SubscriptionData:
    """Return a subscription as clients send it."""
    compiled = subscription.compiled
    tags = sorted(compiled.tags) if isinstance(compiled, TagFilter) and compiled.tags else []
    codes = sorted(compiled.codes) if isinstance(compiled, TagFilter) and compiled.codes else []
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.expression,
        expression_type=subscription.expression_type,
        sub_version=subscription.sub_version,
        tags_set=tags,
        code_set=codes,
    )


def stats_item(growth: Growth) -> dict[str, float]:
    """Return the growth of a counter in the form of RocketMQ's BrokerStatsItem."""
    return {"avgpt": 0.0, "sum": growth.sum, "tps": growth.per_second}

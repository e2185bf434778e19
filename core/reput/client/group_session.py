"""GroupSession: the work of one consumer in its loop: heartbeats, rebalancing, pulls, commits and locks.

    heartbeat ──▶ members of the group ──▶ queues of this one ──▶ a pull per queue ──▶ RemoteQueue ──▶ program
        ▲                 ▲                                                                 │
     30 s, new        20 s, or when the                             every 5 s: committed ◀──┘
     connection       broker tells

Each consumer has its own connections, because a broker allows one member of a group per connection.

Source: RocketMQ client, MQClientInstance, RebalanceImpl, DefaultMQPushConsumerImpl and RemoteBrokerOffsetStore.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from reput.client.answers import number_of
from reput.client.offsets import Offsets
from reput.client.queue_requests import QueueRequests, reset_offsets, subscription_data
from reput.client.received import received_records, wanted_tags
from reput.client.remote_queue import RemoteQueue
from reput.client.routes import refused
from reput.client.send_back import SendBack
from reput.client.session import Session, new_client_id
from reput.client.target import Target
from reput.consume.pull.topic_reader import Beginning
from reput.consume.registry.subscription import Subscription
from reput.consume.registry.topics import RETRY_PREFIX
from reput.errors import BrokerError, OffsetOutOfRange, ReputError, RequestRefused
from reput.remoting.allocation import STRATEGIES
from reput.remoting.connection import Connection
from reput.remoting.heartbeat import ConsumerData, HeartbeatData
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput_hooks import Record

__all__ = ["GroupSession"]

REBALANCE_INTERVAL_S = 20.0
COMMIT_INTERVAL_S = 5.0
LOCK_INTERVAL_S = 20.0
# The consumer trusts a lock for this long after the broker has granted it; the broker keeps the lock for 60 s.
LOCK_LIVES_S = 30.0
SUSPEND_MS = 15_000
PULL_TIMEOUT_S = 30.0
PULL_COUNT = 32
PAUSE_MIN_S, PAUSE_MAX_S = 0.05, 3.0
COMMIT_OFFSET_FLAG, SUSPEND_FLAG = 1, 2
# The interval until the broker knows a new member and all topics exist.
REBALANCE_AGAIN_S = 1.0
UNLOCK_WAIT_S = 30.0
CLOSE_TIMEOUT_S = 3.0

logger = logging.getLogger(__name__)


class GroupSession:
    """Used in the thread of its loop only, except what `lock` guards.

    Args:
        lock: guards the messages in the queues, which other threads take.
        on_messages: called under the lock with a queue that has messages to take.
        on_dropped: called under the lock with a queue that no longer belongs to this consumer.
    """

    def __init__(
        self,
        target: Target,
        group: str,
        subscriptions: Mapping[str, Subscription],
        begins: Mapping[str, Beginning],
        *,
        broadcast: bool,
        in_order: bool,
        allocation: str,
        offsets: Offsets | None,
        lock: threading.RLock,
        on_messages: Callable[[RemoteQueue], None],
        on_dropped: Callable[[RemoteQueue], None],
    ) -> None:
        self.group = group
        self.subscriptions = subscriptions
        self.begins = begins
        self.broadcast = broadcast
        self.in_order = in_order
        self.allocate = STRATEGIES[allocation]
        self.local_offsets = offsets
        self.lock = lock
        self.on_messages = on_messages
        self.on_dropped = on_dropped
        self.session = Session(target, new_client_id())
        self.session.heartbeat = self.heartbeat
        self.session.handlers = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.ids_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.offsets_reset,
        }
        self.requests = QueueRequests(self.session, group)
        self.sending_back = SendBack(self.requests)
        self.loop = self.session.loop
        self.queues: dict[MessageQueue, RemoteQueue] = {}
        # The topics that had a route when the consumer joined.
        self.known_at_start: set[str] = set()
        self.changed = asyncio.Event()
        self.balancing = asyncio.Lock()
        self.has_balanced = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    # Joining and leaving.

    async def start(self) -> None:
        """Join the group at the brokers that can be reached; `keep_balanced` tries the others again.

        Raises:
            BrokerError: no name server, or no broker of the topics, can be reached.
            RequestRefused: a broker does not support filter expressions, or does not compile this one.
        """
        try:
            for topic in self.subscriptions:
                route = await self.session.routes.refresh(topic)
                if route is not None:
                    self.known_at_start.add(topic)
            await self.requests.check_expressions(self.subscriptions)
            await self.session.request_all(
                (broker, self.session.heartbeat_command()) for broker in self.session.routes.all_masters()
            )
            await self.rebalance()
        except BaseException:
            await self.end()
            raise
        self.run(self.keep_balanced())
        self.run(self.keep_committed())
        if self.in_order:
            self.run(self.keep_locked())

    async def close(self) -> None:
        """Leave the group: commit the acknowledged messages, and release the queues at once.

        A task that is cancelled meanwhile leaves the group, too: its messages that were not committed come again.
        """
        try:
            await self.end_tasks()
            # A broker that hangs finds out by itself, and delivers what was not committed again.
            with contextlib.suppress(ReputError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self.commit()
            if self.in_order:
                self.requests.unlock(list(self.queues))
            await self.requests.unregister()
        finally:
            await self.end()

    async def end(self) -> None:
        """End the connections, and what would make others: a pull would make this consumer a member again."""
        try:
            await self.end_tasks()
        finally:
            await self.session.close()

    async def end_tasks(self) -> None:
        """End everything that goes on by itself."""
        self.closed = True
        pulls = [queue.pulling for queue in self.queues.values() if queue.pulling is not None]
        await end_all([*self.tasks, *pulls])

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until the consumer is closed."""
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    # Heartbeats.

    def heartbeat(self) -> HeartbeatData:
        """Return the body of a heartbeat."""
        begins = set(self.begins.values())
        data = ConsumerData(
            group_name=self.group,
            message_model="BROADCASTING" if self.broadcast else "CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET" if begins == {"latest"} else "CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[subscription_data(found) for found in self.subscriptions.values()],
        )
        return HeartbeatData(self.session.client_id, [], [data])

    def ids_changed(self, connection: Connection, request: RemotingCommand) -> None:
        """Rebalance, because the broker reports that the group has changed."""
        del connection
        if request.ext_fields.get("consumerGroup") == self.group:
            self.changed.set()

    # Sharing.

    async def keep_balanced(self) -> None:
        """Rebalance every 20 s, when a broker reports a change, and every second while something is missing."""
        while True:
            # If a topic does not exist yet, its first messages should not wait long.
            is_whole = self.subscriptions.keys() <= self.session.routes.known.keys()
            wait = REBALANCE_INTERVAL_S if self.has_balanced and is_whole else REBALANCE_AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self.changed.wait()
            self.changed.clear()
            with contextlib.suppress(ReputError, TimeoutError):
                for topic in self.subscriptions:
                    if topic not in self.session.routes.known:
                        await self.session.routes.refresh(topic)
                await self.rebalance()

    async def rebalance(self) -> None:
        """Take the queues that belong to this consumer now, and drop the others."""
        async with self.balancing:
            self.has_balanced = True
            for topic in self.subscriptions:
                route = self.session.routes.known.get(topic)
                if route is None:
                    continue
                queues = route.readable()
                if not self.broadcast:
                    ids = await self.requests.client_ids(route)
                    if self.session.client_id not in ids:
                        # The broker does not know this member yet.
                        self.has_balanced = False
                        continue
                    queues = self.allocate(self.session.client_id, queues, sorted(set(ids)))
                await self.take(topic, queues)

    async def take(self, topic: str, queues: list[MessageQueue]) -> None:
        """Take and drop queues of a topic until this consumer has exactly *queues*."""
        wanted = set(queues)
        for queue in [queue for queue in self.queues if queue.topic == topic and queue not in wanted]:
            await self.drop(self.queues[queue])
        new = [queue for queue in queues if queue not in self.queues]
        if self.in_order and new:
            held = await self.requests.lock(new)
            if len(held) < len(new):
                # Another member still has them.
                self.has_balanced = False
            new = held
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in new:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        await asyncio.gather(*map(self.start_queues, by_broker.values()))

    async def start_queues(self, queues: list[MessageQueue]) -> None:
        """Start to pull queues of one broker; brokers that cannot be reached do not delay the others."""
        for queue in queues:
            try:
                position = await self.first_position(queue)
            except ReputError as error:
                logger.warning("a queue cannot be started and is tried again: queue=%s error=%s", queue, error)
                self.has_balanced = False
                if isinstance(error, BrokerError):
                    # The broker's other queues would wait as long.
                    return
                continue
            found = RemoteQueue(queue, position)
            found.locked_at = self.loop.time()
            self.queues[queue] = found
            found.pulling = self.loop.create_task(self.pull(found))

    async def drop(self, queue: RemoteQueue) -> None:
        """Give up a queue: commit the acknowledged messages, and forget the others."""
        self.stop_pulling(queue)
        if self.in_order:
            # To keep the order, no other consumer may start before the program has handled the messages that it holds.
            await self.wait_until_done(queue)
            self.stop_pulling(queue)
        del self.queues[queue.queue]
        # The offset of a deleted topic means nothing in a new one.
        offset = None if queue.dropped else self.offset_of(queue)
        with self.lock:
            queue.dropped = True
            self.on_dropped(queue)
        if offset is not None:
            with contextlib.suppress(ReputError):
                await self.commit_queue(queue, offset)
        if self.in_order:
            self.requests.unlock([queue.queue])

    async def lose(self, queue: RemoteQueue) -> None:
        """Forget a queue whose topic was deleted. A new topic of that name begins anew, so no offset is committed."""
        at = queue.queue
        logger.warning("the topic of a queue was deleted: group=%s queue=%s", self.group, at)
        async with self.balancing:
            if self.queues.get(at) is queue:
                del self.queues[at]
                with self.lock:
                    self.on_dropped(queue)
                if self.local_offsets is not None:
                    self.local_offsets.forget(at)
                if self.in_order:
                    self.requests.unlock([at])
            # All messages of a new topic are new.
            self.known_at_start.discard(at.topic)
        self.session.routes.forget(at.topic)
        # A name server may learn of it later than the broker.
        await asyncio.sleep(REBALANCE_AGAIN_S)
        await self.session.routes.look_up(at.topic)
        self.has_balanced = False
        self.changed.set()

    async def wait_until_done(self, queue: RemoteQueue) -> None:
        """Wait, for a limited time, until no message of a queue is in flight."""
        with self.lock:
            queue.forget_buffered()
        until = self.loop.time() + UNLOCK_WAIT_S
        while queue.in_flight and self.loop.time() < until:
            await asyncio.sleep(PAUSE_MIN_S)

    def stop_pulling(self, queue: RemoteQueue) -> None:
        """End the pulls of a queue."""
        if queue.pulling is not None:
            queue.pulling.cancel()

    async def first_position(self, queue: MessageQueue) -> int:
        """Return the offset at which the group continues in a queue, or begins.

        Raises:
            ReputError: the broker does not answer.
        """
        if self.local_offsets is not None:
            kept = self.local_offsets.find(queue)
        else:
            kept = await self.requests.committed(queue)
        if kept is not None:
            return kept
        begin = self.begins[queue.topic]
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if is_retry or queue.topic not in self.known_at_start:
            # The topic was created after the consumer had joined, so all of its messages are new.
            begin = "earliest"
        return await self.requests.place_of(queue, begin)

    # Pulling.

    async def pull(self, queue: RemoteQueue) -> None:
        """Pull one queue until it is dropped, or the consumer is closed."""
        subscription = self.subscriptions[queue.queue.topic]
        tags = wanted_tags(subscription.compiled)
        is_retry = queue.queue.topic.startswith(RETRY_PREFIX)
        pause = PAUSE_MIN_S
        while not (queue.dropped or self.closed):
            await queue.has_room.wait()
            if not self.may_consume(queue):
                await asyncio.sleep(PAUSE_MIN_S)
                continue
            position = queue.position
            try:
                response = await self.pulled(queue, subscription)
                match response.code:
                    case ResponseCode.SUCCESS:
                        records, size = received_records(response.body_bytes, tags, is_retry=is_retry)
                    case ResponseCode.PULL_NOT_FOUND | ResponseCode.PULL_RETRY_IMMEDIATELY:
                        records, size = [], 0
                    case ResponseCode.PULL_OFFSET_MOVED:
                        self.tell_moved(queue, response)
                        records, size = [], 0
                    case ResponseCode.TOPIC_NOT_EXIST:
                        queue.dropped = True
                        self.run(self.lose(queue))
                        return
                    case _:
                        raise refused(response)
                following = number_of(response, "nextBeginOffset")
                queue.broker_id = int(response.ext_fields.get("suggestWhichBrokerId", 0))
            except (ReputError, ValueError) as error:
                logger.log(
                    logging.WARNING if pause > 1.0 else logging.INFO,
                    "a pull has failed and is tried again: group=%s queue=%s error=%s",
                    self.group,
                    queue.queue,
                    error,
                )
                if isinstance(error, RequestRefused):
                    await self.session.send_heartbeats()
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)
                continue
            pause = PAUSE_MIN_S
            with self.lock:
                if queue.position == position and self.may_consume(queue):
                    if following < position:
                        # The queue begins anew: nothing that is in flight is part of it.
                        self.on_dropped(queue)
                        queue.move(following)
                    queue.add(records, size, following)
                    if records:
                        self.on_messages(queue)

    async def pulled(self, queue: RemoteQueue, subscription: Subscription) -> RemotingCommand:
        """Return the response to a pull."""
        flags = SUSPEND_FLAG
        offset = 0
        if not self.broadcast and queue.broker_id == 0:
            offset = self.offset_of(queue)
            if offset > 0:
                flags |= COMMIT_OFFSET_FLAG
        at = queue.queue
        broker = self.session.routes.broker(at.broker_name, queue.broker_id) or self.requests.master(at)
        command = RemotingCommand(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": self.group,
                "topic": at.topic,
                "queueId": str(at.queue_id),
                "queueOffset": str(queue.position),
                "maxMsgNums": str(PULL_COUNT),
                "sysFlag": str(flags),
                "commitOffset": str(offset),
                "suspendTimeoutMillis": str(SUSPEND_MS),
                "subVersion": str(subscription.sub_version),
                "expressionType": subscription.expression_type,
            },
        )
        return await self.session.invoke(broker, command, PULL_TIMEOUT_S)

    def tell_moved(self, queue: RemoteQueue, response: RemotingCommand) -> None:
        """Log that a queue does not have the offset at which the group would continue."""
        fields = response.ext_fields
        logger.warning(
            "the queue does not have the group's next offset: group=%s queue=%s queue_offset=%d "
            "queue_offset_min=%s queue_offset_max=%s next=%s",
            self.group,
            queue.queue,
            queue.position,
            fields.get("minOffset"),
            fields.get("maxOffset"),
            fields.get("nextBeginOffset"),
        )

    # Places.

    async def rewind(self, to: Beginning, topic: str | None) -> None:
        """Move the queues of one topic, or of all but the retry topic, to a place."""
        for queue in list(self.queues.values()):
            of = queue.queue.topic
            if of == topic or (topic is None and not of.startswith(RETRY_PREFIX)):
                await self.move(queue, await self.requests.place_of(queue.queue, to))

    async def seek(self, topic: str, queue_id: int, queue_offset: int, broker_name: str | None) -> None:
        """Move one queue.

        Raises:
            OffsetOutOfRange: this consumer does not have the queue, or the queue has no such offset.
        """
        names = (topic, queue_id)
        at = next((at for at in self.queues if names == (at.topic, at.queue_id) and is_of(at, broker_name)), None)
        if at is None:
            raise OffsetOutOfRange(
                f"the consumer does not have the queue: topic={topic!r} queue_id={queue_id} broker_name={broker_name}",
                "Seek in the consumer that has it.",
            )
        low, high = await self.requests.place_of(at, "earliest"), await self.requests.place_of(at, "latest")
        if not low <= queue_offset <= high:
            raise OffsetOutOfRange(
                f"the queue has no such offset: topic={topic!r} queue_id={queue_id} queue_offset={queue_offset} "
                f"queue_offset_min={low} queue_offset_max={high}",
                "Give an offset of the queue, or the one after its last.",
            )
        await self.move(self.queues[at], queue_offset)

    async def move(self, queue: RemoteQueue, queue_offset: int) -> None:
        """Continue at another offset of a queue; its messages in flight are forgotten."""
        self.stop_pulling(queue)
        with self.lock:
            self.on_dropped(queue)
            queue.move(queue_offset)
        # Before anything is waited for: a caller that is cancelled would leave a queue that nobody pulls.
        queue.pulling = self.loop.create_task(self.pull(queue))
        with contextlib.suppress(ReputError):
            await self.commit_queue(queue, queue_offset)

    def offsets_reset(self, connection: Connection, request: RemotingCommand) -> None:
        """Continue at the offsets to which an administrator has moved the group."""
        del connection
        if request.ext_fields.get("group") == self.group:
            for queue, queue_offset in reset_offsets(request.body_bytes).items():
                found = self.queues.get(queue)
                if found is not None:
                    self.run(self.move(found, queue_offset))

    # Sending back.

    async def send_back(
        self, queue: RemoteQueue, record: Record, delay_level: int, max_reconsume_times: int | None
    ) -> None:
        """Send a message back; a broadcasting consumer drops it.

        Raises:
            RequestRefused, BrokerError: see `SendBack.send_back`.
        """
        if not self.broadcast:
            await self.sending_back.send_back(queue.queue, record, delay_level, max_reconsume_times)
            return
        logger.warning(
            "a failed broadcast message is dropped: group=%s topic=%s queue_id=%d queue_offset=%d",
            self.group,
            record.topic,
            record.queue_id,
            record.queue_offset,
        )

    # Committing.

    async def keep_committed(self) -> None:
        """Commit every 5 s."""
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            try:
                await self.commit()
            except (ReputError, OSError) as error:
                logger.warning("offsets cannot be committed yet: group=%s error=%s", self.group, error)

    def offset_of(self, queue: RemoteQueue) -> int:
        """Return the offset before which all messages are done."""
        with self.lock:
            return queue.commit_offset()

    async def commit(self) -> None:
        """Commit all queues.

        Raises:
            BrokerError: a broker cannot be reached.
            StoreError: the local file cannot be written.
        """
        # A queue whose topic was deleted is dropped. All at once: a broker that hangs would cost its time for each.
        kept = [queue for queue in self.queues.values() if not queue.dropped]
        done = await asyncio.gather(
            *(self.commit_queue(queue, self.offset_of(queue)) for queue in kept), return_exceptions=True
        )
        if self.local_offsets is not None:
            self.local_offsets.persist()
        for error in done:
            if error is not None:
                raise error

    async def commit_queue(self, queue: RemoteQueue, offset: int) -> None:
        """Commit the offset of one queue, if it has changed."""
        if offset == queue.committed:
            return
        if self.local_offsets is not None:
            self.local_offsets.set(queue.queue, offset)
        else:
            await self.requests.commit(queue.queue, offset)
        queue.committed = offset

    # Locks, for consuming in order.

    async def keep_locked(self) -> None:
        """Renew the locks every 20 s."""
        while True:
            await asyncio.sleep(LOCK_INTERVAL_S)
            for queue in await self.requests.lock(list(self.queues)):
                found = self.queues.get(queue)
                if found is not None:
                    found.locked_at = self.loop.time()
            for found in self.queues.values():
                if not self.may_consume(found):
                    # By the time that the broker gives the lock to another consumer, none of these is handled here.
                    with self.lock:
                        found.forget_buffered()

    def may_consume(self, queue: RemoteQueue) -> bool:
        """Return whether this consumer's lock of a queue counts still, or it needs none."""
        return not self.in_order or self.loop.time() - queue.locked_at <= LOCK_LIVES_S


async def end_all(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def is_of(queue: MessageQueue, broker_name: str | None) -> bool:
    """Return whether a queue belongs to the named broker; always True if *broker_name* is None."""
    return broker_name is None or queue.broker_name == broker_name

"""ClusterAdministration: shows and changes the topics and groups of all brokers of a name server.

It has the methods of `Administration` that the command line needs, and returns the same rows. With several brokers,
each row is for a queue of one broker, and rows are sorted by broker name.

Source: RocketMQ tools, DefaultMQAdminExtImpl.
"""

from __future__ import annotations

import msgspec

from reput.client.answers import decoded, number_of
from reput.client.background_loop import BackgroundLoop
from reput.client.queue_requests import QueueRequests, queue_fields
from reput.client.reading import pull, route_of
from reput.client.redrive_marks import ClusterMarks
from reput.client.routes import DEFAULT_TOPIC, refused
from reput.client.session import Session
from reput.consume.administration.administration import QueueStats
from reput.consume.administration.dead_letters import DeadLetterSource, GroupDeadLetters
from reput.consume.administration.stored_queues import GroupProgress
from reput.consume.pull.topic_reader import Beginning
from reput.consume.registry.subscription_groups import check_group
from reput.consume.registry.topics import check_consumed_topic
from reput.errors import BrokerError, ConfigError, RequestRefused
from reput.in_thread import in_thread
from reput.namesrv.route_info import ClusterInfo, TopicList, quoted
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig
from reput.store.config.topic_config_manager import TopicConfig

__all__ = ["BrokerReplication", "BrokerRow", "ClusterAdministration", "ConsumerConnection", "ReplicaRow"]

MASTER = "0"
EARLIEST_TIMESTAMP, LATEST_TIMESTAMP = 0, -1
SUBSCRIBE_ALL = "*"


class KnownTopic(msgspec.Struct, rename="camel"):
    """A topic as brokers describe it."""

    topic_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None


class KnownTopics(msgspec.Struct, rename="camel"):
    """The body of GET_ALL_TOPIC_CONFIG."""

    topic_config_table: dict[str, KnownTopic] = {}


class KnownGroup(msgspec.Struct, rename="camel"):
    """A consumer group as brokers describe it."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


class KnownGroups(msgspec.Struct, rename="camel"):
    """The body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    subscription_group_table: dict[str, KnownGroup] = {}


class KnownOffsets(msgspec.Struct, rename="camel"):
    """The body of GET_ALL_CONSUMER_OFFSET: by ``topic@group`` and queue id."""

    offset_table: dict[str, dict[int, int]] = {}


class ConsumerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """One connection of a consumer to a broker.

    Attributes:
        version: version of the client, in RocketMQ's numbering.
    """

    client_addr: str
    client_id: str
    language: str = ""
    version: int = 0


class ConsumerConnections(msgspec.Struct, rename="camel"):
    """The body of GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[ConsumerConnection] = []


class BrokerRow(msgspec.Struct, frozen=True):
    """One broker.

    Attributes:
        runtime: the broker's figures by RocketMQ's names; None: the broker cannot be reached.
        error: why the broker cannot be reached.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    runtime: dict[str, str] | None
    error: str | None


class ReplicaRow(msgspec.Struct, frozen=True):
    """One follower of a master.

    Attributes:
        acknowledged: commit-log offset up to which it has the log; None: it has not said so yet.
        behind: bytes of the log that it does not have yet.
    """

    address: str = msgspec.field(name="addr")
    acknowledged: int | None = msgspec.field(name="slaveAckOffset", default=None)
    behind: int = msgspec.field(name="diff", default=0)
    in_sync: bool = msgspec.field(name="inSync", default=False)


class KnownReplication(msgspec.Struct):
    """The body of GET_BROKER_HA_STATUS."""

    end: int = msgspec.field(name="masterCommitLogMaxOffset", default=0)
    followers: list[ReplicaRow] = msgspec.field(name="haConnectionInfo", default_factory=list)


class BrokerReplication(msgspec.Struct, frozen=True):
    """The followers of one master.

    Attributes:
        end: commit-log offset at which its log ends; None: unknown, for the reason in *error*.
    """

    broker_name: str
    address: str
    end: int | None
    followers: list[ReplicaRow]
    error: str | None


class ClusterAdministration:
    """Shows and changes topics and groups of all brokers. Get it from `Client.administration`. Any thread may call.

    A method that may wait has a twin for tasks with the prefix ``a``: `topic_stats` and `atopic_stats`.
    """

    def __init__(self, thread: BackgroundLoop, session: Session, messages: DeadLetterSource) -> None:
        """Programs use `Client.administration` instead. *messages* is the client; requests run in *thread*'s loop."""
        self._thread = thread
        self._session = session
        self._messages = messages

    # Brokers.

    def brokers(self) -> list[BrokerRow]:
        """Return all brokers.

        Raises:
            BrokerError: no name server can be reached.
        """
        return self._thread.run(self._brokers())

    async def abrokers(self) -> list[BrokerRow]:
        """Like `brokers`, for a task."""
        return await in_thread(self.brokers)

    async def _brokers(self) -> list[BrokerRow]:
        rows = []
        for name, broker in sorted((await self._cluster()).broker_addr_table.items()):
            for broker_id, address in sorted(broker.broker_addrs.items()):
                runtime, error = None, None
                try:
                    response = await self._session.request(
                        address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
                    )
                    runtime = decoded(response.body_bytes, dict[str, dict[str, str]])["table"]
                except (BrokerError, RequestRefused, KeyError) as raised:
                    error = str(raised)
                rows.append(BrokerRow(broker.cluster, name, int(broker_id), address, runtime, error))
        return rows

    def replication(self) -> list[BrokerReplication]:
        """Return the followers of each master. RocketMQ reports them from version 5 on.

        Raises:
            BrokerError: no name server can be reached.
        """
        return self._thread.run(self._replication())

    async def areplication(self) -> list[BrokerReplication]:
        """Like `replication`, for a task."""
        return await in_thread(self.replication)

    async def _replication(self) -> list[BrokerReplication]:
        rows = []
        for name, broker in sorted((await self._cluster()).broker_addr_table.items()):
            if (address := broker.broker_addrs.get(MASTER)) is None:
                continue
            found, error = None, None
            try:
                response = await self._session.request(address, RemotingCommand(RequestCode.GET_BROKER_HA_STATUS))
                found = decoded(response.body_bytes, KnownReplication)
            except (BrokerError, RequestRefused) as raised:
                error = str(raised)
            rows.append(
                BrokerReplication(
                    name, address, None if found is None else found.end, [] if found is None else found.followers, error
                )
            )
        return rows

    async def _cluster(self) -> ClusterInfo:
        """Return all brokers, as a name server knows them."""
        response = await self._ask_name_server(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        return decoded(quoted(response.body_bytes), ClusterInfo)

    async def _ask_name_server(self, command: RemotingCommand) -> RemotingCommand:
        """Return the answer of the first name server that gives one."""
        error: Exception | None = None
        for address in self._session.target.name_servers():
            try:
                response = await self._session.invoke_address(address, command)
            except (BrokerError, TimeoutError) as raised:
                error = error or raised
                continue
            if response.code != ResponseCode.SUCCESS:
                raise refused(response)
            return response
        raise error if isinstance(error, BrokerError) else BrokerError("no name server answers in time")

    async def _masters(self) -> list[str]:
        """Return the addresses of the master brokers, which accept changes."""
        brokers = sorted((await self._cluster()).broker_addr_table.items())
        return [broker.broker_addrs[MASTER] for _, broker in brokers if MASTER in broker.broker_addrs]

    async def _on_all(self, command: RemotingCommand) -> list[RemotingCommand]:
        """Return the answers of all brokers."""
        return [await self._session.request(broker, command) for broker in await self._masters()]

    # Topics.

    def topic_names(self) -> list[str]:
        """Return the topics of all brokers, sorted by name."""
        response = self._thread.run(
            self._ask_name_server(RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        )
        return sorted(decoded(response.body_bytes, TopicList).topic_list)

    async def atopic_names(self) -> list[str]:
        """Like `topic_names`, for a task."""
        return await in_thread(self.topic_names)

    def topic_configs(self) -> list[TopicConfig]:
        """Return the topics, sorted by name; if several brokers describe one, the first broker's description."""
        return [config for _, config in sorted(self._thread.run(self._topic_configs()).items())]

    async def atopic_configs(self) -> list[TopicConfig]:
        """Like `topic_configs`, for a task."""
        return await in_thread(self.topic_configs)

    def topic_config(self, topic: str) -> TopicConfig | None:
        """Return the description of a topic; None: there is no such topic."""
        return self._thread.run(self._topic_configs()).get(topic)

    async def atopic_config(self, topic: str) -> TopicConfig | None:
        """Like `topic_config`, for a task."""
        return await in_thread(self.topic_config, topic)

    async def _topic_configs(self) -> dict[str, TopicConfig]:
        found: dict[str, TopicConfig] = {}
        for response in await self._on_all(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG)):
            table = decoded(response.body_bytes, KnownTopics).topic_config_table
            for name, known in table.items():
                found.setdefault(name, TopicConfig(**msgspec.structs.asdict(known)))
        return found

    def update_topic(self, config: TopicConfig) -> None:
        """Create or change a topic on all brokers.

        Raises:
            RequestRefused: a broker refuses.
        """
        fields = {
            "topic": config.topic_name,
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": str(config.read_queue_nums),
            "writeQueueNums": str(config.write_queue_nums),
            "perm": str(config.perm),
            "topicFilterType": config.topic_filter_type,
            "topicSysFlag": str(config.topic_sys_flag),
            "order": "true" if config.order else "false",
        }
        self._thread.run(self._on_all(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)))

    async def aupdate_topic(self, config: TopicConfig) -> None:
        """Like `update_topic`, for a task."""
        await in_thread(self.update_topic, config)

    def has_messages(self, topic: str) -> bool:
        """Return False: brokers delete a topic even if it has messages."""
        del topic
        return False

    async def ahas_messages(self, topic: str) -> bool:
        """Like `has_messages`, for a task."""
        return await in_thread(self.has_messages, topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic from all brokers and name servers.

        Raises:
            RequestRefused: the topic is unknown, or a broker refuses.
        """
        self._thread.run(self._delete_topic(topic))

    async def adelete_topic(self, topic: str) -> None:
        """Like `delete_topic`, for a task."""
        await in_thread(self.delete_topic, topic)

    async def _delete_topic(self, topic: str) -> None:
        await route_of(self._session, topic)
        await self._on_all(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))
        command = RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
        for address in self._session.target.name_servers():
            await self._session.invoke_address(address, command)

    def topic_stats(self, topic: str) -> list[QueueStats]:
        """Return a row per queue of a topic.

        Raises:
            RequestRefused: TOPIC_NOT_EXIST.
        """
        check_consumed_topic(topic)
        return self._thread.run(self._topic_stats(topic))

    async def atopic_stats(self, topic: str) -> list[QueueStats]:
        """Like `topic_stats`, for a task."""
        return await in_thread(self.topic_stats, topic)

    async def _topic_stats(self, topic: str) -> list[QueueStats]:
        rows = []
        for queue in (await route_of(self._session, topic)).readable():
            low, high = await self._range(queue)
            rows.append(QueueStats(topic, queue.queue_id, low, high, await self._store_timestamp(queue, high - 1)))
        return rows

    async def _range(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the first queue offset of a queue, and the one behind its last."""
        requests = QueueRequests(self._session, "")
        return await requests.place_of(queue, "earliest"), await requests.place_of(queue, "latest")

    async def _store_timestamp(self, queue: MessageQueue, queue_offset: int) -> int | None:
        """Return the store time of one message; None: it does not exist."""
        if queue_offset < 0:
            return None
        broker = QueueRequests(self._session, "").master(queue)
        found = await pull(self._session, broker, queue.topic, queue.queue_id, queue_offset, 1, SUBSCRIBE_ALL)
        return found[0].store_timestamp if len(found) else None

    # Groups.

    def group_config(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the description of a group; None: no broker describes it."""
        return self._thread.run(self._group_configs()).get(group)

    async def agroup_config(self, group: str) -> SubscriptionGroupConfig | None:
        """Like `group_config`, for a task."""
        return await in_thread(self.group_config, group)

    async def _group_configs(self) -> dict[str, SubscriptionGroupConfig]:
        found: dict[str, SubscriptionGroupConfig] = {}
        for response in await self._on_all(RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)):
            table = decoded(response.body_bytes, KnownGroups).subscription_group_table
            for name, known in table.items():
                found.setdefault(name, SubscriptionGroupConfig(**msgspec.structs.asdict(known)))
        return found

    def update_group(self, config: SubscriptionGroupConfig) -> None:
        """Create or change a group on all brokers.

        Raises:
            RequestRefused: a broker refuses.
        """
        check_group(config.group_name)
        known = {name: getattr(config, name) for name in KnownGroup.__struct_fields__}
        body = msgspec.json.encode(KnownGroup(**known))
        self._thread.run(self._on_all(RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)))

    async def aupdate_group(self, config: SubscriptionGroupConfig) -> None:
        """Like `update_group`, for a task."""
        await in_thread(self.update_group, config)

    def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Delete a group from all brokers, and with *clean_offsets* its offsets.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        self.require_group(group)
        flag = "true" if clean_offsets else "false"
        # RocketMQ 4 and RocketMQ 5 name this flag differently.
        fields = {"groupName": group, "removeOffset": flag, "cleanOffset": flag}
        self._thread.run(self._on_all(RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)))

    async def adelete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Like `delete_group`, for a task."""
        await in_thread(self.delete_group, group, clean_offsets=clean_offsets)

    def require_group(self, group: str) -> None:
        """Raise RequestRefused, SUBSCRIPTION_GROUP_NOT_EXIST, unless a broker knows *group* or its offsets."""
        if group not in self.progress_of_groups():
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group does not exist: group={group!r}"
            )

    async def arequire_group(self, group: str) -> None:
        """Like `require_group`, for a task."""
        await in_thread(self.require_group, group)

    def group_progress(self, group: str) -> list[GroupProgress]:
        """Return a row per queue for which a group has committed an offset.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        self.require_group(group)
        return self.progress_of_groups().get(group, [])

    async def agroup_progress(self, group: str) -> list[GroupProgress]:
        """Like `group_progress`, for a task."""
        return await in_thread(self.group_progress, group)

    def progress_of_groups(self) -> dict[str, list[GroupProgress]]:
        """Return the progress of every group that is described or has committed offsets, by name."""
        return self._thread.run(self._progress_of_groups())

    async def aprogress_of_groups(self) -> dict[str, list[GroupProgress]]:
        """Like `progress_of_groups`, for a task."""
        return await in_thread(self.progress_of_groups)

    async def _progress_of_groups(self) -> dict[str, list[GroupProgress]]:
        rows: dict[str, list[GroupProgress]] = {group: [] for group in await self._group_configs()}
        brokers = sorted((await self._cluster()).broker_addr_table.items())
        for name, broker in brokers:
            address = broker.broker_addrs.get(MASTER)
            if address is None:
                continue
            response = await self._session.request(address, RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET))
            table = decoded(quoted(response.body_bytes), KnownOffsets).offset_table
            for key, offsets in sorted(table.items()):
                topic, _, group = key.partition("@")
                for queue_id, offset in sorted(offsets.items()):
                    queue = MessageQueue(name, queue_id, topic)
                    rows.setdefault(group, []).append(await self._progress(address, group, queue, offset))
        return rows

    async def _progress(self, broker: str, group: str, queue: MessageQueue, offset: int) -> GroupProgress:
        """Return a group's row for one queue."""
        fields = queue_fields(queue)
        low, high = [
            max(number_of(await self._session.request(broker, RemotingCommand(code, fields)), "offset"), 0)
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        ]
        last = None
        if 0 < offset <= high:
            found = await pull(self._session, broker, queue.topic, queue.queue_id, offset - 1, 1, SUBSCRIBE_ALL)
            last = found[0].store_timestamp if len(found) else None
        return GroupProgress(group, queue.topic, queue.queue_id, high, offset, max(0, high - max(offset, low)), last)

    def reset_offsets(
        self, group: str, topic: str, to: Beginning, *, queue_id: int | None = None
    ) -> list[GroupProgress]:
        """Move a group in a topic: "earliest", "latest", or a store time in ms since 1970. Return a row per queue.

        Running consumers continue from there.

        Raises:
            RequestRefused: the group or topic is unknown; or *queue_id* is given while consumers run.
        """
        self.require_group(group)
        return self._thread.run(self._reset_offsets(group, topic, to, queue_id))

    async def areset_offsets(
        self, group: str, topic: str, to: Beginning, *, queue_id: int | None = None
    ) -> list[GroupProgress]:
        """Like `reset_offsets`, for a task."""
        return await in_thread(self.reset_offsets, group, topic, to, queue_id=queue_id)

    async def _reset_offsets(self, group: str, topic: str, to: Beginning, queue_id: int | None) -> list[GroupProgress]:
        route = await route_of(self._session, topic)
        requests = QueueRequests(self._session, group)
        queues = [queue for queue in route.readable() if queue_id in (None, queue.queue_id)]
        if not queues:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"the topic has no such queue: topic={topic!r} queue_id={queue_id}"
            )
        for broker in route.masters.values():
            if not await self._is_consumed(broker, group):
                continue
            if queue_id is not None:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"running consumers can only move all queues at once: group={group!r} queue_id={queue_id}",
                    "Leave out the queue, or stop the consumers first.",
                )
            timestamp = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}.get(str(to), to)
            fields = {"topic": topic, "group": group, "timestamp": str(timestamp), "isForce": "true"}
            await self._session.request(broker, RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields))
        rows = []
        for queue in queues:
            offset = await requests.place_of(queue, to)
            await requests.commit(queue, offset)
            rows.append(await self._progress(requests.master(queue), group, queue, offset))
        return rows

    def dead_letters(self, group: str) -> GroupDeadLetters:
        """Return the dead letters of a group, to read them and to put them back.

        Raises:
            ConfigError: *group* is not a text.
        """
        marks = ClusterMarks(self._thread, self._session)
        return GroupDeadLetters(self._messages, marks, group, keeps_birth=False)

    async def _is_consumed(self, broker: str, group: str) -> bool:
        """Return whether a broker knows of running consumers of a group."""
        command = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        return (await self._session.invoke(broker, command)).code == ResponseCode.SUCCESS

    def consumer_connections(self, group: str) -> list[ConsumerConnection]:
        """Return the connections of a group's consumers to all brokers."""
        return self._thread.run(self._consumer_connections(group))

    async def aconsumer_connections(self, group: str) -> list[ConsumerConnection]:
        """Like `consumer_connections`, for a task."""
        return await in_thread(self.consumer_connections, group)

    async def _consumer_connections(self, group: str) -> list[ConsumerConnection]:
        found: list[ConsumerConnection] = []
        for broker in await self._masters():
            command = RemotingCommand(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
            response = await self._session.invoke(broker, command)
            if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
                continue
            if response.code != ResponseCode.SUCCESS:
                raise refused(response)
            found += decoded(response.body_bytes, ConsumerConnections).connection_set
        return found

    def clean_offsets(self) -> list[tuple[str, str]]:
        """Refuse, because brokers have no such request.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "offsets of dead groups cannot be cleaned through a broker", "Name the store: reput group clean STORE."
        )

    async def aclean_offsets(self) -> list[tuple[str, str]]:
        """Like `clean_offsets`, for a task."""
        return await in_thread(self.clean_offsets)

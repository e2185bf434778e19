"""Broker: one store on the network. It connects the server, the processors and the services of the store.

    sockets ──▶ RemotingServer ──▶ processors ──▶ StoreEngine
                     │
                NameServer in the same table of processors, or registration with name servers elsewhere

Without a name server of its own, a broker answers for its own topics on its Unix socket only. A program that names the
store, or the socket, means this one broker. On a port, a client that mistakes the broker for a name server would take
the routes of one broker for those of the cluster; RocketMQ's brokers refuse these requests, too.

Source: RocketMQ broker, BrokerController.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from functools import partial

from reput.access.credentials import NO_CREDENTIALS, Credentials
from reput.access.protection import access_control, server_tls
from reput.broker.admin.admin_clients import AdminClientsProcessor
from reput.broker.admin.admin_configuration import AdminConfigurationProcessor
from reput.broker.admin.admin_maintenance import AdminMaintenanceProcessor
from reput.broker.admin.admin_queues import AdminQueuesProcessor
from reput.broker.admin.admin_replication import AdminReplicationProcessor
from reput.broker.admin.admin_runtime import AdminRuntimeProcessor
from reput.broker.admin.admin_topics import AdminTopicsProcessor
from reput.broker.name_server_registration import NameServerRegistration
from reput.broker.requests.broker_hooks import BrokerHooks, installed_hooks
from reput.broker.requests.client_manage import ClientManageProcessor
from reput.broker.requests.consumer_offsets import ConsumerOffsetProcessor
from reput.broker.requests.end_transaction import EndTransactionProcessor
from reput.broker.requests.kernel_sends import kernel_sends
from reput.broker.requests.pending_puts import PendingPuts
from reput.broker.requests.pull_message import PullMessageProcessor
from reput.broker.requests.query_assignment import QueryAssignmentProcessor
from reput.broker.requests.quota_gate import QuotaGate
from reput.broker.requests.reply_message import ReplyMessageProcessor
from reput.broker.requests.send_back import SendBackProcessor
from reput.broker.requests.send_message import SendMessageProcessor
from reput.broker.requests.sync_replicas import SyncReplicas
from reput.broker.state.broker_statistics import BrokerStatistics
from reput.broker.state.broker_topics import BrokerTopics, routed
from reput.broker.state.connected_clients import ConnectedClients, ConsumerGroupChannels
from reput.broker.state.expressions import Expressions
from reput.broker.state.quotas import parse_quotas
from reput.broker.state.rebalance_locks import RebalanceLocks
from reput.consume.pull.arrival_service import CONSUME_QUEUE
from reput.embedded.store_engine import StoreEngine
from reput.errors import ConfigError, RequestRefused
from reput.in_thread import in_thread
from reput.lease.held_lease import HeldLease
from reput.namesrv.name_server import NameServer, Process
from reput.namesrv.route_info import TopicRouteData
from reput.namesrv.route_info_manager import (
    LEGAL_NAME,
    RegisteredTopic,
    RegisteredVersion,
    Registration,
    RouteInfoManager,
)
from reput.remoting.connection import Connection
from reput.remoting.peer_credentials import peer_uid
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import CONNECTIONS_MAX, Guard, Processor, RemotingServer, unsupported
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.remoting.turn import Turn
from reput.replication.ha_connection import Protection
from reput.replication.ha_server import HaServer
from reput.replication.in_sync_set import InSyncSet
from reput.settings import Settings
from reput.store.config.topic_config_manager import TopicConfig

__all__ = ["Broker"]

CLIENT_LOOK_S = 10.0

logger = logging.getLogger(__name__)


class Broker:
    """Used in the thread of its loop only."""

    def __init__(
        self,
        engine: StoreEngine,
        address: str,
        *,
        embeds_name_server: bool = True,
        name_servers: Sequence[str] = (),
        connections_max: int = CONNECTIONS_MAX,
        hooks: Sequence[object] = (),
        ha_server: HaServer | None = None,
        ha_address: str | None = None,
        ha_allows_unsigned: bool = False,
        lease: HeldLease | None = None,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """Prepare to serve *engine*. Clients reach the broker at *address*, ``host:port``.

        Args:
            embeds_name_server: also answer requests to a name server; otherwise only those for routes, and only on
                Unix sockets.
            name_servers: addresses of name servers to register with.
            connections_max: maximum number of connections; further ones are closed.
            hooks: modules or objects with hooks of `reput_hooks`, in addition to the setting broker_hooks.
            ha_server, ha_address: serves the followers of the log, and where they reach it; None: there is none.
            ha_allows_unsigned: with accounts, also followers without one may copy the log.
            lease: by which this broker is the master; without it, it answers nothing. None: a person decides.
            credentials: the account, and the encryption, with which it registers at the *name_servers*.

        Raises:
            ConfigError: the certificate, the file of accounts, a hook or a name cannot be used.
        """
        check_names(engine.settings)
        self.engine = engine
        self.settings = engine.settings
        self.address = address
        self.loop = asyncio.get_running_loop()
        services = engine.services
        self.topics = BrokerTopics(services.topics, self.settings)
        self.locks = RebalanceLocks(self.loop.time)
        self.turn = turn = Turn()
        self.ha_server = ha_server
        self.ha_address = ha_address
        self.replicas = None
        self.lease = lease
        self.in_sync = None
        if lease is not None:
            assert ha_server is not None
            self.in_sync = InSyncSet(lease, ha_server, engine, self.settings)
        if self.settings.broker_role == "SYNC_MASTER":
            self.replicas = SyncReplicas(ha_server, self.settings, turn, self.in_sync)
        self.puts = PendingPuts(engine, turn, self.replicas)
        self.clients = ConnectedClients(
            services.consumer_manager,
            self.loop.time,
            self.group_changed,
            lambda group: self.transactions.producer_came(group),
        )
        self.transactions = EndTransactionProcessor(engine, self.clients)
        self.sends = SendMessageProcessor(engine, self.puts, self.topics, self.locks, self.transactions.half_stored)
        self.replies = ReplyMessageProcessor(self.sends, self.puts, self.clients)
        self.statistics = BrokerStatistics(engine, self.loop.time)
        self.quotas = parse_quotas(self.settings.broker_quotas)
        expressions = Expressions(self.loop.time)
        self.pulls = PullMessageProcessor(engine, self.statistics, expressions)
        self.client_manage = ClientManageProcessor(
            self.clients, services.groups, self.topics, self.locks, self.settings, expressions
        )
        self.routes = RouteInfoManager(self.loop.time)
        self.name_server = NameServer(self.routes)
        self.embeds_name_server = embeds_name_server
        self.registration = NameServerRegistration(
            name_servers,
            address,
            ha_address,
            self.settings,
            services.managers.topics,
            self.is_current,
            credentials,
        )
        self.assignments = QueryAssignmentProcessor(self.clients, self.find_route)
        services.topics.on_change = self.topic_changed
        self.tls = server_tls(self.settings)
        self.access = access_control(engine.directory, self.settings)
        self.offsets = ConsumerOffsetProcessor(engine, self.access)
        self.send_backs = SendBackProcessor(engine, self.access)
        if ha_server is not None:
            check = None if self.access is None else self.access.check_follower
            ha_server.protection = Protection(self.tls, check, ha_allows_unsigned, self.held_epoch)
        hooks = [*hooks, *installed_hooks([name for name in self.settings.broker_hooks.split(",") if name])]
        processors = self.processors()
        # Without quotas nothing stands between a request and its processor.
        self.gate = QuotaGate(self.quotas, self.loop.time) if self.quotas else None
        if self.gate is not None:
            processors = self.gate.around(processors)
        guard = self.guard()
        # What hooks, quotas, accounts and a lease may refuse is decoded in Python.
        is_plain = not hooks and self.gate is None and guard is None
        compiled = kernel_sends(self.sends, self.puts, turn) if is_plain else None
        self.server = RemotingServer(
            BrokerHooks(hooks).around(processors) if hooks else processors,
            on_closed=self.connection_lost,
            turn=turn,
            guard=guard,
            tls=self.tls,
            connections_max=connections_max,
            admit=None if self.gate is None else self.gate.admit,
            frame_taker=None if compiled is None else compiled.take,
        )
        self.timer = self.loop.call_later(CLIENT_LOOK_S, self.look)
        self.register()
        self.transactions.begin()

    def processors(self) -> Mapping[int, Processor]:
        """Return the processor of each request code."""
        offsets, clients = self.offsets, self.client_manage

        def waits() -> bool:
            return not self.engine.has_begun(CONSUME_QUEUE)

        table: dict[int, Processor] = {
            RequestCode.SEND_MESSAGE: Processor(self.sends.send),
            RequestCode.SEND_MESSAGE_V2: Processor(self.sends.send),
            RequestCode.SEND_BATCH_MESSAGE: Processor(self.sends.send),
            RequestCode.SEND_REPLY_MESSAGE: Processor(self.replies.send_reply),
            RequestCode.SEND_REPLY_MESSAGE_V2: Processor(self.replies.send_reply),
            RequestCode.PULL_MESSAGE: Processor(self.pulls.pull),
            RequestCode.LITE_PULL_MESSAGE: Processor(self.pulls.pull),
            RequestCode.QUERY_MESSAGE: Processor(offsets.query_message, in_thread=True),
            RequestCode.VIEW_MESSAGE_BY_ID: Processor(offsets.view_message, in_thread=True),
            RequestCode.QUERY_CONSUMER_OFFSET: Processor(offsets.query, in_thread=waits),
            RequestCode.UPDATE_CONSUMER_OFFSET: Processor(offsets.update),
            RequestCode.GET_MAX_OFFSET: Processor(offsets.max_offset, in_thread=waits),
            RequestCode.GET_MIN_OFFSET: Processor(offsets.min_offset, in_thread=waits),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Processor(offsets.by_time, in_thread=True),
            RequestCode.GET_EARLIEST_MSG_STORETIME: Processor(offsets.earliest_time, in_thread=True),
            RequestCode.GET_ALL_CONSUMER_OFFSET: Processor(offsets.all_offsets),
            RequestCode.HEART_BEAT: Processor(clients.heartbeat),
            RequestCode.UNREGISTER_CLIENT: Processor(clients.unregister),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: Processor(clients.consumer_list),
            RequestCode.CHECK_CLIENT_CONFIG: Processor(clients.check_client),
            RequestCode.QUERY_ASSIGNMENT: Processor(self.assignments.query),
            RequestCode.LOCK_BATCH_MQ: Processor(clients.lock),
            RequestCode.UNLOCK_BATCH_MQ: Processor(clients.unlock),
            RequestCode.CONSUMER_SEND_MSG_BACK: Processor(self.send_backs.send_back, in_thread=True),
            RequestCode.END_TRANSACTION: Processor(self.transactions.end, in_thread=True),
        }
        table.update(self.admin_processors())
        if self.embeds_name_server:
            return {**self.name_server.processors(), **table}
        local = {
            code: Processor(partial(answer_locally, read)) for code, read in self.name_server.route_reads().items()
        }
        return {**local, **table}

    def admin_processors(self) -> Mapping[int, Processor]:
        """Return the processor of each administrator's request."""
        engine = self.engine
        return {
            **AdminTopicsProcessor(engine, self.topics).processors(),
            **AdminQueuesProcessor(engine, self.statistics).processors(),
            **AdminClientsProcessor(engine, self.clients, self.access).processors(),
            **AdminConfigurationProcessor(
                engine, self.topics, self.sends, self.client_manage, self.registration, self.permission_changed
            ).processors(),
            **AdminMaintenanceProcessor(engine).processors(),
            **AdminReplicationProcessor(engine, self.ha_server, self.address, self.ha_address).processors(),
            **AdminRuntimeProcessor(
                engine, self.statistics, lambda: self.server.queued_count, self.quotas
            ).processors(),
        }

    async def start(self) -> None:
        """Register with the name servers elsewhere, and begin to look after the in-sync set."""
        if self.in_sync is not None:
            self.in_sync.start()
        await self.registration.start()

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections on a bound socket."""
        await self.server.listen(listener)

    # The lease.

    def is_current(self) -> bool:
        """Tell whether no other broker can have become the master in this one's place."""
        return self.lease is None or self.lease.holds()

    def held_epoch(self) -> int | None:
        """Return the epoch of the lease, None if there is none, or it is lost. Any thread may call."""
        return self.lease.epoch if self.lease is not None and self.lease.holds() else None

    def guard(self) -> Guard | None:
        """Return what refuses requests before their processor."""
        check = None if self.access is None else self.access.check
        if self.lease is None:
            return check

        def refuse(connection: Connection, request: RemotingCommand) -> None:
            if not self.is_current():
                raise RequestRefused(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    "this broker is not the master any more: its lease has ended",
                    "Ask the name server for the next master.",
                )
            if check is not None:
                check(connection, request)

        return refuse

    # Clients.

    def group_changed(self, group: str, channels: ConsumerGroupChannels) -> None:
        """Tell the connections of a group that the group has changed."""
        self.client_manage.group_changed(group, channels)

    def connection_lost(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        if self.gate is not None:
            self.gate.connection_lost(connection)
        self.pulls.connection_lost(connection)
        self.clients.connection_lost(connection)
        self.routes.connection_lost(connection)

    def look(self) -> None:
        """End the connections of clients that send no heartbeats."""
        self.timer = self.loop.call_later(CLIENT_LOOK_S, self.look)
        self.clients.drop_silent()
        self.loop.run_in_executor(None, self.statistics.sample)

    def reload(self) -> None:
        """Read the certificate and the accounts again. If one cannot be used, log that, and keep the former one."""
        for read in (self.tls, self.access):
            try:
                if read is not None:
                    read.reload()
            except ConfigError as error:
                logger.error("the former configuration stays in use: error=%s", error)

    # Routes.

    async def find_route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic over all brokers, None if it has none."""
        return await self.registration.route(topic) if self.registration.addresses else self.routes.route(topic)

    def register(self) -> None:
        """Register this broker, with all its topics, at the name server beside it."""
        manager = self.engine.services.managers.topics
        settings = self.settings
        version = manager.data_version
        self.routes.register(
            Registration(
                settings.broker_cluster_name,
                settings.broker_name,
                settings.broker_id,
                self.address,
                ha_address=self.ha_address or "",
                topics={name: self.registered(config) for name, config in list(manager.entries.items())},
                data_version=RegisteredVersion(version.counter, 0, version.timestamp),
            )
        )

    def topic_changed(self, topic: str) -> None:
        """Tell the name server that a topic was created, changed or deleted. Any thread may call."""
        self.loop.call_soon_threadsafe(self.register_topic, topic)

    def register_topic(self, topic: str) -> None:
        """Register the present description of one topic."""
        config = self.engine.services.managers.topics.entries.get(topic)
        if config is None:
            self.routes.remove_topic(topic, self.settings.broker_name)
        else:
            self.routes.set_topic(self.settings.broker_name, self.registered(config))
        self.registration.topic_changed()

    def registered(self, config: TopicConfig) -> RegisteredTopic:
        """Return a topic in the form in which it is registered."""
        config = routed(config, self.engine.settings)
        return RegisteredTopic(
            config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag
        )

    def permission_changed(self) -> None:
        """Register all topics again, because the broker's permission is part of theirs."""
        self.engine.services.managers.topics.touch()
        self.register()
        self.registration.topic_changed()

    # The end.

    async def drain(self) -> None:
        """Refuse further messages so that clients go to other brokers, and answer the accepted ones."""
        self.sends.is_draining = True
        await self.server.stop_listening()
        await self.registration.end()
        settings = self.settings
        self.routes.unregister(settings.broker_name, settings.broker_id, self.address)
        await self.puts.settled()
        await self.server.settled()

    async def leave(self) -> None:
        """Stop as a broker whose place another takes, or which takes another place: nothing waits, none unregisters."""
        self.sends.is_draining = True
        await self.server.stop_listening()
        if self.replicas is not None:
            self.replicas.end()

    async def close(self) -> None:
        """Stop accepting, answer the requests under way, and end all connections. The store stays open."""
        self.timer.cancel()
        if self.in_sync is not None:
            await in_thread(self.in_sync.stop)
        if self.access is not None:
            self.access.close()
        self.name_server.close()
        await self.server.close()


def check_names(settings: Settings) -> None:
    """Refuse names under which a broker cannot register.

    Raises:
        ConfigError: the text names the setting.
    """
    for name in ("broker_name", "broker_cluster_name"):
        value = getattr(settings, name)
        if not LEGAL_NAME.fullmatch(value):
            raise ConfigError(
                f"a broker's name has 1 to 255 letters, digits and %|_.-: {name}={value[:300]!r}", "Set another name."
            )


def answer_locally(process: Process, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
    """Answer a request that came through a Unix socket; on a port it is not supported."""
    assert connection.transport is not None
    return unsupported(request) if peer_uid(connection.transport) is None else process(request, connection)

"""AdminReplicationProcessor: who follows this log, for `mqadmin haStatus`, and what slaves ask beside the log.

    60, 61, 402                      see `RocketmqState`
    906    EXCHANGE_BROKER_HA_INFO   where the log is copied from, asked by slaves before they go online
    907    GET_BROKER_HA_STATUS      followers, with what they have acknowledged
    52001  REPUT_GET_HISTORY         store id, epoch and marks; RocketMQ's slaves never ask

Topics, groups, offsets and delays are answered by the processors of topics, queues and offsets.

Source: RocketMQ broker 5, AdminBrokerProcessor.getBrokerHaStatus, exchangeBrokerHaInfo, getTimerCheckPoint and
getTimerMetrics, QueryAssignmentProcessor; store, HARuntimeInfo.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from reput.broker.admin.admin_bodies import json_response
from reput.embedded.store_engine import StoreEngine
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.replication.ha_server import HaServer
from reput.replication.log_history import LogHistory
from reput.replication.rocketmq_state import RocketmqState
from reput.store.disk.shortages import tell_store_error

__all__ = ["AdminReplicationProcessor"]

# This broker is the client of no other.
NO_CLIENT = {
    "activateTime": 0,
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
    "maxOffset": 0,
    "transferredByteInSecond": 0,
}

logger = logging.getLogger(__name__)


class AdminReplicationProcessor:
    """Used in the thread of the broker's loop only."""

    def __init__(self, engine: StoreEngine, ha_server: HaServer | None, address: str, ha_address: str | None) -> None:
        """Clients reach the broker at *address*, followers at *ha_address*; None: the broker has no HA port."""
        self.engine = engine
        self.ha_server = ha_server
        self.address = address
        self.ha_address = ha_address
        self.state = RocketmqState(engine.directory, engine.started)
        # RocketMQ tells a slave where the master's log ended when the master started.
        self.end_at_start = engine.appended

    def processors(self) -> Mapping[int, Processor]:
        """Return what answers each request."""
        state = Processor(self.rocketmq_state, in_thread=True)
        return {
            RequestCode.GET_TIMER_CHECK_POINT: state,
            RequestCode.GET_TIMER_METRICS: state,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: state,
            RequestCode.EXCHANGE_BROKER_HA_INFO: Processor(self.ha_info),
            RequestCode.GET_BROKER_HA_STATUS: Processor(self.ha_status),
            RequestCode.REPUT_GET_HISTORY: Processor(self.history),
        }

    def rocketmq_state(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_TIMER_CHECK_POINT, GET_TIMER_METRICS and GET_ALL_MESSAGE_REQUEST_MODE."""
        del connection
        with tell_store_error(f"a file of the configuration cannot be read: store={self.engine.directory}"):
            return RemotingCommand(ResponseCode.SUCCESS, body=self.state.body(request.code))

    def ha_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer EXCHANGE_BROKER_HA_INFO.

        A RocketMQ slave moves to the master that such a request names. Here the operator names the master, because
        anyone may send the request.
        """
        named = request.ext_fields.get("masterHaAddress")
        if named is not None:
            logger.warning(
                "a broker names itself the master, which changes nothing: ha_address=%.100s peer=%s",
                named,
                connection.peer,
            )
            return RemotingCommand(ResponseCode.SUCCESS)
        if self.engine.settings.broker_id != 0:
            return RemotingCommand(ResponseCode.SUCCESS)
        fields = {"masterAddress": self.address, "masterFlushOffset": str(self.end_at_start)}
        if self.ha_address is not None:
            fields["masterHaAddress"] = self.ha_address
        return RemotingCommand(ResponseCode.SUCCESS, fields)

    def ha_status(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_BROKER_HA_STATUS."""
        del request, connection
        end = self.engine.log_end()
        behind_max = self.engine.settings.ha_slave_fallbehind_max
        rows = [
            {
                "addr": row.address,
                "diff": end - (row.acknowledged or 0),
                "inSync": end - (row.acknowledged or 0) <= behind_max,
                "slaveAckOffset": row.acknowledged,
                "transferFromWhere": row.sent,
                "transferredByteInSecond": 0,
            }
            for row in (() if self.ha_server is None else self.ha_server.followers())
        ]
        return json_response(
            {
                "haClientRuntimeInfo": NO_CLIENT,
                "haConnectionInfo": rows,
                "inSyncSlaveNums": sum(bool(row["inSync"]) for row in rows),
                "master": self.engine.delivers,
                "masterCommitLogMaxOffset": end,
            }
        )

    def history(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer REPUT_GET_HISTORY."""
        del request, connection
        return json_response(LogHistory.of(self.engine.writer.epochs))

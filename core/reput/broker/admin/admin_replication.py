"""AdminReplicationProcessor: who follows this log, for `mqadmin haStatus`, and its history, for reputs that follow it.

    907    GET_BROKER_HA_STATUS      followers, with what they have acknowledged
    52001  REPUT_GET_HISTORY         store id, epoch and marks; RocketMQ's slaves never ask

Source: RocketMQ broker 5, AdminBrokerProcessor.getBrokerHaStatus; store, HARuntimeInfo.
"""

from __future__ import annotations

from collections.abc import Mapping

from reput.broker.admin.admin_bodies import json_response
from reput.embedded.store_engine import StoreEngine
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor
from reput.remoting.request_code import RequestCode
from reput.replication.ha_server import HaServer
from reput.replication.log_history import LogHistory

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


class AdminReplicationProcessor:
    """Used in the thread of the broker's loop only."""

    def __init__(self, engine: StoreEngine, ha_server: HaServer | None) -> None:
        """*ha_server*: None: the broker has no HA port."""
        self.engine = engine
        self.ha_server = ha_server

    def processors(self) -> Mapping[int, Processor]:
        """Return what answers each request."""
        return {
            RequestCode.GET_BROKER_HA_STATUS: Processor(self.ha_status),
            RequestCode.REPUT_GET_HISTORY: Processor(self.history),
        }

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

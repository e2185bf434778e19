"""EndTransactionProcessor: the clients' commits and rollbacks, and the broker's questions about unsettled transactions.

    half message, unsettled ──▶ CHECK_TRANSACTION_STATE to a connection of its producer group ──▶ END_TRANSACTION

Source: RocketMQ broker, EndTransactionProcessor, AbstractTransactionalMessageCheckListener and Broker2Client.
"""

from __future__ import annotations

import asyncio
import logging

from reput.broker.state.connected_clients import ConnectedClients
from reput.consume.delivery.transaction_messages import TransactionState
from reput.embedded.store_engine import StoreEngine
from reput.errors import ReputError, RequestRefused, StoreError
from reput.remoting.connection import Connection
from reput.remoting.custom_header import text, truth, whole
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.record.properties import encode_properties
from reput.store.record.record import encode_address, encode_record
from reput_hooks import Record

__all__ = ["EndTransactionProcessor"]

logger = logging.getLogger(__name__)


class EndTransactionProcessor:
    """`end` runs in threads, everything else in the thread of the broker's loop."""

    def __init__(self, engine: StoreEngine, clients: ConnectedClients) -> None:
        self.engine = engine
        self.clients = clients
        self.loop = asyncio.get_running_loop()

    def end(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Answer END_TRANSACTION."""
        del connection
        fields = request.ext_fields
        group = text(fields, "producerGroup")
        queue_offset = whole(fields, "tranStateTableOffset", is_long=True)
        offset = whole(fields, "commitLogOffset", is_long=True)
        state = whole(fields, "commitOrRollback")
        if state not in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            # The sender does not know yet; it will be asked again.
            return None
        try:
            self.engine.transactional_messages.end(
                group,
                offset,
                queue_offset,
                TransactionState(state),
                from_check=truth(fields, "fromTransactionCheck"),
            )
        except StoreError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return RemotingCommand(ResponseCode.SUCCESS)

    # Questions.

    def begin(self) -> None:
        """Load, in a thread, the transactions that were unsettled when the broker last ended."""
        if self.engine.half_messages() != 0:
            self.loop.run_in_executor(None, self.load)

    def load(self) -> None:
        """Read the open transactions."""
        try:
            _ = self.engine.transactional_messages
        except ReputError as error:
            logger.error("open transactions cannot be read: error=%s", error)

    def producer_came(self, group: str) -> None:
        """Ask a producer group from now on about its unsettled transactions."""
        if self.engine.transacting is not None or self.engine.half_messages() != 0:
            self.loop.run_in_executor(None, self.ask_about, group)

    def half_stored(self, group: str) -> None:
        """Ask a producer group from now on that has stored its first half message. Runs in threads."""
        if group not in self.engine.transactional_messages.checks.checkers:
            self.ask_about(group)

    def ask_about(self, group: str) -> None:
        """Let the service of transactions ask a producer group."""
        try:
            self.engine.transactional_messages.checks.is_there = self.clients.has_producer
            self.engine.transactions.on_check(group, self.ask)
        except ReputError as error:
            logger.error("a producer group cannot be asked: group=%r error=%s", group, error)

    def ask(self, half: Record) -> None:
        """Ask a client of the half message's group whether to commit it. The answer comes as END_TRANSACTION."""
        self.loop.call_soon_threadsafe(self.send_question, half)

    def send_question(self, half: Record) -> None:
        """Send CHECK_TRANSACTION_STATE."""
        group = half.properties.get("PGROUP", "")
        channel = self.clients.next_producer(group)
        if channel is None:
            logger.info("no producer of the group is connected, so the broker asks later: group=%r", group)
            return
        uniq_key = half.properties.get("UNIQ_KEY", "")
        fields = {
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.commit_log_offset),
            "msgId": uniq_key,
            "transactionId": uniq_key,
            "offsetMsgId": half.message_id,
            "topic": half.topic,
        }
        channel.connection.notify(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, fields, record_bytes(half)))


def record_bytes(record: Record) -> bytes:
    """Return a half message, whose topic and queue have been replaced, as the log would hold it.

    The property WAIT is false, as in RocketMQ, which puts the half message again before it asks.
    """
    return encode_record(
        topic=record.topic.encode(),
        queue_id=record.queue_id,
        body=record.body,
        properties=encode_properties({**record.properties, "WAIT": "false"}),
        flag=record.flag,
        queue_offset=record.queue_offset,
        commit_log_offset=record.commit_log_offset,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=encode_address(record.born_host),
        store_timestamp=record.store_timestamp,
        store_host=encode_address(record.store_host),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )

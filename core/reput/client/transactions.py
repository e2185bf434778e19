"""Transactions through brokers: messages that are delivered only when their sender commits them.

    put_half ──▶ half message, at a broker ──┬─ commit ───▶ delivered
                                             ├─ rollback ─▶ gone
                                             └─ neither: the broker asks a client of the producer group

Source: RocketMQ client, DefaultMQProducerImpl.sendMessageInTransaction, endTransaction and checkTransactionState.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from reput.argument_checks import require_messages, require_text
from reput.client.background_loop import ThreadOutcome
from reput.client.routes import DEFAULT_TOPIC
from reput.client.sending import prepare
from reput.client.sessions import Background, Sessions
from reput.consume.delivery.transaction_messages import SETTLING, HalfMessage, TransactionState, require_half
from reput.consume.registry.subscription_groups import check_group
from reput.errors import BrokerError, ConfigError, MessageIllegal, ReputError
from reput.in_thread import in_thread
from reput.remoting.connection import Connection
from reput.remoting.heartbeat import HeartbeatData, ProducerData
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.store.record.message import Message, PutMessageResult
from reput.store.record.record import decode_host
from reput.store.record.sent_record import sent_record
from reput_hooks import Record

__all__ = ["Checker", "Transactions"]

Checker = Callable[[Record], TransactionState | None]
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class Transactions:
    """The transactions of one client. Get it from `Client.transactions`. Any thread and any task may call.

    A method that may wait has a coroutine twin with the prefix ``a``: `commit` and `acommit`.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._checkers: dict[str, Checker] = {}
        # The producer groups that were announced to brokers.
        self._groups: set[str] = set()

    def put_half(self, producer_group: str, message: Message) -> HalfMessage:
        """Store *message* so that consumers do not see it before it is committed.

        Raises:
            RequestRefused: the broker accepts no transactions, or the group's name is illegal.
            MessageIllegal: the message breaks a limit, or has a delay, which transactions do not support.
            BrokerError: no broker can be reached.
        """
        require_messages([message])
        check_group(producer_group)
        if message.delay_level or (message.properties and "DELAY" in message.properties):
            raise MessageIllegal(f"a transaction's message cannot be delayed: delay_level={message.delay_level}")
        outcome = ThreadOutcome()
        sending = prepare(message, producer_group, outcome, self._sessions.born_host)
        sending.properties += b"TRAN_MSG\x01true\x02PGROUP\x01%b\x02" % producer_group.encode()
        sending.is_alone = True
        background = self._sessions.background()
        sender = background.sender
        background.thread.call(lambda: sender.put(sending))
        result: PutMessageResult = outcome.wait()
        background.thread.run(self._join(background, producer_group))
        return HalfMessage(producer_group, result.commit_log_offset, result.queue_offset, sending.uniq_key, result)

    async def aput_half(self, producer_group: str, message: Message) -> HalfMessage:
        """Like `put_half`, for a task."""
        return await in_thread(self.put_half, producer_group, message)

    def commit(self, half: HalfMessage) -> None:
        """Deliver a half message, exactly once.

        Raises:
            RequestRefused: the transaction is settled already, or was never begun.
            BrokerError: the broker cannot be reached; the transaction is still open.
        """
        require_half(half)
        self._run(self._end(half, TransactionState.COMMIT))

    async def acommit(self, half: HalfMessage) -> None:
        """Like `commit`, for a task."""
        await in_thread(self.commit, half)

    def rollback(self, half: HalfMessage) -> None:
        """Settle a transaction without delivering its half message; the errors are those of `commit`."""
        require_half(half)
        self._run(self._end(half, TransactionState.ROLLBACK))

    async def arollback(self, half: HalfMessage) -> None:
        """Like `rollback`, for a task."""
        await in_thread(self.rollback, half)

    def on_check(self, producer_group: str, checker: Checker | None) -> None:
        """Set the function that answers a broker's questions about unsettled transactions of a group; None: remove it.

        *checker* is called in a thread with the half message, which has its real topic and queue id. COMMIT and
        ROLLBACK settle the transaction. After any other result or an exception, the broker asks again later, and may
        then ask another client of the group.
        """
        require_text("producer_group", producer_group)
        check_group(producer_group)
        if checker is not None and not callable(checker):
            raise ConfigError(f"a checker must be callable: checker={checker!r}", "Give a function, or None.")
        if checker is None:
            self._checkers.pop(producer_group, None)
            return
        self._checkers[producer_group] = checker
        background = self._sessions.background()
        background.thread.run(self._join(background, producer_group))

    async def aon_check(self, producer_group: str, checker: Checker | None) -> None:
        """Like `on_check`, for a task."""
        await in_thread(self.on_check, producer_group, checker)

    # In the background's loop.

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the background's loop."""
        return self._sessions.background().thread.run(coroutine)

    async def _join(self, background: Background, group: str) -> None:
        """Tell brokers that this client belongs to a producer group, so that they ask it."""
        session = background.session
        session.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._asked
        session.heartbeat = self._heartbeat
        if group not in self._groups:
            self._groups.add(group)
            if not session.routes.known:
                # A broker asks over an existing connection; the default topic's route lists the brokers to connect to.
                with contextlib.suppress(ReputError):
                    await session.routes.to_send(DEFAULT_TOPIC)
            await session.send_heartbeats()

    def _heartbeat(self) -> HeartbeatData:
        """Return the body of a heartbeat."""
        groups = [ProducerData(group) for group in sorted(self._groups)]
        return HeartbeatData(self._sessions.background().session.client_id, groups, [])

    async def _end(self, half: HalfMessage, state: TransactionState) -> None:
        """Settle a transaction at the broker that has its half message."""
        broker = decode_host(half.result.store_host)
        command = end_command(
            half.producer_group, half.commit_log_offset, half.queue_offset, half.transaction_id, state, is_check=False
        )
        await self._sessions.background().session.request(broker, command)

    def _asked(self, connection: Connection, request: RemotingCommand) -> None:
        """Ask the checker about a transaction, in a thread."""
        asyncio.get_running_loop().run_in_executor(None, self._check, connection, request)

    def _check(self, connection: Connection, request: RemotingCommand) -> None:
        """Ask the group's checker, and answer. In a thread."""
        try:
            half = sent_record(request.body_bytes)
            group = half.properties.get("PGROUP", "")
            fields = request.ext_fields
            offset, queue_offset = int(fields["commitLogOffset"]), int(fields["tranStateTableOffset"])
        except (BrokerError, ReputError, KeyError, ValueError) as error:
            logger.warning(
                "a broker's question about a transaction cannot be read: peer=%s error=%s", connection.peer, error
            )
            return
        checker = self._checkers.get(group)
        if checker is None:
            return
        try:
            state = checker(half)
        except Exception:
            logger.exception("a checker has failed, so the broker asks again: producer_group=%s", group)
            return
        if state in SETTLING:
            command = end_command(
                group,
                offset,
                queue_offset,
                fields.get("transactionId", ""),
                TransactionState(state),
                is_check=True,
            )
            connection.loop.call_soon_threadsafe(connection.notify, command)


def end_command(
    group: str,
    commit_log_offset: int,
    queue_offset: int,
    transaction_id: str,
    state: TransactionState,
    *,
    is_check: bool,
) -> RemotingCommand:
    """Return END_TRANSACTION."""
    return RemotingCommand(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": group,
            "tranStateTableOffset": str(queue_offset),
            "commitLogOffset": str(commit_log_offset),
            "commitOrRollback": str(int(state)),
            "fromTransactionCheck": "true" if is_check else "false",
            "msgId": transaction_id,
            "transactionId": transaction_id,
        },
    )

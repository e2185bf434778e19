"""TransactionService: messages that are stored first and delivered only when their sender commits them.

    put_half ─▶ RMQ_SYS_TRANS_HALF_TOPIC ──┬─ commit ───▶ real topic and queue  +  op record, under one lock
                     ▲      │              └─ rollback ─▶ op record
                     └──────┘ the sender does neither: it is asked, and the half message appended again with a
                              higher count; after transaction_check_max times it goes to TRANS_CHECK_MAX_TIME_TOPIC

    with reput.open("store") as store:
        transactions = store.transactions
        transactions.on_check("billing", lambda half: TransactionState.COMMIT if paid(half) else None)
        half = transactions.put_half("billing", reput.Message("orders", b"..."))
        ...
        transactions.commit(half)

Source: RocketMQ broker, TransactionalMessageServiceImpl, EndTransactionProcessor.
"""

from __future__ import annotations

import msgspec

from reput.argument_checks import require_messages, require_text
from reput.consume.delivery.carried_message import carried_message, carried_properties
from reput.consume.delivery.half_messages import (
    CHECK_TIMES,
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    identity_of,
    names_real_queue,
)
from reput.consume.delivery.open_transactions import OPENED_AGAIN
from reput.consume.delivery.transaction_checks import Checker
from reput.consume.delivery.transaction_messages import (
    HalfMessage,
    TransactionState,
    half_message,
    require_half,
)
from reput.consume.delivery.transactional_message_service import TransactionalMessageService
from reput.errors import ConfigError, MessageIllegal, RequestRefused
from reput.in_thread import in_thread
from reput.remoting.response_code import ResponseCode
from reput.store.record.message import Message, PutMessageResult, message_properties
from reput_hooks import Record

__all__ = ["TransactionService"]


class TransactionService:
    """The transactions of one store. Get it from `Store.transactions`. Any thread and any task may call.

    A half message is stored, but delivered only when its transaction is committed. Open transactions survive a restart.

    A method that may wait has a coroutine twin with the prefix ``a``: `commit` and `acommit`.
    """

    def __init__(self, service: TransactionalMessageService) -> None:
        """Programs use `Store.transactions` instead."""
        self._service = service
        self._writer = service.writer
        self._settings = service.settings
        self._open = service.open_transactions

    def put_half(self, producer_group: str, message: Message) -> HalfMessage:
        """Store *message* so that consumers do not see it before it is committed.

        Raises:
            RequestRefused: NO_PERMISSION; the store takes no transactions (``reject_transaction_message``).
            MessageIllegal: it breaks a limit, or has a delay, which transactions do not support.
            StoreError: as `Store.put`.
        """
        if self._settings.reject_transaction_message:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, "the store takes no transactions: reject_transaction_message=True"
            )
        require_messages([message])
        level = self._writer.delay_levels.level_of(message)
        message_properties(message)
        if level:
            raise MessageIllegal(f"a transaction's message cannot be delayed: delay_level={level}")
        if not isinstance(producer_group, str) or not producer_group:
            raise MessageIllegal(
                f"a transaction names the group that is asked about it: producer_group={producer_group!r}"
            )
        if message.topic in (HALF_TOPIC, OP_TOPIC):
            raise MessageIllegal(f"internal topics of transactions take no transactions: topic={message.topic!r}")
        message = self._writer.topic_table.with_queue(message)
        half = half_message(message, producer_group, self._writer.born_host)
        # If the real topic would refuse the message, refuse it now and not at the commit.
        self._writer.preparer.prepare(msgspec.structs.replace(half, topic=message.topic, queue_id=message.queue_id))
        with self._open.changed:
            transaction, result = self._open.append(half)
        result = self._writer.forced(result)
        assert transaction.identity[0] is not None
        return HalfMessage(
            producer_group, result.commit_log_offset, result.queue_offset, transaction.identity[0], result
        )

    async def aput_half(self, producer_group: str, message: Message) -> HalfMessage:
        """Like `put_half`, for a task."""
        return await in_thread(self.put_half, producer_group, message)

    def commit(self, half: HalfMessage) -> PutMessageResult:
        """Deliver a half message, exactly once, and return where it is stored.

        Raises:
            RequestRefused: the transaction is settled already, or was never begun.
            StoreReadOnly: the disk refused to force the log; the next opening shows whether it is settled.
            StoreError: it could not be stored; the transaction is still open.
        """
        require_half(half)
        result = self._end(half, TransactionState.COMMIT)
        assert result is not None
        return result

    async def acommit(self, half: HalfMessage) -> PutMessageResult:
        """Like `commit`, for a task. It is settled also if the task is cancelled meanwhile."""
        return await in_thread(self.commit, half)

    def rollback(self, half: HalfMessage) -> None:
        """Settle a transaction without delivering its half message.

        Raises:
            RequestRefused: the transaction is settled already, or was never begun.
            StoreError: the op record could not be stored; the transaction is still open.
        """
        require_half(half)
        self._end(half, TransactionState.ROLLBACK)

    async def arollback(self, half: HalfMessage) -> None:
        """Like `rollback`, for a task. It is settled also if the task is cancelled meanwhile."""
        await in_thread(self.rollback, half)

    def on_check(self, producer_group: str, checker: Checker | None) -> None:
        """Ask *checker* about unsettled transactions of a group; None: stop asking.

        A thread of the store calls it with the half message, which has its real topic and queue id, but the offsets of
        its copy in the half topic. COMMIT and ROLLBACK settle the transaction. After any other result or an exception,
        it is asked again after ``transaction_check_interval``. After ``transaction_check_max`` times the transaction is
        given up: see `resume`. Transactions of groups without a checker wait for ``file_reserved_time`` at most.
        """
        require_text("producer_group", producer_group)
        if checker is not None and not callable(checker):
            raise ConfigError(f"a checker must be callable: checker={checker!r}", "Give a function, or None.")
        self._service.checks.set_checker(producer_group, checker)

    async def aon_check(self, producer_group: str, checker: Checker | None) -> None:
        """Like `on_check`, for a task."""
        await in_thread(self.on_check, producer_group, checker)

    def resume(self, discarded: Record) -> None:
        """Open a transaction again that was given up. Its checker is asked as often as before.

        Args:
            discarded: its half message, read from the topic ``TRANS_CHECK_MAX_TIME_TOPIC``.

        Raises:
            RequestRefused: SYSTEM_ERROR; it is not such a message, or its transaction is open.
            StoreError: it could not be stored.
        """
        if discarded.topic != DISCARDED_TOPIC or not names_real_queue(discarded):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the message is no half message that was given up: topic={discarded.topic!r} "
                f"message_id={discarded.message_id}",
                f"Name a message of {DISCARDED_TOPIC}.",
            )
        properties = carried_properties(discarded) | {CHECK_TIMES: OPENED_AGAIN}
        with self._open.changed:
            if identity_of(discarded) in self._open.pending:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"the transaction is open: message_id={discarded.message_id}"
                )
            _, result = self._open.append(carried_message(discarded, HALF_TOPIC, 0, properties))
        self._writer.forced(result)

    async def aresume(self, discarded: Record) -> None:
        """Like `resume`, for a task."""
        await in_thread(self.resume, discarded)

    def status(self) -> int:
        """Return the number of unsettled transactions."""
        return len(self._open.pending)

    def _end(self, half: HalfMessage, state: TransactionState) -> PutMessageResult | None:
        """Settle the transaction of *half*."""
        return self._service.end(half.producer_group, half.commit_log_offset, half.queue_offset, state)

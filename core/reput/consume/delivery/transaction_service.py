"""TransactionService: messages that are stored first and delivered only when their sender says so.

    put_half ─▶ RMQ_SYS_TRANS_HALF_TOPIC ──┬─ commit ───▶ real topic and queue  +  op record, under one lock
                     ▲      │              └─ rollback ─▶ op record
                     └──────┘ nobody said anything: the sender is asked, and the half message appended again with a
                              higher count; after so many times it goes to TRANS_CHECK_MAX_TIME_TOPIC

    with reput.open("store") as store:
        transactions = store.transactions
        transactions.on_check("billing", lambda half: TransactionState.COMMIT if paid(half) else None)
        half = transactions.put_half("billing", reput.Message("orders", b"..."))
        ...
        transactions.commit(half)

A transaction is settled once. Its committed message and the op record that says so are put under one lock, so a kill
can come between them only at the very end of the log, where the next start finds it. RocketMQ delivers twice what is
committed twice, or late by the offsets of a copy that was asked about; here the second is refused.

Progress is the committed offset of ``CID_RMQ_SYS_TRANS`` in both topics, as RocketMQ keeps it, and moves only over what
is on disk.

Source: RocketMQ broker, TransactionalMessageServiceImpl, TransactionalMessageBridge, EndTransactionProcessor.
"""

from __future__ import annotations

import enum
import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from reput.arguments import require_messages, require_text, require_whole
from reput.consume.delivery.carried_message import carried_message, carried_properties
from reput.consume.delivery.half_messages import (
    CHECK_TIMES,
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
    Identity,
    check_times,
    committed_copies,
    done_offsets,
    identity_of,
    names_real_queue,
    queue_records,
    real_queue_id,
)
from reput.consume.delivery.uniq_key import new_uniq_key
from reput.consume.registry.config_managers import ConfigManagers
from reput.consume.registry.response_code import ResponseCode
from reput.consume.registry.topics import Topics
from reput.errors import (
    ConfigError,
    DamagedStore,
    MessageIllegal,
    OffsetOutOfRange,
    ReputError,
    RequestRefused,
    StoreError,
)
from reput.filter.java_numbers import int_or, long_or
from reput.settings import Settings
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.message_store import MessageStore
from reput.store.reader.message_reader import MessageReader
from reput.store.record.layout import TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE
from reput.store.record.message import Message, MessageExtBrokerInner, PutMessageResult, message_properties
from reput_hooks import Cursor, Record

__all__ = ["HalfMessage", "TransactionService", "TransactionState"]

logger = logging.getLogger("reput.consume")

IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
HOUR_MS = 3_600_000
# Until something is tried again that the store did not take.
PAUSE_MS = 1_000
# How long nobody looks at the clock of the log, which may come to believe another time.
LOOK_S = 60.0
# How long a close waits for a checker. Its sender is asked again after the next opening.
CHECKER_PATIENCE_S = 10.0
LOAD_TIMEOUT_S = 60.0


class TransactionState(enum.IntEnum):
    """What a sender says of its transaction; the numbers are those of RocketMQ's END_TRANSACTION."""

    UNKNOWN = 0
    COMMIT = TRANSACTION_COMMIT_TYPE
    ROLLBACK = TRANSACTION_ROLLBACK_TYPE


# What settles a transaction; by anything else nobody has decided.
SETTLING = (TransactionState.COMMIT, TransactionState.ROLLBACK)


class HalfMessage(msgspec.Struct, frozen=True):
    """A half message that was stored, as `commit` and `rollback` take it.

    Attributes:
        transaction_id: the message's unique key.
    """

    producer_group: str
    commit_log_offset: int
    queue_offset: int
    transaction_id: str
    result: PutMessageResult


class SettledUpTo(msgspec.Struct, frozen=True):
    """``reput/transactions``: every commit before *commit_log_offset* of *epoch* has its op record."""

    epoch: int
    commit_log_offset: int


class Transaction:
    """One that is not settled.

    Attributes:
        queue_offset, commit_log_offset: of its newest copy in the half topic.
        copies: queue offsets of all copies that are not passed over yet.
        due: when to ask about it, ms since 1970.
        uncounted: questions that no copy counts.
    """

    __slots__ = (
        "commit_log_offset",
        "copies",
        "due",
        "identity",
        "producer_group",
        "queue_id",
        "queue_offset",
        "uncounted",
    )

    def __init__(self, record: Record, due: int) -> None:
        self.identity: Identity = identity_of(record)
        self.producer_group = record.properties.get("PGROUP", "")
        self.queue_id = record.queue_id
        self.queue_offset = record.queue_offset
        self.commit_log_offset = record.commit_log_offset
        self.copies = [record.queue_offset]
        self.due = due
        self.uncounted = 0


Checker: TypeAlias = Callable[[Record], TransactionState | None]


class TransactionServices(Protocol):
    """What transactions need to know of topics and groups."""

    @property
    def topics(self) -> Topics:
        """The store's topics."""

    @property
    def managers(self) -> ConfigManagers:
        """The configuration files, with the offsets of groups."""


class TransactionalStore(Protocol):
    """A store that is open for writing."""

    writer: MessageStore

    @property
    def directory(self) -> Path:
        """Where it lies."""

    @property
    def settings(self) -> Settings:
        """What was configured."""

    @property
    def services(self) -> TransactionServices:
        """Topics, and the offsets of groups."""

    def wait_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Return when a view is readable up to *commit_log_offset*."""


class TransactionService:
    """The transactions of one store. Any thread may call; one thread of its own asks senders. Make it by
    `Store.transactions`."""

    def __init__(self, store: TransactionalStore, reader: MessageReader) -> None:
        """Find the transactions that are not settled. *reader* is used by nobody else.

        Raises:
            DispatcherError: the consume queue is not built, or does not come up to the log's end.
            DamagedStore: a half message cannot be read.
        """
        self.store = store
        self.writer = store.writer
        self.settings = store.settings
        self.topics = store.services.topics
        self.offsets = store.services.managers.offsets
        self.reader = reader
        self.path = self.writer.own / "transactions"
        # Reentrant, since a checker may commit by itself.
        self.changed = threading.Condition(threading.RLock())
        self.pending: dict[Identity, Transaction] = {}
        # By due time. Entries of transactions that were settled, or are due later now, are passed over.
        self.schedule: list[tuple[int, int, Transaction]] = []
        self.sequence = 0
        self.checkers: dict[str, Checker] = {}
        # Op records that a full disk did not take: (queue id, queue offset of the half message).
        self.ops_owed: list[tuple[int, int]] = []
        # By queue: behind the last half message that is known, and the op records with the highest half each settles.
        self.half_ends: dict[int, int] = {}
        self.ops: dict[int, deque[tuple[int, int]]] = {}
        self.kept: tuple[int, dict[int, tuple[int, int]]] | None = None
        self.moved = True
        self.stopping = False
        self.topics.create_when_missing(HALF_TOPIC, 1)
        self.topics.create_when_missing(OP_TOPIC, 1)
        self.load()
        self.thread = self.writer.threads.start("reput-transactions", self.run)

    # At the beginning.

    def load(self) -> None:
        """Read what is not settled from the half and the op topic, and the end of the log."""
        end = self.writer.appended
        self.store.wait_for("consume_queue", end, LOAD_TIMEOUT_S)
        offsets = self.offsets
        settled: set[Identity] = set()
        for queue_id in sorted({0, *self.writer.queue_offsets.queues.get(HALF_TOPIC, ())}):
            ops = self.ops[queue_id] = deque()
            done: set[int] = set()
            op_progress = offsets.query_offset(TRANSACTION_GROUP, OP_TOPIC, queue_id)
            for op in queue_records(self.reader, OP_TOPIC, queue_id, op_progress):
                found = done_offsets(op)
                done.update(found)
                ops.append((op.queue_offset, max(found, default=-1)))
            half_progress = offsets.query_offset(TRANSACTION_GROUP, HALF_TOPIC, queue_id)
            for half in queue_records(self.reader, HALF_TOPIC, queue_id, half_progress):
                if half.queue_offset in done:
                    settled.add(identity_of(half))
                if names_real_queue(half):
                    self.know(half)
                else:
                    logger.error(
                        "a half message names no topic and queue: queue_offset=%d commit_log_offset=%d",
                        half.queue_offset,
                        half.commit_log_offset,
                    )
            self.half_ends[queue_id] = self.writer.queue_offsets.next_offset(HALF_TOPIC, queue_id)
        for identity in settled:
            self.pending.pop(identity, None)
        if self.pending:
            self.settle_committed(end)

    def know(self, half: Record) -> Transaction:
        """Take up a half message, or a further copy of one. Under the condition, but for `load`."""
        transaction = self.pending.get(identity_of(half))
        if transaction is None:
            transaction = self.pending[identity_of(half)] = Transaction(half, 0)
        else:
            transaction.copies.append(half.queue_offset)
            transaction.queue_offset = half.queue_offset
            transaction.commit_log_offset = half.commit_log_offset
        immunity, _ = self.immunity(half)
        # The clock that says when it is due may be behind the one by which the message was born.
        born = min(half.born_timestamp, self.writer.log_clock.now_ms())
        self.ask_at(transaction, born + immunity)
        return transaction

    def settle_committed(self, end: int) -> None:
        """Write the op records that a kill has kept from the log, whose end was *end*."""
        begin = min(transaction.commit_log_offset for transaction in self.pending.values())
        kept = read_sealed(self.path, SettledUpTo)
        if kept is not None and kept.commit_log_offset <= end:
            cursor = Cursor(self.writer.store_id, kept.epoch, kept.commit_log_offset, 0)
            if self.writer.epochs.holds(cursor):
                begin = max(begin, kept.commit_log_offset)
        if begin >= end:
            return
        for record in committed_copies(self.store.directory, begin, end):
            transaction = self.pending.pop(identity_of(record), None)
            if transaction is not None:
                self.owe(transaction)
        self.pay()

    def immunity(self, half: Record) -> tuple[int, bool]:
        """Return for how many ms nobody is asked about a half message, and whether it says so itself."""
        seconds = long_or(half.properties.get(IMMUNITY), -1)
        return (self.settings.transaction_time_out, False) if seconds < 0 else (seconds * 1000, True)

    # What senders do.

    def put_half(self, producer_group: str, message: Message) -> HalfMessage:
        """Store *message* so that nobody sees it before it is committed.

        Raises:
            RequestRefused: NO_PERMISSION; the store takes no transactions (``reject_transaction_message``).
            MessageIllegal: it breaks a limit, or is delayed, which transactions are not.
            StoreError: as `Store.put`.
        """
        if self.settings.reject_transaction_message:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, "the store takes no transactions: reject_transaction_message=True"
            )
        require_messages([message])
        level = self.writer.delay_levels.level_of(message)
        message_properties(message)
        if level:
            raise MessageIllegal(f"a transaction's message is not delayed: delay_level={level}")
        if not isinstance(producer_group, str) or not producer_group:
            raise MessageIllegal(
                f"a transaction names the group that is asked about it: producer_group={producer_group!r}"
            )
        if message.topic in (HALF_TOPIC, OP_TOPIC):
            raise MessageIllegal(f"what transactions are kept in has no transactions: topic={message.topic!r}")
        message = self.writer.topic_table.with_queue(message)
        half = half_message(message, producer_group, self.writer)
        # Whatever the real topic refuses is refused now, and not when it is too late.
        self.writer.preparer.prepare(msgspec.structs.replace(half, topic=message.topic, queue_id=message.queue_id))
        with self.changed:
            result = self.writer.appender.append(half)
            transaction = self.know(self.half_at(result.commit_log_offset))
            self.half_ends[0] = result.queue_offset + 1
            self.moved = True
            self.changed.notify_all()
        result = self.writer.forced(result)
        assert transaction.identity[0] is not None
        return HalfMessage(
            producer_group, result.commit_log_offset, result.queue_offset, transaction.identity[0], result
        )

    def commit(self, half: HalfMessage) -> PutMessageResult:
        """Have a half message delivered, once, and return where it lies now.

        Raises:
            RequestRefused: the transaction is settled already, or was never begun.
            StoreError: it could not be stored; the transaction is still open.
        """
        require_half(half)
        result = self.end(half.producer_group, half.commit_log_offset, half.queue_offset, TransactionState.COMMIT)
        assert result is not None
        return result

    def rollback(self, half: HalfMessage) -> None:
        """Have nobody ever see a half message.

        Raises:
            RequestRefused: the transaction is settled already, or was never begun.
            StoreError: that could not be stored; the transaction is still open.
        """
        require_half(half)
        self.end(half.producer_group, half.commit_log_offset, half.queue_offset, TransactionState.ROLLBACK)

    def end(
        self,
        producer_group: str,
        commit_log_offset: int,
        queue_offset: int,
        state: TransactionState,
        *,
        from_check: bool = False,
    ) -> PutMessageResult | None:
        """Settle the transaction whose half message lies there, as END_TRANSACTION asks for.

        Args:
            commit_log_offset, queue_offset: of any of its copies.
            from_check: it answers a question.

        Returns:
            Where the committed message lies, None where there is none. A state that is neither COMMIT nor ROLLBACK
            settles nothing.

        Raises:
            RequestRefused: SYSTEM_ERROR; there is no such half message of this group, or it is settled.
                ILLEGAL_OPERATION; it comes later than the message's own immunity time allows.
            StoreReadOnly: the disk refused to force the log; the next opening shows whether the transaction is settled.
            StoreError: nothing was stored; the transaction is still open.
        """
        if state not in SETTLING:
            return None
        require_whole("commit_log_offset", commit_log_offset, None)
        with self.changed:
            half = self.half_at(commit_log_offset)
            if half.properties.get("PGROUP") != producer_group or half.queue_offset != queue_offset:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the half message is another: producer_group={producer_group!r} "
                    f"commit_log_offset={commit_log_offset} queue_offset={queue_offset}",
                )
            immunity, own = self.immunity(half)
            if own and not from_check and self.writer.clock.now_ms() - half.born_timestamp > immunity:
                raise RequestRefused(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the sender is about to be asked, and may say it then: immunity_ms={immunity}",
                )
            transaction = self.pending.get(identity_of(half))
            if transaction is None:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the transaction is settled: commit_log_offset={commit_log_offset} queue_offset={queue_offset}",
                )
            results = self.settle(transaction, [committed_message(half)] if state == TransactionState.COMMIT else [])
        # The op records come last: with them on disk, all of it is.
        status = self.writer.forced(results[-1]).status
        return msgspec.structs.replace(results[0], status=status) if state == TransactionState.COMMIT else None

    def half_at(self, commit_log_offset: int) -> Record:
        """Return the half message at *commit_log_offset*.

        Raises:
            RequestRefused: SYSTEM_ERROR; there is none.
        """
        try:
            record = self.writer.appender.peek(commit_log_offset)
            if record is None:
                # The segment may be younger than the last look.
                self.reader.store.log()
                record = self.reader.store.record_at(commit_log_offset)
        except (DamagedStore, OffsetOutOfRange):
            record = None
        if (
            record is None
            or record.topic != HALF_TOPIC
            or record.commit_log_offset != commit_log_offset
            or not names_real_queue(record)
        ):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"there is no half message: commit_log_offset={commit_log_offset}"
            )
        return record

    def settle(self, transaction: Transaction, messages: Sequence[Message]) -> list[PutMessageResult]:
        """Put *messages*, at most one, and the op records of all copies, as one. Under the condition.

        Returns:
            where they are, those of the op records behind the message's.
        """
        self.moved = True
        ops = [self.op_message(transaction.queue_id, queue_offset) for queue_offset in transaction.copies]
        try:
            results = self.writer.appender.append_batch([*messages, *ops])
        except StoreError as error:
            if error.stored_count == 0:
                raise
            # A full disk came in between: what is delivered is settled, the rest of its op records are owed.
            logger.warning("op records wait for room on the disk: error=%s", error)
            del self.pending[transaction.identity]
            self.owe(transaction)
            raise
        del self.pending[transaction.identity]
        for queue_offset, result in zip(transaction.copies, results[len(messages) :], strict=True):
            self.ops[transaction.queue_id].append((result.queue_offset, queue_offset))
        return results

    def op_message(self, queue_id: int, queue_offset: int) -> Message:
        """Return the op record of one half message. One offset without a comma is what every version reads."""
        return MessageExtBrokerInner(
            OP_TOPIC,
            str(queue_offset).encode(),
            properties={"WAIT": "true", "TAGS": "d"},
            queue_id=queue_id,
            born_host=self.writer.store_host,
        )

    def owe(self, transaction: Transaction) -> None:
        """Remember that a settled transaction lacks its op records."""
        self.ops_owed += [(transaction.queue_id, queue_offset) for queue_offset in transaction.copies]

    def pay(self) -> None:
        """Write op records that are owed."""
        while self.ops_owed:
            queue_id, queue_offset = self.ops_owed[0]
            result = self.writer.appender.append(self.op_message(queue_id, queue_offset))
            self.ops[queue_id].append((result.queue_offset, queue_offset))
            del self.ops_owed[0]

    # Asking.

    def on_check(self, producer_group: str, checker: Checker | None) -> None:
        """Have *checker* asked about transactions of a group that nobody settles; None: nobody any more.

        It is called by the service's own thread with the half message under its real topic and queue id, and the
        offsets of its copy in the half topic. COMMIT and ROLLBACK settle the transaction; with UNKNOWN, None, anything
        else or an exception it is asked again after ``transaction_check_interval``, ``transaction_check_max`` times at
        most.
        Transactions of groups without a checker wait, but for no longer than ``file_reserved_time``.
        """
        require_text("producer_group", producer_group)
        if checker is not None and not callable(checker):
            raise ConfigError(
                f"a checker is called, and this cannot be: checker={checker!r}", "Give a function, or None."
            )
        with self.changed:
            if checker is None:
                self.checkers.pop(producer_group, None)
            else:
                self.checkers[producer_group] = checker
                now = self.writer.log_clock.now_ms()
                for transaction in self.pending.values():
                    if transaction.producer_group == producer_group and transaction.due > now:
                        self.ask_at(transaction, self.first_question(transaction))
            self.changed.notify_all()

    def first_question(self, transaction: Transaction) -> int:
        """Return when a transaction is to be asked about that had to wait for a checker."""
        _, born, _, _ = transaction.identity
        return min(transaction.due, born + self.settings.transaction_time_out)

    def ask_at(self, transaction: Transaction, due: int) -> None:
        """Ask about *transaction* at *due*. Under the condition."""
        transaction.due = due
        self.sequence += 1
        heapq.heappush(self.schedule, (due, self.sequence, transaction))

    def run(self) -> None:
        """Ask until stopped; the own thread."""
        interval = self.settings.flush_consumer_offset_interval / 1000
        while True:
            with self.changed:
                if not self.stopping:
                    unkept = self.moved or self.kept is not None or self.ops_owed
                    self.changed.wait(min(self.seconds_to_next(), interval if unkept else threading.TIMEOUT_MAX))
                if self.stopping:
                    return
            try:
                with self.changed:
                    self.pay()
                for transaction in self.take_due():
                    try:
                        self.ask(transaction)
                    except (MessageIllegal, RequestRefused) as error:
                        # Trying again changes nothing, and the others do not wait for it.
                        logger.error(
                            "a transaction cannot be settled: producer_group=%s commit_log_offset=%d error=%s",
                            transaction.producer_group,
                            transaction.commit_log_offset,
                            error,
                        )
                self.keep()
            except (ReputError, OSError) as error:
                logger.warning("transactions have to wait: pause_ms=%d error=%s", PAUSE_MS, error)
                with self.changed:
                    self.changed.wait_for(lambda: self.stopping, PAUSE_MS / 1000)

    def seconds_to_next(self) -> float:
        """Return when to look again, in seconds; under the condition."""
        while self.schedule:
            due, _, transaction = self.schedule[0]
            if self.pending.get(transaction.identity) is transaction and transaction.due == due:
                return min(max(0.0, (due - self.writer.log_clock.now_ms()) / 1000), LOOK_S)
            heapq.heappop(self.schedule)
        return threading.TIMEOUT_MAX

    def take_due(self) -> list[Transaction]:
        """Return the transactions that are due now; each is looked at again after the interval."""
        found = []
        with self.changed:
            while self.schedule and self.seconds_to_next() == 0:
                transaction = self.schedule[0][2]
                self.ask_at(transaction, self.writer.log_clock.now_ms() + self.settings.transaction_check_interval)
                found.append(transaction)
        return found

    def ask(self, transaction: Transaction) -> None:
        """Ask about one transaction, or discard it if that was done too often, or it is too old."""
        with self.changed:
            if self.stopping or self.pending.get(transaction.identity) is not transaction:
                return
            try:
                half = self.half_at(transaction.commit_log_offset)
            except RequestRefused as error:
                # Retention was faster than anybody's answer.
                logger.error("a transaction is lost: producer_group=%s error=%s", transaction.producer_group, error)
                del self.pending[transaction.identity]
                self.moved = True
                return
            checker = self.checkers.get(transaction.producer_group)
            age = self.writer.log_clock.now_ms() - half.born_timestamp
            asked = check_times(half) + transaction.uncounted
            asked_enough = checker is not None and asked >= self.settings.transaction_check_max
            if asked_enough or age > self.settings.file_reserved_time * HOUR_MS:
                self.discard(transaction, half)
                return
            if checker is None:
                return
            try:
                half, result = self.append_again(transaction, half)
            except MessageIllegal:
                # With its count it would break a limit that it does not break without.
                transaction.uncounted += 1
                result = None
        if result is not None:
            # With SYNC_FLUSH nobody is shown what a power cut may take back.
            self.writer.forced(result)
        # Without the lock: a checker may take its time, and senders go on.
        try:
            state = checker(replace(half, topic=half.properties["REAL_TOPIC"], queue_id=real_queue_id(half)))
        except (Exception, SystemExit):
            logger.exception("a checker failed: producer_group=%s", transaction.producer_group)
            return
        if state not in SETTLING:
            if state:
                logger.error("a checker gave no answer: producer_group=%s answer=%r", transaction.producer_group, state)
            return
        with self.changed:
            if self.pending.get(transaction.identity) is transaction:
                self.settle(transaction, [committed_message(half)] if state == TransactionState.COMMIT else [])

    def append_again(self, transaction: Transaction, half: Record) -> tuple[Record, PutMessageResult]:
        """Append a copy of *half* that counts one question more; the copies before it are passed over."""
        properties = carried_properties(half)
        properties[CHECK_TIMES] = str(check_times(half) + 1)
        message = carried_message(half, HALF_TOPIC, half.queue_id, properties)
        result = self.writer.appender.append(message)
        transaction.queue_offset = result.queue_offset
        transaction.commit_log_offset = result.commit_log_offset
        transaction.copies = [result.queue_offset]
        self.half_ends[half.queue_id] = result.queue_offset + 1
        self.moved = True
        return self.half_at(result.commit_log_offset), result

    def discard(self, transaction: Transaction, half: Record) -> None:
        """Put a half message where somebody may look after it, and settle it."""
        logger.warning(
            "a transaction is given up: producer_group=%s check_times=%d commit_log_offset=%d topic=%s",
            transaction.producer_group,
            check_times(half),
            half.commit_log_offset,
            half.properties.get("REAL_TOPIC"),
        )
        self.topics.create_when_missing(DISCARDED_TOPIC, 1)
        self.settle(transaction, [carried_message(half, DISCARDED_TOPIC, 0, carried_properties(half))])

    # Progress.

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return, by queue id, the first half message that is not settled and the first op record that still counts."""
        progress = {}
        for queue_id, half_end in self.half_ends.items():
            copies = [min(item.copies) for item in self.pending.values() if item.queue_id == queue_id]
            half = min([half_end, *copies, *(offset for owed, offset in self.ops_owed if owed == queue_id)])
            ops = self.ops[queue_id]
            while ops and ops[0][1] < half:
                ops.popleft()
            op_end = self.writer.queue_offsets.next_offset(OP_TOPIC, queue_id)
            progress[queue_id] = (half, ops[0][0] if ops else op_end)
        return progress

    def keep(self) -> None:
        """Commit the progress of the last time, if all of that is on disk now, and take the present one down.

        The file of offsets is written by those who keep it.
        """
        with self.changed:
            offsets = self.offsets
            if self.kept is not None and self.writer.durable >= self.kept[0]:
                end, progress = self.kept
                for queue_id, (half, op) in progress.items():
                    offsets.commit_offset(TRANSACTION_GROUP, HALF_TOPIC, queue_id, half)
                    offsets.commit_offset(TRANSACTION_GROUP, OP_TOPIC, queue_id, op)
                if not self.ops_owed:
                    self.writer.files.replace(self.path, seal(SettledUpTo(self.writer.epochs.epoch, end)))
                self.kept = None
            if self.kept is None and self.moved:
                self.kept = (self.writer.appended, self.progress())
                self.moved = False

    def status(self) -> int:
        """Return how many transactions are not settled."""
        with self.changed:
            return len(self.pending)

    def stop(self) -> None:
        """Ask nobody any more, and commit the progress, once the log is on disk.

        Raises:
            StoreError: the disk refused to force the log.
            OSError: it refused the file.
        """
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        if self.thread is not threading.current_thread():
            self.thread.join(CHECKER_PATIENCE_S)
            if self.thread.is_alive():
                logger.warning("a checker does not return, and the store closes: patience_s=%g", CHECKER_PATIENCE_S)
        try:
            if self.writer.appender.read_only_reason is None:
                self.kept = None
                self.moved = True
                self.keep()
                self.writer.flush()
                self.keep()
        finally:
            self.reader.close()


def require_half(half: object) -> None:
    """Refuse what is no half message.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(half, HalfMessage):
        raise ConfigError(f"this is no half message: half={half!r:.100}", "Give what `put_half` returned.")


def half_message(message: Message, producer_group: str, writer: MessageStore) -> MessageExtBrokerInner:
    """Return *message* as the half topic keeps it.

    Source: RocketMQ broker, TransactionalMessageBridge.parseHalfMessageInner.
    """
    properties = dict(message.properties or {})
    if message.keys is not None:
        properties["KEYS"] = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    if message.tags is not None:
        properties["TAGS"] = message.tags
    properties.setdefault("UNIQ_KEY", new_uniq_key(writer.born_host))
    properties |= {
        "TRAN_MSG": "true",
        "PGROUP": producer_group,
        "__transactionId__": properties["UNIQ_KEY"],
        "REAL_TOPIC": message.topic,
        "REAL_QID": str(message.queue_id),
    }
    inner = message if isinstance(message, MessageExtBrokerInner) else MessageExtBrokerInner(message.topic, b"")
    return msgspec.structs.replace(
        inner,
        topic=HALF_TOPIC,
        queue_id=0,
        body=message.body,
        flag=message.flag,
        tags=None,
        keys=None,
        properties=properties,
        sys_flag=inner.sys_flag & ~TRANSACTION_ROLLBACK_TYPE,
    )


def committed_message(half: Record) -> MessageExtBrokerInner:
    """Return what a half message is delivered as. On disk its properties are all still there, as in RocketMQ.

    One that a client has delayed, which RocketMQ's own do not, waits from now on.
    """
    message = carried_message(half, half.properties["REAL_TOPIC"], real_queue_id(half), carried_properties(half))
    return msgspec.structs.replace(
        message,
        sys_flag=half.sys_flag & ~TRANSACTION_ROLLBACK_TYPE | TRANSACTION_COMMIT_TYPE,
        prepared_transaction_offset=half.commit_log_offset,
        delay_level=max(int_or(half.properties.get("DELAY"), 0), 0),
    )

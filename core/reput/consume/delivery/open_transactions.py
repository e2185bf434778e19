"""OpenTransactions: the unsettled transactions of one store, and the progress up to which all are settled.

    half topic   ─┬─▶ `load` ──▶ pending ──▶ `settle` ──▶ message and op record, under one lock
    op topic     ─┤                │
    end of log   ─┘                └─ due ──▶ asked ──▶ `append_again`: a copy with a higher count

A transaction is settled once. Its committed message and its op record are put under one lock, so a kill can separate
them only at the very end of the log, where the next start finds the message. RocketMQ delivers a message twice if it
is committed twice, or committed late with the offsets of a copy made for a check; here the second commit is refused.

Progress is the committed offset of ``CID_RMQ_SYS_TRANS`` in both topics, as in RocketMQ. It moves only over records
that are on disk.

Source: RocketMQ broker, TransactionalMessageServiceImpl and TransactionalMessageBridge.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

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
)
from reput.consume.delivery.transaction_messages import op_message
from reput.consume.registry.config_managers import ConfigManagers
from reput.consume.registry.topics import Topics
from reput.errors import DamagedStore, OffsetOutOfRange, RequestRefused, StoreBusy, StoreError
from reput.filter.java_numbers import long_or
from reput.remoting.response_code import ResponseCode
from reput.settings import Settings
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.log.log_clock import PARTED_MS
from reput.store.message_store import MessageStore
from reput.store.reader.message_reader import MessageReader
from reput.store.record.message import Message, PutMessageResult
from reput_hooks import Cursor, Record

__all__ = ["OPENED_AGAIN", "OpenTransactions", "Transaction", "TransactionalStore"]

logger = logging.getLogger("reput.consume")

IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
# The count of questions in a half message that was stored anew after its transaction had been given up.
OPENED_AGAIN = "0"
# The longest sleep before the log clock is read again, because it may be corrected.
LOOK_S = 60.0
LOAD_TIMEOUT_S = 60.0
# Entries of the schedule that no longer count and are not removed before their time.
SKIPPED_MAX = 1_000


class SettledUpTo(msgspec.Struct, frozen=True):
    """``reput/transactions``: every commit before *commit_log_offset* of *epoch* has its op record."""

    epoch: int
    commit_log_offset: int


class Transaction:
    """An unsettled transaction.

    Attributes:
        queue_offset, commit_log_offset: of its newest copy in the half topic.
        copies: queue offsets of all copies that still need an op record.
        due: when to ask about it, ms since 1970.
        asked_at: when its checker was asked last, ms since 1970; 0: not since it was read.
        uncounted: questions that no copy counts.
    """

    __slots__ = (
        "asked_at",
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
        self.asked_at = 0
        self.uncounted = 0


class TransactionServices(Protocol):
    """The topics and group offsets that transactions use."""

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
        """The store's directory."""

    @property
    def settings(self) -> Settings:
        """The store's settings."""

    @property
    def services(self) -> TransactionServices:
        """Topics, and the offsets of groups."""

    def wait_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Return when a view is readable up to *commit_log_offset*."""


class OpenTransactions:
    """The open transactions. Call everything but `load` and `half_at` under `changed`.

    Args:
        reader: of the store, for this object alone.

    Attributes:
        changed: guards all state; notified when there is something to do. Reentrant: a checker may commit.
        pending: the unsettled transactions.
        schedule: by due time. Entries of settled or rescheduled transactions are skipped.
        ops_owed: op records still to be written, e.g. after a full disk: (queue id, queue offset of the half message).
        half_ends: by queue, the offset after the last known half message.
        ops: by queue, the op records, each with the highest half message that it settles.
        kept: a log end, and the progress to commit once the log is durable up to it.
        moved: the progress has changed since it was last recorded in `kept`.
    """

    def __init__(self, store: TransactionalStore, reader: MessageReader) -> None:
        self.store = store
        self.writer = store.writer
        self.settings = store.settings
        self.offsets = store.services.managers.offsets
        self.reader = reader
        self.path = self.writer.own / "transactions"
        self.changed = threading.Condition(threading.RLock())
        self.pending: dict[Identity, Transaction] = {}
        self.schedule: list[tuple[int, int, Transaction]] = []
        self.sequence = 0
        # Time of the last look, by the log's clock and by the monotonic one.
        self.looked_at: tuple[int, int] | None = None
        self.ops_owed: list[tuple[int, int]] = []
        self.half_ends: dict[int, int] = {}
        self.ops: dict[int, deque[tuple[int, int]]] = {}
        self.kept: tuple[int, dict[int, tuple[int, int]]] | None = None
        self.moved = True

    def load(self) -> None:
        """Read the unsettled transactions from the half topic, the op topic and the end of the log.

        Raises:
            DispatcherError: the consume queue is not built, or does not reach the log's end in time.
            DamagedStore: a half message cannot be read.
        """
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
                if half.properties.get(CHECK_TIMES) == OPENED_AGAIN:
                    # What settled its former copies gave the transaction up.
                    settled.discard(identity_of(half))
                    self.pending.pop(identity_of(half), None)
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
        """Add a half message, or a further copy of one. Under the condition, except in `load`."""
        transaction = self.pending.get(identity_of(half))
        if transaction is None:
            transaction = self.pending[identity_of(half)] = Transaction(half, 0)
        else:
            transaction.copies.append(half.queue_offset)
            transaction.queue_offset = half.queue_offset
            transaction.commit_log_offset = half.commit_log_offset
        immunity, _ = self.immunity(half)
        # The clock that decides when the message is due may lag behind the clock of its birth.
        born = min(half.born_timestamp, self.writer.log_clock.now_ms())
        self.ask_at(transaction, born + immunity)
        return transaction

    def append(self, half: Message) -> tuple[Transaction, PutMessageResult]:
        """Append the half message of a new transaction to queue 0. Under the condition.

        Raises:
            StoreBusy: too many transactions are open.
        """
        if len(self.pending) >= self.settings.open_transactions_max:
            raise StoreBusy(
                f"too many transactions are open: open_transactions={len(self.pending)} "
                f"open_transactions_max={self.settings.open_transactions_max}",
                "Commit or roll back those that are open, or let their producer groups connect and be asked.",
            )
        result = self.writer.appender.append(half)
        transaction = self.know(self.half_at(result.commit_log_offset))
        self.half_ends[0] = result.queue_offset + 1
        self.moved = True
        self.changed.notify_all()
        return transaction, result

    def settle_committed(self, end: int) -> None:
        """Write op records that are missing after a kill. *end* is the log's end at loading."""
        begin = min(transaction.commit_log_offset for transaction in self.pending.values())
        kept = read_sealed(self.path, SettledUpTo)
        if kept is not None and kept.commit_log_offset <= end:
            cursor = Cursor(self.writer.store_id, kept.epoch, kept.commit_log_offset, 0)
            if self.writer.epochs.holds(cursor):
                begin = max(begin, kept.commit_log_offset)
        if begin >= end:
            return
        for record in committed_copies(self.store.directory, begin, end):
            transaction = self.pending.get(identity_of(record))
            if transaction is None:
                continue
            if record.topic == DISCARDED_TOPIC and record.commit_log_offset < transaction.commit_log_offset:
                # It was given up, and then opened again.
                continue
            del self.pending[transaction.identity]
            self.owe(transaction)
        self.pay()

    def immunity(self, half: Record) -> tuple[int, bool]:
        """Return the ms before the first question about a half message, and whether its own property sets them."""
        seconds = long_or(half.properties.get(IMMUNITY), -1)
        return (self.settings.transaction_time_out, False) if seconds < 0 else (seconds * 1000, True)

    def half_at(self, commit_log_offset: int) -> Record:
        """Return the half message at *commit_log_offset*.

        Raises:
            RequestRefused: SYSTEM_ERROR; there is none.
        """
        try:
            record = self.writer.appender.peek(commit_log_offset)
            if record is None:
                # The segment may be newer than the reader's last refresh.
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

    # Settling.

    def settle(self, transaction: Transaction, messages: Sequence[Message]) -> list[PutMessageResult]:
        """Put *messages*, at most one, and the op records of all copies, as one batch.

        Returns:
            Where they are stored: first the message, then the op records.
        """
        self.moved = True
        born_host = self.writer.store_host
        ops = [op_message(transaction.queue_id, queue_offset, born_host) for queue_offset in transaction.copies]
        try:
            results = self.writer.appender.append_batch([*messages, *ops])
        except StoreError as error:
            if error.stored_count == 0:
                raise
            # The disk filled up in between. The delivered message is settled, but op records are owed.
            logger.warning("op records wait for space on the disk: error=%s", error)
            del self.pending[transaction.identity]
            self.owe(transaction)
            raise
        del self.pending[transaction.identity]
        for queue_offset, result in zip(transaction.copies, results[len(messages) :], strict=True):
            self.ops[transaction.queue_id].append((result.queue_offset, queue_offset))
        return results

    def owe(self, transaction: Transaction) -> None:
        """Remember that a settled transaction lacks its op records."""
        self.ops_owed += [(transaction.queue_id, queue_offset) for queue_offset in transaction.copies]

    def pay(self) -> None:
        """Write the owed op records."""
        while self.ops_owed:
            queue_id, queue_offset = self.ops_owed[0]
            result = self.writer.appender.append(op_message(queue_id, queue_offset, self.writer.store_host))
            self.ops[queue_id].append((result.queue_offset, queue_offset))
            del self.ops_owed[0]

    def append_again(self, transaction: Transaction, half: Record) -> tuple[Record, PutMessageResult]:
        """Append a copy of *half* with its check count raised by one; it supersedes the former copies."""
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

    # When to ask.

    def first_question(self, transaction: Transaction) -> int:
        """Return when to ask about a transaction that had to wait for a checker.

        If a producer comes and goes, that is not sooner after the last question than otherwise.
        """
        _, born, _, _ = transaction.identity
        first = born + self.settings.transaction_time_out
        if transaction.asked_at:
            first = max(first, transaction.asked_at + self.settings.transaction_check_interval)
        return min(transaction.due, first)

    def ask_at(self, transaction: Transaction, due: int) -> None:
        """Ask about *transaction* at *due*."""
        transaction.due = due
        self.sequence += 1
        heapq.heappush(self.schedule, (due, self.sequence, transaction))
        if len(self.schedule) > 2 * len(self.pending) + SKIPPED_MAX:
            # Their own immunity time may keep settled transactions here for very long.
            self.schedule = [entry for entry in self.schedule if self.is_scheduled(entry)]
            heapq.heapify(self.schedule)

    def is_scheduled(self, entry: tuple[int, int, Transaction]) -> bool:
        """Return whether an entry of the schedule counts: its transaction is open, and was not scheduled anew."""
        due, _, transaction = entry
        return transaction.due == due and self.pending.get(transaction.identity) is transaction

    def follow_clock(self) -> None:
        """Bring the questions forward by as much as the clock was set back since the last look.

        Otherwise they would come later by that, hours for instance, and consumers would wait for what was committed by
        a producer that has died. RocketMQ then asks at once.
        """
        now, ticks = self.writer.log_clock.now_ms(), self.writer.log_clock.ticks()
        former_now, former_ticks = self.looked_at or (now, ticks)
        self.looked_at = now, ticks
        back = former_now + ticks - former_ticks - now
        if back > PARTED_MS:
            for transaction in self.pending.values():
                transaction.asked_at = max(transaction.asked_at - back, 0)
                self.ask_at(transaction, transaction.due - back)

    def seconds_to_next(self) -> float:
        """Return the seconds until the next look."""
        self.follow_clock()
        while self.schedule:
            due, _, _ = self.schedule[0]
            if self.is_scheduled(self.schedule[0]):
                return min(max(0.0, (due - self.writer.log_clock.now_ms()) / 1000), LOOK_S)
            heapq.heappop(self.schedule)
        return threading.TIMEOUT_MAX

    def take_due(self) -> list[Transaction]:
        """Return the transactions that are due now, and schedule each again after the check interval."""
        found = []
        with self.changed:
            while self.schedule and self.seconds_to_next() == 0:
                transaction = self.schedule[0][2]
                self.ask_at(transaction, self.writer.log_clock.now_ms() + self.settings.transaction_check_interval)
                found.append(transaction)
        return found

    # Progress.

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return, by queue id, the offsets of the first unsettled half message and the first op record still needed."""
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
        """Commit the progress recorded before, if the log is durable that far now, and record the present one.

        This commits in memory; the offset keeper writes the file of group offsets.
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

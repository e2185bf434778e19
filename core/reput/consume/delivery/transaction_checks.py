"""TransactionChecks: asks senders about their unsettled transactions.

    due ──▶ asked too often, or too old ──▶ TRANS_CHECK_MAX_TIME_TOPIC
     └────▶ half message appended again, with a higher count ──▶ checker ─┬─ COMMIT, ROLLBACK: settled
                                                                          └─ anything else: asked again later

Source: RocketMQ broker, TransactionalMessageServiceImpl.check.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from reput.consume.delivery.carried_message import carried_message, carried_properties
from reput.consume.delivery.half_messages import DISCARDED_TOPIC, check_times, real_queue_id
from reput.consume.delivery.open_transactions import OpenTransactions, Transaction
from reput.consume.delivery.transaction_messages import SETTLING, TransactionState, delivered_messages
from reput.consume.registry.topics import Topics
from reput.errors import MessageIllegal, ReputError, RequestRefused
from reput.store.service.service_thread import ServiceThread
from reput_hooks import Record

__all__ = ["Checker", "TransactionChecks"]

logger = logging.getLogger("reput.consume")

HOUR_MS = 3_600_000
# The pause before retrying after an error of the store.
PAUSE_MS = 1_000
# How long a close waits for a checker. Its sender is asked again after the next opening.
CHECKER_PATIENCE_S = 10.0

# Receives a half message under its real topic and queue id, and returns the state of its transaction.
Checker: TypeAlias = Callable[[Record], TransactionState | None]


class TransactionChecks(ServiceThread):
    """Asks senders on a thread of its own, which also commits the progress of the transactions."""

    def __init__(self, transactions: OpenTransactions, topics: Topics) -> None:
        super().__init__("reput-transactions", transactions.writer.threads)
        self.transactions = transactions
        self.topics = topics
        self.writer = transactions.writer
        self.settings = transactions.settings
        self.changed = transactions.changed
        # By producer group.
        self.checkers: dict[str, Checker] = {}
        # Says whether a group can be asked now. A broker can ask only while a producer of the group is connected.
        self.is_there: Callable[[str], bool] = lambda producer_group: True
        self.start()

    def set_checker(self, producer_group: str, checker: Checker | None) -> None:
        """Ask *checker* about transactions of a group; None: stop asking."""
        transactions = self.transactions
        with self.changed:
            if checker is None:
                self.checkers.pop(producer_group, None)
            else:
                self.checkers[producer_group] = checker
                now = self.writer.log_clock.now_ms()
                for transaction in transactions.pending.values():
                    if transaction.producer_group == producer_group and transaction.due > now:
                        due = transactions.first_question(transaction)
                        if due != transaction.due:
                            transactions.ask_at(transaction, due)
            self.changed.notify_all()

    def run(self) -> None:
        """Ask until stopped, on the own thread."""
        transactions = self.transactions
        interval = self.settings.flush_consumer_offset_interval / 1000
        while True:
            with self.changed:
                if not self.stopping:
                    unkept = transactions.moved or transactions.kept is not None or transactions.ops_owed
                    self.changed.wait(
                        min(transactions.seconds_to_next(), interval if unkept else threading.TIMEOUT_MAX)
                    )
                if self.stopping:
                    return
            try:
                with self.changed:
                    transactions.pay()
                for transaction in transactions.take_due():
                    try:
                        self.ask(transaction)
                    except (MessageIllegal, RequestRefused) as error:
                        # A retry at once would not help, and would hold up the others.
                        logger.error(
                            "a transaction cannot be settled: producer_group=%s commit_log_offset=%d error=%s",
                            transaction.producer_group,
                            transaction.commit_log_offset,
                            error,
                        )
                transactions.keep()
            except (ReputError, OSError) as error:
                logger.warning("transactions are delayed by an error: pause_ms=%d error=%s", PAUSE_MS, error)
                with self.changed:
                    self.changed.wait_for(lambda: self.stopping, PAUSE_MS / 1000)

    def ask(self, transaction: Transaction) -> None:
        """Ask about one transaction, or discard it if it is too old or was asked about too often."""
        with self.changed:
            if self.stopping or self.transactions.pending.get(transaction.identity) is not transaction:
                return
            try:
                half = self.transactions.half_at(transaction.commit_log_offset)
            except RequestRefused as error:
                # Retention has deleted the half message before it was settled.
                logger.error("a transaction is lost: producer_group=%s error=%s", transaction.producer_group, error)
                del self.transactions.pending[transaction.identity]
                self.transactions.moved = True
                return
            group = transaction.producer_group
            checker = self.checkers.get(group) if self.is_there(group) else None
            age = self.writer.log_clock.now_ms() - half.born_timestamp
            asked = check_times(half) + transaction.uncounted
            asked_enough = checker is not None and asked >= self.settings.transaction_check_max
            if asked_enough or age > self.settings.file_reserved_time * HOUR_MS:
                self.discard(transaction, half)
                return
            if checker is None:
                return
            try:
                transaction.asked_at = self.writer.log_clock.now_ms()
                half, result = self.transactions.append_again(transaction, half)
            except MessageIllegal:
                # The count property would make the message exceed a limit, so count in memory.
                transaction.uncounted += 1
                result = None
        if result is not None:
            # With SYNC_FLUSH, a checker must not see a message that a power cut may still lose.
            self.writer.forced(result)
        # Without the lock: a checker may be slow, and must not block senders.
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
            if self.transactions.pending.get(transaction.identity) is transaction:
                self.transactions.settle(transaction, delivered_messages(half, state))

    def discard(self, transaction: Transaction, half: Record) -> None:
        """Put a half message into the topic of discarded ones, for inspection, and settle it."""
        logger.warning(
            "a transaction is abandoned: producer_group=%s check_times=%d commit_log_offset=%d topic=%s",
            transaction.producer_group,
            check_times(half),
            half.commit_log_offset,
            half.properties.get("REAL_TOPIC"),
        )
        self.topics.create_when_missing(DISCARDED_TOPIC, 1)
        self.transactions.settle(transaction, [carried_message(half, DISCARDED_TOPIC, 0, carried_properties(half))])

    def wakeup(self) -> None:
        """End the wait for the next question."""
        with self.changed:
            self.changed.notify_all()

    def stop(self) -> None:
        """End the thread; abandon it if a checker does not return in time."""
        self.stopping = True
        self.wakeup()
        if not self.join(CHECKER_PATIENCE_S):
            logger.warning("the store closes although a checker does not return: patience_s=%g", CHECKER_PATIENCE_S)

"""TransactionalMessageService: the transactions of a store below their public methods; a broker ends them here, too.

Source: RocketMQ broker, TransactionalMessageServiceImpl, EndTransactionProcessor.
"""

from __future__ import annotations

import msgspec

from reput.argument_checks import require_whole
from reput.consume.delivery.half_messages import HALF_TOPIC, OP_TOPIC, identity_of
from reput.consume.delivery.open_transactions import OpenTransactions, TransactionalStore
from reput.consume.delivery.transaction_checks import TransactionChecks
from reput.consume.delivery.transaction_messages import SETTLING, TransactionState, delivered_messages
from reput.errors import RequestRefused
from reput.remoting.response_code import ResponseCode
from reput.store.reader.message_reader import MessageReader
from reput.store.record.message import PutMessageResult

__all__ = ["TransactionalMessageService"]


class TransactionalMessageService:
    """Knows the open transactions of one store, asks their senders, and settles them. Any thread may call.

    Attributes:
        open_transactions: the unsettled ones.
        checks: asks the senders.
    """

    def __init__(self, store: TransactionalStore, reader: MessageReader) -> None:
        """Find the unsettled transactions. *reader* is for this service alone.

        Raises:
            DispatcherError: the consume queue is not built, or does not reach the log's end in time.
            DamagedStore: a half message cannot be read.
        """
        self.writer = store.writer
        self.settings = store.settings
        topics = store.services.topics
        topics.create_when_missing(HALF_TOPIC, 1)
        topics.create_when_missing(OP_TOPIC, 1)
        self.open_transactions = OpenTransactions(store, reader)
        self.open_transactions.load()
        self.checks = TransactionChecks(self.open_transactions, topics)

    def end(
        self,
        producer_group: str,
        commit_log_offset: int,
        queue_offset: int,
        state: TransactionState,
        *,
        from_check: bool = False,
    ) -> PutMessageResult | None:
        """Settle the transaction of the half message at *commit_log_offset*, as END_TRANSACTION does.

        Args:
            commit_log_offset: of any of its copies.
            queue_offset: of the same copy.
            from_check: this call answers a check.

        Returns:
            Where the committed message is stored; None: there is none. A state that is neither COMMIT nor ROLLBACK
            settles nothing.

        Raises:
            RequestRefused: SYSTEM_ERROR; there is no such half message of this group, or it is settled.
                ILLEGAL_OPERATION; the call comes later than the message's own immunity time allows.
            StoreReadOnly: the disk refused to force the log; the next opening shows whether the transaction is settled.
            StoreError: nothing was stored; the transaction is still open.
        """
        if state not in SETTLING:
            return None
        require_whole("commit_log_offset", commit_log_offset, None)
        with self.open_transactions.changed:
            half = self.open_transactions.half_at(commit_log_offset)
            if half.properties.get("PGROUP") != producer_group or half.queue_offset != queue_offset:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"this is a different half message: producer_group={producer_group!r} "
                    f"commit_log_offset={commit_log_offset} queue_offset={queue_offset}",
                )
            immunity, own = self.open_transactions.immunity(half)
            if own and not from_check and self.writer.clock.now_ms() - half.born_timestamp > immunity:
                raise RequestRefused(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the sender will be asked soon, and can answer then: immunity_ms={immunity}",
                )
            transaction = self.open_transactions.pending.get(identity_of(half))
            if transaction is None:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the transaction is already settled: commit_log_offset={commit_log_offset} "
                    f"queue_offset={queue_offset}",
                )
            results = self.open_transactions.settle(transaction, delivered_messages(half, state))
        # The op records come last: once they are on disk, the message is, too.
        status = self.writer.forced(results[-1]).status
        return msgspec.structs.replace(results[0], status=status) if state == TransactionState.COMMIT else None

    def stop(self) -> None:
        """Stop asking, and commit the progress once the log is on disk. The store calls this when it closes.

        Raises:
            StoreError: the disk refused to force the log.
            OSError: the disk refused the file.
        """
        self.checks.stop()
        try:
            if self.writer.appender.read_only_reason is None:
                self.open_transactions.kept = None
                self.open_transactions.moved = True
                self.open_transactions.keep()
                self.writer.flush()
                self.open_transactions.keep()
        finally:
            self.open_transactions.reader.close()

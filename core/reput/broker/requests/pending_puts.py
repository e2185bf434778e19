"""PendingPuts: collects the messages of one turn of the loop, and stores them under one lock.

    send requests of all connections ── put ──▶ entries ── append, once a turn ──▶ the log
                    ◀── answer ── at once, or once they are on disk or at followers ──┘

Each message remains a put of its own: it is answered, or refused, individually.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import msgspec

from reput.broker.requests.sync_replicas import SyncReplicas
from reput.embedded.store_engine import StoreEngine
from reput.errors import StoreBusy, StoreError
from reput.remoting.turn import Turn
from reput.store.record.message import Message, PutMessageResult, PutMessageStatus
from reput.store.writer.appender import Admitted

__all__ = ["Outcome", "PendingPuts"]

# Messages that wait for the disk. RocketMQ: sendThreadPoolQueueCapacity.
WAITING_MAX = 10_000

# The result of a message: where it is stored, or why it is not.
Outcome: TypeAlias = PutMessageResult | StoreError


class PendingPuts:
    """Used in the thread of the broker's loop only.

    Attributes:
        store_earlier: stores what came before the first message of a turn, and is kept elsewhere; None: nothing is.
    """

    def __init__(self, engine: StoreEngine, turn: Turn, replicas: SyncReplicas | None = None) -> None:
        """*replicas*: hold answers until followers have the messages; None: no answer waits for a follower."""
        self.turn = turn
        self.engine = engine
        self.writer = engine.writer
        self.appender = engine.writer.appender
        self.loop = asyncio.get_running_loop()
        self.messages: list[Message | None] = []
        self.prepared: list[Admitted] = []
        self.answers: list[Callable[[Outcome], None]] = []
        self.waiting_count = 0
        self.replicas = replicas
        self.store_earlier: Callable[[], None] | None = None

    def put(self, message: Message, answer: Callable[[Outcome], None], *, waits: bool = True) -> None:
        """Store *message* at the end of this turn, and call *answer* in the loop.

        Args:
            waits: *answer* is called once the message is on disk with SYNC_FLUSH, and at followers with SYNC_MASTER.

        Raises:
            MessageIllegal: it breaks a limit.
            StoreBusy: another put is stuck.
        """
        self.add(*self.appender.admit(message), answer, waits=waits)

    def add(
        self, message: Message | None, prepared: Admitted, answer: Callable[[Outcome], None], *, waits: bool
    ) -> None:
        """As `put`, for an encoded message; *message* is None if it was encoded without a `Message`."""
        if waits and self.replicas is not None:
            answer = self.confirmed(answer, self.replicas)
        if waits and self.writer.sync_flush:
            if self.waiting_count >= WAITING_MAX:
                raise StoreBusy(f"too many messages wait for the disk: waiting_max={WAITING_MAX}")
            self.waiting_count += 1
            future = self.engine.grouped_puts().put(message, prepared)
            future.add_done_callback(partial(self.on_disk, answer))
            return
        if not self.messages:
            if self.store_earlier is not None:
                self.store_earlier()
            self.turn.at_end(self.append)
        self.messages.append(message)
        self.prepared.append(prepared)
        self.answers.append(answer)

    def on_disk(self, answer: Callable[[Outcome], None], done: asyncio.Future[PutMessageResult]) -> None:
        """Answer for a message that has waited for the disk."""
        self.waiting_count -= 1
        answer(outcome_of(done))

    def append(self) -> None:
        """Store the messages of this turn, in the order in which they came."""
        if not self.messages:
            return
        messages, prepared, answers = self.messages, self.prepared, self.answers
        self.messages, self.prepared, self.answers = [], [], []
        begin = self.appender.monotonic()
        for answer, outcome in zip(answers, self.appender.append_each(messages, prepared), strict=True):
            answer(outcome)
        self.appender.put_statistics.note(self.appender.monotonic() - begin, len(messages))

    def append_earlier(self) -> None:
        """Store the messages of this turn now, because another way of storing follows."""
        if self.store_earlier is not None:
            self.store_earlier()
        self.append()

    async def settled(self) -> None:
        """Return once every accepted message is stored, and on disk if its sender waits for that."""
        self.append_earlier()
        if self.writer.sync_flush and self.writer.durable < self.writer.appended:
            await self.engine.grouped_puts().waits.wait(self.writer.appended)
        if self.replicas is not None:
            await self.replicas.settled()

    def confirmed(self, answer: Callable[[Outcome], None], replicas: SyncReplicas) -> Callable[[Outcome], None]:
        """Return what calls *answer* once followers have the message, or it is known that they do not."""

        def wait(outcome: Outcome) -> None:
            if not isinstance(outcome, PutMessageResult):
                answer(outcome)
                return
            end = outcome.next_commit_log_offset
            self.wait_for_followers(replicas, end, 1, lambda status: answer(with_status(outcome, status)))

        return wait

    def wait_for_followers(
        self, replicas: SyncReplicas, end: int, count: int, answer: Callable[[PutMessageStatus], None]
    ) -> None:
        """Call *answer* for *count* messages once followers have the log up to *end*, or are known not to."""
        if self.waiting_count >= WAITING_MAX:
            answer(PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
            return
        self.waiting_count += count

        def done(status: PutMessageStatus) -> None:
            self.waiting_count -= count
            answer(status)

        replicas.wait(end, done)

    def confirmed_in_thread(self, result: PutMessageResult) -> PutMessageResult:
        """Return *result* of a message that was put in another thread, once followers have it, or are known not to."""
        if self.replicas is None:
            return result
        return with_status(result, self.replicas.wait_in_thread(result.next_commit_log_offset))

    def answer_batch(
        self, results: list[PutMessageResult], answer: Callable[[list[PutMessageResult]], None], *, waits: bool
    ) -> None:
        """Call *answer* in the loop with the results of stored messages; for *waits* see `put`."""
        if waits and self.replicas is not None:
            replicas, told = self.replicas, answer

            def answer(results: list[PutMessageResult]) -> None:
                def done(status: PutMessageStatus) -> None:
                    told([with_status(result, status) for result in results])

                replicas.wait(results[-1].next_commit_log_offset, done)

        if not (waits and self.writer.sync_flush):
            answer(results)
            return
        end = results[-1].next_commit_log_offset
        timer = self.loop.call_later(self.writer.settings.sync_flush_timeout / 1000, lambda: settle())
        answered = False

        def settle() -> None:
            nonlocal answered
            timer.cancel()
            if not answered:
                answered = True
                is_durable = self.writer.durable >= end
                answer(results if is_durable else [late(result) for result in results])

        self.engine.grouped_puts().waits.call(end, settle)


def with_status(result: PutMessageResult, status: PutMessageStatus) -> PutMessageResult:
    """Return *result* with the outcome of its replication, which wins if it is not a success, as in RocketMQ."""
    return result if status is PutMessageStatus.PUT_OK else msgspec.structs.replace(result, status=status)


def late(result: PutMessageResult) -> PutMessageResult:
    """Return the result of a message that was stored, but was not on disk in time."""
    return msgspec.structs.replace(result, status=PutMessageStatus.FLUSH_DISK_TIMEOUT)


def outcome_of(done: asyncio.Future[PutMessageResult]) -> Outcome:
    """Return the result of a put."""
    error = done.exception()
    if error is None:
        return done.result()
    return error if isinstance(error, StoreError) else StoreError(f"the put failed: error={error!r}")

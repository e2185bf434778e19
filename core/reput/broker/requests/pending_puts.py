"""PendingPuts: collects the messages of one turn of the loop, and stores them under one lock.

    send requests of all connections ── put ──▶ entries ── append, once a turn ──▶ the log
                    ◀── answer ── at once, or with SYNC_FLUSH once they are on disk ──┘

Each message remains a put of its own: it is answered, or refused, individually.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import msgspec

from reput.embedded.store_engine import StoreEngine
from reput.errors import StoreBusy, StoreError
from reput.remoting.turn import Turn
from reput.store.record.message import Message, PutMessageResult, PutMessageStatus
from reput.store.writer.message_preparer import Prepared

__all__ = ["Outcome", "PendingPuts"]

# Messages that wait for the disk. RocketMQ: sendThreadPoolQueueCapacity.
WAITING_MAX = 10_000

# The result of a message: where it is stored, or why it is not.
Outcome: TypeAlias = PutMessageResult | StoreError


class PendingPuts:
    """Used in the thread of the broker's loop only."""

    def __init__(self, engine: StoreEngine, turn: Turn) -> None:
        self.turn = turn
        self.engine = engine
        self.writer = engine.writer
        self.appender = engine.writer.appender
        self.loop = asyncio.get_running_loop()
        self.messages: list[Message | None] = []
        self.prepared: list[Prepared] = []
        self.answers: list[Callable[[Outcome], None]] = []
        self.waiting_count = 0

    def put(self, message: Message, answer: Callable[[Outcome], None], *, waits: bool = True) -> None:
        """Store *message* at the end of this turn, and call *answer* in the loop.

        Args:
            waits: with SYNC_FLUSH, *answer* is called once the message is on disk.

        Raises:
            MessageIllegal: it breaks a limit.
            StoreBusy: another put is stuck.
        """
        self.add(*self.appender.admit(message), answer, waits=waits)

    def add(
        self, message: Message | None, prepared: Prepared, answer: Callable[[Outcome], None], *, waits: bool
    ) -> None:
        """As `put`, for an encoded message; *message* is None if it was encoded without a `Message`."""
        if waits and self.writer.sync_flush:
            if self.waiting_count >= WAITING_MAX:
                raise StoreBusy(f"too many messages wait for the disk: waiting_max={WAITING_MAX}")
            self.waiting_count += 1
            future = self.engine.grouped_puts().put(message, prepared)
            future.add_done_callback(partial(self.on_disk, answer))
            return
        if not self.messages:
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
        messages, prepared, answers = self.messages, self.prepared, self.answers
        self.messages, self.prepared, self.answers = [], [], []
        begin = self.appender.monotonic()
        for answer, outcome in zip(answers, self.appender.append_each(messages, prepared), strict=True):
            answer(outcome)
        self.appender.put_statistics.note(self.appender.monotonic() - begin, len(messages))

    async def settled(self) -> None:
        """Return once every accepted message is stored, and on disk if its sender waits for that."""
        while self.messages:
            await asyncio.sleep(0)
        if self.writer.sync_flush and self.writer.durable < self.writer.appended:
            await self.engine.grouped_puts().waits.wait(self.writer.appended)

    def answer_batch(
        self, results: list[PutMessageResult], answer: Callable[[list[PutMessageResult]], None], *, waits: bool
    ) -> None:
        """Call *answer* in the loop with the results of stored messages; for *waits* see `put`."""
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


def late(result: PutMessageResult) -> PutMessageResult:
    """Return the result of a message that was stored, but was not on disk in time."""
    return msgspec.structs.replace(result, status=PutMessageStatus.FLUSH_DISK_TIMEOUT)


def outcome_of(done: asyncio.Future[PutMessageResult]) -> Outcome:
    """Return the result of a put."""
    error = done.exception()
    if error is None:
        return done.result()
    return error if isinstance(error, StoreError) else StoreError(f"the put failed: error={error!r}")

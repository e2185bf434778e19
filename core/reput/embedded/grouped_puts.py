"""GroupedPuts: stores and acknowledges the puts of one event loop's coroutines together, with SYNC_FLUSH.

All ready tasks of the loop put in the same turn. At its end their messages are stored under one lock, and share one
force of the disk and one waking of the loop. Each message stays a put of its own: it is refused, cancelled and answered
alone.

    coroutines ── put ──▶ entries ── append, once a turn ──▶ the log
        ▲                                                      │ forced
        └───────────────── settle ◀── DurableWaits ◀───────────┘
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from reput.embedded.durable_waits import DurableWaits
from reput.store.message_store import MessageStore
from reput.store.record.message import Message, PutMessageResult, PutMessageStatus
from reput.store.writer.appender import Admitted

__all__ = ["GroupedPuts"]

# Other threads put in between, so one group holds the put lock for a fraction of a millisecond.
GROUP_COUNT_MAX = 128
GROUP_SIZE_MAX = 1 << 20
# The puts of one turn are forced during the next turn: of a thousand tasks, half wait for the disk while the other
# half works. A turn of more groups is stored, and forced, in parts; one of fewer than two is over soon.
FORCED_GROUPS_MIN, FORCED_GROUPS_MAX = 2, 4
BEGIN_PATIENCE_S = 0.001

Stored = list[tuple[asyncio.Future[PutMessageResult], PutMessageResult]]


class Group:
    """Messages stored together, each with its prepared record and its task's future."""

    __slots__ = ("futures", "messages", "prepared", "size")

    def __init__(self) -> None:
        self.messages: list[Message | None] = []
        self.prepared: list[Admitted] = []
        self.futures: list[asyncio.Future[PutMessageResult]] = []
        self.size = 0

    def without_cancelled(self) -> Group:
        """Return the group without the puts whose tasks were cancelled."""
        if not any(future.done() for future in self.futures):
            return self
        left = Group()
        for message, prepared, future in zip(self.messages, self.prepared, self.futures, strict=True):
            if not future.done():
                left.messages.append(message)
                left.prepared.append(prepared)
                left.futures.append(future)
        return left


class GroupedPuts:
    """Used in the thread of *loop* only."""

    def __init__(self, writer: MessageStore, waits: DurableWaits, loop: asyncio.AbstractEventLoop) -> None:
        self.writer = writer
        self.waits = waits
        self.loop = loop
        self.timeout = writer.settings.sync_flush_timeout / 1000
        self.groups: list[Group] = []

    def is_here(self) -> bool:
        """Whether the calling thread runs the loop."""
        return asyncio.get_running_loop() is self.loop

    def put(self, message: Message | None, prepared: Admitted) -> asyncio.Future[PutMessageResult]:
        """Return a future for the result of the put. Cancelled in the same turn, the message is not stored.

        *message* is None if it was encoded without a `Message`.
        """
        future: asyncio.Future[PutMessageResult] = self.loop.create_future()
        groups = self.groups
        if not groups:
            self.loop.call_soon(self.append)
            groups.append(Group())
        group = groups[-1]
        if group.size >= GROUP_SIZE_MAX or len(group.futures) == GROUP_COUNT_MAX:
            if len(groups) == FORCED_GROUPS_MAX:
                self.append()
                groups = self.groups
            group = Group()
            groups.append(group)
        group.messages.append(message)
        group.prepared.append(prepared)
        group.futures.append(future)
        group.size += prepared.record_size
        return future

    def append(self) -> None:
        """Store the messages of this turn, in the order of their puts."""
        groups, self.groups = self.groups, []
        end = -1
        for group in groups:
            left = group.without_cancelled()
            if not left.futures:
                continue
            try:
                end = self.append_group(left, end)
            except Exception as error:
                # As with `put`, the caller gets the error; otherwise its task would wait for ever.
                for future in left.futures:
                    if not future.done():
                        future.set_exception(error)
        if end >= 0 and len(groups) >= FORCED_GROUPS_MIN:
            # Those that the force before has let go are ready: asked behind them, the flusher would begin so late that
            # the loop waits for it.
            self.waits.ask_for(end)
            self.writer.begin_flush(BEGIN_PATIENCE_S)
        elif end >= 0:
            self.waits.ask_soon()

    def append_group(self, group: Group, end: int) -> int:
        """Store *group* and answer the refused puts; the others wait for the disk.

        Returns:
            The commit-log offset at which the last record ends; *end* if none was stored.
        """
        begin = self.writer.appender.monotonic()
        outcomes = self.writer.appender.append_each(group.messages, group.prepared)
        stored: Stored = []
        for future, outcome in zip(group.futures, outcomes, strict=True):
            if isinstance(outcome, PutMessageResult):
                stored.append((future, outcome))
            else:
                future.set_exception(outcome)
        if stored:
            end = stored[-1][1].next_commit_log_offset
            timer = self.loop.call_later(self.timeout, self.give_up, stored)
            self.waits.add(end, partial(self.settle, end, stored, timer, begin))
        return end

    def settle(self, end: int, stored: Stored, timer: asyncio.TimerHandle, begin: float) -> None:
        """Answer a group that is now on disk or never will be; it was stored at *begin*."""
        timer.cancel()
        self.writer.appender.put_statistics.note(self.writer.appender.monotonic() - begin, len(stored))
        if self.writer.durable >= end:
            for future, result in stored:
                if not future.done():
                    future.set_result(result)
        else:
            for future, _ in stored:
                if not future.done():
                    future.set_exception(self.writer.appender.refusal())

    def give_up(self, stored: Stored) -> None:
        """Answer a group for which the disk takes too long."""
        for future, result in stored:
            if not future.done():
                future.set_result(msgspec.structs.replace(result, status=PutMessageStatus.FLUSH_DISK_TIMEOUT))

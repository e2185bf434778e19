"""GroupedPuts: what the coroutines of one event loop put with SYNC_FLUSH, stored and acknowledged together.

Whatever is ready in the loop puts in the same turn; at its end all of that is stored under one lock, and one force and
one waking of the loop are for all who wait. Each message stays a put of its own: it is refused, cancelled and answered
for itself alone.

    coroutines ── put ──▶ entries ── append, once a turn ──▶ the log
        ▲                                                      │ forced
        └───────────────── settle ◀── DurableWaits ◀───────────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec

from reput.durable_waits import DurableWaits
from reput.store.message import Message, PutMessageResult, PutMessageStatus
from reput.store.message_store import MessageStore, Prepared

__all__ = ["GroupedPuts"]

# Other threads put in between, so one group holds the put lock for a fraction of a millisecond.
GROUP_COUNT_MAX = 128
GROUP_SIZE_MAX = 1 << 20

Entry = tuple[Message, Prepared, asyncio.Future[PutMessageResult]]
Stored = list[tuple[asyncio.Future[PutMessageResult], PutMessageResult]]


class GroupedPuts:
    """Made and used in the thread of *loop*."""

    def __init__(self, writer: MessageStore, waits: DurableWaits, loop: asyncio.AbstractEventLoop) -> None:
        self.writer = writer
        self.waits = waits
        self.loop = loop
        self.timeout = writer.settings.sync_flush_timeout / 1000
        self.entries: list[Entry] = []

    def put(self, message: Message, prepared: Prepared) -> asyncio.Future[PutMessageResult]:
        """Return what will say where *message* is once it is on disk. Cancelled in the same turn, it is not stored."""
        future: asyncio.Future[PutMessageResult] = self.loop.create_future()
        entries = self.entries
        if not entries:
            self.loop.call_soon(self.append)
        entries.append((message, prepared, future))
        return future

    def append(self) -> None:
        """Store what was put in this turn, in the order in which it was put."""
        entries, self.entries = self.entries, []
        for group in groups([entry for entry in entries if not entry[2].done()]):
            try:
                self.append_group(group)
            except Exception as error:
                # As with `put`, whoever asked is told; without this he would wait for ever.
                for _, _, future in group:
                    if not future.done():
                        future.set_exception(error)

    def append_group(self, group: list[Entry]) -> None:
        """Store *group*, and answer whoever was refused; the others wait for the disk."""
        outcomes = self.writer.append_each([(message, prepared) for message, prepared, _ in group])
        stored: Stored = []
        for (_, _, future), outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, PutMessageResult):
                stored.append((future, outcome))
            else:
                future.set_exception(outcome)
        if stored:
            end = stored[-1][1].next_commit_log_offset
            timer = self.loop.call_later(self.timeout, self.give_up, stored)
            self.waits.call(end, lambda: self.settle(end, stored, timer))

    def settle(self, end: int, stored: Stored, timer: asyncio.TimerHandle) -> None:
        """Answer all of a group, which is on disk now or never will be."""
        timer.cancel()
        if self.writer.durable >= end:
            for future, result in stored:
                if not future.done():
                    future.set_result(result)
        else:
            for future, _ in stored:
                if not future.done():
                    future.set_exception(self.writer.refusal())

    def give_up(self, stored: Stored) -> None:
        """Answer all of a group for which the disk takes too long."""
        for future, result in stored:
            if not future.done():
                future.set_result(msgspec.structs.replace(result, status=PutMessageStatus.FLUSH_DISK_TIMEOUT))


def groups(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Split *entries* into groups that hold the put lock for a short time each."""
    group: list[Entry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += entry[1].record_size
        if size >= GROUP_SIZE_MAX or len(group) == GROUP_COUNT_MAX:
            yield group
            group, size = [], 0
    if group:
        yield group

"""SyncReplicas: with SYNC_MASTER, holds the answer to a producer until enough followers have the message.

    stored ── too few in-sync followers ──▶ SLAVE_NOT_AVAILABLE, at once
           ── acknowledged by enough ─────▶ PUT_OK
           ── not within slave_timeout ───▶ FLUSH_SLAVE_TIMEOUT

The message is stored in each case. A follower counts by its own reports, as long as its connection lasts; a reput
reports only what its disk has. A master with a lease waits for a set of followers instead of a number, see `InSyncSet`.

Source: RocketMQ store 4.9, CommitLog.submitReplicaRequest and HAService.isSlaveOK; store 5, GroupTransferService.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right, insort
from collections.abc import Callable

import msgspec

from reput.remoting.turn import Turn
from reput.replication.ha_server import HaServer
from reput.replication.in_sync_set import InSyncSet
from reput.settings import Settings
from reput.store.record.message import PutMessageStatus

__all__ = ["SyncReplicas"]

# A late timer must not answer before its time.
TIMER_SLACK_S = 0.001


class WaitingPut(msgspec.Struct, frozen=True):
    """A message that waits for followers: where it ends, until when it waits, and what to call then."""

    end: int
    deadline: float
    done: Callable[[PutMessageStatus], None]


def end_of(put: WaitingPut) -> int:
    """Return where a message ends."""
    return put.end


class SyncReplicas:
    """Used in the thread of the broker's loop only, but for `wait_in_thread`."""

    def __init__(
        self, ha_server: HaServer | None, settings: Settings, turn: Turn, in_sync: InSyncSet | None = None
    ) -> None:
        """*ha_server*: None: there is no HA port, so no follower either; *in_sync*: of a master with a lease."""
        self.ha_server = ha_server
        self.in_sync = in_sync
        self.has_ended = False
        self.loop, self.turn = turn.loop, turn
        self.thread = threading.get_ident()
        # The master itself is one of them. SYNC_MASTER means at least one more.
        self.needed = max(settings.in_sync_replicas, 2) - 1
        self.timeout = settings.slave_timeout / 1000
        # In the order of the log. Threads bring messages in another order, so a message may arrive behind later ones.
        self.waiting: list[WaitingPut] = []
        self.timer: asyncio.TimerHandle | None = None
        self.is_told = False
        if ha_server is not None:
            ha_server.on_acknowledged = self.tell
        if in_sync is not None:
            in_sync.on_change = self.tell

    def wait(self, end: int, done: Callable[[PutMessageStatus], None]) -> None:
        """Call *done* once enough followers have the log up to *end*, or it is known that they do not."""
        if self.ha_server is not None:
            # What follows has time until the report comes.
            self.ha_server.flush()
        if self.has_ended or not self.is_available():
            done(PutMessageStatus.SLAVE_NOT_AVAILABLE)
            return
        if self.arrived() >= end:
            done(PutMessageStatus.PUT_OK)
            return
        insort(self.waiting, WaitingPut(end, self.loop.time() + self.timeout, done), key=end_of)
        if self.timer is None:
            self.timer = self.loop.call_later(self.timeout + TIMER_SLACK_S, self.expire)
        # A report after the look above, and before the message waited, has woken no one.
        self.settle()

    def is_available(self) -> bool:
        """Tell whether enough followers keep up, so that it is worth to wait."""
        if self.in_sync is not None:
            return self.in_sync.is_available()
        return self.ha_server is not None and self.ha_server.in_sync_count() >= self.needed

    def arrived(self) -> int:
        """Return up to where enough followers have the log; -1: there are too few."""
        if self.in_sync is not None:
            return self.in_sync.arrived()
        assert self.ha_server is not None
        return self.ha_server.acknowledged_by_count(self.needed)

    def wait_in_thread(self, end: int) -> PutMessageStatus:
        """Return the outcome for a message that ends at *end*. Called in other threads than the loop's."""
        found: list[PutMessageStatus] = []
        known = threading.Event()

        def done(status: PutMessageStatus) -> None:
            found.append(status)
            known.set()

        self.loop.call_soon_threadsafe(self.wait, end, done)
        known.wait()
        return found[0]

    def tell(self) -> None:
        """A follower has acknowledged more, or has gone. Any thread may call."""
        if not self.is_told and self.waiting:
            self.is_told = True
            if threading.get_ident() == self.thread:
                self.turn.at_end(self.settle)
            else:
                self.loop.call_soon_threadsafe(self.settle)

    def settle(self) -> None:
        """Answer those whose messages have arrived."""
        self.is_told = False
        count = bisect_right(self.waiting, self.arrived(), key=end_of)
        settled = self.waiting[:count]
        del self.waiting[:count]
        for put in settled:
            put.done(PutMessageStatus.PUT_OK)

    def expire(self) -> None:
        """Answer those that have waited long enough."""
        self.timer = None
        now = self.loop.time()
        expired = [put for put in self.waiting if put.deadline <= now]
        if expired:
            self.waiting = [put for put in self.waiting if put.deadline > now]
        for put in expired:
            put.done(PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
        if self.waiting and self.timer is None:
            wait = min(put.deadline for put in self.waiting) - now
            self.timer = self.loop.call_later(wait + TIMER_SLACK_S, self.expire)

    def end(self) -> None:
        """Answer all that wait, and all that come: nothing is confirmed any more."""
        self.has_ended = True
        waiting, self.waiting = self.waiting, []
        for put in waiting:
            put.done(PutMessageStatus.FLUSH_SLAVE_TIMEOUT)

    async def settled(self) -> None:
        """Return once nobody waits any more."""
        while self.waiting:
            await asyncio.sleep(TIMER_SLACK_S)

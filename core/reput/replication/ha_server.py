"""HaServer: lets RocketMQ's slaves, and reputs, copy the log of an open store. One thread serves all of them.

    writer ── the log has grown ──▶ thread ── frames, by sendfile from the segments ──▶ followers
    SYNC_MASTER's puts ◀── acknowledged ── reports ◀──────────────────────────────────────┘

Each follower has a place of its own in the log, and only a few bytes of memory: the kernel copies the body from the
segment's pages into the socket. A follower that does not read holds up nobody.

While all followers are near the log's end, and the log grows slowly, the broker's loop does the thread's
work. A message leaves in the turn that stored it, and a report answers its producer, without a hand-over to another
thread on either way. More is for the thread, which computes beside the loop.

Source: RocketMQ store, DefaultHAService and DefaultHAConnection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from reput.embedded.store_engine import StoreEngine
from reput.errors import StoreError
from reput.remoting.turn import Turn
from reput.replication.catch_up_pace import FAR_BEHIND, CatchUpPace
from reput.replication.ha_connection import ConnectionEnds, HaConnection, Protection
from reput.store.service.wake import Wake

if TYPE_CHECKING:
    import asyncio

__all__ = ["FollowerRow", "HaServer"]

FOLLOWERS_MAX = 64
# Taken in at a time: what the last ones ask for is read before they have to make room for others.
ACCEPTED_MAX = FOLLOWERS_MAX // 4
LOOK_S = 0.5
LOG_PAUSE_S = 10.0
# A follower may hold a record that has not come whole, and acknowledge what is before it.
SETTLED_SIZE = 1 << 20
# The loop serves followers that are not further behind than this, and only so many bytes in a second.
NEAR_SIZE = 256 << 10
SLOW_BYTES_PER_S = 10 << 20
# For so long at least the bytes are counted.
RATE_LOOK_S = 0.1

logger = logging.getLogger(__name__)


class FollowerRow(msgspec.Struct, frozen=True):
    """One follower, as the master sees it.

    Attributes:
        sent, acknowledged: commit-log offsets; None: it has not reported yet.
    """

    address: str
    sent: int
    acknowledged: int | None


class HaServer:
    """The HA port of one store.

    Attributes:
        on_acknowledged: called by the thread each time that a follower has acknowledged more, or has gone.
        protection: of the connections that come from now on.
    """

    def __init__(self, engine: StoreEngine, listener: socket.socket) -> None:
        """Serve on *listener*, which is bound and listens."""
        self.engine = engine
        self.listener = listener
        self.settings = engine.settings
        self.protection = Protection()
        # How many followers a put needs.
        is_sync = self.settings.broker_role == "SYNC_MASTER"
        self.awaited = max(self.settings.in_sync_replicas, 2) - 1 if is_sync else 0
        self.on_acknowledged: Callable[[], None] = lambda: None
        self.selector = selectors.EpollSelector()
        self.waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.connections: dict[int, HaConnection] = {}
        self.guard = threading.Lock()
        self.pace = CatchUpPace()
        # While it is set, growth of the log must wake the thread. Not without a follower: each put would pay for it.
        self.is_parked = False
        self.stopping = False
        self.complaint = ""
        # Connections that were ended because there were too many, since that was last told.
        self.turned_away, self.told_at = 0, -LOG_PAUSE_S
        # When followers are taken in again, after a shortage; 0.0: they are.
        self.accepts_at = 0.0
        self.turn: Turn | None = None
        # Whether the loop serves, by whose thread, and how the thread, which waits meanwhile, is told to go on.
        self.is_in_loop = False
        self.loop_thread = 0
        # The log has grown in this turn of the loop.
        self.is_due = False
        self.given_back = Wake()
        self.look_timer: asyncio.TimerHandle | None = None
        # Bytes that were sent since, for all followers.
        self.counted_size, self.counted_since = 0, 0.0

    # Seen from outside.

    def start(self, turn: Turn | None = None) -> None:
        """Start the thread.

        *turn*: of the loop that may do its work, whose thread calls this; None: there is no loop.
        """
        self.turn, self.loop_thread = turn, threading.get_ident()
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.waker, selectors.EVENT_READ)
        self.engine.growth.watch(self.grown)
        self.engine.cursors_of_followers = self.cursors
        self.thread = self.engine.threads.start("reput-ha", self.run)

    def stop(self) -> None:
        """End all connections, and return once the thread has ended."""
        self.engine.growth.unwatch(self.grown)
        self.stopping = True
        os.eventfd_write(self.waker, 1)
        self.thread.join()
        # Not by the thread, which may have failed earlier: its number would soon be another file's.
        os.close(self.waker)

    def grown(self) -> None:
        """The log has grown. Called under the put lock."""
        if self.is_parked:
            self.is_parked = False
            if self.is_in_loop and threading.get_ident() == self.loop_thread:
                assert self.turn is not None
                self.is_due = True
                # Behind the answers of this turn, unless they wait for followers: then `flush` comes sooner.
                self.turn.loop.call_soon(self.serve_growth)
            else:
                os.eventfd_write(self.waker, 1)

    def followers(self) -> list[FollowerRow]:
        """Return the followers that have reported, in the order of their arrival."""
        return [
            FollowerRow(connection.address, connection.sent, connection.acknowledged)
            for connection in self.all_connections()
            if connection.acknowledged is not None
        ]

    def all_connections(self) -> list[HaConnection]:
        """Return the connections, in the order of their arrival."""
        with self.guard:
            return list(self.connections.values())

    def acknowledged_by_count(self, count: int) -> int:
        """Return the commit-log offset up to which at least *count* followers have the log; -1: there are fewer."""
        confirmed = (connection.confirmed for connection in self.all_connections())
        ends = sorted((end for end in confirmed if end is not None), reverse=True)
        return ends[count - 1] if len(ends) >= count else -1

    def member_ends(self) -> dict[str, int]:
        """Return up to where each connected node of the lease has the log, by its name."""
        ends: dict[str, int] = {}
        for connection in self.all_connections():
            end = connection.confirmed
            if connection.member is not None and end is not None:
                ends[connection.member] = max(end, ends.get(connection.member, 0))
        return ends

    def in_sync_count(self) -> int:
        """Return how many followers are not further behind than ``ha_slave_fallbehind_max``."""
        least = self.engine.log_end() - self.settings.ha_slave_fallbehind_max
        return sum((row.acknowledged or 0) >= least for row in self.followers())

    def cursors(self) -> dict[str, int | None]:
        """Return up to where each follower has the log, for retention: it waits for them as it does for dispatchers."""
        return {f"follower {row.address}": row.acknowledged for row in self.followers()}

    # The thread.

    def run(self) -> None:
        """Serve until stopped."""
        try:
            while not self.stopping:
                self.serve_once()
                if self.may_hand_over():
                    self.hand_over()
        finally:
            for connection in list(self.connections.values()):
                self.end(connection, ConnectionEnds("the master stops", is_usual=True))
            self.selector.close()
            self.listener.close()

    def serve_once(self) -> None:
        """Wait for something to happen, and do it."""
        end = self.park()
        now = time.monotonic()
        pauses = [connection.pause(now) for connection in self.connections.values() if connection.may_send(end)]
        events = self.selector.select(min(pauses, default=LOOK_S))
        self.is_parked = False
        self.take(events)
        self.send_all(self.engine.log_end())

    def park(self) -> int:
        """Let the log's growth wake the thread, or the loop, and return where the log ends."""
        # Set before the look at the log's end: growth behind that look wakes.
        self.is_parked = any(not connection.held_for for connection in self.connections.values())
        return self.engine.log_end()

    def take(self, events: Sequence[tuple[selectors.SelectorKey, int]]) -> None:
        """Take in followers, and take what they have reported."""
        for key, mask in events:
            if key.fileobj is self.listener:
                self.accept()
            elif key.fileobj == self.waker:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self.waker)
            elif mask & selectors.EVENT_READ:
                connection = self.connections.get(key.fd)
                if connection is not None:
                    self.guarded(connection, partial(self.read, connection))

    def send_all(self, end: int) -> None:
        """Send to all followers, for a log that ends at *end*."""
        now = time.monotonic()
        if self.accepts_at and now >= self.accepts_at:
            self.accepts_at = 0.0
            self.selector.register(self.listener, selectors.EVENT_READ)
        self.hold(end, now)
        for connection in list(self.connections.values()):
            self.guarded(connection, partial(self.send, connection, end, now))

    # The loop in its place.

    def may_hand_over(self) -> bool:
        """Tell whether little enough is left to do for the loop."""
        if self.turn is None or self.settings.ha_flow_control_enable or self.stopping:
            return False
        now = time.monotonic()
        seconds = now - self.counted_since
        if seconds < RATE_LOOK_S:
            return False
        is_slow = self.counted_size <= SLOW_BYTES_PER_S * seconds
        self.counted_size, self.counted_since = 0, now
        return is_slow and self.are_near(self.engine.log_end())

    def are_near(self, end: int) -> bool:
        """Tell whether all followers have nearly all of a log that ends at *end*."""
        return not any(
            connection.is_blocked or (connection.acknowledged is not None and end - connection.sent > NEAR_SIZE)
            for connection in self.connections.values()
        )

    def hand_over(self) -> None:
        """Let the loop serve until it gives the work back."""
        assert self.turn is not None
        self.is_in_loop = True
        try:
            self.turn.loop.call_soon_threadsafe(self.begin_in_loop)
        except RuntimeError:
            # The loop has ended: the broker stops.
            self.is_in_loop, self.turn = False, None
            return
        self.given_back.wait()
        self.given_back.clear()

    def begin_in_loop(self) -> None:
        """Serve in the loop."""
        assert self.turn is not None
        self.turn.loop.add_reader(self.selector.fileno(), self.serve_in_turn)
        self.look()

    def look(self) -> None:
        """Send heartbeats, and end connections that say nothing."""
        assert self.turn is not None
        self.look_timer = self.turn.loop.call_later(LOOK_S, self.look)
        self.serve_in_turn()

    def serve_in_turn(self) -> None:
        """Do what is there to do, and end the turn."""
        assert self.turn is not None
        self.turn.begin_read()
        self.serve_now()
        self.turn.end_read()

    def serve_growth(self) -> None:
        """Send what has grown, unless that was done."""
        if self.is_due:
            self.serve_in_turn()

    def flush(self) -> None:
        """Send now what has grown in this turn. Called in the loop."""
        if self.is_due:
            self.serve_now()

    def serve_now(self) -> None:
        """Do what is there to do, unless it was given back."""
        if not self.is_in_loop:
            return
        try:
            self.is_due = False
            self.is_parked = False
            self.take(self.selector.select(0))
            end = self.engine.log_end()
            now = time.monotonic()
            if now - self.counted_since > RATE_LOOK_S:
                self.counted_size, self.counted_since = 0, now
            if self.stopping or self.counted_size > SLOW_BYTES_PER_S * RATE_LOOK_S or not self.are_near(end):
                self.give_back()
                return
            self.send_all(end)
            if self.park() > end:
                os.eventfd_write(self.waker, 1)
        except Exception:
            logger.exception("the loop cannot serve the followers, the thread goes on")
            self.give_back()

    def give_back(self) -> None:
        """Let the thread serve again."""
        assert self.turn is not None
        assert self.look_timer is not None
        self.turn.loop.remove_reader(self.selector.fileno())
        self.look_timer.cancel()
        self.is_in_loop = False
        self.given_back.set()

    # Followers.

    def hold(self, end: int, now: float) -> None:
        """Decide which followers get nothing of a log that ends at *end*, and for how long."""
        connections = [one for one in self.connections.values() if one.acknowledged is not None]
        far = [one for one in connections if end - one.sent > FAR_BEHIND]
        if len(connections) - len(far) < self.awaited:
            # The puts wait for one that is far behind, or do so once it has caught up.
            far.clear()
        is_settled = all(one.sent - (one.acknowledged or 0) <= SETTLED_SIZE for one in far)
        self.pace.look(now, end, is_needed=bool(far), is_settled=is_settled)
        for connection in connections:
            connection.held_for = self.pace.wait(now) if connection in far else 0.0

    def guarded(self, connection: HaConnection, work: Callable[[], None]) -> None:
        """Do *work* for one follower; what goes wrong ends its connection alone."""
        try:
            work()
        except ConnectionEnds as ending:
            self.end(connection, ending)
        except OSError as error:
            self.end(connection, ConnectionEnds(f"the connection was lost: {error.strerror}", is_usual=True))
        except StoreError as error:
            self.end(connection, ConnectionEnds(f"the log cannot be read: error={error}"))

    def accept(self) -> None:
        """Take new followers in; what is left of them wakes the thread again."""
        for _ in range(ACCEPTED_MAX):
            try:
                accepted, address = self.listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if str(error) != self.complaint:
                    self.complaint = str(error)
                    logger.error("a follower cannot be accepted: error=%s", error)
                # It still waits, and would wake this thread at once.
                self.selector.unregister(self.listener)
                self.accepts_at = time.monotonic() + LOOK_S
                return
            if len(self.connections) >= FOLLOWERS_MAX and not self.make_room():
                accepted.close()
                self.tell_crowd(address[0], "all are followers")
                continue
            connection = HaConnection(self.engine, accepted, f"{address[0]}:{address[1]}", self.protection)
            with self.guard:
                self.connections[connection.descriptor] = connection
            self.selector.register(accepted, selectors.EVENT_READ)

    def make_room(self) -> bool:
        """End the oldest connection that has not asked for anything; return False if all are followers."""
        # In the order in which they came.
        for connection in self.connections.values():
            if connection.acknowledged is None:
                self.remove(connection)
                self.tell_crowd(connection.address, "it has not asked for anything")
                return True
        return False

    def tell_crowd(self, peer: str, reason: str) -> None:
        """Log that a connection was ended because there are too many: a flood of them must not flood the log."""
        self.turned_away += 1
        now = time.monotonic()
        if now - self.told_at >= LOG_PAUSE_S:
            logger.warning(
                "too many followers: followers_max=%d ended=%d peer=%s reason=%s",
                FOLLOWERS_MAX,
                self.turned_away,
                peer,
                reason,
            )
            self.turned_away, self.told_at = 0, now

    def read(self, connection: HaConnection) -> None:
        """Take what a follower has reported."""
        if connection.read(self.engine.log_end()):
            self.on_acknowledged()

    def send(self, connection: HaConnection, end: int, now: float) -> None:
        """Send what a follower's socket takes, and wait for its room if it is full."""
        was_blocked, begin = connection.is_blocked, connection.sent
        connection.send(end, now)
        self.counted_size += connection.sent - begin
        if end - begin > FAR_BEHIND:
            self.pace.add(connection.descriptor, connection.sent - begin)
        if connection.is_blocked != was_blocked:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.is_blocked else 0)
            self.selector.modify(connection.descriptor, events)

    def end(self, connection: HaConnection, reason: ConnectionEnds) -> None:
        """End one connection."""
        level = logging.INFO if reason.is_usual else logging.WARNING
        logger.log(level, "a follower has gone: peer=%s reason=%s", connection.address, reason)
        self.remove(connection)
        self.on_acknowledged()

    def remove(self, connection: HaConnection) -> None:
        """Close one connection."""
        with self.guard:
            del self.connections[connection.descriptor]
        self.selector.unregister(connection.descriptor)
        connection.close()

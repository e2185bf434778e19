"""InSyncSet: which followers a master with a lease waits for, and so which of them may become the master after it.

    agreed     in the engine for agreement: only these may become the master
    required   whose acknowledgement each message needs: always all that are, or may have been, agreed on

    a follower has caught up ──▶ required ──▶ compare-and-swap ──▶ agreed
    one is gone, or too slow ───────────────▶ compare-and-swap ──▶ agreed no more ──▶ required no more

So every member that may become the master has each acknowledged message, also if an answer of the engine was lost, and
however long this process was stopped: of the acknowledgements that a message needs, one is that of the next master, and
it was given before that became the master.

Source: Kafka's KIP-497 and KIP-966; RocketMQ 5, AutoSwitchHAService.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from reput.embedded.store_engine import StoreEngine
from reput.errors import BrokerError
from reput.lease.held_lease import HeldLease
from reput.replication.ha_server import HaServer
from reput.settings import Settings
from reput.store.service.service_thread import ServiceThread

__all__ = ["InSyncSet"]

LOOK_S = 0.1
# Of slave_timeout: messages of a broken connection are answered once the set is smaller, before that.
GONE_SHARE, BEHIND_SHARE = 1 / 3, 2 / 3

logger = logging.getLogger(__name__)


class Progress(msgspec.Struct):
    """How a follower keeps up.

    Attributes:
        target: an earlier end of the log.
        since: when it had that last, or was first seen.
        is_abreast: it had that soon.
    """

    target: int
    since: float
    is_abreast: bool = False


class InSyncSet(ServiceThread):
    """One thread changes the set. Any thread may ask.

    Attributes:
        on_change: called by the thread when the set has changed.
    """

    def __init__(
        self,
        lease: HeldLease,
        ha_server: HaServer,
        engine: StoreEngine,
        settings: Settings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("reput-in-sync", engine.writer.threads)
        self.lease = lease
        self.ha_server = ha_server
        self.log_end = engine.log_end
        self.monotonic = monotonic
        self.needed = max(settings.in_sync_replicas, 2)
        self.gone_max = settings.slave_timeout / 1000 * GONE_SHARE
        self.behind_max = settings.slave_timeout / 1000 * BEHIND_SHARE
        self.me = lease.state.master.member
        self.guard = threading.Lock()
        self.agreed = frozenset(lease.state.in_sync)
        self.required = self.agreed
        # All that was ever acknowledged lies below: by earlier masters below the end that this one began with.
        self.confirmed = self.log_end()
        self.progress: dict[str, Progress] = {}
        self.complaint = ""
        self.on_change: Callable[[], None] = lambda: None

    # Asked for each message.

    def arrived(self) -> int:
        """Return up to where all messages may be acknowledged; -1: none may."""
        ends = self.ha_server.member_ends()
        with self.guard:
            if len(self.agreed) < self.needed or not self.lease.holds():
                return -1
            end = min(ends.get(member, -1) for member in self.required if member != self.me)
            self.confirmed = max(self.confirmed, end)
            return end

    def is_available(self) -> bool:
        """Tell whether enough members of the set are connected, so that it is worth to wait."""
        ends = self.ha_server.member_ends()
        with self.guard:
            connected = sum(member in ends or member == self.me for member in self.agreed)
        return connected >= self.needed and self.lease.holds()

    # The thread.

    def end_waits(self, reason: str) -> None:
        """As of `ServiceThread`."""
        self.lease.lose(reason)

    def seconds_to_next(self) -> float:
        """As of `ServiceThread`."""
        return LOOK_S

    def do_round(self) -> None:
        """Look at the followers, and change the set if it is no longer theirs."""
        wanted = self.wanted(self.ha_server.member_ends())
        with self.guard:
            is_settled = wanted == self.agreed == self.required
        if not is_settled and self.lease.holds():
            self.change(wanted)

    def wanted(self, ends: dict[str, int]) -> frozenset[str]:
        """Return the members that keep up, of which each is required from now on if it was not."""
        now = self.monotonic()
        log_end = self.log_end()
        for member in self.progress.keys() - ends.keys() - self.agreed:
            del self.progress[member]
        wanted = {self.me}
        for member in (ends.keys() | self.agreed) - {self.me}:
            progress = self.progress.setdefault(member, Progress(log_end, now))
            end = ends.get(member)
            if end is not None and end >= progress.target:
                progress.is_abreast = now - progress.since <= self.gone_max
                progress.target, progress.since = log_end, now
            late_max = self.gone_max if end is None else self.behind_max
            if member in self.agreed:
                if now - progress.since <= late_max:
                    wanted.add(member)
                continue
            # Under the guard: what is acknowledged from now on, it has as well.
            with self.guard:
                if end is not None and progress.is_abreast and end >= self.confirmed:
                    self.required |= {member}
                    wanted.add(member)
        return frozenset(wanted)

    def change(self, wanted: frozenset[str]) -> None:
        """Agree on another set. If the answer is lost, both sets are required until a later change is answered."""
        state = msgspec.structs.replace(self.lease.state, in_sync=tuple(sorted(wanted)))
        try:
            found = self.lease.agreement.change(self.lease.grant, state)
        except BrokerError as error:
            if str(error) != self.complaint:
                self.complaint = str(error)
                logger.warning("the in-sync set cannot be changed yet: reason=%s", error)
            return
        if found is None:
            self.lease.lose("another node has become the master")
            return
        self.complaint = ""
        self.lease.state = found
        with self.guard:
            self.agreed = frozenset(found.in_sync)
            # An answer ends all that was asked before it: what is not agreed on now, no late request will add.
            self.required = self.agreed
        logger.info("the in-sync set has changed: members=%s epoch=%d", ",".join(found.in_sync), found.epoch)
        self.on_change()

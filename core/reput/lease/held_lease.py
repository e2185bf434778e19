"""HeldLease: keeps a master's lease alive, and knows up to when it holds for certain.

    request ──────── etcd restarts its clock ──────── answer, ttl
       └─ deadline = this moment + 90 % of ttl: earlier than etcd's, whatever the request took

The clock is the system's time since its boot. It goes on while the process is stopped or the machine sleeps, and no
change of date moves it. Clocks of two machines may differ by a tenth in speed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from reput.errors import BrokerError
from reput.lease.agreement import Agreement, ClusterState, Grant
from reput.store.service.service_thread import ServiceThread
from reput.store.service.threads import Threads

__all__ = ["HeldLease", "boot_time"]

# What is left for clocks that run at other speeds.
USABLE_SHARE = 0.9
RENEWALS = 3
# After one that failed.
RETRY_SHARE = 1 / 20

logger = logging.getLogger(__name__)


def boot_time() -> float:
    """Return the seconds since the system's boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class HeldLease(ServiceThread):
    """The lease of this node, which is the master. A thread renews it; any thread may ask.

    Attributes:
        state: what was agreed on last. Only the thread that changes the in-sync set sets it.
        on_lost: called once, by some thread, when the lease is lost.
    """

    def __init__(
        self,
        agreement: Agreement,
        grant: Grant,
        state: ClusterState,
        began: float,
        *,
        clock: Callable[[], float] = boot_time,
        threads: Threads | None = None,
    ) -> None:
        """*began*: the clock before the lease was asked for."""
        super().__init__("reput-lease", threads)
        self.agreement = agreement
        self.grant = grant
        self.state = state
        self.clock = clock
        self.deadline = began + grant.ttl * USABLE_SHARE
        self.is_lost = False
        self.has_failed = False
        self.on_lost: Callable[[], None] = lambda: None

    @property
    def epoch(self) -> int:
        """The epoch of this master."""
        return self.state.epoch

    def holds(self) -> bool:
        """Tell whether no other node can have become the master yet."""
        return not self.is_lost and self.clock() < self.deadline

    def lose(self, reason: str) -> None:
        """Be the master no more."""
        if not self.is_lost:
            self.is_lost = True
            logger.error("the lease is lost, this node is the master no more: reason=%s epoch=%d", reason, self.epoch)
            self.on_lost()

    def end_waits(self, reason: str) -> None:
        """As of `ServiceThread`."""
        self.lose(reason)

    def seconds_to_next(self) -> float:
        """As of `ServiceThread`."""
        return self.grant.ttl * (RETRY_SHARE if self.has_failed else USABLE_SHARE / RENEWALS)

    def do_round(self) -> None:
        """Renew the lease."""
        began = self.clock()
        if began >= self.deadline:
            self.lose("its time has passed")
        if self.is_lost:
            self.stopping = True
            return
        try:
            ttl = self.agreement.renew(self.grant)
        except BrokerError as error:
            if not self.has_failed:
                self.has_failed = True
                logger.warning("the lease is not renewed: reason=%s", error)
            return
        self.has_failed = False
        if ttl <= 0:
            self.lose("it has ended")
        else:
            self.deadline = began + ttl * USABLE_SHARE

    def release(self) -> None:
        """End the lease, so that another node becomes the master at once."""
        self.stop()
        was_lost, self.is_lost = self.is_lost, True
        if was_lost:
            return
        try:
            self.agreement.give_back(self.grant)
        except BrokerError as error:
            logger.warning("the lease is not given back, and ends by itself: reason=%s", error)

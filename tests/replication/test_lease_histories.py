"""Histories of three nodes and an engine for agreement, chosen by seeds: no acknowledged record is ever lost.

    masters append ── followers copy and report ── InSyncSet says what is acknowledged ── any member takes over

The clocks are as wrong as can be: every master believes for ever that its lease holds, and goes on beside the next ones
until its node starts anew. Only the comparison of revisions fences it.
"""

from __future__ import annotations

import os
import random
from types import SimpleNamespace
from typing import Any

import pytest

from reput.errors import BrokerError
from reput.lease.agreement import ClusterState, Grant, Node
from reput.lease.held_lease import HeldLease
from reput.replication.in_sync_set import InSyncSet
from reput.settings import Settings
from reput.store.service.threads import Threads

NODES = "abc"
SEEDS = int(os.environ.get("REPUT_SIMULATION_SEEDS", "0"))
STEPS = 500
Record = tuple[int, int]


class Engine:
    """An engine for agreement that loses and delays changes. A lease ends whenever the test says so."""

    name = "orders"

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.revision = self.holder_revision = 1
        self.state = ClusterState(1, Node("a", "", ""), tuple(NODES), "c", "n")
        self.late: list[tuple[int, int, ClusterState]] = []

    def take(self, member: str) -> tuple[Grant, ClusterState]:
        """Make a member the master."""
        self.revision += 1
        self.holder_revision = self.revision
        self.state = ClusterState(self.state.epoch + 1, Node(member, "", ""), self.state.in_sync, "c", "n")
        return Grant("", 1.0, self.revision, self.revision), self.state

    def change(self, grant: Grant, state: ClusterState) -> ClusterState | None:
        """As of `Agreement`."""
        request = (grant.holder_revision, grant.revision, state)
        way = self.chance.random()
        if way < 0.05:
            raise BrokerError("not sent")
        if way < 0.4:
            self.late.append(request)
            raise BrokerError("under way")
        self.swap(*request)
        if way < 0.5:
            raise BrokerError("the answer is lost")
        if grant.holder_revision != self.holder_revision:
            return None
        grant.revision = self.revision
        return self.state

    def swap(self, holder_revision: int, revision: int, state: ClusterState) -> None:
        """Do a compare-and-swap."""
        if (holder_revision, revision) == (self.holder_revision, self.revision):
            self.revision += 1
            self.state = state


class Master:
    """A node that believes it is the master.

    Attributes:
        ends: what followers have reported to it; of those that have gone, perhaps, as it has not noticed yet.
    """

    def __init__(self, engine: Engine, member: str, log: list[Record], now: list[float]) -> None:
        grant, self.state = engine.take(member)
        self.member, self.log = member, log
        self.ends: dict[str, int] = {}
        lease = HeldLease(engine, grant, self.state, 0.0, clock=lambda: 0.0)
        server: Any = SimpleNamespace(member_ends=lambda: dict(self.ends))
        writer = SimpleNamespace(threads=Threads())
        store: Any = SimpleNamespace(log_end=lambda: len(log), writer=writer)
        self.in_sync = InSyncSet(lease, server, store, Settings(), monotonic=lambda: now[0])


class History:
    """What happens, step by step."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.engine = Engine(self.chance)
        self.logs: dict[str, list[Record]] = {member: [] for member in NODES}
        self.now = [0.0]
        self.masters: dict[str, Master] = {}
        self.follows: dict[str, Master] = {}
        self.acknowledged: set[Record] = set()
        self.count = self.takeovers = 0
        self.take_over("a")

    def take_over(self, member: str) -> None:
        """A member of the in-sync set starts anew, and becomes the master."""
        self.restart(member)
        self.masters[member] = Master(self.engine, member, self.logs[member], self.now)
        self.takeovers += 1
        assert self.acknowledged <= set(self.logs[member])

    def restart(self, member: str) -> None:
        """A node starts anew: it is no master, and follows nobody."""
        self.masters.pop(member, None)
        former = self.follows.pop(member, None)
        if former is not None and self.chance.random() < 0.5:
            former.ends.pop(member, None)

    def follow(self, member: str) -> None:
        """A node follows the agreed master; what its log has and that of the master lacks is discarded."""
        master = self.masters.get(self.engine.state.master.member)
        if master is None or master.state.epoch != self.engine.state.epoch or master.member == member:
            return
        self.restart(member)
        log = self.logs[member]
        pairs = zip(log, master.log, strict=False)
        del log[
            next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(log), len(master.log))) :
        ]
        self.follows[member] = master
        master.ends[member] = len(log)

    def step(self) -> None:
        """Let something happen."""
        chance = self.chance
        self.now[0] += chance.choice((0.0, 0.0, 0.05, 0.2))
        member = chance.choice(NODES)
        way = chance.random()
        if way < 0.2:
            for master in self.masters.values():
                self.count += 1
                master.log.append((master.state.epoch, self.count))
        elif way < 0.6:
            master = self.follows.get(member)
            if master is not None:
                log = self.logs[member]
                log += master.log[len(log) : len(log) + chance.choice((1, 1000))]
                master.ends[member] = len(log)
        elif way < 0.72:
            if chance.random() < (0.1 if member in self.masters else 0.2 if member in self.follows else 1.0):
                self.follow(member)
        elif way < 0.74:
            self.take_over(chance.choice(self.engine.state.in_sync))
        elif way < 0.82:
            if self.engine.late:
                self.engine.swap(*self.engine.late.pop(chance.randrange(len(self.engine.late))))
        elif self.masters:
            chance.choice(list(self.masters.values())).in_sync.do_round()
        for master in self.masters.values():
            self.acknowledged |= set(master.log[: max(master.in_sync.arrived(), 0)])


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, max(SEEDS, 2000)), marks=pytest.mark.long)])
def test_no_acknowledged_record_is_lost_whatever_happens(seeds):
    """Each master that begins has them all; records are acknowledged in most histories."""
    acknowledged = takeovers = 0
    for seed in seeds:
        history = History(seed)
        try:
            for _ in range(STEPS):
                history.step()
        except AssertionError:
            raise AssertionError(f"an acknowledged record is lost: seed={seed}") from None
        acknowledged += bool(history.acknowledged)
        takeovers += history.takeovers
    assert acknowledged > len(seeds) * 0.8
    assert takeovers > len(seeds) * 5

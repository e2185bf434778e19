"""The in-sync set: what a master with a lease may acknowledge, whatever its followers and the engine do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from reput.errors import BrokerError
from reput.lease.agreement import ClusterState, Grant, Node
from reput.lease.held_lease import HeldLease
from reput.replication.in_sync_set import InSyncSet
from reput.settings import Settings
from reput.store.service.threads import Threads


class World:
    """A master named a, its followers and an engine for agreement, all of which the test moves.

    Attributes:
        ends: up to where each connected follower has the log.
        answers: how the engine treats the next changes: "ok", "lost" (done, not answered), "late" (not done yet, and
            not answered), "down", "fenced".
    """

    name = "orders"

    def __init__(self, *in_sync: str, end: int = 1000, replicas: int = 2) -> None:
        self.now = 0.0
        self.end = end
        self.ends: dict[str, int] = {}
        self.answers: list[str] = []
        self.late: list[tuple[int, ClusterState]] = []
        self.revision = 1
        self.state = ClusterState(7, Node("a", "h:1", "h:2"), tuple(sorted(in_sync)), "c", "n")
        self.lease = HeldLease(self, Grant("1", 1e9, 1, 1), self.state, 0.0, clock=lambda: self.now)
        server: Any = SimpleNamespace(member_ends=lambda: dict(self.ends))
        engine: Any = SimpleNamespace(log_end=lambda: self.end, writer=SimpleNamespace(threads=Threads()))
        settings = Settings(in_sync_replicas=replicas, slave_timeout=3000)
        self.in_sync = InSyncSet(self.lease, server, engine, settings, monotonic=lambda: self.now)

    def change(self, grant: Grant, state: ClusterState) -> ClusterState | None:
        """As of `Agreement`."""
        answer = self.answers.pop(0) if self.answers else "ok"
        if answer == "down":
            raise BrokerError("etcd does not answer")
        if answer == "late":
            self.late.append((grant.revision, state))
            raise BrokerError("etcd does not answer")
        if answer == "fenced":
            return None
        self.swap(grant.revision, state)
        if answer == "lost":
            raise BrokerError("etcd does not answer")
        grant.revision = self.revision
        return self.state

    def swap(self, revision: int, state: ClusterState) -> None:
        """Do a compare-and-swap."""
        if revision == self.revision:
            self.revision += 1
            self.state = state

    def arrive_late(self) -> None:
        """The engine gets the requests that were under way."""
        while self.late:
            self.swap(*self.late.pop(0))

    def rounds(self, seconds: float) -> None:
        """Let time go by."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.in_sync.do_round()

    def arrived(self) -> int:
        """Return what may be acknowledged; every member that may become the master must have it, whatever comes."""
        end = self.in_sync.arrived()
        for states in (self.state, *(state for revision, state in self.late if revision == self.revision)):
            for member in states.in_sync:
                assert member == "a" or self.ends.get(member, -1) >= end
        return end


def test_a_message_is_acknowledged_once_every_member_has_it():
    """Not once a number of followers has it: each of them may be the next master."""
    world = World("a", "b", "c")
    world.ends = {"b": 1000, "c": 400}
    assert world.arrived() == 400
    world.ends["c"] = 900
    assert world.arrived() == 900


def test_a_member_that_is_gone_is_waited_for_until_the_engine_says_that_it_is_out():
    """Then it cannot become the master without what is acknowledged from now on."""
    world = World("a", "b", "c")
    world.ends = {"b": 1000}
    world.rounds(0.8)
    assert world.arrived() == -1
    world.answers = ["down"] * 5
    world.rounds(0.6)
    assert world.state.in_sync == ("a", "b", "c")
    assert world.arrived() == -1
    world.rounds(0.5)
    assert world.state.in_sync == ("a", "b")
    assert world.arrived() == 1000


def test_a_member_that_falls_behind_is_out_before_producers_give_up():
    """It is connected, but has not had for two seconds what the log had then."""
    world = World("a", "b", "c")
    world.ends = {"b": 1000, "c": 1000}
    world.rounds(0.5)
    for _ in range(25):
        world.end += 100
        world.ends["b"] = world.end
        world.rounds(0.1)
    assert world.state.in_sync == ("a", "b")


def test_a_follower_that_has_caught_up_comes_in_and_is_required_before_it_may_lead():
    """In this order: what is acknowledged while the engine is asked must be at the new member as well."""
    world = World("a", "b")
    world.ends = {"b": 1000, "c": 500}
    world.rounds(0.5)
    assert world.state.in_sync == ("a", "b")
    world.ends["c"] = 1000
    world.answers = ["late"]
    world.rounds(0.1)
    world.end = world.ends["b"] = 1100
    assert world.arrived() == 1000
    world.arrive_late()
    assert world.state.in_sync == ("a", "b", "c")
    assert world.arrived() == 1000
    world.ends["c"] = 1100
    world.rounds(0.2)
    assert world.arrived() == 1100


def test_a_follower_that_lacks_what_was_acknowledged_stays_out():
    """Although it keeps up: the log may have grown since the master looked."""
    world = World("a", "b")
    world.ends = {"b": 1000, "c": 1000}
    world.in_sync.progress.clear()
    world.end = world.ends["b"] = 1200
    assert world.arrived() == 1200
    world.in_sync.log_end = lambda: 1000
    world.rounds(0.5)
    assert world.state.in_sync == ("a", "b")


def test_a_change_whose_answer_was_lost_leaves_both_sets_required():
    """Until an answer comes: a request that is under way may still come through."""
    world = World("a", "b")
    world.ends = {"b": 1000, "c": 1000}
    world.answers = ["late", *["down"] * 20]
    world.rounds(0.3)
    del world.ends["c"]
    world.rounds(1.0)
    assert world.arrived() == -1
    world.arrive_late()
    assert world.state.in_sync == ("a", "b", "c")
    assert world.arrived() == -1
    world.answers = []
    world.rounds(2.0)
    assert world.state.in_sync == ("a", "b")
    assert world.arrived() == 1000


def test_a_lost_answer_of_a_change_that_was_made_is_found_out():
    """The set is what the engine says."""
    world = World("a", "b", "c")
    world.ends = {"b": 1000}
    world.answers = ["lost"]
    world.rounds(1.5)
    assert world.in_sync.agreed == {"a", "b"}
    assert world.arrived() == 1000


def test_a_master_that_is_fenced_off_loses_its_lease_and_acknowledges_nothing():
    """It wants to go on without the others, and is told that one of them is the master."""
    world = World("a", "b")
    world.answers = ["fenced"]
    world.rounds(1.5)
    assert not world.lease.holds()
    world.ends = {"b": 1000}
    assert world.arrived() == -1
    assert not world.in_sync.is_available()


def test_a_lease_whose_time_has_passed_acknowledges_nothing():
    """Also what all members have."""
    world = World("a", "b")
    world.ends = {"b": 1000}
    assert world.in_sync.is_available()
    world.now = 2e9
    assert world.arrived() == -1
    assert not world.in_sync.is_available()


def test_a_set_of_one_acknowledges_nothing():
    """A copy on a second disk is what SEND_OK says; with in_sync_replicas=3, on a third."""
    world = World("a")
    assert world.arrived() == -1
    assert not world.in_sync.is_available()
    world = World("a", "b", replicas=3)
    world.ends = {"b": 1000}
    assert world.arrived() == -1


def test_sets_under_chance_never_acknowledge_what_a_possible_master_lacks():
    """Followers come, go and lag, and the engine answers, loses, delays and forgets, a thousand times over."""
    import random

    for seed in range(200):
        chance = random.Random(seed)
        world = World("a", "b", "c")
        has = dict.fromkeys("bcd", 1000)
        acknowledged = 1000
        for _ in range(100):
            world.end += chance.choice((0, 10))
            for member in has:
                if chance.random() < 0.7:
                    has[member] = chance.randint(has[member], world.end)
                if chance.random() < 0.1:
                    world.ends.pop(member, None)
                elif member in world.ends or chance.random() < 0.3:
                    world.ends[member] = has[member]
            world.answers = [chance.choice(("ok", "ok", "lost", "late", "down"))]
            world.rounds(chance.choice((0.1, 0.1, 0.1, 3.0)))
            acknowledged = max(acknowledged, world.in_sync.arrived())
            possible = [world.state]
            possible += [state for revision, state in world.late if revision == world.revision]
            for state in possible:
                for member in state.in_sync:
                    assert member == "a" or has[member] >= acknowledged, (seed, state, has, acknowledged)
            if chance.random() < 0.2:
                world.arrive_late()
    assert msgspec.structs.asdict(world.state)["epoch"] == 7

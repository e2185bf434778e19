"""A held lease: until when a master may believe in it, whatever becomes of its requests."""

from __future__ import annotations

from delivering import wait_until
from reput.errors import BrokerError
from reput.lease.agreement import ClusterState, Grant, Node
from reput.lease.held_lease import HeldLease

STATE = ClusterState(3, Node("a", "h:1", "h:2"), ("a", "b"), "c", "n")


class Engine:
    """Answers renewals as a test says, and takes time over them."""

    name = "orders"

    def __init__(self) -> None:
        self.now = 100.0
        self.ttl: float | None = 10.0
        self.takes = 0.0
        self.given_back = 0

    def renew(self, grant: Grant) -> float:
        self.now += self.takes
        if self.ttl is None:
            raise BrokerError("etcd does not answer")
        return self.ttl

    def give_back(self, grant: Grant) -> None:
        self.given_back += 1


def held_by(engine: Engine) -> tuple[HeldLease, list[str]]:
    """Return a lease whose rounds the test makes, and what it has reported."""
    lost: list[str] = []
    lease = HeldLease(engine, Grant("1", 10.0, 1, 1), STATE, engine.now, clock=lambda: engine.now)
    lease.on_lost = lambda: lost.append("lost")
    return lease, lost


def test_it_holds_for_nine_tenths_of_its_time():
    """The rest is for clocks that run at another speed."""
    engine = Engine()
    lease, _ = held_by(engine)
    engine.now = 108.9
    assert lease.holds()
    engine.now = 109.0
    assert not lease.holds()


def test_its_time_counts_from_before_the_request():
    """The engine may have restarted its clock as soon as the request was sent."""
    engine = Engine()
    lease, _ = held_by(engine)
    engine.now, engine.takes = 105.0, 3.0
    lease.do_round()
    assert lease.deadline == 105.0 + 9.0


def test_a_renewal_that_fails_changes_nothing_and_is_soon_tried_again():
    """The lease holds until its time has passed, and then no more."""
    engine = Engine()
    lease, lost = held_by(engine)
    usual = lease.seconds_to_next()
    engine.ttl = None
    engine.now = 105.0
    lease.do_round()
    assert lease.holds()
    assert lease.seconds_to_next() < usual
    engine.now = 110.0
    lease.do_round()
    assert not lease.holds()
    assert lost == ["lost"]


def test_a_process_that_was_stopped_over_its_time_does_not_take_the_lease_up_again():
    """Even if the engine still has it: once lost, it stays lost, and is reported once."""
    engine = Engine()
    lease, lost = held_by(engine)
    engine.now = 109.5
    lease.do_round()
    lease.do_round()
    engine.now = 100.0
    assert not lease.holds()
    assert lost == ["lost"]
    lease.release()
    assert engine.given_back == 0


def test_a_lease_that_the_engine_does_not_know_is_lost():
    """It has ended there: another node may hold one."""
    engine = Engine()
    engine.ttl = 0.0
    lease, lost = held_by(engine)
    lease.do_round()
    assert not lease.holds()
    assert lost == ["lost"]


def test_a_released_lease_is_given_back_and_does_not_hold():
    """The next master need not wait for its end."""
    engine = Engine()
    lease, lost = held_by(engine)
    lease.release()
    assert not lease.holds()
    assert engine.given_back == 1
    assert lost == []


def test_the_death_of_its_thread_is_its_loss():
    """Nobody would renew it."""

    class Broken(Engine):
        def renew(self, grant: Grant) -> float:
            raise RuntimeError("a defect")

    lease, lost = held_by(Broken())
    lease.start()
    lease.wakeup()
    wait_until(lambda: lost == ["lost"])
    assert not lease.holds()
    lease.stop()

"""ArrivalService: queues with new messages, and the notification of waiting consumers."""

from __future__ import annotations

import threading
from unittest.mock import patch

import pytest

import reput
from delivering import wait_until
from reput.store.writer.publisher import AppendedRecords

WAIT_S = 60.0
NO_RECORDS = AppendedRecords(0, 0, 0, 0, [], b"", b"")


@pytest.fixture
def store(tmp_path):
    """A store whose dispatchers run on a thread of the test."""
    with reput.open(tmp_path / "store", mode="inline") as opened:
        yield opened


@pytest.fixture
def arrival_service(store):
    """The store's service."""
    return store._engine.services.arrival_service


def test_a_message_that_cannot_be_read_yet_is_looked_for_until_its_view_has_it(store, arrival_service, monkeypatch):
    """A message without a unit causes no busy loop; if a view goes back, the search continues."""
    store.put(reput.Message("orders", b"a", queue_id=0))
    store.wait_for("consume_queue", store.appended, WAIT_S)
    looked = []
    monkeypatch.setattr(arrival_service, "look_again", looked.append)
    queue, appended = ("orders", 0), store.appended
    assert arrival_service.look_again_if_due(queue, 1, -1) == -1
    assert looked == []
    assert arrival_service.look_again_if_due(queue, 0, -1) == appended
    assert looked == [queue]
    assert arrival_service.look_again_if_due(queue, 0, appended) == appended
    assert looked == [queue]
    monkeypatch.setattr(store._engine, "readable_up_to", lambda view: 0)
    assert arrival_service.look_again_if_due(queue, 0, appended) == appended
    assert looked == [queue, queue]


def test_a_put_costs_the_same_however_many_groups_wait_for_its_topic(arrival_service):
    """A put visits the loops of a topic, not its watches: the service's thread visits these."""
    told = []
    watches = [arrival_service.watch(("crowded", "other"), told.append) for _ in range(500)]
    assert arrival_service.loops_of_topic == {"crowded": {None: 500}, "other": {None: 500}}
    lookers = set()

    class Watches(dict):
        def get(self, *arguments):
            lookers.add(threading.current_thread())
            return super().get(*arguments)

    with patch.object(arrival_service, "watches", Watches(arrival_service.watches)):
        arrival_service.arrived([("crowded", 0)], NO_RECORDS)
        wait_until(lambda: len(told) == 500)
    assert lookers
    assert threading.current_thread() not in lookers
    for watch in watches:
        arrival_service.unwatch(watch)
    assert (arrival_service.loops_of_topic, arrival_service.watches) == ({}, {})


def test_a_watch_is_told_by_its_loop_or_by_the_thread(arrival_service):
    """Only a waiting consumer changes that; the topic's other watches are notified as before."""

    class Told:
        def __init__(self):
            self.arrivals = []
            self.tell = self.arrivals.append

    one, other, told = Told(), Told(), []
    watches = [arrival_service.watch(("orders",), told.append) for _ in range(3)]
    arrival_service.set_loop(watches[0], one)
    arrival_service.set_loop(watches[1], one)
    assert arrival_service.loops_of_topic == {"orders": {None: 1, one: 2}}
    arrival_service.set_loop(watches[2], other)
    arrival_service.arrived([("orders", 0)], NO_RECORDS)
    assert (one.arrivals, other.arrivals) == ([(0, ("orders", 0))], [(0, ("orders", 0))])
    arrival_service.unwatch(watches[2])
    arrival_service.set_loop(watches[2], None)
    assert arrival_service.loops_of_topic == {"orders": {one: 2}}
    arrival_service.set_loop(watches[0], None)
    assert arrival_service.loops_of_topic == {"orders": {None: 1, one: 1}}
    for watch in watches[:2]:
        arrival_service.unwatch(watch)
    assert arrival_service.loops_of_topic == {}

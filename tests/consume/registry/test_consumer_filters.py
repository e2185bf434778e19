"""ConsumerFilters: the groups' expressions, and the offset from which their bits can be trusted."""

from __future__ import annotations

import time

import pytest

import reput
from reput.consume.registry.consumer_filters import NOT_BORN
from reput.consume.registry.subscription import subscribe
from reput.filter import parse
from reput.store.config.consumer_filter_manager import ConsumerFilterManager

WAIT_S = 60.0
TOPIC = "orders"
EXT = {"enable_consume_queue_ext": True, "enable_calc_filter_bit_map": True}
SMALL = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 6000}


def put(store, price: int) -> None:
    """Put a message with a price, and wait until it is in the queue."""
    result = store.put(reput.Message(TOPIC, b"%d" % price, properties={"price": str(price)}))
    store.wait_for("consume_queue", result.next_commit_log_offset, WAIT_S)


def stored(store) -> ConsumerFilterManager:
    """Return the content of the file."""
    manager = ConsumerFilterManager(store.directory, store._engine.services.managers.bloom_filter, 1 << 40)
    manager.path = store.directory / "config" / "consumerFilter.json"
    manager.load()
    return manager


def born_time(store, group: str = "billing") -> int:
    """Return the birth time of a group's filter as readers of the queue see it."""
    found = store._engine.services.filters.consumer_filter(group, TOPIC)
    assert found is not None
    return found.born_time


@pytest.fixture
def directory(tmp_path):
    """The store's directory."""
    return tmp_path / "store"


@pytest.fixture
def store(directory):
    """A store whose dispatchers calculate bit maps."""
    with reput.open(directory, mode="inline", **EXT, **SMALL) as opened:
        yield opened


def count_looks(store, monkeypatch) -> list[int]:
    """Count, in the list's only element, how many records are checked by their properties."""
    looks = [0]
    from reput.filter import ExpressionMessageFilter

    real = ExpressionMessageFilter.is_matched_by_commit_log

    def count(self, properties):
        looks[0] += 1
        return real(self, properties)

    monkeypatch.setattr(ExpressionMessageFilter, "is_matched_by_commit_log", count)
    return looks


def test_a_filter_is_born_when_the_dispatcher_works_with_it(store, monkeypatch):
    """Earlier records are checked one by one; for later ones the bit maps exclude unwanted records."""
    looks = count_looks(store, monkeypatch)
    for price in (1, 2, 30):
        put(store, price)
    with store.consumer("billing", TOPIC, parse("price > 10")) as consumer:
        assert born_time(store) == NOT_BORN
        assert consumer.receive(WAIT_S).body == b"30"
        assert looks[0] == 3
        # The first record with the new filter has a later store time than any record without it.
        time.sleep(0.002)
        for price in (4, 5, 60):
            put(store, price)
        assert consumer.receive(WAIT_S).body == b"60"
        deadline = time.monotonic() + WAIT_S
        while born_time(store) == NOT_BORN:
            assert time.monotonic() < deadline
            put(store, 0)
        assert 0 < born_time(store) <= store.get(TOPIC, queue_offset=3)[0].store_timestamp
        before = looks[0]
        for price in (7, 8, 90):
            put(store, price)
        assert consumer.receive(WAIT_S).body == b"90"
        assert looks[0] == before + 1


@pytest.mark.slow
def test_no_message_is_lost_to_a_filter_that_comes_while_messages_come(store):
    """Including messages between its registration and the dispatcher's first batch with it."""
    for number in range(20):
        group = f"group{number}"
        with store.consumer(group, TOPIC, parse(f"price > {number}"), begin="latest") as consumer:
            for price in (number, number + 1, number, number + 2):
                put(store, price)
            assert [consumer.receive(WAIT_S).body for _ in range(2)] == [b"%d" % (number + 1), b"%d" % (number + 2)]


def test_nobody_trusts_the_file_before(store):
    """A program that ends then leaves a filter without a birth time; the next one registers it again."""
    store._engine.services.filters.register("billing", [subscribe(TOPIC, parse("price > 1"), sub_version=1)])
    assert stored(store).table[TOPIC]["billing"].born_time == NOT_BORN


@pytest.mark.slow
def test_a_filter_that_was_born_stays_so_through_a_new_start(directory):
    """It was in the bit maps all the time."""
    with reput.open(directory, mode="inline", **EXT, **SMALL) as store:
        put(store, 1)
        with store.consumer("billing", TOPIC, parse("price > 10")):
            deadline = time.monotonic() + WAIT_S
            while born_time(store) == NOT_BORN:
                assert time.monotonic() < deadline
                put(store, 2)
            born = born_time(store)
    with (
        reput.open(directory, mode="inline", **EXT, **SMALL) as store,
        store.consumer("billing", TOPIC, parse("price > 10")),
    ):
        assert born_time(store) == born
        assert not store._engine.services.filters.find("billing", TOPIC).is_dead


def test_another_expression_is_another_filter(store):
    """It must be acknowledged; an older subscription changes nothing."""
    filters = store._engine.services.filters
    filters.register("billing", [subscribe(TOPIC, parse("price > 1"), sub_version=5)])
    filters.register("billing", [subscribe(TOPIC, parse("price > 2"), sub_version=4)])
    assert filters.find("billing", TOPIC).expression == "price > 1"
    filters.register("billing", [subscribe(TOPIC, parse("price > 2"), sub_version=6)])
    assert filters.find("billing", TOPIC).expression == "price > 2"
    assert filters.consumer_filter("billing", TOPIC).sql_filter.expression == "price > 2"


def test_a_filter_dies_with_its_last_consumer(directory):
    """Without bit maps it is born at once."""
    with reput.open(directory, mode="inline", **SMALL) as store:
        with store.consumer("billing", TOPIC, parse("price > 10")):
            assert born_time(store) != NOT_BORN
            with store.consumer("billing", TOPIC, parse("price > 10")):
                pass
            assert not store._engine.services.filters.find("billing", TOPIC).is_dead
        assert store._engine.services.filters.find("billing", TOPIC).is_dead


def test_the_filters_of_one_heartbeat_are_written_once(store, monkeypatch):
    """The file has all expressions of all groups; a client may name hundreds of topics at once."""
    services = store._engine.services
    written = []
    persist = services.filters.manager.persist
    monkeypatch.setattr(services.filters.manager, "persist", lambda: (written.append(1), persist()))
    wanted = [subscribe(f"{TOPIC}{number}", parse("price > 1"), sub_version=1) for number in range(20)]
    services.consumer_manager.register("billing", "one", wanted)
    assert len(written) == 1
    assert all(services.filters.find("billing", subscription.topic) for subscription in wanted)
    services.consumer_manager.register("billing", "one", wanted)
    assert len(written) == 1

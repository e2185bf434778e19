"""Consumer: messages of a group's topics in a program that has the store open."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

import reput
from reput.consume.consumer_group import ConsumerGroup
from reput.errors import ConfigError, RequestRefused
from reput.filter import FilterSyntaxError, parse
from reput.store.config_json import parse_config

WAIT_S = 20.0


@pytest.fixture
def directory(tmp_path):
    """Where the store lies."""
    return tmp_path / "store"


@pytest.fixture
def store(directory):
    """A store whose dispatchers run on a thread of the test."""
    with reput.open(directory, mode="inline", mapped_file_size_commit_log=1 << 16) as opened:
        yield opened


def put(store, *bodies: str, topic: str = "orders", queue_id: int = 0, **fields: object) -> None:
    """Put a message per body."""
    for body in bodies:
        store.put(reput.Message(topic, body.encode(), queue_id=queue_id, **fields))


def bodies_of(consumer, count: int) -> list[str]:
    """Receive and acknowledge so many messages, and return their bodies."""
    bodies = []
    for _ in range(count):
        record = consumer.receive(WAIT_S)
        assert record is not None
        consumer.acknowledge(record)
        bodies.append(record.body.decode())
    return bodies


def offsets(directory, group: str, topic: str = "orders") -> dict[int, int]:
    """Return what is committed on disk."""
    fields = parse_config((directory / "config" / "consumerOffset.json").read_text())
    return fields["offsetTable"].get(f"{topic}@{group}", {})


def test_a_consumer_gets_every_message_once_and_goes_on_where_it_left(store, directory):
    """What it acknowledged is committed when it goes."""
    put(store, "a", "b", "c")
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 2) == ["a", "b"]
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 1) == ["c"]
        assert consumer.receive(timeout=0) is None
        consumer.commit()
        assert offsets(directory, "billing") == {0: 3}


def test_what_was_not_acknowledged_is_given_again(store):
    """After an exception in the program, too."""
    put(store, "a", "b", "c")

    def work() -> None:
        with store.consumer("billing", "orders") as consumer:
            consumer.acknowledge(consumer.receive(WAIT_S))
            consumer.receive(WAIT_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 2) == ["b", "c"]


def test_the_offset_never_passes_a_message_that_is_in_flight(store, directory):
    """Later ones may be done; after a new start they are not given again as long as the program lives."""
    put(store, "a", "b", "c", "d")
    with store.consumer("billing", "orders") as consumer:
        records = [consumer.receive(WAIT_S) for _ in range(4)]
        for record in (records[0], records[2]):
            consumer.acknowledge(record)
        consumer.commit()
        assert offsets(directory, "billing") == {0: 1}


def test_a_consumer_waits_for_a_message(store):
    """It is woken by the put."""
    with store.consumer("billing", "orders") as consumer:
        timer = threading.Timer(0.05, put, (store, "late"))
        timer.start()
        assert bodies_of(consumer, 1) == ["late"]
        timer.join()


def test_a_topic_may_come_later_than_its_consumer(store):
    """And so may its further queues."""
    with store.consumer("billing", "orders", begin="latest") as consumer:
        put(store, "first", queue_id=0)
        assert bodies_of(consumer, 1) == ["first"]
        put(store, "second", queue_id=5)
        assert bodies_of(consumer, 1) == ["second"]


def test_tasks_receive_too(store):
    """Without holding up the loop."""

    async def main() -> list[str]:
        bodies = []
        async with store.consumer("billing", "orders") as consumer:
            assert await consumer.receive_async(timeout=0.01) is None

            async def later() -> None:
                await asyncio.sleep(0.02)
                put(store, "a", "b", "c")

            task = asyncio.create_task(later())
            async for record in consumer:
                bodies.append(record.body.decode())
                consumer.acknowledge(record)
                if len(bodies) == 3:
                    break
            await task
        return bodies

    assert asyncio.run(asyncio.wait_for(main(), WAIT_S)) == ["a", "b", "c"]


def test_two_consumers_of_a_group_share_the_queues(store):
    """Each message goes to one of them; when one leaves, the other has it all."""
    for queue_id in range(4):
        put(store, *(f"{queue_id}-{number}" for number in range(3)), queue_id=queue_id)
    with store.consumer("billing", "orders") as one, store.consumer("billing", "orders") as two:
        first, second = bodies_of(one, 6), bodies_of(two, 6)
        assert {body[0] for body in first} == {"0", "1"}
        assert {body[0] for body in second} == {"2", "3"}
        assert one.receive(timeout=0) is None
        two.close()
        put(store, "more", queue_id=3)
        assert bodies_of(one, 1) == ["more"]


def test_a_queue_changes_hands_when_nothing_of_it_is_in_flight(store):
    """Otherwise two consumers would work on it at once."""
    put(store, "a", "b", queue_id=1)
    put(store, "x", queue_id=0)
    with store.consumer("billing", "orders") as one:
        in_flight = one.receive(WAIT_S)
        while in_flight.queue_id != 1:
            one.acknowledge(in_flight)
            in_flight = one.receive(WAIT_S)
        with store.consumer("billing", "orders") as two:
            assert two.receive(timeout=0) is None
            one.acknowledge(in_flight)
            assert bodies_of(two, 1) == ["b"]


def test_groups_know_nothing_of_each_other(store):
    """Each gets every message."""
    put(store, "a", "b")
    with store.consumer("billing", "orders") as billing, store.consumer("audit", "orders") as audit:
        assert bodies_of(billing, 2) == bodies_of(audit, 2) == ["a", "b"]


def test_filters_choose(store):
    """By tags, exactly: the hash of "AaAa" is that of "BBBB"; and by an expression."""
    put(store, "one", tags="AaAa", properties={"price": "1"})
    put(store, "two", tags="BBBB", properties={"price": "20"})
    with store.consumer("billing", "orders", "BBBB || other") as consumer:
        assert bodies_of(consumer, 1) == ["two"]
    with store.consumer("audit", "orders", parse("price < 10")) as consumer:
        assert bodies_of(consumer, 1) == ["one"]
        assert consumer.receive(timeout=0) is None


def test_consumers_of_one_group_want_the_same(store):
    """Another filter would take messages from the others."""
    with (
        store.consumer("billing", "orders", "a"),
        pytest.raises(ConfigError, match="filter_of_the_others='a'"),
    ):
        store.consumer("billing", "orders", "b")


def test_the_group_rewinds(store):
    """To its beginning, to a time, to a place."""
    put(store, "a", "b", "c")
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 3) == ["a", "b", "c"]
        consumer.rewind()
        record = consumer.receive(WAIT_S)
        assert record.body == b"a"
        consumer.seek("orders", 0, 2)
        with pytest.raises(RequestRefused, match="not in flight"):
            consumer.acknowledge(record)
        assert bodies_of(consumer, 1) == ["c"]
        consumer.rewind(record.store_timestamp)
        assert bodies_of(consumer, 3) == ["a", "b", "c"]
        consumer.rewind("latest", topic="orders")
        put(store, "d")
        assert bodies_of(consumer, 1) == ["d"]


def test_a_group_may_begin_with_what_comes(store):
    """It goes on there, also if it never got a message."""
    put(store, "old")
    with store.consumer("billing", "orders", begin="latest") as consumer:
        assert consumer.receive(timeout=0) is None
    put(store, "new")
    with store.consumer("billing", "orders", begin="latest") as consumer:
        assert bodies_of(consumer, 1) == ["new"]


def test_a_consumer_that_acknowledges_nothing_waits(store, caplog):
    """It says so once, and goes on after an acknowledgement."""
    put(store, *"abcd")
    with store.consumer("billing", "orders", in_flight_max=2) as consumer:
        first = consumer.receive(WAIT_S)
        consumer.receive(WAIT_S)
        assert consumer.receive(timeout=0.01) is None
        assert caplog.text.count("waits for acknowledgements") == 1
        consumer.acknowledge(first)
        assert consumer.receive(WAIT_S).body == b"c"


def test_the_loop_of_a_consumer_ends_with_the_store(directory):
    """Whoever waits is woken, and what was acknowledged is kept."""
    with reput.open(directory, mode="inline") as store:
        put(store, "a")
        consumer = store.consumer("billing", "orders")
        bodies: list[bytes] = []

        def work() -> None:
            for record in consumer:
                bodies.append(record.body)
                consumer.acknowledge(record)
                read.set()

        read = threading.Event()
        thread = threading.Thread(target=work)
        thread.start()
        assert read.wait(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert bodies == [b"a"]
    assert offsets(directory, "billing") == {0: 1}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("", "orders"), RequestRefused),
        (("a b", "orders"), RequestRefused),
        (("billing", ()), ConfigError),
        (("billing", "orders", "||"), FilterSyntaxError),
    ],
)
def test_a_wrong_request_is_refused(store, arguments, error):
    """Nothing is stored of it."""
    with pytest.raises(error):
        store.consumer(*arguments)
    assert not store.services.managers.groups.entries
    assert store.services.consumer_groups.keys() <= {arguments[0]}


def test_a_group_that_may_not_consume_is_refused(directory):
    """Where groups are not made by themselves."""
    with (
        reput.open(directory, mode="inline", auto_create_subscription_group=False) as store,
        pytest.raises(RequestRefused) as refused,
    ):
        store.consumer("billing", "orders")
    assert refused.value.response_code == 26


def test_statistics_count_what_a_group_was_given(store):
    """What nobody measured is not known."""
    put(store, "a", "b")
    with store.consumer("billing", "orders") as consumer:
        bodies_of(consumer, 2)
        counts = store.services.statistics.of_group("billing", "orders")
        assert counts.get_nums == 2
        assert counts.get_size > 2 * 91
        assert counts.latency_ms is not None
        assert store.services.statistics.of_group("audit", "orders").latency_ms is None
        put(store, "c")
        assert store.services.statistics.put_nums("orders") == 3
        assert store.services.statistics.put_nums("absent") is None


def test_what_is_sent_back_comes_again_later(directory):
    """To the same group, from its first topic and counted; in the end it is a dead letter."""
    with reput.open(directory, mode="inline", message_delay_level="1s") as store:
        put(store, "a", tags="paid")
        with store.consumer("billing", "orders", "paid") as consumer:
            first = consumer.receive(WAIT_S)
            consumer.retry(first, 1)
            with pytest.raises(RequestRefused, match="not in flight"):
                consumer.retry(first, 1)
            again = consumer.receive(WAIT_S)
            assert (again.topic, again.body, again.reconsume_times) == ("orders", b"a", 1)
            assert again.properties["ORIGIN_MESSAGE_ID"] == first.message_id
            consumer.retry(again, max_reconsume_times=1)
            assert consumer.receive(timeout=0) is None
        with store.consumer("undertaker", "%DLQ%billing") as consumer:
            assert bodies_of(consumer, 1) == ["a"]
        counts = store.services.statistics.of_group("billing", "orders")
        assert (counts.send_back_nums, counts.dead_letter_nums) == (2, 1)


def test_without_queues_there_is_nothing_to_consume(directory):
    """Waiting would be for ever."""
    with (
        reput.open(directory, mode="inline", dispatchers=["index"]) as store,
        pytest.raises(ConfigError, match="dispatchers=index"),
    ):
        store.consumer("billing", "orders")


def test_torn_offsets_are_taken_from_before(directory):
    """The last change is lost with the file; what it was before is kept beside it."""
    for count in (1, 2):
        with reput.open(directory, mode="inline") as store:
            put(store, *"abc"[: 4 - count])
            with store.consumer("billing", "orders") as consumer:
                bodies_of(consumer, count)
    path = directory / "config" / "consumerOffset.json"
    assert offsets(directory, "billing") == {0: 3}
    path.write_bytes(path.read_bytes()[:-9])
    with reput.open(directory, mode="inline") as store, store.consumer("billing", "orders") as consumer:
        assert consumer.receive(WAIT_S).queue_offset == 1


def test_a_topic_that_is_deleted_begins_anew_for_its_consumers(store):
    """Its next messages have the first offsets again."""
    put(store, "a", "b", "c")
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 2) == ["a", "b"]
        in_flight = consumer.receive(WAIT_S)
        store.services.administration.delete_topic("orders")
        with pytest.raises(RequestRefused):
            consumer.acknowledge(in_flight)
        put(store, "new")
        assert bodies_of(consumer, 1) == ["new"]
        consumer.commit()
    assert store.services.managers.offsets.query_offset("billing", "orders", 0) == 1


@pytest.mark.processes
def test_a_killed_dispatcher_holds_a_consumer_up_for_a_moment(directory):
    """Every message comes once, in its order, while the queue's builder dies again and again."""
    with reput.open(directory, dispatchers=["consume_queue"]) as store, store.consumer("billing", "orders") as consumer:
        for number in range(12):
            put(store, str(number))
            if number % 4 == 1:
                (row,) = store.status().dispatchers
                if row.pid is not None:
                    os.kill(row.pid, signal.SIGKILL)
            assert bodies_of(consumer, 1) == [str(number)]
    assert offsets(directory, "billing") == {0: 12}


@pytest.mark.processes
def test_a_loop_whose_tasks_alone_wait_needs_no_thread(directory, monkeypatch):
    """It learns of messages itself; a thread that begins to wait is not forgotten for it."""
    told_by = []
    grown = ConsumerGroup.grown

    def note(self, queues):
        told_by.append(threading.current_thread().name)
        grown(self, queues)

    monkeypatch.setattr(ConsumerGroup, "grown", note)

    async def receive_one(store, consumer, text):
        task = asyncio.create_task(consumer.receive_async(WAIT_S))
        await asyncio.sleep(0)
        put(store, text)
        record = await task
        consumer.acknowledge(record)
        return record.body.decode()

    with reput.open(directory, dispatchers=["consume_queue"]) as store, store.consumer("billing", "orders") as consumer:
        # The first put makes the topic's queues known.
        assert asyncio.run(receive_one(store, consumer, "first")) == "first"
        told_by.clear()
        assert asyncio.run(receive_one(store, consumer, "second")) == "second"
        assert set(told_by) == {"MainThread"}
        thread = threading.Timer(0.05, put, (store, "third"))
        thread.start()
        assert bodies_of(consumer, 1) == ["third"]
        thread.join()
        assert told_by[-1] == "reput-hold"

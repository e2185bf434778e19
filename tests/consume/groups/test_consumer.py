"""Consumer: messages of a group's topics in a program that has the store open."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import warnings

import pytest

import reput
from delivering import wait_until
from reput.consume.groups.consumer_group import ConsumerGroup
from reput.consume.pull import loop_arrivals
from reput.consume.pull.pull_service import PullRequest
from reput.consume.registry.subscription import subscribe
from reput.embedded.topic_deletion import GoneDirectory
from reput.errors import ConfigError, OffsetOutOfRange, RequestRefused, StoreClosed
from reput.filter import FilterSyntaxError, parse, parse_tags
from reput.store.config.config_json import parse_config
from reput.store.config.topic_config_manager import TopicConfig

WAIT_S = 60.0


@pytest.fixture
def directory(tmp_path):
    """The store's directory."""
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
    """Receive and acknowledge *count* messages, and return their bodies."""
    bodies = []
    for _ in range(count):
        record = consumer.receive(WAIT_S)
        assert record is not None
        consumer.acknowledge(record)
        bodies.append(record.body.decode())
    return bodies


def offsets(directory, group: str, topic: str = "orders") -> dict[int, int]:
    """Return the committed offsets on disk."""
    fields = parse_config((directory / "config" / "consumerOffset.json").read_text())
    return fields["offsetTable"].get(f"{topic}@{group}", {})


def test_a_consumer_gets_every_message_once_and_goes_on_where_it_left(store, directory):
    """Its acknowledged messages are committed when it leaves."""
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


def all_were_told(store, group: str, topic: str) -> None:
    """Wait until consumers were notified of all puts, and the notifier no longer refers to any of them."""
    store.wait_for("consume_queue", store.appended, WAIT_S)
    end = store.next_queue_offset(topic, 0)
    nothing = PullRequest(group=group, topic=topic, queue_id=0, queue_offset=end, subscription=subscribe(topic))
    # The first round ends after earlier notifications, the second after those that came before the first.
    for _ in range(2):
        store._engine.services.hold_service.pull_and_wait(nothing, 0)


def test_a_consumer_that_nobody_refers_to_any_more_is_gone(directory):
    """Python warns, and the group's other consumers receive its unacknowledged messages and all later ones."""
    # Only the test checks for lost consumers.
    with reput.open(directory, mode="inline", flush_consumer_offset_interval=3_600_000) as store:
        put(store, "one", "two", "three")
        consumer = store.consumer("billing", "orders")
        broadcasting = store.consumer("audit", "orders", broadcast=True)
        assert bodies_of(consumer, 1) == bodies_of(broadcasting, 1) == ["one"]
        assert consumer.receive(WAIT_S).body == b"two"
        with store.consumer("billing", "orders") as other:
            all_were_told(store, "billing", "orders")
            with pytest.warns(ResourceWarning, match="not closed: group='billing' topics=orders"):
                del consumer
            with pytest.warns(ResourceWarning, match="not closed: group='audit'"):
                del broadcasting
            put(store, "four")
            assert other.receive(0) is None
            store._engine.services.look_for_queues()
            assert bodies_of(other, 3) == ["two", "three", "four"]
            assert store._engine.services.broadcasts == {}
            assert list(store._engine.services.consumer_manager.groups) == ["billing"]


def test_a_task_that_waits_keeps_its_consumer(store):
    """Even if the program refers to neither: a waiting task of a temporary consumer continues."""
    bodies = []

    async def work() -> None:
        async with store.consumer("billing", "orders") as consumer:
            async for record in consumer:
                consumer.acknowledge(record)
                bodies.append(record.body)
                if record.body == b"last":
                    return

    async def begin() -> None:
        asyncio.create_task(work())  # noqa: RUF006
        await asyncio.sleep(0)
        gc.collect()
        put(store, "first", "last")
        async with asyncio.timeout(WAIT_S):
            while b"last" not in bodies:
                await asyncio.sleep(0.001)
            assert not any(member.tasks for member in store._engine.services.consumer_groups["billing"].members)

    asyncio.run(begin())
    assert bodies == [b"first", b"last"]


def test_the_offset_never_passes_a_message_that_is_in_flight(store, directory):
    """Later messages may be acknowledged; they are not delivered again while the program lives."""
    put(store, "a", "b", "c", "d")
    with store.consumer("billing", "orders") as consumer:
        records = [consumer.receive(WAIT_S) for _ in range(4)]
        for record in (records[0], records[2]):
            consumer.acknowledge(record)
        consumer.commit()
        assert offsets(directory, "billing") == {0: 1}


def test_a_consumer_waits_for_a_message(store):
    """A put wakes it."""
    group = None

    def put_when_it_waits() -> None:
        wait_until(lambda: group.thread_count == 1)
        put(store, "late")

    with store.consumer("billing", "orders") as consumer:
        group = store._engine.services.consumer_groups["billing"]
        thread = threading.Thread(target=put_when_it_waits)
        thread.start()
        assert bodies_of(consumer, 1) == ["late"]
        thread.join()


def test_a_topic_may_come_later_than_its_consumer(store):
    """So may additional queues."""
    with store.consumer("billing", "orders", begin="latest") as consumer:
        put(store, "first", queue_id=0)
        assert bodies_of(consumer, 1) == ["first"]
        put(store, "second", queue_id=5)
        assert bodies_of(consumer, 1) == ["second"]


def test_tasks_receive_too(store):
    """Without blocking the loop."""

    async def main() -> list[str]:
        bodies = []
        async with store.consumer("billing", "orders") as consumer:
            assert await consumer.areceive(timeout=0.01) is None

            async def later() -> None:
                while not store._engine.services.consumer_groups["billing"].members[0].tasks:
                    await asyncio.sleep(0.001)
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
    """Each message goes to one of them; when one leaves, the other gets all queues."""
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
    """Otherwise two consumers would process it at the same time."""
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
    """Each group gets every message."""
    put(store, "a", "b")
    with store.consumer("billing", "orders") as billing, store.consumer("audit", "orders") as audit:
        assert bodies_of(billing, 2) == bodies_of(audit, 2) == ["a", "b"]


def test_filters_choose(store):
    """By exact tags, although "AaAa" and "BBBB" have the same hash; and by an expression."""
    put(store, "one", tags="AaAa", properties={"price": "1"})
    put(store, "two", tags="BBBB", properties={"price": "20"})
    with store.consumer("billing", "orders", "BBBB || other") as consumer:
        assert bodies_of(consumer, 1) == ["two"]
    with store.consumer("audit", "orders", parse("price < 10")) as consumer:
        assert bodies_of(consumer, 1) == ["one"]
        assert consumer.receive(timeout=0) is None


def test_consumers_of_one_group_want_the_same(store):
    """A consumer with another filter would take messages from the others."""
    with (
        store.consumer("billing", "orders", "a"),
        pytest.raises(ConfigError, match="filter_of_the_others='a'"),
    ):
        store.consumer("billing", "orders", "b")


def test_the_group_rewinds(store):
    """To its beginning, to a time, to an offset."""
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
    """It continues there, even if it never received a message."""
    put(store, "old")
    with store.consumer("billing", "orders", begin="latest") as consumer:
        assert consumer.receive(timeout=0) is None
    put(store, "new")
    with store.consumer("billing", "orders", begin="latest") as consumer:
        assert bodies_of(consumer, 1) == ["new"]


def test_a_place_that_is_none_moves_nobody(store):
    """Nothing is committed: an offset outside the queue, or a queue or topic of another consumer."""
    put(store, "a", "b", "c")
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 1) == ["a"]
        for queue_id, queue_offset in [(0, -1), (0, 4), (0, 1 << 80), (1, 0)]:
            with pytest.raises(OffsetOutOfRange, match=f"queue_id={queue_id}"):
                consumer.seek("orders", queue_id, queue_offset)
        with pytest.raises(ConfigError, match="not subscribed"):
            consumer.seek("invoices", 0, 0)
        with pytest.raises(ConfigError, match="not subscribed"):
            consumer.rewind(topic="invoices")
        for to in ("erliest", None, True, 1.5, -1):
            with pytest.raises(ConfigError, match="to="):
                consumer.rewind(to)
        consumer.commit()
        assert store._engine.services.managers.offsets.query_offset("billing", "orders", 0) == 1
        consumer.seek("orders", 0, 3)
        put(store, "d")
        assert bodies_of(consumer, 1) == ["d"]
    with store.consumer("billing", "orders") as other:
        for move in (consumer.rewind, lambda: consumer.seek("orders", 0, 0), consumer.__enter__):
            with pytest.raises(StoreClosed, match="consumer is closed"):
                move()
        assert other.receive(0) is None


@pytest.mark.parametrize("timeout", [0, -1, 0.0])
def test_who_does_not_wait_is_told_at_once(store, timeout):
    """Threads and tasks; an invalid time limit is refused, and an infinite one is no limit."""
    with store.consumer("billing", "orders") as consumer:
        assert consumer.receive(timeout) is None
        assert asyncio.run(consumer.areceive(timeout)) is None
        thread = threading.Timer(0.05, put, (store, "a", "b"))
        thread.start()
        assert consumer.receive(float("inf")).body == b"a"
        thread.join()
        store.wait_for("consume_queue", store.appended, WAIT_S)
        for wrong in ("1", True, float("nan")):
            with pytest.raises(ConfigError, match="timeout="):
                consumer.receive(wrong)
            with pytest.raises(ConfigError, match="timeout="):
                asyncio.run(consumer.areceive(wrong))
        assert consumer.receive(0).body == b"b"


def test_a_task_that_gives_up_loses_nothing(store):
    """Regardless of when it is cancelled, each message is delivered exactly once."""

    async def work(consumer):
        bodies = []
        for number in range(40):
            task = asyncio.create_task(consumer.areceive(WAIT_S))
            for _ in range(number % 3):
                await asyncio.sleep(0)
            put(store, str(number))
            store.wait_for("consume_queue", store.appended, WAIT_S)
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            (found,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(found, asyncio.CancelledError):
                consumer.acknowledge(found)
                bodies.append(int(found.body))
        while len(bodies) < 40:
            found = await consumer.areceive(WAIT_S)
            consumer.acknowledge(found)
            bodies.append(int(found.body))
        return bodies

    with store.consumer("billing", "orders") as consumer:
        assert asyncio.run(work(consumer)) == list(range(40))
        assert not store._engine.services.consumer_groups["billing"].members[0].tasks


def test_a_loop_may_be_left_early(store):
    """Its messages are still in flight, and the next loop continues after them, also in another event loop."""
    put(store, "a", "b", "c")

    async def first(consumer):
        async for record in consumer:
            return record
        return None

    with store.consumer("billing", "orders") as consumer:
        records = [asyncio.run(first(consumer)) for _ in range(3)]
        assert [record.body for record in records] == [b"a", b"b", b"c"]
        for record in reversed(records):
            consumer.acknowledge(record)
    assert store._engine.services.managers.offsets.query_offset("billing", "orders", 0) == 3


def test_whoever_waits_is_told_of_the_consumers_end(store):
    """A thread, and tasks of two loops, one of which ended without closing; later waits end, too."""
    consumer = store.consumer("billing", "orders")
    told = []
    waiting = threading.Barrier(3)

    def wait_in_a_loop():
        async def work():
            task = asyncio.create_task(consumer.areceive())
            await asyncio.sleep(0)
            waiting.wait(WAIT_S)
            with pytest.raises(StoreClosed) as closed:
                await task
            told.append(str(closed.value))

        asyncio.run(work())

    def wait_in_the_thread():
        waiting.wait(WAIT_S)
        with pytest.raises(StoreClosed) as closed:
            consumer.receive()
        told.append(str(closed.value))

    ended = asyncio.new_event_loop()
    store._engine.services.consumer_groups["billing"].members[0].tasks.append((ended, ended.create_future()))
    ended.close()
    threads = [threading.Thread(target=target) for target in (wait_in_a_loop, wait_in_the_thread)]
    for thread in threads:
        thread.start()
    waiting.wait(WAIT_S)
    consumer.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert told == ["the consumer is closed: group='billing'"] * 2
    with pytest.raises(StoreClosed, match="the consumer is closed"):
        consumer.receive(timeout=0)
    with pytest.raises(StoreClosed, match="the consumer is closed"):
        asyncio.run(consumer.areceive(timeout=0))
    assert list(consumer) == []


def test_what_is_taken_away_while_it_is_sent_back_comes_twice(store, monkeypatch):
    """At least once: the copy is stored, without an error about the moved queue."""
    from reput.consume.groups import consumer as module

    put(store, "a")
    whole = module.send_back

    def rewound(*arguments):
        with pytest.raises(RequestRefused, match="not in flight"):
            consumer.retry(record)
        result = whole(*arguments)
        consumer.rewind()
        return result

    monkeypatch.setattr(module, "send_back", rewound)
    with store.consumer("billing", "orders") as consumer:
        record = consumer.receive(WAIT_S)
        assert consumer.retry(record, -1) is not None
        assert bodies_of(consumer, 1) == ["a"]
    store.wait_for("consume_queue", store.appended, WAIT_S)
    assert len(store.get("%DLQ%billing")) == 1


def test_a_message_of_several_queues_is_given_from_each(directory):
    """Multi-dispatch: it is in flight in each queue until acknowledged there, and finally all are committed."""
    light = ["%LMQ%a", "%LMQ%b"]
    options = {"enable_lmq": True, "enable_multi_dispatch": True}
    with (
        reput.open(directory, mode="inline", **options) as store,
        store.consumer("billing", ["orders", *light]) as consumer,
    ):
        put(store, "1", "2", properties={"INNER_MULTI_DISPATCH": ",".join(light)})
        records = [consumer.receive(WAIT_S) for _ in range(6)]
        assert sorted(record.body for record in records) == [b"1", b"1", b"1", b"2", b"2", b"2"]
        for record in records:
            consumer.acknowledge(record)
        with pytest.raises(RequestRefused, match="not in flight"):
            consumer.acknowledge(records[0])
        consumer.commit()
        for topic in ("orders", *light):
            assert store._engine.services.managers.offsets.query_offset("billing", topic, 0) == 2


def test_a_forked_child_consumes_nothing(store, directory):
    """Its consumers are closed, and the files belong to the parent."""
    put(store, "a", "b")
    with store.consumer("billing", "orders") as consumer:
        record = consumer.receive(WAIT_S)
        consumer.commit()
        with store._engine.services.consumer_groups["billing"].lock, warnings.catch_warnings():
            # Python warns about forking a program with threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert consumer.closed
                ask = (
                    lambda: consumer.receive(0),
                    lambda: next(consumer),
                    lambda: asyncio.run(consumer.areceive(0)),
                )
                for refused in ask:
                    with pytest.raises(StoreClosed, match="its parent holds it"):
                        refused()
                for refused in (
                    consumer.commit,
                    lambda: store.consumer("audit", "orders"),
                    lambda: store._engine.services,
                ):
                    with pytest.raises(StoreClosed):
                        refused()
                with pytest.raises(RequestRefused):
                    consumer.acknowledge(record)
                consumer.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert offsets(directory, "billing") == {0: 0}
        consumer.acknowledge(record)
        assert bodies_of(consumer, 1) == ["b"]


def test_a_consumer_that_acknowledges_nothing_waits(store, caplog):
    """It logs this once, and continues after an acknowledgement."""
    put(store, *"abcd")
    with store.consumer("billing", "orders", in_flight_max=2) as consumer:
        first = consumer.receive(WAIT_S)
        consumer.receive(WAIT_S)
        assert consumer.receive(timeout=0.01) is None
        assert caplog.text.count("waits for acknowledgements") == 1
        consumer.acknowledge(first)
        assert consumer.receive(WAIT_S).body == b"c"


def test_the_loop_of_a_consumer_ends_with_the_store(directory):
    """Waiting consumers are woken, and acknowledged messages are committed."""
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
        (("billing", "orders", b"a"), ConfigError),
        (("billing", 5), ConfigError),
        (("billing", ["orders", 5]), RequestRefused),
        (("billing", "a b"), RequestRefused),
        (("billing", ""), RequestRefused),
        (("billing", "%LMQ%a/b"), RequestRefused),
        (("billing", "orders", None, {"begin": "Earliest"}), ConfigError),
        (("billing", "orders", None, {"begin": True}), ConfigError),
        (("billing", "orders", None, {"begin": 1.5}), ConfigError),
        (("billing", "orders", None, {"begin": -1}), ConfigError),
        (("billing", "orders", None, {"in_flight_max": 0}), ConfigError),
        (("billing", "orders", None, {"in_flight_max": "9"}), ConfigError),
    ],
)
def test_a_wrong_request_is_refused(store, arguments, error):
    """It stores nothing."""
    options = arguments[3] if len(arguments) > 3 else {}
    with pytest.raises(error):
        store.consumer(*arguments[:3], **options)
    assert not store._engine.services.managers.groups.entries
    assert store._engine.services.consumer_groups.keys() <= {arguments[0]}


def test_a_group_that_may_not_consume_is_refused(directory):
    """If groups are not created automatically."""
    with (
        reput.open(directory, mode="inline", auto_create_subscription_group=False) as store,
        pytest.raises(RequestRefused) as refused,
    ):
        store.consumer("billing", "orders")
    assert refused.value.response_code == 26


def test_statistics_count_what_a_group_was_given(store):
    """Unmeasured values are unknown."""
    put(store, "a", "b")
    with store.consumer("billing", "orders") as consumer:
        bodies_of(consumer, 2)
        counts = store._engine.services.statistics.of_group("billing", "orders")
        assert counts.get_nums == 2
        assert counts.get_size > 2 * 91
        assert counts.latency_ms is not None
        assert store._engine.services.statistics.of_group("audit", "orders").latency_ms is None
        put(store, "c")
        assert store._engine.services.statistics.put_nums("orders") == 3
        assert store._engine.services.statistics.put_nums("absent") is None


def test_a_retry_that_cannot_be_is_refused(store):
    """The message stays in flight."""
    put(store, "a")
    with store.consumer("billing", "orders") as consumer:
        record = consumer.receive(WAIT_S)
        for wrong in ({"delay_level": "3"}, {"max_reconsume_times": "3"}, {"max_reconsume_times": -1}):
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                consumer.retry(record, **wrong)
        consumer.acknowledge(record)
    assert "%RETRY%billing" not in store.topics()


def test_what_is_sent_back_comes_again_later(directory):
    """In the same group, from its original topic and with a count; finally it becomes a dead letter."""
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
        counts = store._engine.services.statistics.of_group("billing", "orders")
        assert (counts.send_back_nums, counts.dead_letter_nums) == (2, 1)


def test_without_queues_there_is_nothing_to_consume(directory):
    """Waiting would never end."""
    with (
        reput.open(directory, mode="inline", dispatchers=["index"]) as store,
        pytest.raises(ConfigError, match="dispatchers=index"),
    ):
        store.consumer("billing", "orders")


def test_torn_offsets_are_taken_from_before(directory):
    """The backup has the state before the last change, which is lost with the file."""
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
    """Its next messages begin at offset 0 again."""
    put(store, "a", "b", "c")
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 2) == ["a", "b"]
        in_flight = consumer.receive(WAIT_S)
        store._engine.services.administration.delete_topic("orders")
        with pytest.raises(RequestRefused):
            consumer.acknowledge(in_flight)
        put(store, "new")
        assert bodies_of(consumer, 1) == ["new"]
        consumer.commit()
    assert store._engine.services.managers.offsets.query_offset("billing", "orders", 0) == 1


def test_what_a_deleted_topic_had_is_not_given_while_its_queues_go(store, monkeypatch):
    """A consumer that waits meanwhile continues to wait, until the topic has messages again."""
    put(store, "a", "b", "c")
    wait = GoneDirectory.wait
    meanwhile = []

    def slow(*arguments):
        meanwhile.append(consumer.receive(0))
        return wait(*arguments)

    monkeypatch.setattr(GoneDirectory, "wait", slow)
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 1) == ["a"]
        store.delete_topic("orders")
        assert meanwhile == [None]
        assert consumer.receive(0) is None
        put(store, "new")
        assert bodies_of(consumer, 1) == ["new"]
        assert consumer.receive(0) is None


def test_a_view_that_goes_back_before_it_is_read_keeps_no_consumer_waiting(store, monkeypatch):
    """Its builder was killed right after showing the message; the next builder shows it again."""
    reader = store._engine.services.group_reader
    get, results = reader.get, []

    def note(*arguments):
        results.append(get(*arguments))
        return results[-1]

    def read_later(*arguments):
        return results.pop() if results else get(*arguments)

    with store.consumer("billing", "orders") as consumer:
        put(store, "a")
        assert bodies_of(consumer, 1) == ["a"]
        monkeypatch.setattr(reader, "get", note)
        assert consumer.receive(0) is None
        del results[:-1]
        assert results
        monkeypatch.setattr(reader, "get", read_later)
        put(store, "b")
        assert bodies_of(consumer, 1) == ["b"]
        assert not results


@pytest.mark.processes
def test_a_killed_dispatcher_holds_a_consumer_up_for_a_moment(directory):
    """Every message comes once, in order, while the queue's builder is killed repeatedly."""
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
    """It learns of messages itself; a thread that starts to wait is still notified."""
    told_by = []
    grown = ConsumerGroup.grown

    def note(self, queues):
        told_by.append(threading.current_thread().name)
        grown(self, queues)

    monkeypatch.setattr(ConsumerGroup, "grown", note)
    # A loop hands long waits over to the thread.
    monkeypatch.setattr(loop_arrivals, "WAIT_S", WAIT_S)

    async def receive_one(store, consumer, text):
        task = asyncio.create_task(consumer.areceive(WAIT_S))
        while not store._engine.services.consumer_groups["billing"].members[0].tasks:
            # It looks in its queues first.
            await asyncio.sleep(0)
        put(store, text)
        record = await task
        consumer.acknowledge(record)
        return record.body.decode()

    def put_later(store, consumer, text):
        def is_waited_for():
            # A consumer that is about to wait holds the lock until it waits.
            group = store._engine.services.consumer_groups["billing"]
            with group.lock:
                return group.thread_count == 1

        wait_until(is_waited_for)
        put(store, text)

    with reput.open(directory, dispatchers=["consume_queue"]) as store, store.consumer("billing", "orders") as consumer:
        # The first put makes the topic's queues known.
        assert asyncio.run(receive_one(store, consumer, "first")) == "first"
        told_by.clear()
        assert asyncio.run(receive_one(store, consumer, "second")) == "second"
        assert set(told_by) == {"MainThread"}
        thread = threading.Thread(target=put_later, args=(store, consumer, "third"))
        thread.start()
        assert bodies_of(consumer, 1) == ["third"]
        thread.join()
        assert told_by[-1] == "reput-hold"


def test_messages_are_spread_over_the_queues_that_a_topic_is_described_with(store, directory, caplog):
    """From the time of its description until a deletion. A warning about more consumers than queues comes once."""
    store.put(reput.Message("orders", b"before"))
    store._engine.services.topics.create_or_update(
        TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2)
    )
    assert {store.put(reput.Message("orders", b"")).queue_id for _ in range(4)} == {0, 1}
    consumers = [store.consumer("billing", "orders") for _ in range(4)]
    told = [record.getMessage() for record in caplog.records if "more consumers than" in record.getMessage()]
    assert len(told) == 1
    assert "group=billing topic=orders consumers=3 queues=2" in told[0]
    for consumer in consumers:
        consumer.close()
    store.delete_topic("orders")
    assert [store.put(reput.Message("orders", b"")).queue_id for _ in range(2)] == [0, 0]


def test_an_expression_is_not_taken_for_a_tag(store):
    """It would never match; it must be compiled, or explicitly parsed as tags."""
    with pytest.raises(FilterSyntaxError, match=r"reput\.filter\.parse.* filter='price > 5'"):
        store.consumer("billing", "orders", "price > 5")
    with pytest.raises(FilterSyntaxError, match=r"reput\.filter\.parse_tags"):
        store.get("orders", tags="a, b")
    put(store, "odd", properties={"TAGS": "price > 5"})
    with store.consumer("billing", "orders", parse_tags("price > 5")) as consumer:
        assert bodies_of(consumer, 1) == ["odd"]


def test_a_refusal_says_what_to_do_about_itself(store):
    """The advice is about the refused request."""
    put(store, "a")
    with store.consumer("billing", "orders") as consumer:
        record = consumer.receive(WAIT_S)
        consumer.acknowledge(record)
        with pytest.raises(RequestRefused) as raised:
            consumer.acknowledge(record)
    assert raised.value.advice.startswith("It was acknowledged or sent back before")
    with pytest.raises(RequestRefused) as raised:
        store.consumer("a b", "orders")
    assert raised.value.advice == "Correct the named value."

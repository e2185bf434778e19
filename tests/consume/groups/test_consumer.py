"""Consumer: messages of a group's topics in a program that has the store open."""

from __future__ import annotations

import asyncio
import os
import warnings

import pytest

import reput
from consume.groups.consuming import WAIT_S, bodies_of, offsets, put
from reput.consume.pull.pull_service import PullRequest
from reput.consume.registry.subscription import subscribe
from reput.errors import ConfigError, RequestRefused, StoreClosed
from reput.filter import FilterSyntaxError, parse, parse_tags
from reput.store.config.topic_config_manager import TopicConfig


@pytest.fixture
def directory(tmp_path):
    """The store's directory."""
    return tmp_path / "store"


@pytest.fixture
def store(directory):
    """A store whose dispatchers run on a thread of the test."""
    with reput.open(directory, mode="inline", mapped_file_size_commit_log=1 << 16) as opened:
        yield opened


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


def test_only_unfinished_messages_are_given_again(store):
    """However many are done behind one that is not, the queue keeps no more than those in flight."""
    put(store, *map(str, range(100)))
    opened = [store.consumer("billing", "orders", begin="earliest") for _ in range(3)]
    queue = opened[0]._shared.queues["orders", 0]
    first, second, third = sorted(opened, key=lambda consumer: queue.owner is not consumer._member)
    given = [first.receive(WAIT_S) for _ in range(90)]
    for record in given:
        if record.queue_offset not in (3, 40, 80):
            first.ack(record)
    assert len(queue.in_flight) == 3
    first.close()
    assert len(queue.unfinished) == 3
    heir, last = sorted((second, third), key=lambda consumer: queue.owner is not consumer._member)
    again = [heir.receive(WAIT_S) for _ in range(2)]
    assert [record.queue_offset for record in again] == [3, 40]
    heir.ack(again[0])
    heir.close()
    assert bodies_of(last, 12) == ["40", "80", *map(str, range(90, 100))]
    last.close()


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


def test_the_offset_never_passes_a_message_that_is_in_flight(store, directory):
    """Later messages may be acknowledged; they are not delivered again while the program lives."""
    put(store, "a", "b", "c", "d")
    with store.consumer("billing", "orders") as consumer:
        records = [consumer.receive(WAIT_S) for _ in range(4)]
        for record in (records[0], records[2]):
            consumer.acknowledge(record)
        consumer.commit()
        assert offsets(directory, "billing") == {0: 1}


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


@pytest.mark.slow
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
        (counts,) = store.statistics().groups
        assert (counts.group, counts.topic, counts.get_nums) == ("billing", "orders", 2)
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


def test_a_get_by_tags_returns_no_other_tag_of_the_same_hash(store):
    """The queue has only hashes: those of "AaAa" and "BBBB" are equal."""
    for tags in ("BBBB", "AaAa"):
        put(store, tags, tags=tags)
    store.wait_for("consume_queue", store.appended, 60)
    found = store.get("orders", tags="AaAa")
    assert [record.body for record in found] == [b"AaAa"]
    assert (found.status.name, found.next_queue_offset) == ("FOUND", 2)
    nothing = store.get("orders", count_max=1, tags="AaAa")
    assert (len(nothing), nothing.status.name, nothing.next_queue_offset) == (0, "NO_MATCHED_MESSAGE", 1)


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

"""HoldService: waiting pulls, and the events that wake them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
import weakref
from functools import partial
from queue import SimpleQueue

import msgspec
import pytest

import reput
from delivering import wait_until
from reput.consume.pull.pull_service import PullRequest
from reput.consume.registry.subscription import subscribe
from reput.errors import ConfigError, RequestRefused, StoreClosed, StoreError
from reput.filter import parse
from reput.remoting.response_code import ResponseCode
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig
from reput.store.config.topic_config_manager import TopicConfig
from reput.store.disk.files import Clock

WAIT_S = 60.0


@pytest.fixture
def store(tmp_path):
    """A store whose dispatchers run on a thread of the test."""
    with reput.open(tmp_path / "store", mode="inline", enable_property_filter=True) as opened:
        opened._engine.services.topics.create_or_update(
            TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4)
        )
        yield opened


@pytest.fixture
def hold_service(store):
    """The service that holds the store's pulls."""
    return store._engine.services.hold_service


def request(queue_id: int = 0, queue_offset: int = 0, wanted: object = None, topic: str = "orders") -> PullRequest:
    """Return a pull of group ``billing``."""
    return PullRequest(
        group="billing",
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        subscription=subscribe(topic, wanted),
    )


class Answer:
    """The outcome of a held pull."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.result = None

    def __call__(self, result: object) -> None:
        self.result = result
        self.came.set()

    def wait(self):
        """Return the result, or raise it."""
        assert self.came.wait(WAIT_S)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class StoppedClock(Clock):
    """A clock that moves only when it is set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_a_pull_that_finds_something_does_not_wait(store, hold_service):
    """Neither does one with a wrong offset: its consumer must learn that."""
    store.wait_for("consume_queue", store.put(reput.Message("orders", b"a", queue_id=0)).next_commit_log_offset, WAIT_S)
    assert [record.body for record in hold_service.pull(request(), WAIT_S, Answer()).records] == [b"a"]
    assert hold_service.pull(request(queue_offset=9), WAIT_S, Answer()).code == ResponseCode.PULL_OFFSET_MOVED
    assert hold_service.held_count == 0


def test_a_put_wakes_the_pulls_of_its_queue_alone(store, hold_service):
    """Pulls of other queues continue to wait."""
    answers = [Answer() for _ in range(4)]
    for queue_id in range(4):
        assert hold_service.pull(request(queue_id), WAIT_S, answers[queue_id]) is None
    store.put(reput.Message("orders", b"a", queue_id=2))
    assert [record.body for record in answers[2].wait().records] == [b"a"]
    assert hold_service.held_count == 3
    assert [answer.came.is_set() for answer in answers] == [False, False, True, False]


def test_several_pulls_of_a_queue_are_woken_by_one_put(store, hold_service):
    """Each of them gets the message, because they may belong to different groups."""
    answers = [Answer() for _ in range(3)]
    for answer in answers:
        hold_service.pull(request(), WAIT_S, answer)
    store.put(reput.Message("orders", b"a", queue_id=0))
    assert {answer.wait().records[0].body for answer in answers} == {b"a"}


@pytest.mark.parametrize("wanted", ["TagA", parse("price > 5")], ids=["tags", "expression"])
def test_a_message_that_is_not_wanted_wakes_nobody(store, hold_service, wanted):
    """The pull continues after it, and gets the first wanted message."""
    answer = Answer()
    hold_service.pull(request(wanted=wanted), WAIT_S, answer)
    for number in range(5):
        store.put(reput.Message("orders", b"%d" % number, queue_id=0, tags="TagB", properties={"price": "1"}))
    store.put(reput.Message("orders", b"wanted", queue_id=0, tags="TagA", properties={"price": "9"}))
    result = answer.wait()
    assert [record.body for record in result.records] == [b"wanted"]
    assert result.next_begin_offset == 6


def test_a_pull_that_waited_in_vain_is_answered(hold_service):
    """With the initial answer: not found."""
    started = time.monotonic()
    result = hold_service.pull_and_wait(request(), 0.05)
    assert time.monotonic() - started >= 0.05
    assert (result.code, result.next_begin_offset) == (ResponseCode.PULL_NOT_FOUND, 0)
    assert hold_service.held_count == 0


def test_however_long_a_consumer_would_wait_the_others_are_served(store, hold_service):
    """Longer than the system can wait, without limit, or into the past; an invalid time is refused."""
    for wrong in (float("nan"), "1", True):
        with pytest.raises(ConfigError, match="timeout="):
            hold_service.pull(request(), wrong, Answer())
    answers = [Answer() for _ in range(2)]
    hold_service.pull(request(0), 2.0**63, answers[0])
    hold_service.pull(request(1), float("inf"), answers[1])
    wait_until(hold_service.arrival_service.arrivals.empty)
    assert hold_service.pull_and_wait(request(2), -1.0).code == ResponseCode.PULL_NOT_FOUND
    assert hold_service.held_count == 2
    for queue_id, answer in enumerate(answers):
        store.put(reput.Message("orders", b"a", queue_id=queue_id))
        assert answer.wait().records[0].body == b"a"


def test_whoever_gives_up_waits_no_more(store, hold_service, monkeypatch):
    """A cancelled task and an interrupted thread: neither leaves a waiting pull behind."""

    async def work() -> None:
        task = asyncio.create_task(hold_service.apull_and_wait(request(), WAIT_S))
        await asyncio.sleep(0)
        assert hold_service.held_count == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    class Interrupted(SimpleQueue):
        def get(self, block=True, timeout=None):
            raise KeyboardInterrupt

    asyncio.run(work())
    assert hold_service.held_count == 0
    monkeypatch.setattr("reput.consume.pull.hold_service.SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        hold_service.pull_and_wait(request(), WAIT_S)
    assert hold_service.held_count == 0


def test_what_was_not_wanted_is_not_looked_at_twice(store, hold_service):
    """A pull that times out returns the offset to continue from."""
    hold_service.clock = clock = StoppedClock()
    answer = Answer()
    hold_service.pull(request(wanted="TagA"), WAIT_S, answer)
    (held,) = hold_service.held["orders", 0]
    store.put(reput.Message("orders", b"a", queue_id=0, tags="TagB"))
    wait_until(lambda: held.next_offset == 1)
    clock.seconds += WAIT_S
    hold_service.arrival_service.look_again(("orders", 0))
    result = answer.wait()
    assert (result.status.value, result.code) == ("NO_MATCHED_MESSAGE", ResponseCode.PULL_RETRY_IMMEDIATELY)
    assert result.next_begin_offset == 1


@pytest.mark.slow
def test_a_message_between_the_look_and_the_waiting_is_not_missed(store, hold_service):
    """Regardless of their order."""
    for number in range(200):
        answer = Answer()
        thread = threading.Thread(target=store.put, args=(reput.Message("orders", b"%d" % number, queue_id=0),))
        thread.start()
        result = hold_service.pull(request(queue_offset=number), WAIT_S, answer) or answer.wait()
        assert [record.body for record in result.records] == [b"%d" % number]
        thread.join()


def test_a_view_that_goes_back_before_it_is_read_keeps_nobody_waiting(store, hold_service, monkeypatch):
    """Its builder was killed right after showing the message; the next builder shows it again."""
    nothing = hold_service.pull_service.pull(request())
    read = hold_service.pull_service.pull_again
    went_back = []

    def read_later(*arguments):
        if not went_back:
            went_back.append(True)
            return nothing
        return read(*arguments)

    monkeypatch.setattr(hold_service.pull_service, "pull_again", read_later)
    answer = Answer()
    hold_service.pull(request(), WAIT_S, answer)
    store.put(reput.Message("orders", b"a", queue_id=0))
    assert [record.body for record in answer.wait().records] == [b"a"]
    assert went_back


def test_whoever_waits_is_refused_once_he_may_not_read_any_more(store, hold_service):
    """All checks are repeated."""
    answer = Answer()
    hold_service.pull(request(), WAIT_S, answer)
    store._engine.services.topics.create_or_update(TopicConfig(topic_name="orders", perm=2))
    store.put(reput.Message("orders", b"a", queue_id=0))
    with pytest.raises(RequestRefused) as refused:
        answer.wait()
    assert refused.value.response_code == ResponseCode.NO_PERMISSION


def test_a_pull_of_a_topic_that_is_deleted_is_sent_back_to_the_beginning(store, hold_service):
    """Its offset means nothing in a topic that is made anew; pulls of other topics wait on."""
    store.wait_for("consume_queue", store.put(reput.Message("orders", b"a", queue_id=0)).next_commit_log_offset, WAIT_S)
    store._engine.services.topics.create_or_update(TopicConfig(topic_name="mails"))
    answer, other = Answer(), Answer()
    hold_service.pull(request(queue_offset=1), WAIT_S, answer)
    hold_service.pull(request(topic="mails"), WAIT_S, other)
    store.delete_topic("orders")
    assert (answer.wait().code, answer.wait().next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    assert hold_service.held_count == 1


def test_a_group_that_may_not_read_is_refused_beside_groups_that_may(store, hold_service):
    """Pulls of one queue share the checks of their group alone."""
    groups = ("billing", "closed", "audit")
    answers = [(group, Answer()) for group in groups * 2]
    for group, answer in answers:
        assert hold_service.pull(msgspec.structs.replace(request(), group=group), WAIT_S, answer) is None
    store._engine.services.groups.create_or_update(SubscriptionGroupConfig(group_name="closed", consume_enable=False))
    store.put(reput.Message("orders", b"a", queue_id=0))
    for group, answer in answers:
        if group == "closed":
            with pytest.raises(RequestRefused, match="the group may not consume: group='closed'"):
                answer.wait()
        else:
            assert [record.body for record in answer.wait().records] == [b"a"]


def test_a_store_that_closes_answers_all_who_wait(tmp_path):
    """Threads and callbacks; afterwards no pull can wait."""
    with reput.open(tmp_path / "store", mode="inline") as store:
        store._engine.services.topics.create_or_update(TopicConfig(topic_name="orders"))
        hold_service = store._engine.services.hold_service
        answer = Answer()
        hold_service.pull(request(), WAIT_S, answer)
    with pytest.raises(StoreClosed):
        answer.wait()
    with pytest.raises(StoreClosed):
        hold_service.pull(request(), WAIT_S, answer)


@pytest.mark.processes
def test_tasks_and_threads_wait_for_dispatchers_in_processes(tmp_path):
    """The put is visible once the dispatcher's process has written the queue."""

    async def main() -> list[bytes]:
        wait = asyncio.gather(*(hold_service.apull_and_wait(request(queue_id), WAIT_S) for queue_id in range(4)))
        await asyncio.sleep(0)
        for queue_id in range(4):
            store.put(reput.Message("orders", b"%d" % queue_id, queue_id=queue_id))
        return [result.records[0].body for result in await wait]

    with reput.open(tmp_path / "store") as store:
        store._engine.services.topics.create_or_update(TopicConfig(topic_name="orders"))
        hold_service = store._engine.services.hold_service
        assert asyncio.run(asyncio.wait_for(main(), WAIT_S)) == [b"0", b"1", b"2", b"3"]
        with pytest.raises(RequestRefused):
            asyncio.run(hold_service.apull_and_wait(request(99), WAIT_S))


@pytest.mark.processes
def test_a_loop_answers_from_the_writer_whoever_waits_for_the_very_next_message(tmp_path):
    """The consume queue is paused: what only its units can tell is told once it goes on."""

    async def waiting(pull: PullRequest) -> asyncio.Future[object]:
        """Return the future answer of a pull that is held now."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        done = partial(loop.call_soon_threadsafe, answer.set_result)
        assert hold_service.pull(pull, WAIT_S, done) is None
        return answer

    def put(body: bytes, tags: str = "TagA") -> None:
        store.put(reput.Message("orders", body, queue_id=0, tags=tags, properties={"price": "9"}))

    async def told(answer: asyncio.Future[object]) -> tuple[list[bytes], int, int]:
        result = await asyncio.wait_for(answer, WAIT_S)
        return [record.body for record in result.records], result.next_begin_offset, result.max_offset

    async def main() -> None:
        hold_service.serve_in(asyncio.get_running_loop())
        everything, tagged = await waiting(request()), await waiting(request(wanted="TagA"))
        by_expression = await waiting(request(wanted=parse("price > 5")))
        put(b"0", "TagB")
        assert await told(everything) == ([b"0"], 1, 1)
        # The one that did not want it waits for the next.
        following = await waiting(request(queue_offset=1))
        await asyncio.to_thread(put, b"1")
        assert await told(following) == ([b"1"], 2, 2)
        assert await told(tagged) == ([b"1"], 2, 2)
        # Several at once, within a pull's limits; the rest only the consume queue knows.
        two = await waiting(msgspec.structs.replace(request(queue_offset=2), count_max=2))
        store.put_batch([reput.Message("orders", b"%d" % number, queue_id=0) for number in (2, 3, 4)])
        assert await told(two) == ([b"2", b"3"], 4, 5)
        rest = await waiting(request(queue_offset=4))
        put(b"5")
        await asyncio.sleep(0)
        assert not rest.done()
        assert not by_expression.done()
        store._engine.group.request("resume", "consume_queue")
        assert await told(rest) == ([b"4", b"5"], 6, 6)
        assert (await told(by_expression))[0] == [b"0", b"1", b"5"]
        # Neither is a message of a deleted topic given to those who wait for the next topic of this name.
        last = await waiting(request(queue_offset=6))
        put(b"deleted")
        store._engine.services.administration.delete_topic("orders")
        store._engine.services.topics.create_or_update(TopicConfig(topic_name="orders"))
        result = await asyncio.wait_for(last, WAIT_S)
        assert (result.code, len(result.records)) == (ResponseCode.PULL_OFFSET_MOVED, 0)
        assert hold_service.held_count == 0

    with reput.open(tmp_path / "store", enable_property_filter=True) as store:
        store._engine.services.topics.create_or_update(TopicConfig(topic_name="orders"))
        store._engine.group.request("pause", "consume_queue")
        hold_service = store._engine.services.hold_service
        asyncio.run(main())


@pytest.mark.slow
def test_ten_thousand_wait_on_a_thousand_queues(tmp_path):
    """Each takes less than 2 KiB, a put wakes the ten pulls of its queue, and the only thread is the one that wakes."""
    queue_count, waiters_each = 1000, 10
    with reput.open(tmp_path / "store", mode="inline") as store:
        services = store._engine.services
        services.topics.create_or_update(TopicConfig(topic_name="orders", read_queue_nums=queue_count))
        hold_service = services.hold_service
        # State of each queue that exists with or without waiting pulls.
        for queue_id in range(queue_count):
            services.pull_service.pull(request(queue_id))
        threads = set(threading.enumerate())
        woken: list[int] = []
        all_of_queue = threading.Event()

        def done(result: object, queue_id: int) -> None:
            woken.append(queue_id)
            if woken.count(queue_id) == waiters_each:
                all_of_queue.set()

        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(queue_count * waiters_each):
            queue_id = number % queue_count
            held = hold_service.pull(
                request(queue_id), 3600.0, lambda result, queue_id=queue_id: done(result, queue_id)
            )
            assert held is None
        gc.collect()
        size = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert hold_service.held_count == queue_count * waiters_each
        assert size / (queue_count * waiters_each) < 2048
        assert set(threading.enumerate()) <= threads
        for queue_id in (0, 500, 999):
            all_of_queue.clear()
            store.put(reput.Message("orders", b"a", queue_id=queue_id))
            assert all_of_queue.wait(WAIT_S)
            assert woken == [queue_id] * waiters_each
            woken.clear()
        assert hold_service.held_count == (queue_count - 3) * waiters_each


def test_a_broker_without_long_polling_holds_for_a_short_time(tmp_path):
    """However long the consumer wants to wait."""
    polling = {"long_polling_enable": False, "short_polling_time_mills": 20}
    with reput.open(tmp_path / "store", mode="inline", **polling) as store:
        store._engine.services.topics.create_or_update(TopicConfig(topic_name="orders"))
        assert store._engine.services.hold_service.pull_and_wait(request(), 3600.0).code == ResponseCode.PULL_NOT_FOUND


def test_an_answer_that_fails_keeps_nobody_waiting(store, hold_service, caplog):
    """It is logged; the other pulls of the queue are answered."""

    def fail(result: object) -> None:
        raise ZeroDivisionError

    answer = Answer()
    hold_service.pull(request(), WAIT_S, fail)
    hold_service.pull(request(), WAIT_S, answer)
    store.put(reput.Message("orders", b"a", queue_id=0))
    assert answer.wait().records[0].body == b"a"
    assert "cannot be answered" in caplog.text


def test_a_disk_that_fails_is_told_to_whoever_waits(store, hold_service, monkeypatch):
    """The service continues."""
    answer = Answer()
    hold_service.pull(request(), WAIT_S, answer)

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(store._engine.reader, "get_message", fail)
        store.put(reput.Message("orders", b"a", queue_id=0))
        with pytest.raises(StoreError, match="Input/output"):
            answer.wait()
    again = Answer()
    result = hold_service.pull(request(), WAIT_S, again) or again.wait()
    assert result.records[0].body == b"a"


@pytest.mark.slow
def test_a_pull_that_is_given_up_keeps_nothing_of_its_client(hold_service):
    """It stays in the heap of deadlines for a while, and a client may give up many."""
    answer = Answer()
    gone = weakref.ref(answer)
    held = hold_service.pull_or_hold(request(), WAIT_S, answer)
    assert hold_service.take_out(held, expired=False) is answer
    assert hold_service.take_out(held, expired=False) is None
    assert held in [entry[2] for entry in hold_service.deadlines]
    del answer
    gc.collect()
    assert gone() is None

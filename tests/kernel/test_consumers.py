"""Consumers: the kernel gives the same messages, states and errors as the Python path."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import reput
from reput.consume.groups.consumer import Consumer
from reput.consume.groups.group_member import GroupMember
from reput.errors import ReputError
from reput.kernel import Kernel
from reput.store.record.message import Message

numbers = count()
STEP = st.one_of(
    st.tuples(st.just("receive"), st.just(0)),
    st.tuples(st.just("receive"), st.just(0)),
    # Which of all messages received so far, from the last one on: in flight, done or taken away by a seek.
    st.tuples(st.just("ack"), st.integers(0, 5)),
    st.tuples(st.just("ack"), st.integers(0, 5)),
    st.tuples(st.just("seek"), st.integers(0, 20)),
    st.tuples(st.just("ack no message"), st.just(0)),
    st.tuples(st.just("join"), st.just(0)),
)


@pytest.fixture(scope="module")
def store(required_kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[reput.Store]:
    """An open store with messages in three queues."""
    with reput.open(
        tmp_path_factory.mktemp("consumers") / "store", mode="inline", mapped_file_size_commit_log=1 << 16
    ) as opened:
        for number in range(60):
            opened.put(Message("orders", bytes([number]) * (number * 13 % 300), queue_id=number % 3))
        opened.wait_for("consume_queue", opened.appended)
        yield opened


def state_of(consumer: Consumer) -> Any:
    """Return what a consumer and its group know of their queues and messages."""
    member = consumer._member
    with consumer._shared.lock:
        return state_with_lock(member)


def state_with_lock(member: GroupMember) -> Any:
    return (
        sorted((at, queue.queue_id, offset) for at, (queue, offset) in member.delivered.items()),
        [
            (
                (queue.topic, queue.queue_id, queue.position),
                (list(queue.in_flight), queue.unfinished, queue.commit_offset()),
                (queue.statistics.get_nums, queue.statistics.get_size),
            )
            for queue in member.queues
            if queue.topic == "orders"
        ],
    )


class Run:
    """One consumer of a new group, with the kernel or without."""

    def __init__(self, store: reput.Store, in_flight_max: int, *, with_kernel: bool) -> None:
        self.store = store
        self.group = f"group-{next(numbers)}"
        self.limit = in_flight_max
        self.consumer = store.consumer(self.group, "orders", begin="earliest", in_flight_max=in_flight_max)
        assert self.consumer._kernel is not None
        if not with_kernel:
            self.consumer._kernel = None
        self.received: list[Any] = []
        self.others: list[Consumer] = []

    def do(self, what: str, number: int) -> Any:
        """Take one step, and return what it says and leaves."""
        said: Any = None
        try:
            match what:
                case "receive":
                    record = self.consumer.receive(0.0)
                    if record is not None:
                        self.received.append(record)
                        said = record.__reduce__()
                case "ack" if self.received:
                    self.consumer.ack(self.received[-1 - number % len(self.received)])
                case "seek":
                    self.consumer.seek("orders", 1, number)
                case "ack no message":
                    self.consumer.ack(None)  # type: ignore[arg-type]
                case "join" if len(self.others) < 2:
                    self.others.append(self.store.consumer(self.group, "orders"))
        except ReputError as error:
            said = type(error), str(error).replace(self.group, "group")
        return said, state_of(self.consumer)

    def close(self) -> Any:
        """Close the consumers and return what a later call says."""
        for consumer in (*self.others, self.consumer):
            consumer.close()
        return self.do("receive", 0)[0], self.do("ack", 0)[0]


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=15)
@example([("receive", 0), ("ack", 0), ("ack", 0)], 2)
@example([("receive", 0), ("receive", 0), ("receive", 0), ("ack", 1), ("receive", 0)], 2)
@example([("receive", 0), ("receive", 0), ("join", 0), ("ack", 0), ("ack", 1), ("receive", 0)], 100)
@given(st.lists(STEP, min_size=2, max_size=30), st.sampled_from([1, 2, 5, 100]))
def test_any_steps_give_the_same_messages_and_errors(
    required_kernel: Kernel, store: reput.Store, steps: list[tuple[str, int]], in_flight_max: int
) -> None:
    """Messages out of order, done twice, at the limit, after a seek, with other consumers, and after closing."""
    runs = [Run(store, in_flight_max, with_kernel=with_kernel) for with_kernel in (False, True)]
    for step in steps:
        outcomes = [run.do(*step) for run in runs]
        assert outcomes[0] == outcomes[1]
    outcomes = [run.close() for run in runs]
    assert outcomes[0] == outcomes[1]


def test_most_messages_go_through_the_kernel(required_kernel: Kernel, store: reput.Store) -> None:
    """All but the first one of each batch that is read."""
    before = required_kernel.counts()
    with store.consumer("all", "orders") as consumer:
        for _ in range(60):
            record = consumer.receive(10.0)
            assert record is not None
            consumer.ack(record)
        assert consumer.receive(0.0) is None
    after = required_kernel.counts()
    assert after["acknowledge"] - before["acknowledge"] == 60
    assert after["receive"] - before["receive"] >= 50


class FailsOnce:
    """Statistics of a group that cannot be changed the first time, as for want of memory."""

    def __init__(self) -> None:
        self.get_size = 0
        self.nums = 0
        self.failures = 1

    @property
    def get_nums(self) -> int:
        return self.nums

    @get_nums.setter
    def get_nums(self, nums: int) -> None:
        if self.failures:
            self.failures -= 1
            raise MemoryError
        self.nums = nums


def test_no_memory_for_what_was_given_loses_nothing(required_kernel: Kernel, store: reput.Store) -> None:
    """The first call that needs the group's objects after the kernel has given fails, and the next one does not."""
    with store.consumer("wanting", "orders", begin="earliest") as consumer:
        received = [consumer.receive(10.0) for _ in range(2)]
        queue = consumer._member.current
        assert queue is not None
        with consumer._shared.lock:
            queue.statistics = statistics = FailsOnce()  # type: ignore[assignment]
        before = required_kernel.counts()["receive"]
        received += [consumer.receive(10.0) for _ in range(4)]
        assert required_kernel.counts()["receive"] - before == 4
        with pytest.raises(MemoryError), consumer._shared.lock:
            pytest.fail("it was not acquired")
        assert len(state_of(consumer)[0]) == len(received)
        assert statistics.get_nums == 4
        assert statistics.get_size == sum(record.record_size for record in received[2:] if record is not None)
        for record in received:
            assert record is not None
            consumer.ack(record)
        assert queue.commit_offset() == len(received)

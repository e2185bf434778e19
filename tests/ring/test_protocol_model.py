"""The ring's protocols hold in every interleaving that x86-64 allows, and fail without any one of their steps."""

from __future__ import annotations

import pytest

from ring.interleavings import Fence, Load, Program, Store, Violation, explore
from ring.protocol_model import (
    HOLD_WORDS,
    PROGRESS_WORDS,
    RING_WORDS,
    SEQLOCK_WORDS,
    SUCCESSOR_WORDS,
    Steps,
    asking_reader,
    holding_writer,
    owner_waiting,
    predecessor,
    progress_publisher,
    ring_reader,
    ring_writer,
    seqlock_reader,
    seqlock_writer,
    successor,
)

pytestmark = pytest.mark.slow


def explore_ring(frame_count: int, steps: Steps) -> int:
    return explore(RING_WORDS, writer=ring_writer(frame_count, steps), reader=ring_reader(frame_count, steps))


@pytest.mark.parametrize("fenced", [False, True])
def test_the_explorer_knows_that_loads_overtake_stores(fenced: bool):
    """Two processes that store and then load each other's word may both miss it, unless both pass a barrier."""
    seen: set[tuple[int, int]] = set()

    def storer(own: str, other: str) -> Program:
        def program():
            yield Store(own, 1)
            if fenced:
                yield Fence()
            value = yield Load(other)
            yield Store(f"{own} saw", value)

        return program

    def judge():
        x = yield Load("x saw")
        y = yield Load("y saw")
        seen.add((x, y))

    explore({"x": 0, "y": 0, "x saw": 2, "y saw": 2}, x=storer("x", "y"), y=storer("y", "x"), judge=judge)
    assert ((0, 0) in seen) is not fenced


def test_the_explorer_knows_that_stores_keep_their_order():
    """A process that sees the second store of another one also sees the first."""

    def storer():
        yield Store("x", 1)
        yield Store("y", 1)

    def loader():
        y = yield Load("y")
        x = yield Load("x")
        assert x >= y

    assert explore({"x": 0, "y": 0}, storer=storer, loader=loader) >= 10


@pytest.mark.parametrize(("frame_count", "backward"), [(5, False), (4, True)])
def test_no_interleaving_tears_a_frame_or_loses_a_wake_up(frame_count: int, backward: bool):
    """Lapped or not, a reader accepts only whole frames, misses none without noticing, and is always woken."""
    assert explore_ring(frame_count, Steps(backward=backward)) > 50_000


def test_a_reader_that_dies_while_parked_is_followed_by_one_that_is_woken():
    """The writer wakes the next process of a slot, whatever the previous one left in its cell."""
    assert explore_ring(3, Steps(deaths=2)) > 50_000


def test_the_back_stop_never_blames_a_writer_that_is_only_late():
    """A back-stop that expires between a publication and its wake-up finds work but counts no bug."""
    assert explore_ring(3, Steps(timeouts=2, deaths=1)) > 50_000


@pytest.mark.parametrize(
    ("steps", "frame_count", "fault"),
    [
        (Steps(writer_barrier=False), 1, "sleeps for ever: reader"),
        (Steps(reader_barrier=False), 1, "sleeps for ever: reader"),
        (Steps(last_look=False), 1, "sleeps for ever: reader"),
        (Steps(intent=False), 4, "torn"),
        (Steps(check_after_copy=False), 4, "torn"),
        (Steps(numbered_parking=False, deaths=1), 3, "sleeps for ever: reader"),
        (Steps(appended_first=False), 4, "gap after joining"),
        (Steps(blame_while_parked=False, timeouts=2), 2, "a back-stop found work"),
    ],
    ids=str,
)
def test_each_step_of_the_ring_is_necessary(steps: Steps, frame_count: int, fault: str):
    """Without any one of its steps the protocol breaks, and the explorer finds the violation."""
    with pytest.raises(Violation, match=fault):
        explore_ring(frame_count, steps)


def test_no_interleaving_leaves_a_reader_asleep_over_what_is_held():
    """Either the writer sees that it has parked, or it sees the held flag and asks."""
    assert explore(HOLD_WORDS, writer=holding_writer(4), reader=asking_reader(4)) > 400


@pytest.mark.parametrize("missing", ["writer's barrier", "reader's barrier", "question"])
def test_each_step_of_holding_is_necessary(missing: str):
    """Without any one of them both sleep, or the writer keeps held records that the reader waits for."""
    writer = holding_writer(2, barrier=missing != "writer's barrier")
    reader = asking_reader(2, barrier=missing != "reader's barrier", asks=missing != "question")
    with pytest.raises(Violation, match="sleeps for ever"):
        explore(HOLD_WORDS, writer=writer, reader=reader)


def test_no_interleaving_leaves_the_owner_waiting_for_progress_that_was_made():
    """Waiters for several offsets at the same time are woken for each."""
    assert explore(PROGRESS_WORDS, dispatcher=progress_publisher(3), owner=owner_waiting((1, 3))) > 100
    assert explore(PROGRESS_WORDS, dispatcher=progress_publisher(3), owner=owner_waiting((2, 3), timeouts=2)) > 100


def test_an_owner_whose_back_stop_ran_out_looks_at_what_was_announced_first():
    """Otherwise a wake-up between its two checks would count as missing."""
    owner = owner_waiting((2, 3), timeouts=2, announced_first=False)
    with pytest.raises(Violation, match="a back-stop found work"):
        explore(PROGRESS_WORDS, dispatcher=progress_publisher(3), owner=owner)


@pytest.mark.parametrize(("dispatcher", "owner"), [(False, True), (True, False)])
def test_each_barrier_of_waiting_for_progress_is_necessary(dispatcher: bool, owner: bool):
    """Without one of the two barriers the owner sleeps although the progress was made."""
    with pytest.raises(Violation, match="sleeps for ever: owner"):
        explore(
            PROGRESS_WORDS,
            dispatcher=progress_publisher(1, barrier=dispatcher),
            owner=owner_waiting((1,), barrier=owner),
        )


def test_no_interleaving_leaves_a_dispatcher_waiting_for_its_predecessor():
    """A dispatcher that depends on another is woken for each offset, rising or falling."""
    assert explore(SUCCESSOR_WORDS, predecessor=predecessor(3), successor=successor((1, 2, 3))) > 100
    assert explore(SUCCESSOR_WORDS, predecessor=predecessor(3), successor=successor((3, 1, 2))) > 100


@pytest.mark.parametrize(("before", "behind"), [(False, True), (True, False)])
def test_each_barrier_of_waiting_for_a_predecessor_is_necessary(before: bool, behind: bool):
    """Without one of the two barriers a dispatcher sleeps although its predecessor made the progress."""
    with pytest.raises(Violation, match="sleeps for ever: successor"):
        explore(
            SUCCESSOR_WORDS,
            predecessor=predecessor(1, barrier=before),
            successor=successor((1,), barrier=behind),
        )


def test_no_interleaving_tears_a_seqlock():
    """A reader gets consistent bytes, even if the writer died in the middle, and never waits for it."""
    assert explore(SEQLOCK_WORDS, writer=seqlock_writer(3), reader=seqlock_reader(2)) > 1_000


@pytest.mark.parametrize("broken", ["writer", "reader"])
def test_each_step_of_a_seqlock_is_necessary(broken: str):
    """If the sequence is stored first, or not checked again, a reader mixes bytes of two writes."""
    writer = seqlock_writer(3, sequence_last=broken != "writer")
    with pytest.raises(Violation, match="torn"):
        explore(SEQLOCK_WORDS, writer=writer, reader=seqlock_reader(1, second_look=broken != "reader"))

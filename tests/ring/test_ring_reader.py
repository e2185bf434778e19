"""Reading frames, being lapped, joining, parking."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.errors import RingClosed, RingLapped
from reput.ring import RingMemory, RingReader, RingWriter
from reput.ring.layout import INTENT
from ring.conftest import make_writer

SOON = 10.0  # seconds; a park that is woken returns at once, one that is not fails its test by what it finds


def test_frames_come_in_order_and_once(writer: RingWriter, reader: RingReader):
    """All frames up to the tail are one batch, including empty ones."""
    for number, frame in enumerate((b"one", b"", b"12345678", b"x" * 100)):
        writer.publish(frame, number, number)
    assert reader.read() == [b"one", b"", b"12345678", b"x" * 100]
    assert reader.read() == []


def test_every_reader_gets_every_frame(writer: RingWriter, reader_of: Callable[[int], RingReader]):
    """The ring broadcasts: readers do not take frames from each other."""
    readers = [reader_of(slot) for slot in range(3)]
    writer.publish(b"frame", 1, 1)
    assert [reader.read() for reader in readers] == [[b"frame"]] * 3


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=1016), min_size=1, max_size=40), st.integers(1, 5000), st.randoms())
def test_frames_of_all_sizes_pass_over_the_end_of_the_ring(frames: list[bytes], size_max: int, chance):
    """Whatever their sizes and the sizes of the reads, the bytes are those that were published."""
    memory = RingMemory.create(4096, 1)
    writer = make_writer(memory)
    reader = RingReader(memory, memory.open_cell(0))
    received: list[bytes] = []
    for number, frame in enumerate(frames):
        writer.publish(frame, number, number)
        if chance.random() < 0.5 or writer._tail - reader.position > 3000:
            while taken := reader.read(size_max):
                received += taken
    while taken := reader.read(size_max):
        received += taken
    assert received == frames
    memory.close()


def test_a_reader_asks_for_what_is_appended_but_not_durable(memory: RingMemory, writer: RingWriter, reader: RingReader):
    """Only when it has no other work. For durable or missing records there is nothing to request."""

    def was_asked() -> bool:
        try:
            return os.eventfd_read(memory.release_descriptor) > 0
        except BlockingIOError:
            return False

    writer.set_durable(5)
    writer.publish(b"frame", 10, 1)
    for awaited, asks in ((5, False), (6, True), (10, True), (11, False)):
        reader.park(0.0, frames=False, durable=awaited)
        assert was_asked() == asks
    reader.read()
    reader.park(0.0, frames=True)
    assert not was_asked()


def test_a_frame_larger_than_asked_for_is_taken_alone(writer: RingWriter, reader: RingReader):
    """A limit below the size of a frame does not stop the reader."""
    frames = [b"x" * 500, b"y" * 20, b"z" * 30]
    for frame in frames:
        writer.publish(frame, 1, 1)
    assert reader.read(8) == [frames[0]]
    assert reader.read(80) == frames[1:]
    assert reader.read(0) == []


def test_a_reader_that_was_lapped_says_so_and_joins_again(writer: RingWriter, reader: RingReader):
    """Overwritten frames are not invented; the reader continues at the end, and counts it."""
    for number in range(1, 101):
        writer.publish(b"x" * 100, number * 10, number)
    with pytest.raises(RingLapped, match="position=0 intent=11200 capacity=4096"):
        reader.read()
    assert reader._cell.lapped_count == 1
    assert reader.join() == (11200, 1000)
    assert reader.read() == []
    writer.publish(b"next", 1010, 101)
    assert reader.read() == [b"next"]


@pytest.mark.parametrize(("overwritten", "lapped"), [(0, False), (8, True)])
def test_the_last_frame_that_is_not_overwritten_is_still_read(
    memory: RingMemory, writer: RingWriter, reader: RingReader, overwritten: int, lapped: bool
):
    """A full ring is read completely; one word of intent further, its oldest frame is gone."""
    frames = [bytes([number]) * 504 for number in range(8)]
    for frame in frames:
        writer.publish(frame, 1, 1)
    memory.words[INTENT] += overwritten
    if lapped:
        with pytest.raises(RingLapped):
            reader.read()
    else:
        assert reader.read() == frames


def test_an_intent_that_comes_while_copying_is_noticed(memory: RingMemory, writer: RingWriter, reader: RingReader):
    """The check comes after the copy: a frame that was overwritten meanwhile is refused."""
    for number in range(8):
        writer.publish(bytes([number]) * 504, 1, 1)

    class Overwriting:
        """A data area that the writer overwrites during the first copy."""

        def __getitem__(self, where: slice) -> memoryview:
            copy = memoryview(bytes(memory.data[where]))
            writer.publish(b"n" * 504, 2, 2)
            return copy

    reader._data = Overwriting()
    with pytest.raises(RingLapped):
        reader.read()


def test_joining_leaves_no_gap(memory: RingMemory, writer: RingWriter, reader: RingReader):
    """Records after the returned offset come in frames from the returned position on."""
    writer.publish(b"first", 100, 1)
    joined = reader.join()
    assert (joined.position, joined.appended) == (memory.header.tail, 100)
    writer.publish(b"second", 200, 2)
    assert reader.read() == [b"second"]


def test_a_closed_ring_is_read_to_its_end(writer: RingWriter, reader: RingReader):
    """Closing loses no frame."""
    writer.publish(b"last", 1, 1)
    writer.close()
    assert reader.park(SOON) == []
    assert reader.read() == [b"last"]
    assert reader.park(SOON) == []
    with pytest.raises(RingClosed):
        reader.read()
    assert reader._has_work(True, None, [], 0) is False, "a reader that knows the end may sleep"


def test_a_reader_with_work_does_not_sleep(writer: RingWriter, reader: RingReader):
    """Frames that came before the reader parked end the wait at once."""
    writer.publish(b"frame", 1, 1)
    assert reader.park(SOON) == []
    assert reader.read() == [b"frame"]
    writer.set_durable(50)
    assert reader.park(SOON, frames=False, durable=50) == []


def test_a_watched_descriptor_ends_parking(reader: RingReader):
    """A control pipe ends the wait while there are no frames, until it is unwatched."""
    reading, writing = os.pipe()
    reader.watch(reading)
    os.write(writing, b"x")
    assert reader.park(SOON) == [reading]
    reader.unwatch(reading)
    assert reader.park(0.001) == []
    reader.watch(reading)
    os.read(reading, 1)
    os.close(writing)
    assert reader.park(SOON) == [reading], "the other side hung up"
    os.close(reading)


def test_parking_that_times_out_for_nothing_counts_nothing(reader: RingReader):
    """An idle ring counts no back-stop wake-ups."""
    assert reader.park(0.001) == []
    assert reader.park(0.001, frames=False, durable=1) == []
    assert reader._cell.backstop_count == 0


def test_a_reader_is_not_woken_for_what_it_did_not_ask(writer: RingWriter, reader: RingReader):
    """A reader that only waits for the disk is not woken by frames, but is still woken in time."""
    writer.publish(b"frame", 1, 1)
    assert reader.park(0.001, frames=False, durable=1) == []
    assert reader._cell.backstop_count == 0


def test_a_wake_up_that_was_forgotten_is_counted(memory: RingMemory, reader: RingReader):
    """If a writer announces without waking, the back-stop detects it."""

    class Forgetful(RingWriter):
        __slots__ = ()

        def _wake(self) -> None:
            return

    writer = Forgetful(memory, appended=0, durable=0, commit_log_offset_min=0, epoch=1, ordinal=0)
    poll = reader._poll

    class PublishingPoll:
        """Publishes while the reader sleeps."""

        def poll(self, timeout: float, count_max: int) -> list[tuple[int, int]]:
            if timeout:
                writer.publish(b"frame", 1, 1)
            return poll.poll(0, count_max)

    reader._poll = PublishingPoll()
    assert reader.park() == []
    assert reader._cell.backstop_count == 1


def test_a_writer_that_is_late_is_not_blamed(writer: RingWriter, reader: RingReader):
    """Work that the back-stop finds before the wake-up was announced is not a bug."""
    poll = reader._poll

    class LatePoll:
        """Publishes while the reader sleeps, but delays the eventfd."""

        def poll(self, timeout: float, count_max: int) -> list[tuple[int, int]]:
            if timeout:
                writer.publish(b"frame", 1, 1)
                return []
            return poll.poll(0, count_max)

    reader._poll = LatePoll()
    assert reader.park() == []
    assert reader._cell.backstop_count == 0


def test_a_dispatcher_parks_until_its_predecessor_has_come_far_enough(
    memory: RingMemory, reader_of: Callable[[int], RingReader]
):
    """Progress below the offset wakes no reader; the predecessor that reaches it does."""
    first, second = reader_of(0), reader_of(1)
    second._cell.begin_parking(frames=False, durable=None, predecessors=1, progress=100)
    first._cell.set_progress(99, 1)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(memory.wake_descriptors[1])
    first._cell.set_progress(100, 1)
    assert os.eventfd_read(memory.wake_descriptors[1]) == 1
    second._cell.end_parking()
    first._cell.set_progress(101, 1)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(memory.wake_descriptors[1])
    assert second.park(SOON, frames=False, predecessors=(0,), progress=101) == []


def test_unknown_progress_of_a_predecessor_is_not_ahead(reader_of: Callable[[int], RingReader]):
    """A predecessor with unknown progress holds back its successors."""
    reader = reader_of(0)
    assert reader.park(0.001, frames=False, predecessors=(1, 2), progress=0) == []
    assert not reader._reached(1, 0)
    assert reader._cell.backstop_count == 0

"""Publishing frames, and waking exactly the readers that wait for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from reput.errors import RingClosed, RingError
from reput.ring import RingMemory, RingReader, RingWriter
from reput.ring.layout import ANNOUNCED, INTENT
from ring.conftest import make_writer


def woken(memory: RingMemory) -> list[int]:
    """Return the slots whose readers were woken, and reset that."""
    slots = []
    for slot, descriptor in enumerate(memory.wake_descriptors):
        try:
            os.eventfd_read(descriptor)
        except BlockingIOError:
            continue
        slots.append(slot)
    return slots


def park(reader: RingReader, *, frames: bool = True, durable: int | None = None) -> None:
    """Set the parked flag of the reader, without sleeping."""
    reader._cell.begin_parking(frames=frames, durable=durable, predecessors=0, progress=0)


def test_a_frame_may_take_a_quarter_of_the_ring(writer: RingWriter, reader: RingReader):
    """A larger one is refused with both sizes in the error, and nothing is published."""
    assert writer.frame_size_max == 4096 // 4 - 8
    writer.publish(b"x" * writer.frame_size_max, 1, 1)
    with pytest.raises(RingError, match="frame_size=1017 frame_size_max=1016"):
        writer.publish(b"x" * (writer.frame_size_max + 1), 2, 2)
    assert reader.read() == [b"x" * writer.frame_size_max]
    assert (reader.header.appended, reader.header.ordinal) == (1, 1)


def test_a_frame_of_megabytes_is_published_whole():
    """Large frames pass an additional barrier; they and their neighbours are read unchanged."""
    memory = RingMemory.create(8 << 20, 1)
    writer = make_writer(memory)
    reader = RingReader(memory, memory.open_cell(0))
    large = os.urandom(writer.frame_size_max)
    for _ in range(5):
        writer.publish(b"before", 1, 1)
        writer.publish(large, 2, 2)
        writer.publish(b"behind", 3, 3)
        assert reader.read() == [b"before"]
        assert reader.read() == [large]
        assert reader.read() == [b"behind"]
    with pytest.raises(RingError, match="frame_size_max=2097144"):
        writer.publish(large + b"x", 4, 4)
    writer.close()
    with pytest.raises(RingClosed):
        writer.publish(b"", 4, 4)
    memory.close()


def test_a_closed_ring_takes_no_frames(writer: RingWriter, reader: RingReader):
    """Publishing after the close raises; closing again does not."""
    writer.publish(b"last", 1, 1)
    writer.close()
    writer.close()
    with pytest.raises(RingClosed):
        writer.publish(b"later", 2, 2)
    assert reader.read() == [b"last"]
    with pytest.raises(RingClosed):
        reader.read()


def test_publishing_wakes_exactly_the_parked(
    memory: RingMemory, writer: RingWriter, reader_of: Callable[[int], RingReader]
):
    """A running reader costs no system call."""
    readers = [reader_of(slot) for slot in range(4)]
    writer.publish(b"nobody", 1, 1)
    assert woken(memory) == []
    park(readers[1])
    park(readers[3])
    writer.publish(b"two", 2, 2)
    assert woken(memory) == [1, 3]


def test_a_parked_reader_that_has_not_run_yet_is_woken_once(memory: RingMemory, writer: RingWriter, reader: RingReader):
    """Consecutive frames cost one wake-up, the next parking another."""
    park(reader)
    for number in range(3):
        writer.publish(b"frame", number, number)
        assert woken(memory) == [0] * (number == 0)
    reader._cell.end_parking()
    writer.publish(b"frame", 4, 4)
    assert woken(memory) == []
    park(reader)
    writer.publish(b"frame", 5, 5)
    assert woken(memory) == [0]


def test_the_next_process_of_a_slot_is_woken_too(
    memory: RingMemory, writer: RingWriter, reader: RingReader, reader_of: Callable[[int], RingReader]
):
    """A reader that died while parked does not consume its successor's wake-up."""
    park(reader)
    writer.publish(b"for the dead", 1, 1)
    assert woken(memory) == [0]
    successor = reader_of(0)
    park(successor)
    writer.publish(b"for the living", 2, 2)
    assert woken(memory) == [0]


def test_only_those_who_wait_for_the_disk_are_woken_by_it(
    memory: RingMemory, writer: RingWriter, reader_of: Callable[[int], RingReader]
):
    """Each when the log is forced as far as it needs; frames do not wake them."""
    readers = [reader_of(slot) for slot in range(3)]
    assert writer.durable_awaited is None
    park(readers[0], frames=False, durable=100)
    park(readers[1], frames=False, durable=200)
    park(readers[2])
    assert writer.durable_awaited == 100
    writer.set_durable(99)
    assert woken(memory) == []
    writer.set_durable(100)
    assert woken(memory) == [0]
    readers[0]._cell.end_parking()
    assert writer.durable_awaited == 200
    writer.publish(b"frame", 300, 1)
    assert woken(memory) == [2]
    writer.set_durable(300)
    assert woken(memory) == [1]


def test_an_interrupt_anywhere_in_publish_spoils_no_later_frame():
    """Ctrl-C between any two instructions omits or delays the frame; the writer and the others continue."""
    ended = False
    instruction = 0
    while not ended:
        instruction += 1
        memory = RingMemory.create(4096, 2)
        writer = make_writer(memory)
        reader = RingReader(memory, memory.open_cell(0))
        writer.publish(b"before", 1, 1)
        park(reader)
        ended = not interrupted(instruction, writer.publish, b"interrupted", 2, 2)
        reader._cell.end_parking()
        park(reader)
        writer.publish(b"behind", 3, 3)
        assert 0 in woken(memory)
        frames = reader.read()
        assert frames in ([b"before", b"behind"], [b"before", b"interrupted", b"behind"])
        assert reader.header.tail == writer._tail == memory.words[INTENT] == memory.words[ANNOUNCED]
        memory.close()
    assert instruction > 50
    assert frames[1] == b"interrupted"


def interrupted(instruction: int, call: Callable[..., None], *arguments: object) -> bool:
    """Raise KeyboardInterrupt at the *instruction*-th bytecode of *call*; return whether it has that many."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == instruction:
                raise KeyboardInterrupt
        return trace

    former = sys.gettrace()
    # Python 3.12 traces bytecodes only if a frame requested it before.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call(*arguments)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(former)
    return False


def test_closing_wakes_everyone(memory: RingMemory, writer: RingWriter):
    """Sleeping readers learn that no more frames follow."""
    writer.close()
    assert woken(memory) == [0, 1, 2, 3]


def test_a_second_writer_goes_on_where_the_first_was(memory: RingMemory, writer: RingWriter, reader: RingReader):
    """The position belongs to the ring, not to the writer."""
    writer.publish(b"first", 10, 1)
    second = RingWriter(memory, appended=10, durable=0, commit_log_offset_min=0, epoch=2, ordinal=1)
    second.publish(b"second", 20, 2)
    assert reader.read() == [b"first", b"second"]

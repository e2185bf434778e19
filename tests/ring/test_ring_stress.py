"""The ring between real processes: constant lapping, parking at random intervals, concurrent reads of words."""

from __future__ import annotations

import random
import struct
import time

import pytest

from reput.ring import ProgressWaiter, RingMemory, RingWriter, WaitOutcome
from reput.ring.layout import CELL_SIZE, COUNTER_VALUES, DURABLE
from ring.conftest import make_writer
from ring.ring_processes import make_frame, result_of, spin, start_role

pytestmark = [pytest.mark.processes, pytest.mark.newest_python]

LIMIT_S = 120.0
WORDS = [0x1111_1111_1111_1111, 0x2222_2222_2222_2222, 0xEEEE_EEEE_EEEE_EEEE]


def until_joined(memory: RingMemory, slots: range) -> None:
    """Wait until the dispatchers of *slots* have published their progress."""
    deadline = time.monotonic() + LIMIT_S
    while any(memory.view(slot).progress is None for slot in slots):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def until_reached(memory: RingMemory, slot: int, progress: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (memory.view(slot).progress or 0) < progress:
        assert time.monotonic() < deadline


def test_no_frame_is_torn_under_constant_lapping(words: str):
    """A writer that never waits laps two readers repeatedly: they lose frames, but never read a torn one."""
    memory = RingMemory.create(16 << 10, 2)
    writer = make_writer(memory)
    readers = [start_role("read_all", memory, slot=slot, pause=0.0005 * slot, words=words) for slot in range(2)]
    until_joined(memory, range(2))
    chance = random.Random(1)
    frames = [(number, make_frame(number, chance.randrange(3000))) for number in range(1, 4001)]
    deadline = time.monotonic() + LIMIT_S
    while any(memory.view(slot).lapped_count < 300 for slot in range(2)):
        assert time.monotonic() < deadline
        for number, frame in frames:
            writer.publish(frame, number, number)
    writer.close()
    for result in map(result_of, readers):
        assert result["torn"] == 0
        assert result["frames"] > 0
        assert result["lapped"] >= 300
        assert result["backstop"] == 0
    memory.close()


def test_a_reader_that_keeps_up_misses_nothing():
    """Every frame comes, in order and once, to each of two processes that park between frames."""
    memory = RingMemory.create(1 << 20, 2)
    writer = make_writer(memory)
    readers = [start_role("read_all", memory, slot=slot) for slot in range(2)]
    until_joined(memory, range(2))
    frame_count = 5000
    for number in range(1, frame_count + 1):
        writer.publish(make_frame(number, number % 700), number, number)
        if number % 500 == 0:
            for slot in range(2):
                until_reached(memory, slot, number)
    writer.close()
    for result in map(result_of, readers):
        assert result == {"frames": frame_count, "torn": 0, "gaps": 0, "lapped": 0, "backstop": 0}
    memory.close()


def test_no_wake_up_is_lost_at_random_intervals(words: str):
    """Readers park after each frame, an owner waits for their progress, and one reader for the other: all are woken."""
    memory = RingMemory.create(1 << 20, 2)
    writer = make_writer(memory)
    waiter = ProgressWaiter(memory)
    dispatchers = [
        start_role("echo_progress", memory, slot=0, seed=1, words=words),
        start_role("echo_progress", memory, slot=1, seed=2, predecessor=0, words=words),
    ]
    until_joined(memory, range(2))
    chance = random.Random(3)
    for number in range(1, 15_001 if words == "own" else 1_001):
        writer.publish(make_frame(number, 40), number, number)
        spin(chance.random() * 60e-6)
        slot = chance.randrange(2)
        assert waiter.wait(slot, number, LIMIT_S) is WaitOutcome.REACHED
        spin(chance.random() * 60e-6)
    writer.close()
    assert [result_of(dispatcher) for dispatcher in dispatchers] == [{"backstop": 0}] * 2
    assert memory.header.backstop_count == 0
    waiter.close()
    memory.close()


def until_watching(memory: RingMemory) -> None:
    deadline = time.monotonic() + LIMIT_S
    while memory.view(0).pid is None:
        assert time.monotonic() < deadline


def test_a_word_is_never_seen_torn_or_zero():
    """With stores through a cast to 8-byte words, another process sees the old value or the new one."""
    memory = RingMemory.create(4096, 2)
    writer = RingWriter(memory, appended=0, durable=WORDS[0], commit_log_offset_min=0, epoch=1, ordinal=0)
    watcher = start_role("watch_word", memory, values=WORDS, count=1_000_000)
    until_watching(memory)
    words = memory.words
    while watcher.poll() is None:
        for _ in range(1000):
            words[DURABLE] = WORDS[1]
            words[DURABLE] = WORDS[2]
            words[DURABLE] = WORDS[0]
    assert result_of(watcher) == {"wrong": 0}
    writer.close()
    memory.close()


def test_packing_into_shared_memory_shows_zeros():
    """Why `struct.pack_into` is forbidden here: it zeroes its target first, and another process sees that."""
    memory = RingMemory.create(4096, 2)
    cell = memory.open_cell(1)
    cell.counter("packed").value = WORDS[0] >> 1
    octets = cell._octets
    at = COUNTER_VALUES * 8
    assert at < CELL_SIZE
    struct.pack_into("=Q", octets, at, WORDS[0])
    watcher = start_role("watch_packed", memory, values=WORDS, index=COUNTER_VALUES, count=50_000_000)
    until_watching(memory)
    while watcher.poll() is None:
        for _ in range(1000):
            struct.pack_into("=Q", octets, at, WORDS[1])
            struct.pack_into("=Q", octets, at, WORDS[2])
    assert result_of(watcher) == {"wrong": 1}
    memory.close()

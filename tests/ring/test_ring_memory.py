"""The shared memory of a group, and the write access of each process."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import signal

import pytest

from reput.errors import RingError
from reput.ring import RingMemory, RingReader, RingWriter
from reput.ring.layout import HEADER_SIZE, MAGIC, VERSION
from ring.conftest import make_writer
from ring.ring_processes import run_role


@pytest.mark.parametrize("capacity", [0, 2048, 4097, 12 << 10, -4096])
def test_a_capacity_that_is_no_power_of_two_is_refused(capacity: int):
    """Positions are masked, so the capacity must be a power of two, of at least a page."""
    with pytest.raises(RingError, match=f"capacity={capacity}"):
        RingMemory.create(capacity, 1)


@pytest.mark.parametrize("slot_count", [0, 65])
def test_a_ring_has_up_to_64_slots(slot_count: int):
    """More slots than that are refused when the ring is created."""
    with pytest.raises(RingError, match=f"slot_count={slot_count}"):
        RingMemory.create(4096, slot_count)


def test_another_process_finds_capacity_and_slots_in_the_descriptors(memory: RingMemory, other: RingMemory):
    """The descriptors are all that must be passed on."""
    assert (other.capacity, other.slot_count) == (4096, 4)
    assert other.header.ring_id == memory.header.ring_id
    assert len(other.descriptors) == 3 + 2 * 4


def test_a_new_ring_says_that_nothing_is_known(memory: RingMemory):
    """Before its writer starts, the log's positions are unknown, not 0."""
    header = memory.header
    assert (header.appended, header.durable, header.commit_log_offset_min) == (None, None, None)
    assert (header.epoch, header.ordinal, header.closed, header.tail, header.backstop_count) == (
        None,
        None,
        False,
        0,
        0,
    )


def test_a_writer_says_where_the_log_stands(memory: RingMemory, other: RingMemory):
    """The header has the positions with which the writer was opened, and those that it stores later."""
    writer = RingWriter(memory, appended=9, durable=8, commit_log_offset_min=3, epoch=2, ordinal=5)
    header = other.header
    assert (header.appended, header.durable, header.commit_log_offset_min) == (9, 8, 3)
    assert (header.epoch, header.ordinal, header.closed) == (2, 5, False)
    writer.set_durable(9)
    writer.set_commit_log_offset_min(4)
    writer.set_epoch(3)
    writer.close()
    assert (header.durable, header.commit_log_offset_min, header.epoch, header.closed) == (9, 4, 3, True)


def test_two_rings_have_different_ids(memory: RingMemory):
    """Every start of a writer creates a new ring, and readers can tell."""
    another = RingMemory.create(4096, 1)
    assert another.header.ring_id != memory.header.ring_id
    another.close()


def test_descriptors_are_not_inherited_by_exec(memory: RingMemory, other: RingMemory):
    """Only processes that receive the descriptors have the ring."""
    for descriptor in memory.descriptors + other.descriptors:
        assert not os.get_inheritable(descriptor)


def test_the_ring_has_no_name(memory: RingMemory):
    """It ends with its last holder, even after a kill; nothing is left under /dev/shm."""
    for descriptor, name in zip(memory.descriptors, ("ring", "cells"), strict=False):
        assert os.readlink(f"/proc/self/fd/{descriptor}") == f"/memfd:reput-{name} (deleted)"


def test_a_seal_refuses_every_further_writer(memory: RingMemory):
    """No other process can map the ring writable, write to it, or change its size or that of the cells."""
    ring, cells = memory.descriptors[:2]
    with pytest.raises(PermissionError):
        mmap.mmap(ring, 4096)
    with pytest.raises(PermissionError):
        os.pwrite(ring, b"x", HEADER_SIZE)
    for descriptor in (ring, cells):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 1 << 20)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_a_process_that_was_handed_the_ring_gets_it_read_only(other: RingMemory):
    """A store through its views raises TypeError before it could fault."""
    for view in (other.words, other.data, other.cell_words):
        with pytest.raises(TypeError):
            view[0] = 0
    with pytest.raises(RingError, match="only the process that created the ring"):
        make_writer(other)


def test_an_observer_sees_all_numbers_and_writes_none(memory: RingMemory, other: RingMemory):
    """Its descriptors can neither write nor be mapped writable."""
    cell = other.open_cell(1)
    cell.clear("index")
    cell.set_progress(7, 1)
    observer = RingMemory.from_descriptors(memory.open_observer_descriptors())
    assert (observer.view(1).name, observer.view(1).progress) == ("index", 7)
    with pytest.raises(RingError, match="an observer writes no cell: slot=1"):
        observer.open_cell(1)
    with pytest.raises(PermissionError):
        mmap.mmap(observer.descriptors[1], 4096)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(observer.descriptors[1], b"x", 0)
    observer.close()


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_that_does_not_exist_is_refused(memory: RingMemory, slot: int):
    """The error has the number of slots."""
    with pytest.raises(RingError, match=f"slot={slot} slot_count=4"):
        memory.view(slot)
    with pytest.raises(RingError, match=f"slot={slot} slot_count=4"):
        memory.open_cell(slot)


@pytest.fixture
def copies(memory: RingMemory) -> list[int]:
    """Copies of the ring's descriptors, which a test may change and `from_descriptors` closes."""
    return [os.dup(descriptor) for descriptor in memory.descriptors]


def refuse(descriptors: list[int], match: str) -> None:
    with pytest.raises(RingError, match=match):
        RingMemory.from_descriptors(descriptors)
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_missing_descriptors_are_refused(copies: list[int]):
    """Incomplete descriptors are not used, and are closed."""
    os.close(copies.pop())
    refuse(copies, "descriptor_count=10 slot_count=4")


def test_descriptors_of_something_else_are_refused(copies: list[int]):
    """The error says that it is not a ring."""
    os.dup2(copies[1], copies[0])
    refuse(copies, "not those of a ring")


def test_no_descriptors_are_refused():
    """An empty list is not a ring."""
    refuse([], "descriptor_count=0")


def test_a_ring_of_another_layout_is_refused(memory: RingMemory, copies: list[int]):
    """Two versions of reput do not read each other's words."""
    memory.words[VERSION] += 1
    refuse(copies, "another layout: version=4 expected=3")


def test_memory_without_the_magic_is_refused(memory: RingMemory, copies: list[int]):
    """The header is checked before it is used."""
    memory.words[MAGIC] = 0
    refuse(copies, "magic=0x0")


def test_closing_gives_back_every_descriptor():
    """Opening and closing a store a thousand times leaks nothing."""
    # Objects dropped by other tests are closed eventually, which must not happen in between.
    gc.collect()
    before = os.listdir("/proc/self/fd")
    memory = RingMemory.create(4096, 4)
    writer = make_writer(memory)
    other = RingMemory.from_descriptors([os.dup(descriptor) for descriptor in memory.descriptors])
    RingReader(other, other.open_cell(0)).read()
    memory.view(0)
    writer.close()
    memory.close()
    other.close()
    other.close()
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(ValueError, match="released"):
        memory.view(0).state  # noqa: B018


@pytest.mark.newest_python
@pytest.mark.processes
@pytest.mark.parametrize("target", ["ring", "header", "other cell"])
def test_a_stray_write_faults_in_the_process_that_makes_it(memory: RingMemory, target: str):
    """A faulty plugin cannot change the ring or another dispatcher's cell."""
    make_writer(memory)
    before = bytes(memory.words.tobytes()), bytes(memory.cell_words.tobytes())
    assert run_role("stray", memory, target=target).returncode == -signal.SIGSEGV
    assert bytes(memory.words.tobytes()) == before[0]
    assert bytes(memory.cell_words[:512].tobytes()) == before[1][:4096]


@pytest.mark.newest_python
@pytest.mark.processes
def test_a_confined_dispatcher_writes_its_own_cell(memory: RingMemory):
    """It can write its own cell, and has no descriptor to write anything else."""
    run = run_role("confined", memory)
    assert run.returncode == 0, run.stderr
    assert (memory.view(0).progress, memory.view(1).progress) == (None, 77)


@pytest.mark.newest_python
@pytest.mark.processes
def test_in_a_forked_child_of_the_owner_the_ring_is_closed():
    """A child of the program neither writes into the ring nor keeps it alive."""
    run = run_role("forks")
    assert run.returncode == 0, run.stderr

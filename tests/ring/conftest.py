"""Fixtures for the ring's tests: small rings, and the same ring as seen by another process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from reput.kernel import VARIABLE, found_kernel
from reput.ring import RingMemory, RingReader, RingWriter
from ring.ring_processes import kernel_access


def make_writer(memory: RingMemory) -> RingWriter:
    return RingWriter(memory, appended=0, durable=0, commit_log_offset_min=0, epoch=1, ordinal=0)


@pytest.fixture(params=["own", "kernel"])
def words(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The words that this machine uses, and those of the kernel on any machine."""
    if request.param == "kernel":
        found, reason = found_kernel()
        if found is None:
            pytest.skip(f"the kernel cannot be used: {reason}")
        monkeypatch.setenv(VARIABLE, "auto")
        monkeypatch.setattr("reput.ring.ring_memory.word_access", kernel_access)
    return str(request.param)


@pytest.fixture
def memory(words: str) -> Iterator[RingMemory]:
    """A ring of 4 KiB with four slots."""
    memory = RingMemory.create(4096, 4)
    yield memory
    memory.close()


@pytest.fixture
def writer(memory: RingMemory) -> RingWriter:
    """The writing end, of an empty log."""
    return make_writer(memory)


@pytest.fixture
def other(memory: RingMemory) -> Iterator[RingMemory]:
    """The ring as seen by a process that received the descriptors."""
    other = RingMemory.from_descriptors([os.dup(descriptor) for descriptor in memory.descriptors])
    yield other
    other.close()


@pytest.fixture
def reader_of(writer: RingWriter, other: RingMemory) -> Callable[[int], RingReader]:
    """Return the reader of a slot."""

    def reader(slot: int) -> RingReader:
        cell = other.open_cell(slot)
        cell.clear(f"dispatcher-{slot}")
        return RingReader(other, cell)

    return reader


@pytest.fixture
def reader(reader_of: Callable[[int], RingReader]) -> RingReader:
    """The reader of slot 0."""
    return reader_of(0)

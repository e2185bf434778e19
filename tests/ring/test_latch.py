"""A latch keeps a few bytes together, whoever dies."""

from __future__ import annotations

import pytest

from reput.ring.latch import Latch
from reput.ring.layout import latch_size


@pytest.fixture
def octets() -> memoryview:
    return memoryview(bytearray(128))


@pytest.fixture
def latch(octets: memoryview) -> Latch:
    return Latch(octets.cast("Q"), octets, 8, 24)


def test_a_latch_that_was_never_written_is_none(latch: Latch):
    """Unknown is told from empty."""
    assert latch.read() is None
    latch.write(b"")
    assert latch.read() == b""


def test_the_last_writing_is_read_whole(latch: Latch):
    """Longer or shorter than the one before, nothing of it shows through."""
    for value in (b"a" * 24, b"bc", b"d" * 17):
        latch.write(value)
        assert latch.read() == value


def test_what_exceeds_a_latch_is_cut_off(latch: Latch, octets: memoryview):
    """Bytes beyond the capacity reach nobody's memory."""
    latch.write(b"x" * 100)
    assert latch.read() == b"x" * 24
    assert bytes(octets[8 + latch_size(24) :]).strip(b"\0") == b""
    assert bytes(octets[:8]) == bytes(8)


def test_a_writer_that_died_while_writing_leaves_the_last_whole_value(latch: Latch, octets: memoryview):
    """The copy in use is never the one that is written."""
    latch.write(b"first")
    before = bytes(octets)
    latch.write(b"second")
    torn = bytearray(octets)
    torn[8:16] = before[8:16]
    assert bytes(torn) != before
    octets[:] = torn
    assert latch.read() == b"first"
    latch.write(b"third")
    assert latch.read() == b"third"

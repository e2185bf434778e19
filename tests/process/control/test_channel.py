"""JSON lines over a socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from reput.process.control.channel import UNSENT_SIZE_MAX, JsonChannel
from reput.ring import RingMemory
from reput.ring.layout import SLOTS_MAX


class Line(msgspec.Struct):
    """A message."""

    text: str


class Place(msgspec.Struct):
    """A message with a path, as a setup has them."""

    path: Path


@pytest.fixture
def ends():
    """Both ends of a channel."""
    channels = [JsonChannel(end) for end in socket.socketpair()]
    yield channels
    for channel in channels:
        channel.close()


def texts(lines):
    """Return the texts of lines."""
    return [msgspec.json.decode(line, type=Line).text for line in lines]


def test_lines_arrive_whole_and_in_their_order(ends):
    """However they were split in transit."""
    source, target = ends
    source.send(Line("one"))
    source.send(Line("two"))
    assert texts(target.receive()) == ["one", "two"]
    assert target.receive() == []
    source.connection.send(b'{"text":"thr')
    assert target.receive() == []
    source.connection.send(b'ee"}\n')
    assert texts(target.receive()) == ["three"]


def test_a_slow_receiver_holds_nobody_up(ends):
    """Data that the socket does not accept is kept and sent later."""
    source, target = ends
    for _ in range(20):
        source.send(Line("x" * 50_000))
    assert source.unsent
    received = []
    while len(received) < 20:
        received += target.receive()
        source.flush()
    assert texts(received) == ["x" * 50_000] * 20


def test_who_never_reads_is_given_up(ends):
    """Memory for it is bounded."""
    source, _ = ends
    source.send(Line("x" * (2 * UNSENT_SIZE_MAX)))
    assert source.closed


def test_the_end_of_the_other_side_is_seen(ends):
    """By readers and by writers."""
    source, target = ends
    target.close()
    source.send(Line("one"))
    source.send(Line("two"))
    assert source.closed
    assert source.receive() == []


def test_descriptors_come_with_a_line(ends, tmp_path):
    """They are new descriptors of the same file."""
    source, target = ends
    with (tmp_path / "file").open("w+b") as file:
        source.send_descriptors(Line("here"), [file.fileno()])
    assert texts(target.receive()) == ["here"]
    (descriptor,) = target.descriptors
    os.write(descriptor, b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_all_descriptors_of_the_largest_ring_fit_one_line(ends, tmp_path):
    """A supervisor gets them with its setup."""
    source, target = ends
    memory = RingMemory.create(1 << 12, SLOTS_MAX)
    try:
        source.send_descriptors(Place(tmp_path), memory.descriptors)
        assert target.receive() == [b'{"path":"%s"}' % os.fsencode(tmp_path)]
        assert len(target.descriptors) == len(memory.descriptors) > SLOTS_MAX
    finally:
        memory.close()


def test_descriptors_for_an_end_that_has_gone_close_the_channel(ends, tmp_path):
    """Like sending a line: the sender continues."""
    source, target = ends
    target.close()
    with (tmp_path / "file").open("w") as file:
        source.send_descriptors(Line("a file"), [file.fileno()])
    assert source.closed

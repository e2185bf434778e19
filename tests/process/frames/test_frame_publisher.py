"""FramePublisher: encodes the writer's notifications as frames."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from process.frames.test_frame import columns_of
from reput.process.frames.frame import decode_frame
from reput.process.frames.frame_publisher import FramePublisher
from reput.store.writer.publisher import AppendedRecords


class Taker:
    """Stores the published frames."""

    def __init__(self, frame_size_max):
        self.frame_size_max = frame_size_max
        self.published = []

    def publish(self, frame, appended, ordinal):
        assert len(frame) <= self.frame_size_max
        self.published.append((decode_frame(frame), appended, ordinal))


def publish(frame_size_max, count):
    """Publish *count* records of 100 bytes and return the frames."""
    taker, columns = Taker(frame_size_max), columns_of(count)
    FramePublisher(taker, 4).publish(
        AppendedRecords(0, count * 100, 1000 + count - 1, 50 + count, columns.queues, columns.rows, columns.texts)
    )
    return taker.published, columns


def test_a_batch_is_one_frame():
    """Its ordinal is that of its first record."""
    ((frame, appended, ordinal),), columns = publish(1 << 16, 5)
    assert (frame.epoch, frame.begin, frame.end, frame.ordinal) == (4, 0, 500, 50)
    assert (appended, ordinal) == (500, 55)
    assert frame.columns == columns


def test_what_is_too_large_for_the_ring_goes_out_in_parts():
    """Without a gap and without duplicates."""
    published, columns = publish(400, 9)
    frames = [frame for frame, _, _ in published]
    assert len(frames) > 1
    assert [frame.begin for frame in frames[1:]] == [frame.end for frame in frames[:-1]]
    assert [request for frame in frames for request in frame.columns] == list(columns)
    assert [ordinal for _, _, ordinal in published] == [frame.end_ordinal for frame in frames]
    assert published[-1][1:] == (900, 59)


def test_a_record_whose_texts_exceed_a_frame_leaves_a_hole():
    """An empty batch after it makes readers turn to the log."""
    published, _ = publish(30, 1)
    ((frame, appended, ordinal),) = published
    assert (frame.begin, frame.end, len(frame.columns)) == (100, 100, 0)
    assert (appended, ordinal) == (100, 51)


WITHOUT_MEMORY = """
import resource

from process.frames.test_frame_publisher import Taker
from reput.process.frames.frame_publisher import FramePublisher
from reput.store.writer.publisher import AppendedRecords

records = AppendedRecords(0, 1, 1, 1, [("orders", 0)], bytes(64), bytes(64 << 20))
publisher = FramePublisher(Taker(1 << 30), 4)
resource.setrlimit(resource.RLIMIT_AS, (0, resource.RLIM_INFINITY))
try:
    publisher.publish(records)
except MemoryError:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    publisher.publish(records)
    print(len(publisher.writer.published))
"""


def test_want_of_memory_is_an_error_and_not_the_end_of_the_process():
    """The next publication finds everything as it was."""
    tests = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], env={**os.environ, "PYTHONPATH": str(tests)}, capture_output=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, b"1"), done.stderr

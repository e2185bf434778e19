"""Delayed notifications are delivered in order, and together."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import astuple

from reput.store.record.message import Message
from reput.store.writer.publisher import CommittedPublisher, Publisher
from reput_hooks import DispatchColumns
from small_store import UnforcedFiles, message_of_size, open_store


class Told(Publisher):
    """Records its notifications."""

    def __init__(self):
        self.frames = []

    def publish(self, records):
        self.frames.append(astuple(records))

    def expire(self, *told):
        self.frames.append(told)


def test_what_waited_together_is_told_together(tmp_path):
    """The same requests in the same order, with the queues of all; a segment ends only between notifications."""
    apart, together = Told(), Told()
    keeper = CommittedPublisher(together, lambda end: None)
    store = open_store(tmp_path / "store")

    class Both(Publisher):
        def publish(self, records):
            apart.publish(records)
            keeper.publish(records)

    store.attach(Both(), needs_properties=False)
    for number in range(40):
        store.put(Message(f"topic{number % 3}", b"x" * 100, keys=f"k{number}", queue_id=number % 2))
        if number % 10 == 0:
            store.put_batch([message_of_size(300, queue_id=queue_id) for queue_id in (1, 0, 1)])
    keeper.release(apart.frames[5][1])
    assert together.frames[-1][1] == apart.frames[5][1]
    keeper.expire(7, store.appended, store.ordinal)
    keeper.release(store.appended)
    store.close(views_complete=True)
    assert together.frames.pop() == (7, apart.frames[-1][1], apart.frames[-1][3])
    assert len(together.frames) == 1 + len({frame[0] // 4096 for frame in apart.frames})
    requests = [
        [request for frame in told for request in DispatchColumns(*frame[4:])]
        for told in (apart.frames, together.frames)
    ]
    assert requests[0] == requests[1]
    for before, frame in pairwise(together.frames):
        assert frame[0] == before[1]
    assert together.frames[-1][1:4] == apart.frames[-1][1:4]


def test_a_put_of_which_nobody_is_told_stays_a_hole_between_those_beside_it(tmp_path):
    """For example after Ctrl-C between storing and publishing: if skipped silently, it would be in no view."""
    store = open_store(tmp_path, files=UnforcedFiles(), flush_disk_type="SYNC_FLUSH")
    told = Told()
    store.attach(told, needs_properties=False)
    results = [store.appender.append(message_of_size(200))]
    publisher = store.appender.publisher

    class Interrupted(Publisher):
        def publish(self, records):
            raise KeyboardInterrupt

    store.appender.publisher = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        store.appender.append(message_of_size(200))
    store.appender.publisher = publisher
    results += [store.appender.append(message_of_size(200)) for _ in range(2)]
    store.flush()
    assert [frame[:2] for frame in told.frames] == [(0, 200), (400, 800)]
    assert [result.next_commit_log_offset for result in results] == [200, 600, 800]
    store.close(views_complete=True)

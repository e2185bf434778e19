"""QueueOffsets: the writer's record of each queue's next offset."""

from __future__ import annotations

from reput.store.queue.queue_offsets import QueueOffsets, QueueOffsetsSnapshot, read_queue_offsets


def test_a_queue_that_nobody_put_to_begins_with_zero():
    """Whether its topic is known or not."""
    offsets = QueueOffsets({"orders": {1: 5}})
    assert offsets.next_offset("orders", 1) == 5
    assert offsets.next_offset("orders", 2) == 0
    assert offsets.next_offset("other", 0) == 0
    assert "other" not in offsets.queues


def test_an_offset_is_only_raised():
    """The log and the files may each know more than the other."""
    offsets = QueueOffsets()
    for value in (3, 2, 7, 1):
        offsets.raise_to("orders", 0, value)
    assert offsets.queues == {"orders": {0: 7}}


def test_a_snapshot_does_not_change_with_later_puts():
    """It is written during other puts."""
    offsets = QueueOffsets({"orders": {0: 1}})
    snapshot = offsets.snapshot()
    offsets.raise_to("orders", 0, 9)
    offsets.raise_to("orders", 1, 9)
    assert snapshot == {"orders": {0: 1}}


def test_a_snapshot_is_read_as_it_was_written(tmp_path):
    """Queue ids are numbers again; a store without a snapshot has none."""
    assert read_queue_offsets(tmp_path) is None
    snapshot = QueueOffsetsSnapshot(3, 1000, 12, 1_700_000_000_000, {"订单": {0: 7, 12: 1}, "%RETRY%g": {0: 2}})
    (tmp_path / "reput").mkdir()
    (tmp_path / "reput" / "queue_offsets").write_bytes(snapshot.seal())
    assert read_queue_offsets(tmp_path) == snapshot

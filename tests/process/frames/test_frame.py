"""Frames: the entries of the ring."""

from __future__ import annotations

from reput.process.frames.frame import (
    BATCH,
    DELETE_TOPIC,
    EXPIRE,
    TRUNCATE,
    batch_frame,
    cut_columns,
    decode_frame,
    delete_topic_frame,
    expire_frame,
    truncate_frame,
)
from reput_hooks import DispatchColumns
from reput_hooks.dispatch import ROW


def columns_of(count, size=100):
    """Return *count* records of *size* bytes each, whose texts differ in length."""
    rows = [ROW.pack(n * size, n, 7, 1000 + n, 0, size, 0, 0, n, -1, n, -1, -1) for n in range(count)]
    return DispatchColumns([("orders", 3)], b"".join(rows), b"".join(str(n).encode() * n for n in range(count)))


def test_a_batch_comes_back_as_it_was():
    """All seven parts of the array."""
    columns = columns_of(3)
    frame = decode_frame(batch_frame(2, 0, 300, 1002, 40, columns))
    assert (frame.kind, frame.epoch, frame.begin, frame.end) == (BATCH, 2, 0, 300)
    assert (frame.end_store_timestamp, frame.ordinal, frame.end_ordinal) == (1002, 40, 43)
    assert frame.columns == columns
    assert [request.keys for request in frame.columns] == ["", "1", "22"]


def test_changes_say_where_they_happened():
    """A cut, a trim and a deletion have one offset."""
    cut = decode_frame(truncate_frame(5, 700, 99, 7))
    assert (cut.kind, cut.epoch, cut.begin, cut.end, cut.end_store_timestamp) == (TRUNCATE, 5, 700, 700, 99)
    trimmed = decode_frame(expire_frame(5, 300))
    assert (trimmed.kind, trimmed.end) == (EXPIRE, 300)
    deleted = decode_frame(delete_topic_frame(5, 800, 9, "orders"))
    assert (deleted.kind, deleted.end, deleted.columns.queues[0][0]) == (DELETE_TOPIC, 800, "orders")


def test_a_part_of_a_frame_keeps_each_record_with_its_texts():
    """Rows before the cursor and beyond the bound are removed; only whole records stay."""
    columns = columns_of(6)
    cut = cut_columns(columns, 100, 450, 6)
    assert [request.commit_log_offset for request in cut.columns] == [100, 200, 300]
    assert [request.keys for request in cut.columns] == ["1", "22", "333"]
    assert (cut.end, cut.store_timestamp, cut.row_count) == (400, 1003, 4)


def test_a_part_without_a_record_ends_where_it_begins():
    """A bound within the first record excludes everything."""
    cut = cut_columns(columns_of(2), 100, 150, 2)
    assert (len(cut.columns), cut.end, cut.store_timestamp) == (0, 100, 0)

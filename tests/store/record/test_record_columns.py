"""Columns of records: the queues of many records are the same as those of each record alone."""

from __future__ import annotations

import pytest

from golden_sets import CLEAN_SETS
from reput.store.log.segments import Segments
from reput.store.record import record_columns
from reput.store.recovery.log_walk import LogWalk
from small_store import SEGMENT_SIZE
from written_log import WrittenLog


def queues_of(columns):
    """Return the queue of each record, resolved from the queue numbers."""
    queues, index = columns.queues()
    assert len(set(queues)) == len(queues)
    return [queues[number] for number in index.tolist()]


def columns_of(store):
    """Yield the columns of a store's log."""
    for extent in LogWalk(Segments(store / "commitlog")).walk():
        if extent.columns is not None:
            yield extent.columns


@pytest.mark.parametrize("name", CLEAN_SETS)
@pytest.mark.parametrize("collide", [False, True])
def test_queues_are_those_of_each_record(golden_read_only, monkeypatch, name, collide):
    """Even if the numbers that distinguish topics collide."""
    if collide:
        monkeypatch.setattr(record_columns, "WEIGHTS", record_columns.WEIGHTS * 0)
    for columns in columns_of(golden_read_only(name) / "store"):
        expected = list(zip(columns.topics(), columns.header["queue_id"].tolist(), strict=True))
        assert queues_of(columns) == expected
        half = len(columns) // 2
        assert queues_of(columns.until(half)) == expected[:half]


def test_topics_of_one_number_that_share_no_queue_id_are_told_apart(tmp_path, monkeypatch):
    """Records that differ in their queue id also keep their own topic."""
    log = WrittenLog(tmp_path / "store", SEGMENT_SIZE)
    written = [(b"one", 0), (b"two", 1), (b"one", 0), (b"two", 2)]
    for topic, queue_id in written:
        log.append(b"", topic=topic, queue_id=queue_id)
    monkeypatch.setattr(record_columns, "WEIGHTS", record_columns.WEIGHTS * 0)
    (columns,) = columns_of(log.save())
    assert queues_of(columns) == written


def test_a_property_is_found_by_its_name_in_the_properties_alone(tmp_path):
    """Not by a body that has the same bytes; and not in the records that were left behind."""
    log = WrittenLog(tmp_path / "store", SEGMENT_SIZE)
    log.append(b"color\x01red\x02", properties=b"shape\x01round\x02")
    log.append(b"", properties=b"color\x01red\x02")
    (columns,) = columns_of(log.save())
    assert columns.may_have_property(b"color")
    assert columns.may_have_property(b"shape")
    assert not columns.until(1).may_have_property(b"color")
    assert not columns.behind(1).may_have_property(b"shape")
    assert not columns.until(0).may_have_property(b"color")

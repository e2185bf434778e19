"""A unit within its queue that leads to no record: the error has the reason and the file."""

from __future__ import annotations

from pathlib import Path

import pytest

import reput
from reput.errors import DamagedStore
from reput.store.disk.file_name import file_name
from reput.store.disk.open_files import OpenFiles
from reput.store.queue.consume_queue import UNIT
from reput.store.reader.consume_queue_bounds import RUN_SIZE_MAX

SIZES = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 160}
COUNT = 30
PRE_BLANK = (0, 0x7FFFFFFF, 0)


@pytest.fixture
def written(tmp_path) -> Path:
    """Return a closed store with 30 messages in one queue of several files, and several segments."""
    store = tmp_path / "store"
    with reput.open(store, mode="inline", dispatchers=["consume_queue"], **SIZES) as opened:
        for _ in range(COUNT):
            opened.put(reput.Message("others", bytes(200), tags="tag"))
            result = opened.put(reput.Message("orders", bytes(200), tags="tag"))
        opened.wait_for("consume_queue", result.next_commit_log_offset, timeout=60)
    return store


def unit_of(store: Path, queue_offset: int, topic: str = "orders") -> tuple[int, int, int]:
    """Return a unit's stored values."""
    at = queue_offset * 20
    data = (store / "consumequeue" / topic / "0" / file_name(at - at % 160)).read_bytes()
    return UNIT.unpack_from(data, at % 160)


def overwrite(store: Path, queue_offset: int, unit: tuple[int, int, int]) -> None:
    """Replace a unit."""
    at = queue_offset * 20
    with (store / "consumequeue" / "orders" / "0" / file_name(at - at % 160)).open("r+b") as file:
        file.seek(at % 160)
        file.write(UNIT.pack(*unit))


def told(store: Path, queue_offset: int, **wanted: object) -> str:
    """Return the error for the message at this place; its neighbours can be read."""
    with reput.open(store, read_only=True, **SIZES) as opened:
        with pytest.raises(DamagedStore) as error:
            opened.get("orders", 0, queue_offset, 1, **wanted)
        for other in range(COUNT):
            if other != queue_offset:
                (record,) = opened.get("orders", 0, other, 1)
                assert record.queue_offset == other
        with pytest.raises(DamagedStore):
            opened.get("orders", 0, 0, COUNT, **wanted)
    assert f"queue_offset={queue_offset}" in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("queue_offset", [0, 7, 12, COUNT - 2, COUNT - 1])
@pytest.mark.parametrize(
    ("shift", "what"),
    [
        (1 << 40, "points behind the log's end"),
        (-7, "points into the middle of a record"),
        (-(1 << 62), "no unit stands there"),
    ],
)
def test_a_unit_that_points_elsewhere_is_named(written, queue_offset, shift, what):
    """It is never skipped, at any place, and with or without a filter by tag."""
    offset, size, code = unit_of(written, queue_offset)
    overwrite(written, queue_offset, (offset + shift, size, code))
    assert what in told(written, queue_offset)
    if offset + shift >= 0:
        assert what in told(written, queue_offset, tags="tag")


@pytest.mark.parametrize("queue_offset", [1, 7, 12, COUNT - 2, COUNT - 1])
def test_a_pre_blank_unit_for_a_message_that_the_log_has_is_named(written, queue_offset):
    """By its form it says that the log has lost the message."""
    overwrite(written, queue_offset, PRE_BLANK)
    assert "which it has" in told(written, queue_offset)
    assert "which it has" in told(written, queue_offset, tags="tag")


def test_pre_blank_units_of_messages_that_the_log_has_lost_are_passed_over(tmp_path):
    """They stand where queue offsets are missing in the log."""
    store = tmp_path / "store"
    with reput.open(store, mode="inline", dispatchers=["consume_queue"], **SIZES) as opened:
        for number in range(COUNT):
            if number == 10:
                opened._engine.writer.queue_offsets.raise_to("orders", 0, 20)
            opened.put(reput.Message("orders", bytes(200), tags="tag"))
        opened.wait_for("consume_queue", opened.appended, timeout=60)
    assert unit_of(store, 15) == PRE_BLANK
    with reput.open(store, read_only=True, **SIZES) as opened:
        for wanted in ({}, {"tags": "tag"}):
            found, at = [], 0
            while at < 40:
                result = opened.get("orders", 0, at, COUNT, **wanted)
                found += [record.queue_offset for record in result]
                at = result.next_queue_offset
            assert found == [*range(10), *range(20, 40)]


def test_a_unit_that_points_at_another_message_is_named(written):
    """The error also names the other message."""
    overwrite(written, 12, unit_of(written, 13))
    assert "found_topic=orders found_queue_id=0 found_queue_offset=13" in told(written, 12)
    overwrite(written, 12, unit_of(written, 12, topic="others"))
    assert "found_topic=others" in told(written, 12)


@pytest.mark.parametrize("size", [1, 0x3FFFFFFF, RUN_SIZE_MAX + 1, -5, 0, 400])
def test_a_unit_with_another_size_is_named_and_never_read(written, size, monkeypatch):
    """Neither a gigabyte for one flipped bit, nor a negative count of bytes."""
    offset, _, code = unit_of(written, 12)
    overwrite(written, 12, (offset, size, code))
    read, sizes = OpenFiles.read, []

    def recorded(self: OpenFiles, path: str | Path, size: int, at: int) -> bytes:
        sizes.append(size)
        return read(self, path, size, at)

    monkeypatch.setattr(OpenFiles, "read", recorded)
    assert f"record_size={size}" in told(written, 12)
    assert 0 <= min(sizes) <= max(sizes) <= RUN_SIZE_MAX


def test_zeros_where_a_unit_should_stand_are_named(written):
    """Also in a read by tag, which does not match zeros."""
    overwrite(written, 12, (0, 0, 0))
    assert "no unit stands there" in told(written, 12)
    assert "no unit stands there" in told(written, 12, tags="tag")


def test_a_file_that_is_missing_from_the_middle_of_a_queue_is_named(written):
    """It is not skipped as if retention had removed it."""
    (written / "consumequeue" / "orders" / "0" / file_name(160)).unlink()
    with reput.open(written, read_only=True, **SIZES) as opened:
        assert len(opened.get("orders", 0, 0, 8)) == 8
        with pytest.raises(DamagedStore, match=r"queue_offset=8: its file is missing: path="):
            opened.get("orders", 0, 8, 1)
        assert len(opened.get("orders", 0, 16, COUNT)) == COUNT - 16


def test_a_record_of_the_log_that_is_none_is_named_as_the_logs(written):
    """The log is named, not the queue: a rebuild would not help."""
    offset, _, _ = unit_of(written, 12)
    with (written / "commitlog" / file_name(offset - offset % 4096)).open("r+b") as file:
        file.seek(offset % 4096 + 4)
        file.write(b"\0\0\0\0")
    with reput.open(written, read_only=True, **SIZES) as opened:
        with pytest.raises(
            DamagedStore, match=r"the log has no record where the queue says: .*queue_offset=12"
        ) as error:
            opened.get("orders", 0, 12, 1)
        assert error.value.place == unit_of(written, 12)[:2]
        assert "consume_queue" not in error.value.advice


def test_what_retention_has_taken_is_no_damage(written):
    """Units whose records are gone lie before the queue's first one."""
    (written / "commitlog" / file_name(0)).unlink()
    with reput.open(written, read_only=True, **SIZES) as opened:
        low, high = opened.queue_range("orders", 0)
        assert 0 < low < high == COUNT
        assert len(opened.get("orders", 0, low, COUNT)) == COUNT - low


def test_a_unit_that_points_before_the_logs_first_byte_is_named(written):
    """The units before it exist, so retention has not removed its record."""
    (written / "commitlog" / file_name(0)).unlink()
    _, size, code = unit_of(written, 20)
    overwrite(written, 20, (100, size, code))
    with reput.open(written, read_only=True, **SIZES) as opened:
        assert opened.queue_range("orders", 0)[0] < 20
        with pytest.raises(DamagedStore, match=r"queue_offset=20: the unit points before the queue's first message"):
            opened.get("orders", 0, 20, 1)


@pytest.mark.parametrize("change", [(8, 0, 0), (0, 16, 0)])
def test_a_queue_whose_last_unit_was_changed_is_built_again_at_the_next_opening(written, change):
    """The view's cursor does not match its position or size any more."""
    unit = unit_of(written, COUNT - 1)
    overwrite(written, COUNT - 1, tuple(field + more for field, more in zip(unit, change, strict=True)))
    with reput.open(written, mode="inline", dispatchers=["consume_queue"], **SIZES) as opened:
        opened.wait_for("consume_queue", opened.appended, timeout=60)
        assert len(opened.get("orders", 0, 0, COUNT)) == COUNT
    assert unit_of(written, COUNT - 1) == unit

"""CheckFields: fields without a CRC are reported exactly where the neighbouring records contradict them."""

from __future__ import annotations

import time

import pytest

from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.check.dump import dump_log
from reput.store.record.message import Message
from small_store import START_MS, ManualClock, open_store, overwrite, records

HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path):
    """Return a store with twelve messages in two queues, one per minute."""
    clock = ManualClock()
    opened = open_store(tmp_path, clock=clock)
    for number in range(12):
        opened.put(Message("orders", b"x" * 100, properties={"n": str(number)}, queue_id=number % 2))
        clock.ms += 60_000
    opened.close(views_complete=False)
    return tmp_path


def damage(store):
    """Return the findings of a check: begin, end and reason."""
    return [(found.begin, found.end, found.reason) for found in check_store(store, Settings()).damage]


GARBLED = [
    (20, (99).to_bytes(8, "big"), "the queue offset is out of sequence: topic=orders queue_id={queue_id} "),
    (12, (7).to_bytes(4, "big"), "the queue offset is out of sequence: topic=orders queue_id=7 "),
    (56, bytes(8), "impossible store time: store_timestamp=0 "),
    (56, (2**62).to_bytes(8, "big"), f"impossible store time: store_timestamp={2**62} "),
    (52, b"\xff\xff\xff\xff", "no port: born_host port=-1 "),
    (68, b"\x00\x01\x00\x00", "no port: store_host port=65536 "),
    (189, b"\xff", "the topic is no UTF-8: topic=b'\\xffrders'"),
    (189, b"\x01", "the topic has an illegal character: topic=b'\\x01rders'"),
    (197, b"\xc3", "the properties are no UTF-8: at byte 0 of "),
    (28, (5).to_bytes(8, "big"), "the record's own offset is not its place: own_offset=5"),
]


@pytest.mark.parametrize("number", [2, 6, 11])
@pytest.mark.parametrize(("at", "data", "reason"), GARBLED)
def test_a_garbled_field_is_named_with_the_range_of_its_record(store, number, at, data, reason):
    """Only its record, whatever else in the log looks odd because of it."""
    record = records(store)[number]
    overwrite(store, record.commit_log_offset + at, data)
    found = damage(store)
    assert found[0][:2] == (record.commit_log_offset, record.commit_log_offset + record.record_size)
    assert len(found) == 1
    assert reason.format(queue_id=record.queue_id) in found[0][2]


@pytest.mark.parametrize("number", [2, 11])
@pytest.mark.parametrize(("at", "data", "reason"), GARBLED)
def test_a_dump_shows_the_range_and_not_what_nobody_wrote(store, number, at, data, reason):
    """In the record's place; all others are shown unchanged."""
    before = list(dump_log(store))
    record = before[number]
    overwrite(store, record.commit_log_offset + at, data)
    found = list(dump_log(store))
    shown = found.pop(number)
    assert found == [row for row in before if row is not record]
    assert (shown.kind, shown.begin) == ("damage", record.commit_log_offset)
    assert shown.end == record.commit_log_offset + record.record_size
    assert reason.format(queue_id=record.queue_id) in shown.reason


@pytest.mark.parametrize("number", [6, 11])
def test_an_opening_says_which_records_are_garbled(store, number, caplog):
    """If it must walk the log, as after a crash; the log continues after them."""
    record = records(store)[number]
    overwrite(store, record.commit_log_offset + 20, (99).to_bytes(8, "big"))
    open_store(store).close(views_complete=True)
    until = record.commit_log_offset + record.record_size
    assert f"from={record.commit_log_offset} until={until} reason=the queue offset is out of sequence" in caplog.text


def test_a_dump_names_at_its_end_what_it_found_out_too_late(store, monkeypatch):
    """The check looks one extent ahead. Here that is a record, and the queue's next record comes two records later."""
    monkeypatch.setattr("reput.store.recovery.log_walk.CHUNK_SIZE", 300)
    record = records(store)[4]
    overwrite(store, record.commit_log_offset + 20, (99).to_bytes(8, "big"))
    found = list(dump_log(store))
    assert [row.queue_offset for row in found[:-1]].count(99) == 1
    assert (found[-1].kind, found[-1].begin) == ("damage", record.commit_log_offset)
    assert "queue_offset=99 expected=2" in found[-1].reason


@pytest.mark.parametrize(("at", "data", "reason"), [row for row in GARBLED if row[0] not in (12, 20)])
def test_the_first_record_of_the_log_is_named_too(store, at, data, reason):
    """It has no earlier neighbour. The first queue offset of a queue cannot be checked."""
    overwrite(store, at, data)
    [(begin, end, named)] = damage(store)
    assert (begin, end) == (0, 201)
    assert reason in named


def test_a_record_that_is_gone_leaves_a_hole_that_is_named(tmp_path):
    """At the record after it."""
    opened = open_store(tmp_path)
    for number in range(6):
        if number == 3:
            opened.queue_offsets.queues["orders"][0] += 2
        opened.put(Message("orders", b"x"))
    opened.close(views_complete=False)
    [(begin, _, reason)] = damage(tmp_path)
    assert begin == records(tmp_path)[3].commit_log_offset
    assert reason.endswith("queue_offset=5 expected=3")


def test_a_queue_that_begins_anew_is_no_damage(tmp_path):
    """For example after a topic was deleted."""
    opened = open_store(tmp_path)
    for number in range(6):
        if number == 3:
            opened.queue_offsets.queues["orders"][0] = 0
        opened.put(Message("orders", b"x"))
    opened.close(views_complete=False)
    assert damage(tmp_path) == []


def test_a_clock_that_was_set_back_is_no_damage(tmp_path):
    """RocketMQ stores its clock's time, and the clock stayed where it was set."""
    opened = open_store(tmp_path)
    for ms in (START_MS, START_MS + 9 * HOUR_MS, START_MS + 9 * HOUR_MS + 1, START_MS + 1, START_MS + 2):
        opened.appender.store_timestamp = 0
        opened.clock.ms = ms
        opened.put(Message("orders", b"x"))
    opened.close(views_complete=False)
    assert damage(tmp_path) == []


def test_the_last_record_is_held_against_the_present(tmp_path):
    """It has no later neighbour."""
    opened = open_store(tmp_path)
    opened.put(Message("orders", b"x"))
    result = opened.put(Message("orders", b"x"))
    opened.close(views_complete=False)
    tomorrow = time.time_ns() // 1_000_000 + 48 * HOUR_MS
    overwrite(tmp_path, result.commit_log_offset + 56, tomorrow.to_bytes(8, "big"))
    [(begin, _, reason)] = damage(tmp_path)
    assert begin == result.commit_log_offset
    assert reason == f"impossible store time: store_timestamp={tomorrow} before={START_MS}"


def test_text_beyond_ascii_is_as_good_as_any(tmp_path):
    """Properties are UTF-8."""
    opened = open_store(tmp_path)
    opened.put(Message("orders", b"x", properties={"name": "Grüße 你好"}))
    opened.close(views_complete=False)
    assert damage(tmp_path) == []


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
@pytest.mark.parametrize("at", ["first", "last"])
def test_properties_that_are_no_text_are_found_wherever_they_lie(tmp_path, bad, at):
    """In the first and in the last record, at the first and at the last byte."""
    opened = open_store(tmp_path)
    results = [opened.put(Message("orders", b"x", properties={"name": "n" * 50})) for _ in range(4)]
    begin, end = [*(result.commit_log_offset for result in results), opened.appended][bad : bad + 2]
    opened.close(views_complete=False)
    text = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[begin:end].index(b"name\x01")
    place = begin + text if at == "first" else end - 1
    overwrite(tmp_path, place, b"\xff")
    [(found, _, reason)] = damage(tmp_path)
    assert found == begin
    assert "the properties are no UTF-8" in reason

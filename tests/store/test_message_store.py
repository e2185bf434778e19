"""The writer: what it stores and refuses, and its behaviour when the disk fails."""

from __future__ import annotations

import threading
from itertools import pairwise
from types import MappingProxyType

import pytest

from reput.store.log.log_scan import LogScan
from reput.store.record.message import Message, PutMessageStatus
from reput.store.record.record import encode_address
from small_store import (
    SEGMENT_SIZE,
    START_MS,
    ManualClock,
    extents,
    message_of_size,
    open_store,
    records,
)
from store.message_stores import Published, inner_message

RECORD_SIZE_MIN = 97


@pytest.fixture
def store(tmp_path):
    """A new store of small segments, closed afterwards."""
    opened = open_store(tmp_path / "store")
    yield opened
    if opened.state != "STOPPED":
        opened.close(views_complete=True)


def test_a_message_is_found_where_put_says(store):
    """The result has the record's position, size and id, and the record there has every field."""
    result = store.put(
        Message("orders", b"first", tags="paid", keys=["k1", "k2"], properties={"a": "b"}, flag=-7, queue_id=3)
    )
    (record,) = records(store.directory)
    assert result.status is PutMessageStatus.PUT_OK
    assert (record.commit_log_offset, record.record_size) == (result.commit_log_offset, result.record_size)
    assert result.next_commit_log_offset == result.commit_log_offset + result.record_size == store.appended
    assert (record.topic, record.queue_id, record.queue_offset, record.flag) == ("orders", 3, 0, -7)
    assert record.body == b"first"
    assert record.properties == {"a": "b", "KEYS": "k1 k2", "TAGS": "paid"}
    assert record.message_id == result.message_id
    assert record.store_timestamp == result.store_timestamp == START_MS
    assert record.store_host == record.born_host == "127.0.0.1:10911"


def test_queue_offsets_count_each_queue_apart(store):
    """Every (topic, queue id) has its own offsets, from 0 without gaps."""
    puts = [("a", 0), ("a", 1), ("a", 0), ("b", 0), ("a", 1), ("a", 0)]
    results = [store.put(Message(topic, b"", queue_id=queue_id)) for topic, queue_id in puts]
    assert [result.queue_offset for result in results] == [0, 0, 1, 0, 1, 2]


def test_a_batch_lies_one_behind_the_other(store):
    """One result per message, in order; all have the same store time."""
    results = store.put_batch([Message("orders", bytes([i]), queue_id=i % 2) for i in range(20)])
    assert [record.body for record in records(store.directory)] == [bytes([i]) for i in range(20)]
    assert [result.queue_offset for result in results] == [i // 2 for i in range(20)]
    assert [(record.commit_log_offset, record.record_size) for record in records(store.directory)] == [
        (result.commit_log_offset, result.record_size) for result in results
    ]
    assert store.put_batch([]) == []


def test_a_record_may_leave_exactly_eight_bytes_of_its_segment(store):
    """The blank at the end needs eight bytes."""
    store.put(message_of_size(SEGMENT_SIZE - 8))
    second = store.put(Message("orders", b"second"))
    assert second.commit_log_offset == SEGMENT_SIZE
    assert extents(store.directory) == [
        f"records 0..{SEGMENT_SIZE - 8} count=1",
        f"blank {SEGMENT_SIZE - 8}..{SEGMENT_SIZE}",
        f"records {SEGMENT_SIZE}..{second.next_commit_log_offset} count=1",
    ]


@pytest.mark.parametrize("missing", [1, 7, 8])
def test_a_record_that_would_leave_less_goes_to_the_next_segment(store, missing):
    """A record that is one byte too long leaves a blank where it would have begun."""
    first = store.put(message_of_size(1000))
    second = store.put(message_of_size(SEGMENT_SIZE - 1000 - 8 + missing))
    assert second.commit_log_offset == SEGMENT_SIZE
    assert extents(store.directory)[1] == f"blank {first.next_commit_log_offset}..{SEGMENT_SIZE}"


def test_every_place_of_a_segments_end_is_crossed(tmp_path):
    """Whatever is left of a segment, the log stays whole: records, then a blank of at least 8 bytes."""
    with_sizes = range(SEGMENT_SIZE - 2 * RECORD_SIZE_MIN, SEGMENT_SIZE - RECORD_SIZE_MIN + 1)
    opened = open_store(tmp_path / "store")
    expected = 0
    for size in with_sizes:
        results = [opened.put(message_of_size(size)), opened.put(message_of_size(RECORD_SIZE_MIN))]
        for result in results:
            left = SEGMENT_SIZE - expected % SEGMENT_SIZE
            expected += left if result.record_size + 8 > left else 0
            assert result.commit_log_offset == expected
            expected += result.record_size
    opened.close(views_complete=True)
    assert {line.split()[0] for line in extents(tmp_path / "store")} == {"records", "blank"}
    assert len(records(tmp_path / "store")) == 2 * len(with_sizes)


def test_a_batch_moves_whole_to_the_next_segment(store):
    """If a segment lacks space for the whole batch, it gets none of it, like in RocketMQ."""
    store.put(message_of_size(SEGMENT_SIZE - 1000))
    results = store.put_batch([message_of_size(600) for _ in range(3)])
    assert [result.commit_log_offset for result in results] == [SEGMENT_SIZE + at for at in (0, 600, 1200)]


def test_a_batch_larger_than_a_segment_goes_on_in_the_next(store):
    """Its records are consecutive over as many segments as they need."""
    results = store.put_batch([message_of_size(700, queue_id=i % 3) for i in range(30)])
    assert [result.commit_log_offset // SEGMENT_SIZE for result in results] == [i // 5 for i in range(30)]
    assert [record.queue_offset for record in records(store.directory)] == [i // 3 for i in range(30)]


def test_publication_equals_what_a_scan_of_the_log_finds(store):
    """A dispatcher gets the same requests from the ring and from the log, in consecutive frames."""
    published = Published()
    store.attach(published, needs_properties=False)
    store.put(Message("orders", b"a", tags="t", keys="k1 k2"))
    store.put(Message("orders", b"", properties={"UNIQ_KEY": "u", "empty": ""}, queue_id=2))
    store.put(Message("orders", b"c", tags="", keys=[], delay_level=3))
    store.put(Message("other", b"d"))
    store.put_batch([message_of_size(700, keys=f"k{i}", tags="x", queue_id=i % 3) for i in range(12)])
    store.put_batch([Message("schedule", b"e", delay_level=99), Message("orders", b"f")])
    for level in ("3", "99", "0", "", "\N{ARABIC-INDIC DIGIT FOUR}"):
        store.put(Message("SCHEDULE_TOPIC_XXXX", b"g", properties={"DELAY": level}, queue_id=1))
    store.put(Message("SCHEDULE_TOPIC_XXXX", b"h", tags="no delay"))
    store.put(Message("orders", b"i", properties={"INNER_MULTI_DISPATCH": "a,b", "INNER_MULTI_QUEUE_OFFSET": "5,6"}))
    scan = LogScan(store.directory)
    found, at = [], 0
    while at < store.appended:
        scanned = scan.scan(at, store.appended)
        found += scanned.columns
        at = scanned.end
    scan.close()
    assert published.requests == found
    for before, frame in pairwise(published.frames):
        assert frame[0] == before[1] or frame[0] % SEGMENT_SIZE == 0
    assert published.frames[-1][1] == store.appended
    assert published.frames[-1][3] == len(found)


def test_requests_carry_properties_for_dispatchers_that_need_them(store):
    """They are the raw string of the record."""
    published = Published()
    store.attach(published, needs_properties=True)
    store.put(Message("orders", b"a", tags="t", keys="k"))
    scan = LogScan(store.directory, needs_properties=True)
    assert published.requests == list(scan.scan(0, store.appended).columns)
    assert published.requests[0].properties == b"KEYS\x01k\x02TAGS\x01t\x02"
    scan.close()


def test_a_delayed_message_waits_in_the_schedule_topic(store):
    """Topic and queue are kept in properties, like in RocketMQ; a level above the highest counts as the highest."""
    result = store.put(Message("orders", b"later", queue_id=5, delay_level=99))
    (record,) = records(store.directory)
    assert (record.topic, record.queue_id, result.queue_id) == ("SCHEDULE_TOPIC_XXXX", 17, 17)
    assert record.properties == {"DELAY": "18", "REAL_TOPIC": "orders", "REAL_QID": "5"}


@pytest.mark.parametrize("way", ["put", "put_batch"])
@pytest.mark.parametrize("given", [{"DELAY": "3"}, MappingProxyType({"DELAY": "3", "a": "b"})])
def test_a_message_whose_property_says_so_is_delayed(store, given, way):
    """The record is the same as with the field, for any type of mapping."""
    message = Message("orders", b"later", tags="t", properties=given, queue_id=5)
    getattr(store, way)([message] if way == "put_batch" else message)
    (record,) = records(store.directory)
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert record.properties == {**given, "REAL_TOPIC": "orders", "REAL_QID": "5", "TAGS": "t"}


def test_ipv6_hosts_are_stored_with_their_flags(tmp_path):
    """Each host has its own flag in the record."""
    opened = open_store(tmp_path / "store", store_host="[::1]:10911", born_host="127.0.0.1:5000")
    result = opened.put(Message("orders", b"x"))
    opened.close(views_complete=True)
    (record,) = records(tmp_path / "store")
    assert (record.store_host, record.born_host, record.sys_flag) == ("[::1]:10911", "127.0.0.1:5000", 0x20)
    assert record.message_id == result.message_id
    assert len(result.message_id) == 56


@pytest.mark.parametrize("appends", [False, True])
def test_a_message_that_is_put_again_leaves_the_crc_of_its_former_record(tmp_path, appends):
    """It matches no other record; the log would count as damaged there."""
    former = {"a": "1", "__CRC32#": "0123456789"}
    opened = open_store(tmp_path / "store", enabled_append_prop_crc=appends)
    opened.put(Message("orders", b"x", properties=former))
    opened.put(Message("orders", b"y", properties={"__CRC32#": "0123456789"}))
    opened.close(views_complete=True)
    assert [kind.partition(" ")[0] for kind in extents(tmp_path / "store")] == ["records"]
    first, second = records(tmp_path / "store")
    assert list(first.properties) == (["a", "__CRC32#"] if appends else ["a"])
    assert list(second.properties) == (["__CRC32#"] if appends else [])


def test_the_whole_records_crc_travels_in_its_properties(tmp_path):
    """With RocketMQ 5.2's option every flipped bit of a record is detected, not only those of its body."""
    opened = open_store(tmp_path / "store", enabled_append_prop_crc=True)
    result = opened.put(Message("orders", b"x", tags="t"))
    opened.close(views_complete=True)
    (record,) = records(tmp_path / "store")
    assert list(record.properties) == ["TAGS", "__CRC32#"]
    segment = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = segment.read_bytes()
    for at in range(result.record_size):
        segment.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        (found,) = extents(tmp_path / "store")
        assert found.startswith("tail 0.."), at


def test_store_times_never_go_back(tmp_path):
    """Not even if the clock does, and not across openings."""
    clock = ManualClock()
    opened = open_store(tmp_path / "store", clock=clock)
    times = [opened.put(Message("orders", b"")).store_timestamp]
    clock.ms -= 5000
    times.append(opened.put(Message("orders", b"")).store_timestamp)
    clock.ms += 5001
    times.append(opened.put_batch([Message("orders", b"")])[0].store_timestamp)
    opened.close(views_complete=True)
    clock.ms -= 60_000
    opened = open_store(tmp_path / "store", clock=clock)
    times.append(opened.put(Message("orders", b"")).store_timestamp)
    opened.close(views_complete=True)
    assert times == [START_MS, START_MS, START_MS + 1, START_MS + 1]


def test_many_threads_put_at_once(store):
    """Every message is stored once, each queue has no gap, and each thread's messages are in order."""

    def produce(number):
        for i in range(100):
            store.put(Message("orders", f"{number}-{i}".encode(), queue_id=i % 3))

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = records(store.directory)
    assert len({record.body for record in found}) == len(found) == 600
    for queue_id in range(3):
        queue = [record.queue_offset for record in found if record.queue_id == queue_id]
        assert queue == list(range(len(queue)))
    for number in range(6):
        own = [int(r.body.split(b"-")[1]) for r in found if r.body.startswith(b"%d-" % number)]
        assert own == sorted(own)


def test_a_message_born_elsewhere_keeps_what_it_carries(tmp_path):
    """Birth time, hosts, flags, deliveries and the half message's offset are stored as given."""
    store = open_store(tmp_path / "store")
    result = store.put(
        inner_message(
            born_timestamp=0,
            born_host=encode_address("[2001:db8::1]:49152"),
            store_host=encode_address("192.0.2.7:10911"),
            sys_flag=0x108,
            reconsume_times=3,
            prepared_transaction_offset=4711,
        )
    )
    store.put(Message("orders", b"plain"))
    store.close(views_complete=False)
    record, plain = records(tmp_path / "store")
    assert (record.born_timestamp, record.store_timestamp) == (0, START_MS)
    assert (record.born_host, record.store_host) == ("[2001:db8::1]:49152", "192.0.2.7:10911")
    assert (record.sys_flag, record.reconsume_times, record.prepared_transaction_offset) == (0x118, 3, 4711)
    assert record.message_id == result.message_id
    assert (plain.born_host, plain.sys_flag, plain.reconsume_times) == ("127.0.0.1:10911", 0, 0)


def test_the_request_of_a_message_born_elsewhere_is_what_a_scan_finds(tmp_path):
    """Dispatchers get the same request from the writer and from the log."""
    store = open_store(tmp_path / "store")
    published = Published()
    store.attach(published, needs_properties=False)
    store.put(inner_message(sys_flag=8, prepared_transaction_offset=96, born_host=encode_address("[::1]:1")))
    scan = LogScan(tmp_path / "store")
    found = scan.scan(0, store.appended).columns
    scan.close()
    store.close(views_complete=False)
    assert published.requests == list(found)


def test_delayed_messages_are_told_as_they_are_stored(tmp_path):
    """Level and delivery time, for single messages and for batches; a level may have no delay."""
    store = open_store(tmp_path / "store", message_delay_level="0s 5s")
    told: list[tuple[int, int]] = []
    store.appender.on_delayed = lambda level, timestamp: told.append((level, timestamp))
    store.put(Message("orders", b"", delay_level=2))
    store.put_batch([Message("orders", b""), Message("orders", b"", delay_level=1)])
    store.close(views_complete=False)
    assert told == [(2, START_MS + 5000), (1, START_MS)]

"""The writer: what it stores and refuses, and its behaviour when the disk fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import pytest

from reput.errors import (
    ConfigError,
    DamagedStore,
    MessageIllegal,
    NotAStore,
    StoreClosed,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from reput.filter.string_hash import string_hash
from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager
from reput.store.log.log_scan import LogScan
from reput.store.record.message import Message, MessageExtBrokerInner, PutMessageStatus, message_properties
from reput.store.record.record import encode_address
from reput.store.state.store_lock import StoreLock
from reput.store.writer import message_preparer
from reput.store.writer.publisher import Publisher
from reput_hooks import DispatchColumns
from small_store import (
    SEGMENT_SIZE,
    START_MS,
    FailingFiles,
    ManualClock,
    drop,
    extents,
    log_bytes,
    message_of_size,
    open_store,
    records,
    small_settings,
)

RECORD_SIZE_MIN = 97


class Published(Publisher):
    """A publisher that records its notifications."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, int, int]] = []
        self.requests: list[object] = []
        self.durable_offsets: list[int] = []

    def publish(self, records):
        self.frames.append((records.begin, records.end, records.store_timestamp, records.ordinal))
        self.requests += DispatchColumns(list(records.queues), records.rows, records.texts)

    def durable(self, offset):
        self.durable_offsets.append(offset)


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


@pytest.mark.parametrize("level", ["x", " 1", "1_0", "9999999999"])
def test_a_delay_that_rocketmq_cannot_read_is_refused(store, level):
    """Its recovery treats a record of the schedule topic with such a level as invalid, and ends the log there; for
    other topics its broker refuses it."""
    with pytest.raises(MessageIllegal, match="DELAY="):
        store.put(Message("SCHEDULE_TOPIC_XXXX", b"", properties={"DELAY": level}))
    with pytest.raises(MessageIllegal, match="DELAY="):
        store.put(Message("orders", b"", properties={"DELAY": level}))
    assert store.appended == 0


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


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("", "blank"),
        (" ", "blank"),
        ("..", "illegal character"),
        ("../../etc", "illegal character"),
        ("a/b", "illegal character"),
        ("a\0b", "illegal character"),
        ("C:\\temp", "illegal character"),
        ("tópico", "illegal character"),
        ("line\n", "illegal character"),
        ("x" * 128, "too long"),
        ("%RETRY%" + "x" * 249, "too long"),
        (None, "blank"),
        (b"orders", "blank"),
    ],
)
def test_a_topic_that_rocketmq_refuses_is_refused(store, topic, words):
    """Including path tricks, because a topic becomes the name of a folder."""
    with pytest.raises(MessageIllegal, match=words):
        store.put(Message(topic, b""))
    assert store.appended == 0


def test_topics_up_to_their_limits_are_stored(store):
    """127 bytes; 255 for a retry topic, which then has the magic code of long topics."""
    store.put(Message("x" * 127, b""))
    store.put(Message("%RETRY%" + "x" * 248, b""))
    assert [(len(record.topic), f"{record.magic_code:08X}") for record in records(store.directory)] == [
        (127, "DAA320A7"),
        (255, "DAA320AB"),
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"properties": {"": "v"}}, "name is empty"),
        ({"properties": {"a\x01": "v"}}, "separator"),
        ({"properties": {"a\x02": "v"}}, "separator"),
        ({"properties": {"a": "v\x02"}}, "separator"),
        ({"properties": {"a": "v\0"}}, "a zero byte"),
        ({"tags": "\0"}, "a zero byte"),
        ({"properties": {"a": 1}}, "text"),
        ({"properties": {1: "a"}}, "must be text"),
        ({"properties": {"a": "\ud800"}}, "surrogate"),
        ({"properties": {"a": "v" * 32767}}, "too long"),
        ({"tags": "a\x02b"}, "separator"),
        ({"tags": "a\x02b", "keys": "k"}, "separator"),
        ({"keys": ["a", "b\x02"]}, "separator"),
        ({"tags": "a || b"}, "no consumer can select a message with these tags: tags='a || b'"),
        ({"tags": " a"}, "no consumer can select"),
        ({"tags": "a", "keys": ["k", "a b"]}, "stored as several keys: key='a b'"),
        ({"keys": ("a b",), "delay_level": 1}, "stored as several keys: key='a b'"),
        ({"flag": 1 << 31}, "flag"),
        ({"flag": "x"}, "flag"),
        ({"queue_id": -1}, "queue_id"),
        ({"queue_id": 1 << 31}, "queue_id"),
        ({"queue_id": "0"}, "queue_id"),
        ({"delay_level": -1}, "delay level"),
        ({"keys": [1]}, "keys"),
        ({"tags": 5}, "tags"),
        ({"tags": ["a"]}, "tags"),
        ({"properties": {"a": None}}, "text"),
        ({"properties": ["ab"]}, "must map names to values: type=list"),
        ({"properties": 5, "delay_level": 1}, "must map names to values: type=int"),
        ({"queue_id": -1, "delay_level": 1}, "queue_id=-1"),
        ({"properties": {"a": "b__CRC32#\x010123456789"}}, "like a record's CRC"),
        ({"tags": "__CRC32#\x010123456789"}, "like a record's CRC"),
    ],
)
def test_a_message_that_breaks_a_limit_is_refused(store, fields, words):
    """The error names the field; nothing is stored, and the next message is accepted."""
    with pytest.raises(MessageIllegal, match=words):
        store.put(Message("orders", b"", **fields))
    with pytest.raises(MessageIllegal, match=words):
        store.put_batch([Message("orders", b"good"), Message("orders", b"", **fields)])
    assert store.appended == 0
    assert store.put(Message("orders", b"x")).queue_offset == 0


def test_what_others_have_sent_keeps_its_tags_and_keys(store):
    """It was stored, or sent, elsewhere; a text of keys is several keys anyway."""
    store.put(MessageExtBrokerInner("orders", b"", tags="a || b", keys=["a b"]))
    store.put(Message("orders", b"", keys="a b"))
    assert [(record.tags, record.keys) for record in records(store.directory)] == [
        ("a || b", ["a", "b"]),
        (None, ["a", "b"]),
    ]


def test_tags_that_were_met_before_change_nothing(tmp_path):
    """The first message with certain tags is encoded completely; the next one has the same properties and row."""
    store = open_store(tmp_path / "store", mapped_file_size_commit_log=1 << 16)
    for tags in (None, "", "paid", "bezahlt ✓", "a\x01b", "\u3000", "x" * 2000):
        for keys in (None, "", "k1 k2", ["k1", "k2"], [], ("k1",), ["schlüssel"], "a\x01b", "x" * 5000):
            message = Message("orders", b"", tags=tags, keys=keys)
            first, second = store.preparer.prepare(message), store.preparer.prepare(message)
            properties, *_ = message_properties(message)
            assert first == second
            assert first.after_body == b"\x06orders" + len(properties).to_bytes(2, "big") + properties
            assert first.tags_code == string_hash(tags or "")
            stored_keys = (keys if isinstance(keys, str) else " ".join(keys or ())).encode()
            assert first.texts == stored_keys + (tags or "").encode()
            assert first.keys_size == (len(stored_keys) or (-1 if properties else 0))
    store.close(views_complete=True)


def test_the_tags_that_are_known_have_a_limit(store, monkeypatch):
    """A program with different tags in each message does not fill the memory."""
    monkeypatch.setattr(message_preparer, "TAGS_KNOWN_MAX", 10)
    codes = [store.preparer.prepare(Message("orders", b"", tags=f"tag-{number}")).tags_code for number in range(50)]
    assert codes == [string_hash(f"tag-{number}") for number in range(50)]
    assert len(store.preparer.known_tags) <= 12


def test_properties_up_to_their_limit_are_stored(tmp_path):
    """The limit is that of a signed short: 32767 bytes, including separators."""
    opened = open_store(tmp_path / "store", mapped_file_size_commit_log=65536)
    opened.put(Message("orders", b"", properties={"a": "v" * (32767 - 3)}))
    opened.close(views_complete=True)
    (record,) = records(tmp_path / "store")
    assert len(record.properties["a"]) == 32764


@pytest.mark.parametrize("body", ["text", None, 5, ["b"]])
def test_a_body_is_bytes(store, body):
    """Text would need an encoding that only its sender knows."""
    with pytest.raises(MessageIllegal, match="bytes"):
        store.put(Message("orders", body))


def test_a_body_may_be_anything_that_is_bytes(store):
    """The caller may change its buffer afterwards: a copy was stored."""
    buffer = bytearray(b"abc")
    store.put(Message("orders", buffer))
    store.put(Message("orders", memoryview(b"xdefx")[1:4]))
    buffer[:] = b"zzz"
    assert [record.body for record in records(store.directory)] == [b"abc", b"def"]


def test_a_body_beyond_max_message_size_is_refused(tmp_path):
    """The error has the limit."""
    opened = open_store(tmp_path / "store", max_message_size=100)
    opened.put(Message("orders", bytes(100)))
    with pytest.raises(MessageIllegal, match="max_message_size=100"):
        opened.put(Message("orders", bytes(101)))
    opened.close(views_complete=True)


def test_a_record_larger_than_a_segment_is_refused_before_anything_is_stored(store):
    """Of a batch, not even earlier messages are stored."""
    store.put(message_of_size(SEGMENT_SIZE - 8))
    before = log_bytes(store.directory)
    with pytest.raises(MessageIllegal, match="record"):
        store.put(message_of_size(SEGMENT_SIZE - 7))
    with pytest.raises(MessageIllegal, match="record"):
        store.put_batch([message_of_size(500), message_of_size(SEGMENT_SIZE - 7)])
    assert log_bytes(store.directory) == before


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


def test_a_store_goes_on_after_a_clean_close(tmp_path):
    """Offsets of log and queues continue, nothing is scanned, and the store's id stays the same."""
    first = open_store(tmp_path / "store")
    before = [first.put(Message("orders", b"a", queue_id=1)) for _ in range(50)]
    first.close(views_complete=True)
    assert not (tmp_path / "store" / "abort").exists()
    second = open_store(tmp_path / "store")
    assert second.store_id == first.store_id
    assert second.epochs.epoch == first.epochs.epoch
    after = second.put(Message("orders", b"b", queue_id=1))
    assert after.commit_log_offset == before[-1].next_commit_log_offset
    assert after.queue_offset == 50
    assert second.ordinal == 51
    second.close(views_complete=True)


def test_abort_is_there_while_the_store_is_open_and_where_views_are_behind(tmp_path):
    """RocketMQ recovers missing entries only if it finds that file."""
    opened = open_store(tmp_path / "store")
    opened.put(Message("orders", b"a"))
    assert (tmp_path / "store" / "abort").read_text() == str(os.getpid())
    opened.close(views_complete=False)
    assert (tmp_path / "store" / "abort").exists()
    opened = open_store(tmp_path / "store")
    opened.close(views_complete=True)
    assert not (tmp_path / "store" / "abort").exists()


def test_a_store_that_was_dropped_goes_on_in_a_new_epoch(tmp_path):
    """Views may have seen records lost in a crash, so they learn where the log ended."""
    dropped = open_store(tmp_path / "store")
    for _ in range(30):
        dropped.put(message_of_size(300))
    drop(dropped)
    second = open_store(tmp_path / "store")
    assert second.epochs.epoch == dropped.epochs.epoch + 1
    assert second.epochs.history[-1].start_offset == dropped.appended == second.appended
    assert second.put(message_of_size(300)).queue_offset == 30
    second.close(views_complete=True)


def test_a_killed_writer_loses_nothing_that_the_kernel_has(tmp_path):
    """`kill -9` during puts: every acknowledged message is there, and the queues continue without a gap."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from small_store import open_store\n"
        "from reput.store.record.message import Message\n"
        "opened = open_store(Path(sys.argv[1]))\n"
        "for i in range(1_000_000):\n"
        "    result = opened.put(Message('orders', b'%d' % i, queue_id=i % 2))\n"
        "    print(result.commit_log_offset, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "store")], stdout=subprocess.PIPE, env=environment
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(400)]
    writer.kill()
    acknowledged += [int(line) for line in writer.stdout.read().split(b"\n")[:-1] if line]
    writer.wait()
    writer.stdout.close()
    opened = open_store(tmp_path / "store")
    found = records(tmp_path / "store", unclean=True)
    assert {record.commit_log_offset for record in found} >= set(acknowledged)
    assert [record.body for record in found] == [b"%d" % i for i in range(len(found))]
    assert opened.put(Message("orders", b"")).queue_offset == (len(found) + 1) // 2
    opened.close(views_complete=True)


def test_a_second_writer_is_told_who_has_the_store(tmp_path, store):
    """Also within one process; the error has the holder's process id."""
    with pytest.raises(StoreLocked, match=f"pid={os.getpid()}"):
        open_store(tmp_path / "store")
    assert store.put(Message("orders", b"x")).queue_offset == 0


def test_a_second_writer_in_another_process_is_told_who_has_the_store(tmp_path, store):
    """The lock belongs to the system, not only to the process."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from reput.errors import StoreLocked\n"
        "from small_store import open_store\n"
        "try:\n"
        "    open_store(Path(sys.argv[1]))\n"
        "except StoreLocked as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store")], capture_output=True, text=True, env=environment
    )
    assert f"pid={os.getpid()}" in told.stdout, told.stderr


def test_a_store_is_free_after_its_close(tmp_path):
    """A closed store accepts no message."""
    opened = open_store(tmp_path / "store")
    opened.close(views_complete=True)
    assert StoreLock.holder(tmp_path / "store") is None
    with pytest.raises(StoreClosed):
        opened.put(Message("orders", b""))
    with pytest.raises(StoreClosed):
        opened.put_batch([Message("orders", b"")])
    assert opened.state == "STOPPED"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_forked_child_the_store_is_closed(store):
    """The child can neither write nor release the parent's lock, and does not wait for a missing thread."""
    store.put(Message("orders", b"x"))
    store.appender.put_lock.acquire()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 9
        try:
            store.forget()
            store.put(Message("orders", b"y"))
        except StoreClosed:
            code = 0
        finally:
            os._exit(code)
    store.appender.put_lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert StoreLock.holder(store.directory) == os.getpid()
    assert store.put(Message("orders", b"y")).queue_offset == 1


def test_a_directory_with_other_things_in_it_is_no_place_for_a_store(tmp_path):
    """Nothing is created in it."""
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("…")
    with pytest.raises(NotAStore, match="not empty"):
        open_store(tmp_path / "letters")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["dear.txt"]
    (tmp_path / "file").write_text("…")
    with pytest.raises(NotAStore):
        open_store(tmp_path / "file")


@pytest.mark.parametrize(
    "left", [["reput/"], ["reput/", "lock"], ["reput/", "lock", "commitlog/"], ["lock", "commitlog/"]]
)
def test_a_first_creation_that_was_interrupted_is_taken_up(tmp_path, left):
    """Before the first segment no data can be missing."""
    for name in left:
        path = tmp_path / "store" / name
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()
    opened = open_store(tmp_path / "store")
    assert opened.put(Message("orders", b"x")).commit_log_offset == 0
    opened.close(views_complete=True)


def test_a_first_segment_that_was_not_given_its_size_is_taken_up(tmp_path):
    """It was created, and the process died before it had a byte."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / f"{0:020d}").touch()
    opened = open_store(tmp_path / "store")
    assert opened.put(Message("orders", b"x")).commit_log_offset == 0
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 1


def test_segments_of_a_size_that_none_can_have_are_left_as_they_are(tmp_path):
    """An incomplete copy or another program's file: its size must not become a setting."""
    segment = tmp_path / "store" / "commitlog" / f"{0:020d}"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"hello")
    with pytest.raises(DamagedStore, match=r"segment_size=5 size_min=1024 .*path="):
        open_store(tmp_path / "store")
    assert segment.read_bytes() == b"hello"
    assert not (tmp_path / "store" / "abort").exists()


def test_wrong_settings_of_hosts_are_named(tmp_path):
    """Records hold addresses, not names."""
    with pytest.raises(ConfigError, match="store_host"):
        small_settings(store_host="localhost:10911")


def test_segments_keep_the_size_that_they_have(tmp_path):
    """A different setting applies to new stores only."""
    opened = open_store(tmp_path / "store")
    opened.put(message_of_size(3000))
    opened.close(views_complete=True)
    opened = open_store(tmp_path / "store", mapped_file_size_commit_log=8192)
    assert opened.put(message_of_size(3000)).commit_log_offset == SEGMENT_SIZE
    opened.close(views_complete=True)


def test_sync_flush_acknowledges_what_is_on_disk(tmp_path):
    """When put returns, the durable offset is beyond the record."""
    opened = open_store(
        tmp_path / "store", flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000, flush_interval_commit_log=100_000
    )
    published = Published()
    opened.attach(published, needs_properties=False)
    result = opened.put(Message("orders", b"x"))
    assert opened.durable >= result.next_commit_log_offset
    batch = opened.put_batch([message_of_size(900) for _ in range(9)])
    assert opened.durable >= batch[-1].next_commit_log_offset
    assert {result.status, *(one.status for one in batch)} == {PutMessageStatus.PUT_OK}
    assert published.durable_offsets[-1] == opened.appended
    opened.close(views_complete=True)


def test_sync_flush_of_many_threads_shares_its_forces(tmp_path):
    """Group commit: puts that arrive while the disk is busy share the next force."""
    files = FailingFiles()
    forces = []
    entered, go_on = threading.Event(), threading.Event()

    def before_force():
        forces.append(1)
        entered.set()
        go_on.wait(30)

    opened = open_store(tmp_path / "store", files=files, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000)
    files.before_force = before_force
    threads = [threading.Thread(target=opened.put, args=(Message("orders", b"x"),)) for _ in range(20)]
    threads[0].start()
    assert entered.wait(30)
    for thread in threads[1:]:
        thread.start()
    while opened.ordinal < 20:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in threads:
        thread.join()
    assert opened.durable == opened.appended
    assert 2 <= len(forces) <= 4
    opened.close(views_complete=True)


def test_sync_flush_tells_when_the_disk_takes_too_long(tmp_path):
    """The message is stored, but not confirmed as durable."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=1)
    go_on = threading.Event()
    files.before_force = lambda: go_on.wait(30)
    assert opened.put(Message("orders", b"x")).status is PutMessageStatus.FLUSH_DISK_TIMEOUT
    go_on.set()
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 1


def test_a_failed_force_turns_the_store_read_only(tmp_path):
    """No second try: the kernel forgets a failed write. Puts and status get the reason."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000)
    opened.put(Message("orders", b"kept"))
    files.force_error = errno.EIO
    with pytest.raises(StoreReadOnly, match="forced"):
        opened.put(Message("orders", b"lost"))
    files.force_error = None
    with pytest.raises(StoreReadOnly, match="forced"):
        opened.put(Message("orders", b"refused"))
    assert opened.state == "READ_ONLY"
    assert "Input/output error" in opened.appender.read_only_reason
    durable = opened.durable
    opened.close(views_complete=True)
    assert (tmp_path / "store" / "abort").exists()
    assert opened.durable == durable
    again = open_store(tmp_path / "store")
    assert records(tmp_path / "store")[0].body == b"kept"
    again.put(Message("orders", b"goes on"))
    again.close(views_complete=True)


def test_a_failed_force_is_noticed_without_anyone_waiting(tmp_path):
    """With ASYNC_FLUSH the next put raises."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files, flush_interval_commit_log=1, flush_commit_log_least_pages=0)
    files.force_error = errno.EIO
    opened.put(Message("orders", b"x"))
    while opened.appender.read_only_reason is None:
        threading.Event().wait(0.001)
    with pytest.raises(StoreReadOnly):
        opened.put(Message("orders", b"y"))
    opened.close(views_complete=True)


def test_a_full_disk_stores_nothing_and_a_later_put_works(tmp_path):
    """Neither the record nor a part of it; once there is space the store continues where it was."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files)
    opened.put(message_of_size(3000))
    files.reserve_until = 0
    before = log_bytes(tmp_path / "store")
    with pytest.raises(StoreFull, match="No space left"):
        opened.put(message_of_size(3000))
    with pytest.raises(StoreFull, match="stored_count=0"):
        opened.put_batch([message_of_size(3000)])
    assert log_bytes(tmp_path / "store")[: len(before)] == before
    assert opened.state == "RUNNING"
    files.reserve_until = 1 << 62
    result = opened.put(message_of_size(3000))
    assert (result.commit_log_offset, result.queue_offset) == (SEGMENT_SIZE, 1)
    opened.close(views_complete=True)
    assert extents(tmp_path / "store") == [
        "records 0..3000 count=1",
        "blank 3000..4096",
        "records 4096..7096 count=1",
    ]


def test_a_disk_that_fills_in_a_batch_says_how_much_was_stored(tmp_path):
    """The messages before are stored, as separate records."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files)
    opened.put(message_of_size(100))
    # The next segment is created in advance, so its space is what is missing.
    files.reserve_until = 0
    with pytest.raises(StoreFull, match="stored_count=4"):
        opened.put_batch([message_of_size(900) for _ in range(6)])
    files.reserve_until = 1 << 62
    assert opened.put(message_of_size(900)).queue_offset == 5
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 6


def test_a_segment_that_cannot_be_made_is_an_error_of_the_put(tmp_path):
    """Later puts are not affected."""
    files = FailingFiles()
    files.create_error = errno.ENOSPC
    with pytest.raises(StoreFull, match="segment cannot be made"):
        open_store(tmp_path / "store", files=files)
    assert StoreLock.holder(tmp_path / "store") is None
    files.create_error = None
    opened = open_store(tmp_path / "store", files=files)
    assert opened.put(Message("orders", b"x")).commit_log_offset == 0
    opened.close(views_complete=True)


def test_a_damaged_log_is_not_opened_for_writing(tmp_path):
    """The error has the range and the possible decisions."""
    opened = open_store(tmp_path / "store")
    results = [opened.put(Message("orders", b"body", queue_id=i % 2)) for i in range(10)]
    opened.close(views_complete=True)
    segment = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[results[4].commit_log_offset + 90] ^= 4
    segment.write_bytes(data)
    for name in ("epochs", "queue_offsets"):
        (tmp_path / "store" / "reput" / name).unlink()
    begin, end = results[4].commit_log_offset, results[4].next_commit_log_offset
    with pytest.raises(DamagedStore, match=f"from={begin} until={end}") as caught:
        open_store(tmp_path / "store")
    assert f"--accept {begin}..{end}" in caught.value.advice
    assert StoreLock.holder(tmp_path / "store") is None


def inner_message(**fields: object) -> MessageExtBrokerInner:
    return MessageExtBrokerInner("orders", b"body", properties={"KEYS": "k1", "TAGS": "a"}, **fields)


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


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"sys_flag": 4}, "transaction"),
        ({"sys_flag": 12}, "transaction"),
        ({"sys_flag": 0xC0}, "several messages in one record"),
        ({"sys_flag": 1 << 31}, "sys_flag"),
        ({"reconsume_times": -(1 << 31) - 1}, "reconsume_times"),
        ({"born_timestamp": "now"}, "born_timestamp"),
        ({"prepared_transaction_offset": None}, "prepared_transaction_offset"),
    ],
)
def test_a_message_born_elsewhere_has_numbers_that_fit(tmp_path, fields, text):
    """Values that no record can hold, or none has held since RocketMQ 4.3, are refused by name."""
    store = open_store(tmp_path / "store")
    with pytest.raises(MessageIllegal, match=text):
        store.put(inner_message(**fields))
    assert store.appended == 0
    store.close(views_complete=False)


def test_a_property_of_several_messages_under_one_record_is_refused(tmp_path):
    """RocketMQ has it only in topics with batch queues."""
    store = open_store(tmp_path / "store")
    with pytest.raises(MessageIllegal, match="name=INNER_NUM value='2' topic=orders"):
        store.put(Message("orders", b"body", properties={"INNER_NUM": "2"}))
    store.close(views_complete=False)


def test_delayed_messages_are_told_as_they_are_stored(tmp_path):
    """Level and delivery time, for single messages and for batches; a level may have no delay."""
    store = open_store(tmp_path / "store", message_delay_level="0s 5s")
    told: list[tuple[int, int]] = []
    store.appender.on_delayed = lambda level, timestamp: told.append((level, timestamp))
    store.put(Message("orders", b"", delay_level=2))
    store.put_batch([Message("orders", b""), Message("orders", b"", delay_level=1)])
    store.close(views_complete=False)
    assert told == [(2, START_MS + 5000), (1, START_MS)]


def test_a_batch_that_a_full_disk_cuts_says_how_much_of_it_is_stored(tmp_path):
    """The messages before the next segment are stored, the later ones are not."""
    files = FailingFiles()
    store = open_store(tmp_path / "store", files=files)
    files.create_error = errno.ENOSPC
    with pytest.raises(StoreFull) as refused:
        store.put_batch([message_of_size(1000) for _ in range(12)])
    appended = store.appended
    files.create_error = None
    store.close(views_complete=False)
    assert refused.value.stored_count == appended // 1000 > 0


class NoRoomFor(FailingFiles):
    """A disk without space for a small file whose name begins with a given text."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def replace(self, path: Path, data: bytes) -> None:
        if path.name.startswith(self.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().replace(path, data)


def test_a_store_whose_own_files_have_no_room_is_not_opened_and_says_which(tmp_path):
    """Once there is space, it opens with all its data."""
    opened = open_store(tmp_path / "store")
    offset = opened.put(message_of_size(300)).next_commit_log_offset
    opened.close(views_complete=True)
    with pytest.raises(StoreFull, match=r"opened for writing: .*error=No space.* path=.*/reput/epochs"):
        open_store(tmp_path / "store", files=NoRoomFor("epochs"))
    opened = open_store(tmp_path / "store")
    assert opened.appended == offset
    opened.close(views_complete=True)


def test_a_topic_with_batch_queues_takes_no_message(tmp_path):
    """It could not be read by its queue: reput builds no such queue, and RocketMQ has already passed the record."""
    store = open_store(tmp_path / "store")
    store.put(Message("orders", b""))
    topics = TopicConfigManager(tmp_path / "store")
    topics.put("batches", TopicConfig(topic_name="batches", attributes={"queue.type": "BatchCQ"}))
    topics.persist()
    (tmp_path / "store" / "batchconsumequeue" / "old" / "0").mkdir(parents=True)
    for topic in ("batches", "old"):
        with pytest.raises(MessageIllegal, match=f"batch consume queues .* topic={topic}"):
            store.put(Message(topic, b""))
    store.put(Message("bills", b""))
    store.close(views_complete=True)


def describe(directory: Path, topic: str, write_queue_nums: int) -> None:
    """Describe a topic in ``topics.json``."""
    topics = TopicConfigManager(directory)
    topics.load()
    topics.put(topic, TopicConfig(topic_name=topic, read_queue_nums=9, write_queue_nums=write_queue_nums))
    topics.persist()


def test_the_write_queues_of_a_described_topic_take_turns(store):
    """A message without a queue id goes to the next one, also in a batch; an undescribed topic has only queue 0."""
    describe(store.directory, "orders", 3)
    queue_ids = [store.put(Message("orders", b"")).queue_id for _ in range(4)]
    queue_ids += [result.queue_id for result in store.put_batch([Message("orders", b"", tags="a")] * 4)]
    assert queue_ids == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [store.put(Message("invoices", b"")).queue_id for _ in range(3)] == [0, 0, 0]
    assert store.put(Message("orders", b"", queue_id=7)).queue_id == 7


def test_a_sharding_key_picks_the_queue_as_rocketmqs_selector_does(store):
    """By the absolute remainder of Java's ``hashCode``, including its smallest value."""
    keys = ["order-17", "", "polygenelubricants", "ключ", "order-17"]
    describe(store.directory, "orders", 5)
    queue_ids = [store.put(Message("orders", b"", sharding_key=key)).queue_id for key in keys]
    # "polygenelubricants".hashCode() is Integer.MIN_VALUE; Java's remainder by 5 is -3.
    assert queue_ids == [abs(string_hash("order-17")) % 5, 0, 3, abs(string_hash("ключ")) % 5, queue_ids[0]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"queue_id": 1, "sharding_key": "a"}, "queue_id=1 sharding_key='a'"), ({"sharding_key": 7}, "sharding_key=7")],
)
def test_a_sharding_key_is_text_and_stands_alone(store, fields, words):
    """Together with a queue id it would be ambiguous."""
    with pytest.raises(MessageIllegal, match=words):
        store.put(Message("orders", b"", **fields))


def test_a_delayed_message_is_spread_when_it_is_put(store):
    """It stores the selected queue."""
    describe(store.directory, "orders", 2)
    for _ in range(3):
        store.put(Message("orders", b"", delay_level=1))
    store.put(Message("orders", b"", sharding_key="b", delay_level=1))
    assert [(record.topic, record.properties["REAL_QID"]) for record in records(store.directory)] == [
        ("SCHEDULE_TOPIC_XXXX", queue_id) for queue_id in ("0", "1", "0", "0")
    ]


def test_a_topic_that_is_described_anew_is_spread_anew(store):
    """The store is notified, and reads the description at the next put."""
    describe(store.directory, "orders", 2)
    assert [store.put(Message("orders", b"")).queue_id for _ in range(2)] == [0, 1]
    describe(store.directory, "orders", 4)
    store.topic_table.topic_changed("orders")
    assert {store.put(Message("orders", b"")).queue_id for _ in range(4)} == {0, 1, 2, 3}


def test_a_description_that_changes_while_it_is_looked_up_is_not_missed(store):
    """A description read before the change is not kept after it."""
    describe(store.directory, "orders", 1)
    store.put(Message("orders", b""))
    store.topic_table.topic_changed("orders")
    find, changing = store.topic_table.batch_topics.described.find, []

    def find_while_it_changes(topic):
        found = find(topic)
        if not changing:
            describe(store.directory, "orders", 4)
            changing.append(threading.Thread(target=store.topic_table.topic_changed, args=("orders",)))
            changing[0].start()
        return found

    store.topic_table.batch_topics.described.find = find_while_it_changes
    store.put(Message("orders", b""))
    changing[0].join()
    assert {store.put(Message("orders", b"")).queue_id for _ in range(4)} == {0, 1, 2, 3}

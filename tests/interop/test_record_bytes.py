"""Byte by byte: reput writes the same bytes as RocketMQ, given the same properties string.

Both stores get the same messages at the same times, by their own clocks, so the comparison covers everything: times,
hosts, CRCs, the blanks at the ends of segments, and therefore also queue units and index entries.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from interop.java_program import OLDER_VERSIONS, enters_tags
from interop.put_questions import batch_question, put_question
from interop.rocketmq_store import RocketMQStore
from reput.embedded.store_engine import StoreEngine
from reput.settings import Settings
from reput.store.message_store import MessageStore
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.message import Message
from reput_hooks import Record
from small_store import ManualClock, records

pytestmark = [pytest.mark.java, pytest.mark.processes]

SEGMENT_SIZE = 4096
START_MS = 1_700_000_000_000
# A record's own bytes on topic "orders" with IPv4 hosts, without body and properties.
OVERHEAD = 91 + len("orders")
IPV6 = {"born_host": "[2001:db8::17]:40001", "store_host": "[::1]:10911"}
MESSAGES = [
    Message("orders", b"plain"),
    Message("orders", b""),
    Message("orders", b"tagged", tags="paid", keys=["k1", "k2"]),
    Message("orders", b"properties", properties={"a": "1", "UNIQ_KEY": "7F0000010000", "b": "x\x01y"}, keys="k1"),
    Message("orders", b"text", tags="größer", properties={"名": "値", "face": "\U0001f600"}),
    Message("orders", bytes(range(256)), flag=-7, queue_id=3),
    Message("orders", b"extremes", flag=2**31 - 1, queue_id=2**31 - 1),
    Message("%RETRY%group", b"again", properties={"RETRY_TOPIC": "orders"}),
    Message("t" * 127, b"the longest topic of the first version"),
    Message("orders", b"x" * 3000, properties={"long": "y" * 800}),
]


def settings_of(**settings: object) -> Settings:
    """Return settings with segments of 4 KiB."""
    return Settings(
        mapped_file_size_commit_log=SEGMENT_SIZE,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=50,
        max_index_num=200,
        **settings,
    )


def put_by_reput(
    directory: Path, settings: Settings, messages: Sequence[Message | list[Message]], start_ms: int
) -> None:
    """Let reput write *messages*, one per millisecond, and build the views. A list is a batch."""
    clock = ManualClock(start_ms)
    store = MessageStore(directory, settings, clock=clock)
    for message in messages:
        clock.ms += 1
        if isinstance(message, list):
            store.put_batch(message)
        else:
            store.put(message)
    store.close(views_complete=False)
    StoreEngine(directory, settings, "inline").close()


def put_by_rocketmq(
    store: RocketMQStore, settings: Settings, messages: Sequence[Message | list[Message]], start_ms: int
) -> None:
    """Let RocketMQ write the same messages at the same times."""
    for ms, message in enumerate(messages, start_ms + 1):
        store.set_clock(ms)
        if isinstance(message, list):
            answer = store.ask(**batch_question(message, settings, ms))
        else:
            answer = store.ask(**put_question(message, settings, ms))
        assert answer["status"] == "PUT_OK", answer
    # The answer comes when everything is dispatched. Mapped writes of a killed process stay in its files.
    store.queues()
    store.kill()


def data_bytes(root: Path) -> dict[str, bytes]:
    """Return the nonempty files below *root* by their relative names, without trailing zeros."""
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data.rstrip(b"\0") for name, data in sorted(files.items()) if data.strip(b"\0")}


@pytest.fixture
def assert_same_bytes(tmp_path, rocketmq, version):
    """Return a function in which both write the same, and which compares records as text, then all files as bytes."""

    def compare(
        messages: Sequence[Message | list[Message]],
        settings: Settings,
        *,
        start_ms: int = START_MS,
        theirs_instead: Sequence[Message] | None = None,
        **java_settings: object,
    ) -> None:
        ours, theirs = tmp_path / "ours", tmp_path / "theirs"
        settings = msgspec.structs.replace(settings, index_tags=enters_tags(version))
        put_by_reput(ours, settings, messages, start_ms)
        theirs.mkdir()
        put_by_rocketmq(rocketmq(theirs, settings, **java_settings), settings, theirs_instead or messages, start_ms)
        assert records(ours) == records(theirs)
        assert data_bytes(ours / "commitlog") == data_bytes(theirs / "commitlog")
        assert data_bytes(theirs / "consumequeue")
        assert data_bytes(ours / "consumequeue") == data_bytes(theirs / "consumequeue")
        # An index file's name is the time of its creation.
        assert list(data_bytes(ours / "index").values()) == list(data_bytes(theirs / "index").values())

    return compare


def test_records_are_the_same_bytes(assert_same_bytes):
    """Tags, keys, text of any script, flags, queues, the longest topic, and a body of most of a segment."""
    assert_same_bytes(MESSAGES, settings_of())


@pytest.mark.parametrize("version", OLDER_VERSIONS, indirect=True)
def test_records_with_ipv6_hosts_are_the_same_bytes(assert_same_bytes):
    """Both hosts take 20 bytes, and both flags are set."""
    assert_same_bytes(MESSAGES, settings_of(**IPV6))


@pytest.mark.parametrize("version", OLDER_VERSIONS, indirect=True)
@pytest.mark.parametrize("which", IPV6)
def test_one_ipv6_host_among_two_is_the_same_bytes(assert_same_bytes, which):
    """Each host has its own flag."""
    assert_same_bytes(MESSAGES, settings_of(**{which: IPV6[which]}))


def test_segments_end_where_rocketmq_ends_them(assert_same_bytes):
    """A record that leaves exactly a blank's eight bytes stays; one that leaves seven goes to the next segment."""
    sizes = [1000, SEGMENT_SIZE - 1000 - 8, 1000, SEGMENT_SIZE - 1000 - 7, 100, SEGMENT_SIZE - 8, 200]
    assert_same_bytes([Message("orders", b"x" * (size - OVERHEAD)) for size in sizes], settings_of())


def test_any_messages_are_the_same_bytes(assert_same_bytes):
    """Three hundred messages of random sizes, queues, tags, keys and properties, from a fixed seed."""
    rng = random.Random(17)
    alphabet = "abc é値\U0001f600"
    messages = []
    for _ in range(300):
        properties = {
            f"p{number}": "".join(rng.choices(alphabet, k=rng.randrange(1, 30))) for number in range(rng.randrange(4))
        }
        message = Message(
            rng.choice(["orders", "payments", "%RETRY%g", "a|b-c_d"]),
            rng.randbytes(rng.choice([0, 1, 30, 300, 900])),
            tags=rng.choice([None, "paid", "größer"]),
            keys=[f"k{rng.randrange(20)}" for _ in range(rng.randrange(3))] or None,
            properties=properties,
            flag=rng.randrange(-(2**31), 2**31),
            queue_id=rng.randrange(4),
        )
        messages.append(message)
    assert_same_bytes(messages, settings_of())


def test_batches_are_the_same_bytes(assert_same_bytes):
    """A batch has one record per message, all with the same time, with consecutive queue offsets."""
    batch = [Message("orders", b"b%d" % number, tags="paid", keys=f"k{number}", flag=number) for number in range(10)]
    # The last one does not fit and moves as a whole to the next segment.
    assert_same_bytes([MESSAGES[0], batch, MESSAGES[1], batch[:1], batch, batch], settings_of())


@pytest.mark.parametrize("version", ["5.3.3"], indirect=True)
def test_records_with_a_crc_of_the_whole_are_the_same_bytes(assert_same_bytes):
    """The CRC property covers every byte of the record, so one wrong byte would become two."""
    assert_same_bytes(MESSAGES, settings_of(enabled_append_prop_crc=True), enabledAppendPropCRC=True)


@pytest.mark.parametrize("version", ["5.3.3"], indirect=True)
def test_batches_with_a_crc_of_the_whole_are_the_same_bytes(assert_same_bytes):
    """Each message of a batch has its own CRC."""
    batch = [Message("orders", b"b%d" % number, tags="paid") for number in range(5)]
    assert_same_bytes([batch, batch], settings_of(enabled_append_prop_crc=True), enabledAppendPropCRC=True)


@pytest.mark.parametrize("version", ["5.3.3"], indirect=True)
def test_topics_beyond_the_first_version_are_the_same_bytes(assert_same_bytes):
    """From 128 bytes on the record has the second version, which 4.9 cannot read."""
    topics = ["%RETRY%" + "g" * size for size in (120, 121, 248)]
    assert_same_bytes([Message(topic, b"body", tags="t") for topic in topics], settings_of())


@pytest.mark.parametrize("version", ["5.3.3"], indirect=True)
def test_delayed_messages_are_the_same_bytes(assert_same_bytes):
    """A delayed message waits on the schedule topic; its unit there has the due time in place of the tags code.

    In version 5 the broker changes the message before the store gets it, so RocketMQ gets the changed message here.
    """
    # Due messages would be delivered while the views are built.
    start_ms = time.time_ns() // 1_000_000
    delayed = [Message("orders", b"%d" % level, tags="t", queue_id=2, delay_level=level) for level in (16, 17, 18, 99)]
    changed = [
        Message(
            SCHEDULE_TOPIC,
            message.body,
            properties={"DELAY": str(level), "REAL_TOPIC": "orders", "REAL_QID": "2", "TAGS": "t"},
            queue_id=level - 1,
        )
        for message, level in zip(delayed, (16, 17, 18, 18), strict=True)
    ]
    assert_same_bytes(delayed, settings_of(), start_ms=start_ms, theirs_instead=changed)


@pytest.mark.parametrize("version", ["4.9.7"], indirect=True)
def test_delayed_messages_are_changed_as_rocketmq_changes_them(tmp_path, rocketmq):
    """Version 4 does it in its store: the same topic, queue, properties and due time; only their order differs."""
    # RocketMQ delivers due messages at once, so none may be due.
    start_ms = time.time_ns() // 1_000_000
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    delayed = [Message("orders", b"%d" % level, tags="t", queue_id=2, delay_level=level) for level in (17, 18, 99)]
    asked = [
        msgspec.structs.replace(message, delay_level=0, properties={"DELAY": str(message.delay_level)})
        for message in delayed
    ]
    put_by_reput(ours, settings_of(), delayed, start_ms)
    theirs.mkdir()
    put_by_rocketmq(rocketmq(theirs, settings_of()), settings_of(), asked, start_ms)
    assert [without_place(record) for record in records(ours)] == [without_place(record) for record in records(theirs)]
    assert due_times(ours) == due_times(theirs)
    assert len(due_times(ours)) == 3


def without_place(record: Record) -> Record:
    """Return *record* without the fields that depend on a trailing separator of the properties string."""
    return replace(record, commit_log_offset=0, record_size=0, message_id="")


def due_times(store: Path) -> list[int]:
    """Return the tags codes of the schedule topic's units."""
    units = b"".join(data_bytes(store / "consumequeue" / SCHEDULE_TOPIC).values())
    return [int.from_bytes(units[at + 12 : at + 20], "big", signed=True) for at in range(0, len(units), 20)]

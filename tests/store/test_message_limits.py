"""What the writer refuses: topics, bodies, properties and records beyond the limits."""

from __future__ import annotations

import pytest

from reput.errors import (
    MessageIllegal,
)
from reput.filter.string_hash import string_hash
from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager
from reput.store.record.message import Message, MessageExtBrokerInner, message_properties
from reput.store.writer import message_preparer
from small_store import (
    SEGMENT_SIZE,
    log_bytes,
    message_of_size,
    open_store,
    records,
)
from store.message_stores import inner_message


@pytest.fixture
def store(tmp_path):
    """A new store of small segments, closed afterwards."""
    opened = open_store(tmp_path / "store")
    yield opened
    if opened.state != "STOPPED":
        opened.close(views_complete=True)


@pytest.mark.parametrize("level", ["x", " 1", "1_0", "9999999999"])
def test_a_delay_that_rocketmq_cannot_read_is_refused(store, level):
    """Its recovery treats a record of the schedule topic with such a level as invalid, and ends the log there; for
    other topics its broker refuses it."""
    with pytest.raises(MessageIllegal, match="DELAY="):
        store.put(Message("SCHEDULE_TOPIC_XXXX", b"", properties={"DELAY": level}))
    with pytest.raises(MessageIllegal, match="DELAY="):
        store.put(Message("orders", b"", properties={"DELAY": level}))
    assert store.appended == 0


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


def test_tags_that_others_have_sent_are_refused_to_the_program(store):
    """A program may not put tags that no consumer can select, whether or not the store has met them before."""
    store.put(MessageExtBrokerInner("orders", b"", tags="a || b"))
    with pytest.raises(MessageIllegal, match="no consumer can select"):
        store.put(Message("orders", b"", tags="a || b"))


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

"""Multi-dispatch: one record in several queues, as stored by a broker with light queues (LMQ)."""

from __future__ import annotations

import base64
import json

import pytest

import reput
from reput.errors import MessageIllegal
from reput.settings import Settings
from reput.store.check.check import check_store

SETTINGS = {"enable_multi_dispatch": True, "enable_lmq": True, "mapped_file_size_commit_log": 65536}
NAMES = "INNER_MULTI_DISPATCH"
OFFSETS = "INNER_MULTI_QUEUE_OFFSET"


@pytest.fixture
def opened(tmp_path):
    """An open store that dispatches into additional queues."""
    with reput.open(tmp_path / "store", mode="inline", **SETTINGS) as store:
        yield store


def to(names: str, **more: str) -> reput.Message:
    """Return a message for additional queues."""
    return reput.Message("orders", b"body", tags="t", keys=("k",), properties={NAMES: names, **more}, queue_id=2)


def bodies_at(store, topic, queue_id=0):
    """Return (commit-log offset, queue offset in its own queue) of a queue's messages."""
    return [record.commit_log_offset for record in store.get(topic, queue_id, 0, 100).records]


def test_a_message_is_in_each_queue_that_it_names(opened):
    """A light queue is queue 0 of its name; for other names the message's queue id is used."""
    first = opened.put(to("%LMQ%a,other"))
    second = opened.put(to("%LMQ%a"))
    opened.wait_for("consume_queue", second.next_commit_log_offset, timeout=60)
    assert bodies_at(opened, "orders", 2) == [first.commit_log_offset, second.commit_log_offset]
    assert bodies_at(opened, "%LMQ%a") == [first.commit_log_offset, second.commit_log_offset]
    assert bodies_at(opened, "other", 2) == [first.commit_log_offset]
    records = list(opened.records())
    assert [record.properties[OFFSETS] for record in records] == ["0,0", "1"]
    assert [record.record_size for record in records] == [first.record_size, second.record_size]


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("settings", [{}, {"enabled_append_prop_crc": True}])
def test_offsets_go_on_after_a_close_and_views_are_what_the_log_says(tmp_path, settings):
    """Also with a batch, whose messages share queues and shift each other's offsets there."""
    for _ in range(2):
        with reput.open(tmp_path / "store", mode="inline", **SETTINGS, **settings) as store:
            store.put_batch([to("%LMQ%a,%LMQ%b"), reput.Message("orders", b"plain"), to("%LMQ%b,orders")])
            store.put(to("%LMQ%a", **{OFFSETS: "77"}))
    with reput.open(tmp_path / "store", mode="inline", **SETTINGS, **settings) as store:
        assert [record.properties.get(OFFSETS) for record in store.records()] == [
            "0,0", None, "1,1", "1",
            "2,2", None, "3,4", "3",
        ]  # fmt: skip
        assert len(store.get("%LMQ%a", 0, 0, 100).records) == 4
    report = check_store(tmp_path / "store", Settings())
    assert report.ok
    assert report.views["consume_queue"].state == "equal"


def test_the_light_queues_of_a_broker_come_out_the_same(golden_read_only, tmp_path):
    """Messages stored by RocketMQ and put again by reput have the same units in every light queue."""
    golden = golden_read_only("lmq-5.3")
    rows = [json.loads(line) for line in (golden / "listing.jsonl").read_text().splitlines()]
    expected: dict[str, list[str]] = {}
    light = [row for row in rows if NAMES in (row["properties"] or {})]
    assert light
    with reput.open(tmp_path / "store", mode="inline", **SETTINGS) as store:
        for row in light:
            properties = {name: text for name, text in row["properties"].items() if name != OFFSETS}
            message = reput.Message(
                row["topic"], base64.b64decode(row["body"]), properties=properties, queue_id=row["queueId"]
            )
            store.put(message)
            for name in properties[NAMES].split(","):
                expected.setdefault(name, []).append(row["body"])
        store.wait_for("consume_queue", store.appended, timeout=60)
        assert [record.properties[OFFSETS] for record in store.records()] == [
            row["properties"][OFFSETS] for row in light
        ]
        for name, bodies in expected.items():
            found = store.get(name, 0, 0, 1000).records
            assert [base64.b64encode(record.body).decode() for record in found] == bodies


@pytest.mark.parametrize("topic", ["%RETRY%group", "rmq_sys_x"])
def test_what_comes_again_is_in_no_further_queue(opened, topic):
    """It is a copy of an existing message."""
    opened.put(reput.Message(topic, b"", properties={NAMES: "%LMQ%a"}))
    assert OFFSETS not in next(iter(opened.records())).properties
    opened.wait_for("consume_queue", opened.appended, timeout=60)
    assert opened.get("%LMQ%a", 0, 0).records == []


def test_a_waiting_pull_of_a_light_queue_is_woken(opened):
    """A consumer of the light queue receives the message like one of its own topic."""
    with opened.consumer("group", "%LMQ%a", begin="earliest") as consumer:
        opened.put(to("%LMQ%a"))
        record = next(iter(consumer))
        assert record.body == b"body"
        consumer.acknowledge(record)


@pytest.mark.parametrize(
    ("names", "said"), [("../x", "illegal character"), ("a,,b", "blank"), (",".join(["q" * 100] * 330), "too long")]
)
def test_names_that_no_topic_may_have_are_refused(opened, names, said):
    """Nothing is stored, because a name becomes a directory."""
    with pytest.raises(MessageIllegal, match=said):
        opened.put(to(names))
    with pytest.raises(MessageIllegal, match="lack space for the offsets"):
        opened.put(to(",".join(["q" * 90] * 330)))
    assert opened.appended == 0


def test_there_may_be_so_many_light_queues(tmp_path):
    """One more is refused with RocketMQ's status, alone in its batch of tasks; existing ones continue."""
    with reput.open(tmp_path / "store", mode="inline", max_lmq_consume_queue_num=1, **SETTINGS) as store:
        store.put(to("%LMQ%a"))
        with pytest.raises(MessageIllegal, match="LMQ_CONSUME_QUEUE_NUM_EXCEEDED"):
            store.put(to("%LMQ%b"))
        store.put(to("%LMQ%a"))
        assert [record.properties[OFFSETS] for record in store.records()] == ["0", "1"]


def test_it_is_off_unless_asked_for(tmp_path):
    """The property is stored like any other."""
    with reput.open(tmp_path / "store", mode="inline") as store:
        store.put(to("%LMQ%a"))
        assert next(iter(store.records())).properties == {NAMES: "%LMQ%a", "KEYS": "k", "TAGS": "t"}

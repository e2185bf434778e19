"""Stores created by RocketMQ: reput opens them for writing, whatever kinds of records they hold."""

from __future__ import annotations

import random
import shutil

import pytest

import reput
from delivering import wait_until
from interop.file_sizes import FILE_SIZES
from interop.java_program import OLDER_VERSIONS
from interop.ledger import (
    Ledger,
    assert_read_by_reput,
    assert_read_by_rocketmq,
    comparable,
    put_by_reput,
    put_by_rocketmq,
    random_messages,
)
from interop.put_questions import batch_question, put_question
from reput.settings import Settings
from reput.store.record.message import Message
from written_log import inner_batch_body

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow]

SETTINGS = Settings(**FILE_SIZES)
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
INNER_BATCH = 0xC0


@pytest.mark.parametrize("end", [pytest.param("shutdown", marks=pytest.mark.long), "kill"])
def test_a_store_of_rocketmqs_goes_on_under_reput(tmp_path, rocketmq, end):
    """Its queue offsets continue, its messages can be read, and RocketMQ can open the store again."""
    directory = tmp_path / "store"
    directory.mkdir()
    ledger = Ledger(SETTINGS)
    rng = random.Random(5)
    opened = rocketmq(directory, SETTINGS)
    put_by_rocketmq(opened, ledger, random_messages(rng, 80))
    opened.queues()
    getattr(opened, end)()
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        assert_read_by_reput(store, ledger)
        put_by_reput(store, ledger, random_messages(rng, 40))
        assert_read_by_reput(store, ledger)
    opened = rocketmq(directory, SETTINGS)
    assert_read_by_rocketmq(opened, ledger)
    opened.shutdown()


def test_transactions_batches_and_repeats_keep_their_places(tmp_path, rocketmq):
    """Prepared and rolled-back records have no queue offset; a batch has one for each of its messages."""
    directory = tmp_path / "store"
    directory.mkdir()
    opened = rocketmq(directory, SETTINGS)
    kinds = {"plain": 0, "prepared": PREPARED, "committed": COMMIT, "rolled back": ROLLBACK}
    for name, sys_flag in [*kinds.items(), *kinds.items()]:
        message = Message("orders", name.encode(), tags="t", keys=[name.replace(" ", "-")])
        answer = opened.ask(
            **put_question(message, SETTINGS, 1, sysFlag=sys_flag, reconsumeTimes=3, preparedTransactionOffset=17)
        )
        assert answer["status"] == "PUT_OK"
    batch = [Message("orders", b"batch %d" % number, keys=[f"b{number}"]) for number in range(5)]
    assert opened.ask(**batch_question(batch, SETTINGS, 1))["status"] == "PUT_OK"
    theirs = opened.records()
    queue = opened.read_queue("orders", 0)
    opened.shutdown()
    in_queue = [b"plain", b"committed"] * 2 + [message.body for message in batch]
    assert [record.body for record in queue] == in_queue

    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        store.wait_for("index", store.appended, timeout=60)
        assert comparable(store.records()) == theirs
        assert comparable(store.get("orders", count_max=32).records) == queue
        assert [record.body for record in store.query("orders", "prepared")] == [b"prepared"] * 2
        assert [record.body for record in store.query("orders", "rolled-back")] == []
        result = store.put(Message("orders", b"by reput", keys=["plain"]))
        assert result.queue_offset == len(in_queue)
    opened = rocketmq(directory, SETTINGS)
    assert [record.body for record in opened.read_queue("orders", 0)] == [*in_queue, b"by reput"]
    assert [record.body for record in opened.query("orders", "plain")] == [b"plain", b"plain", b"by reput"]
    opened.shutdown()


@pytest.mark.parametrize("version", OLDER_VERSIONS, indirect=True)
def test_messages_dispatched_to_several_queues_are_found_in_each(tmp_path, rocketmq):
    """Light message queues: one record, with a unit in its own queue and one in each queue that its property names."""
    directory = tmp_path / "store"
    directory.mkdir()
    light = {"enableLmq": True, "enableMultiDispatch": True}
    opened = rocketmq(directory, SETTINGS, **light)
    for number in range(30):
        names = ",".join(f"%LMQ%{name}" for name in "abc"[: 1 + number % 3])
        message = Message("orders", b"%d" % number, properties={"INNER_MULTI_DISPATCH": names}, keys=[f"k{number}"])
        assert opened.ask(**put_question(message, SETTINGS, 1))["status"] == "PUT_OK"
    theirs = {name: opened.read_queue(f"%LMQ%{name}", 0) for name in "abc"}
    own = opened.read_queue("orders", 0)
    assert [len(records) for records in theirs.values()] == [30, 20, 10]
    opened.shutdown()
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        store.wait_for("consume_queue", store.appended, timeout=60)
        for name, records in theirs.items():
            assert comparable(store.get(f"%LMQ%{name}", count_max=64).records) == records
        assert comparable(store.get("orders", count_max=64).records) == own
        assert store.put(Message("orders", b"by reput")).queue_offset == 30
    opened = rocketmq(directory, SETTINGS, **light)
    assert {name: opened.read_queue(f"%LMQ%{name}", 0) for name in "abc"} == theirs
    assert [record.body for record in opened.read_queue("orders", 0)[-2:]] == [b"29", b"by reput"]
    answer = opened.ask(
        **put_question(Message("orders", b"last", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}), SETTINGS, 1)
    )
    assert answer["status"] == "PUT_OK"
    assert [record.body for record in opened.read_queue("%LMQ%a", 0)[-2:]] == [b"29", b"last"]
    opened.shutdown()


@pytest.mark.parametrize("version", ["5.3.3"], indirect=True)
def test_long_topics_and_record_crcs_are_read_by_both(tmp_path, rocketmq):
    """Both check the CRC of the whole record in their recovery, and refuse a record without one."""
    directory = tmp_path / "store"
    options = {**FILE_SIZES, "enabled_append_prop_crc": True, "force_verify_prop_crc": True}
    verified = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
    topic = "%RETRY%" + "g" * 200
    with reput.open(directory, mode="inline", **options) as store:
        store.put_batch([Message(topic, b"ours %d" % number, tags="t") for number in range(20)])
        store.put_batch([Message("orders", b"ours")])
    opened = rocketmq(directory, SETTINGS, **verified)
    assert len(opened.records()) == 21
    for number in range(20):
        message = Message(topic, b"theirs %d" % number, tags="t")
        assert opened.ask(**put_question(message, SETTINGS, 1))["status"] == "PUT_OK"
    opened.queues()
    opened.kill()
    with reput.open(directory, mode="inline", **options) as store:
        store.wait_for("consume_queue", store.appended, timeout=60)
        found = store.get(topic, count_max=64).records
        assert [record.body for record in found] == [
            b"%s %d" % (who, n) for who in (b"ours", b"theirs") for n in range(20)
        ]
        assert all("__CRC32#" in record.properties for record in found)
        store.put(Message(topic, b"last"))
    opened = rocketmq(directory, SETTINGS, **verified)
    assert len(opened.read_queue(topic, 0)) == 41
    opened.shutdown()


@pytest.mark.parametrize("version", OLDER_VERSIONS, indirect=True)
def test_a_topic_that_rocketmq_deleted_and_made_again_is_its_new_life(tmp_path, rocketmq):
    """Killed, with its queues or without: reput assigns each place to its current record, like RocketMQ."""
    directory = tmp_path / "store"
    directory.mkdir()
    opened = rocketmq(directory, SETTINGS)

    def put(life: str, counts: list[int]) -> None:
        for queue_id, count in enumerate(counts):
            for number in range(count):
                message = Message("orders", b"%s %d" % (life.encode(), number), queue_id=queue_id)
                assert opened.ask(**put_question(message, SETTINGS, 1))["status"] == "PUT_OK"

    put("old", [9, 9, 9])
    opened.queues()
    opened.ask("delete_topic", topic="orders")
    put("new", [4, 1])
    theirs = [opened.read_queue("orders", queue_id) for queue_id in (0, 1)]
    assert [len(records) for records in theirs] == [4, 1]
    opened.kill()
    bare = shutil.copytree(directory, tmp_path / "bare")
    shutil.rmtree(bare / "consumequeue")
    for found in (bare, directory):
        with reput.open(found, mode="inline", **FILE_SIZES) as store:
            store.wait_for("consume_queue", store.appended, timeout=60)
            assert [comparable(store.get("orders", queue_id).records) for queue_id in (0, 1, 2)] == [*theirs, []]
            assert [store.put(Message("orders", b"", queue_id=queue_id)).queue_offset for queue_id in (0, 2)] == [4, 0]
    opened = rocketmq(directory, SETTINGS)
    assert [len(opened.read_queue("orders", queue_id)) for queue_id in (0, 1, 2)] == [5, 1, 1]
    opened.shutdown()


@pytest.mark.parametrize("version", ["5.5.0"], indirect=True)
def test_messages_are_found_by_their_tags_whoever_put_them(tmp_path, rocketmq):
    """RocketMQ enters tags from 5.4 on, and reput continues to do so in such a store."""
    directory = tmp_path / "store"
    directory.mkdir()
    opened = rocketmq(directory, SETTINGS)
    for number in range(40):
        message = Message(
            "orders", b"theirs %d" % number, tags="paid" if number % 2 else "größer 😀", keys=f"k{number}"
        )
        assert opened.ask(**put_question(message, SETTINGS, 1))["status"] == "PUT_OK"
    opened.shutdown()
    expected = [b"theirs %d" % number for number in range(1, 40, 2)]
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        assert [record.body for record in store.query("orders", tags="paid")] == expected
        assert len(store.query("orders", tags="größer 😀")) == 20
        store.put_batch([Message("orders", b"ours %d" % number, tags="paid") for number in range(20)])
        expected += [b"ours %d" % number for number in range(20)]
        store.wait_for("index", store.appended, timeout=60)
        assert [record.body for record in store.query("orders", tags="paid")] == expected
    opened = rocketmq(directory, SETTINGS)
    # A query by tag searches for the hash of this key.
    assert [record.body for record in opened.query("orders", "T#paid")] == expected
    opened.kill()


@pytest.mark.parametrize("version", ["5.5.0"], indirect=True)
def test_batch_queues_are_read_and_left_as_they_are(tmp_path, rocketmq):
    """reput's consumers receive each message of a batch, and RocketMQ finds its queue unchanged."""
    directory = tmp_path / "store"
    directory.mkdir()
    opened = rocketmq(directory, SETTINGS)
    base = 0
    for count in (3, 1, 12, 5):
        message = Message("batches", inner_batch_body(base, count), properties={"INNER_NUM": str(count)})
        base += count
        # reput itself refuses to put such a message.
        assert opened.ask(**put_question(message, SETTINGS, 1, sysFlag=INNER_BATCH))["status"] == "PUT_OK"
    assert opened.queues()["batches", 0] == (0, base)
    opened.shutdown()
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        # Of a store that RocketMQ wrote, the view is known once its dispatcher has looked at the files.
        wait_until(lambda: store.queue_range("batches") == (0, base))
        assert [record.body for record in store.get("batches", 0, 0, 99)] == [b"m%d" % number for number in range(base)]
        with store.consumer("billing", "batches") as consumer:
            for number in range(base):
                received = consumer.receive(timeout=60)
                assert (received.queue_offset, received.body) == (number, b"m%d" % number)
                consumer.acknowledge(received)
        store.put(Message("orders", b"ours"))
    opened = rocketmq(directory, SETTINGS)
    assert opened.queues() == {("batches", 0): (0, base), ("orders", 0): (0, 1)}
    opened.kill()

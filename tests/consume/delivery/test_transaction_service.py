"""Transactions: stored first, delivered once their sender commits them, and never twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import reput
import reput_hooks
from consume.delivery.transacting import GROUP, of_topic, put_clients_half, put_half, set_clock
from delivering import LIMIT_S, open_inline, wait_until
from reput.consume.delivery import schedule_service
from reput.consume.delivery.half_messages import HALF_TOPIC, OP_TOPIC
from reput.consume.delivery.transaction_messages import TransactionState
from reput.embedded.store import Store
from reput.errors import MessageIllegal, RequestRefused
from reput.remoting.response_code import ResponseCode
from reput.store.config.topic_config_manager import TopicConfig
from reput.store.record.message import PutMessageStatus
from small_store import ManualClock

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_inline(tmp_path / "store") as opened:
        set_clock(opened, ManualClock())
        yield opened


def test_a_committed_message_is_delivered_once(store):
    """Before that it is invisible; then it is in its real topic and queue, as RocketMQ writes it."""
    half = put_half(store)
    assert of_topic(store, "orders") == []
    result = store.transactions.commit(half)
    (record,) = of_topic(store, "orders")
    assert (record.commit_log_offset, record.queue_offset) == (result.commit_log_offset, 0)
    assert (record.queue_id, record.flag, record.body, record.sys_flag) == (2, 9, b"body", 8)
    assert record.prepared_transaction_offset == half.commit_log_offset
    (stored,) = of_topic(store, HALF_TOPIC)
    assert (stored.queue_id, stored.sys_flag) == (0, 0)
    assert stored.properties == record.properties
    assert record.properties == {
        "KEYS": "k1",
        "TAGS": "paid",
        "UNIQ_KEY": half.transaction_id,
        "TRAN_MSG": "true",
        "PGROUP": GROUP,
        "__transactionId__": half.transaction_id,
        "REAL_TOPIC": "orders",
        "REAL_QID": "2",
    }
    (op,) = of_topic(store, OP_TOPIC)
    assert (op.body, op.queue_id, op.properties) == (b"0", 0, {"WAIT": "true", "TAGS": "d"})
    with pytest.raises(RequestRefused, match="settled"):
        store.transactions.commit(half)
    assert len(of_topic(store, "orders")) == 1


def test_a_transactions_queue_is_chosen_when_it_begins(store):
    """The half message gets a queue like any other message: in turn, or by its sharding key."""
    store._engine.services.topics.create_or_update(
        TopicConfig(topic_name="orders", read_queue_nums=3, write_queue_nums=3)
    )
    for fields in ({}, {}, {"sharding_key": "c"}):
        half = store.transactions.put_half(GROUP, reput.Message("orders", b"", **fields))
        store.transactions.commit(half)
    assert [record.queue_id for record in of_topic(store, "orders")] == [0, 1, ord("c") % 3]


def test_a_message_that_is_rolled_back_is_never_seen(store):
    half = put_half(store)
    store.transactions.rollback(half)
    assert of_topic(store, "orders") == []
    assert [op.body for op in of_topic(store, OP_TOPIC)] == [b"0"]
    with pytest.raises(RequestRefused, match="settled"):
        store.transactions.commit(half)


@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK])
def test_with_sync_flush_a_transaction_is_on_disk_when_that_is_said(tmp_path, answer):
    """Begin and settlement: once its sender has the answer, a power cut cannot undo it."""
    with open_inline(tmp_path / "store", flush_disk_type="SYNC_FLUSH") as store:
        half = put_half(store)
        assert store._engine.writer.durable == store.appended
        (store.transactions.commit if answer == COMMIT else store.transactions.rollback)(half)
        assert store._engine.writer.durable == store.appended


def test_a_transaction_for_which_the_disk_is_slow_is_there_all_the_same(tmp_path, monkeypatch):
    """The status says so, as for a put; it can be committed before it is on disk."""
    with open_inline(tmp_path / "store", flush_disk_type="SYNC_FLUSH") as store:
        assert store.transactions.status() == 0
        with monkeypatch.context() as patched:
            patched.setattr(store._engine.writer.durability, "wait", lambda end: False)
            patched.setattr(store._engine.writer.commit_log, "flush", lambda: store._engine.writer.durable)
            half = put_half(store)
            result = store.transactions.commit(half)
        assert half.result.status == result.status == PutMessageStatus.FLUSH_DISK_TIMEOUT
        assert [record.body for record in of_topic(store, "orders")] == [b"body"]


def test_what_a_hook_makes_of_a_half_message_is_what_is_committed(tmp_path):
    """The transaction is identified by the stored message, not by the given one."""

    class Signing:
        @reput_hooks.hookimpl
        def reput_before_put(self, message: reput.Message) -> reput.Message:
            return (
                msgspec.structs.replace(message, body=message.body + b"!") if message.topic == HALF_TOPIC else message
            )

    with open_inline(tmp_path / "store", hooks=[Signing()]) as store:
        store.transactions.commit(put_half(store))
        assert [record.body for record in of_topic(store, "orders")] == [b"body!"]
        assert store.transactions.status() == 0


def test_every_transaction_has_an_id_of_its_own(store):
    """32 upper-case hex digits, unless the sender gave one."""
    ids = {put_half(store).transaction_id for _ in range(100)}
    assert len(ids) == 100
    assert all(len(name) == 32 and name == name.upper() and int(name, 16) for name in ids)
    assert put_half(store, properties={"UNIQ_KEY": "mine"}).transaction_id == "mine"


@pytest.mark.parametrize(
    "change",
    [
        {"producer_group": "others"},
        {"queue_offset": 1},
        {"commit_log_offset": 1},
        {"commit_log_offset": 1 << 40},
        {"commit_log_offset": -1},
    ],
)
def test_only_the_half_message_that_is_named_rightly_is_settled(store, change):
    """By group, queue offset and commit-log offset; any other combination changes nothing."""
    half = put_half(store)
    end = store.appended
    with pytest.raises(RequestRefused) as refused:
        store.transactions.commit(msgspec.structs.replace(half, **change))
    assert refused.value.response_code == ResponseCode.SYSTEM_ERROR
    assert store.appended == end
    store.transactions.commit(half)


def test_an_answer_that_says_nothing_settles_nothing(store):
    half = put_half(store)
    assert store._engine.transactional_messages.end(GROUP, half.commit_log_offset, half.queue_offset, UNKNOWN) is None
    assert store.transactions.status() == 1


@pytest.mark.parametrize("state", [5, 1, True, "COMMIT", None])
def test_a_state_that_is_none_settles_nothing(store, state):
    """An uncommitted message is not delivered, and a message that was not rolled back is not dropped."""
    half = put_half(store)
    assert store._engine.transactional_messages.end(GROUP, half.commit_log_offset, half.queue_offset, state) is None
    assert store.transactions.status() == 1
    assert of_topic(store, "orders") == []


def test_what_no_transaction_can_be_is_refused(tmp_path):
    """Delayed, without a group, to an invalid or internal topic, or if the store accepts no transactions."""
    with open_inline(tmp_path / "store") as store:
        with pytest.raises(MessageIllegal, match="delayed"):
            put_half(store, delay_level=1)
        with pytest.raises(MessageIllegal, match="group"):
            store.transactions.put_half("", reput.Message("orders", b""))
        with pytest.raises(MessageIllegal, match="topic"):
            store.transactions.put_half(GROUP, reput.Message("no topic", b""))
        with pytest.raises(MessageIllegal, match="topic"):
            store.transactions.put_half(GROUP, reput.Message("RMQ_SYS_TRANS_HALF_TOPIC", b""))
        assert store.appended == 0
    with open_inline(tmp_path / "other", reject_transaction_message=True) as store:
        with pytest.raises(RequestRefused) as refused:
            put_half(store)
        assert refused.value.response_code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("fields", [{"delay_level": 2}, {"properties": {"DELAY": "2"}}])
def test_a_transaction_is_not_delayed(store, fields):
    """For every way to request a delay."""
    with pytest.raises(MessageIllegal, match="a transaction's message cannot be delayed: delay_level=2"):
        put_half(store, **fields)
    assert store.appended == 0


def test_a_delay_that_a_client_left_on_its_message_counts_from_the_commit(store, monkeypatch):
    """RocketMQ's own clients remove it; if a client did not, the committed message waits, and is delivered once."""
    # A delivery postponed until its queue is built would wait for a clock that does not move.
    monkeypatch.setattr(schedule_service, "WAIT_S", LIMIT_S)
    half = put_clients_half(store, DELAY="1")
    store.transactions.commit(half)
    (waiting,) = of_topic(store, "SCHEDULE_TOPIC_XXXX")
    assert (waiting.sys_flag, waiting.prepared_transaction_offset) == (8, half.commit_log_offset)
    store._engine.writer.clock.ms += 1_000
    with store._engine.schedule.changed:
        store._engine.schedule.changed.notify_all()
    wait_until(lambda: len(of_topic(store, "orders")) == 1)
    assert of_topic(store, "orders")[0].queue_id == 2

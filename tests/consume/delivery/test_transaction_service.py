"""Transactions: stored first, delivered once their sender commits them, and never twice."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import reput
import reput_hooks
import small_store
from delivering import LIMIT_S, SMALL, all_records, open_inline, wait_until
from reput.consume.delivery import schedule_service
from reput.consume.delivery.half_messages import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC, done_offsets
from reput.consume.delivery.transaction_messages import HalfMessage, TransactionState, half_message
from reput.embedded.store import Store
from reput.errors import ConfigError, MessageIllegal, RequestRefused, StoreFull
from reput.remoting.response_code import ResponseCode
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager
from reput.store.disk.files import Clock
from reput.store.log.log_clock import PARTED_MS, SETTLED_MS, LogClock
from reput.store.record.message import MessageExtBrokerInner, PutMessageStatus
from reput.store.record.properties import PROPERTIES_SIZE_MAX
from reput_hooks import Record
from small_store import ManualClock

GROUP = "senders"
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_inline(tmp_path / "store") as opened:
        set_clock(opened, ManualClock())
        yield opened


def set_clock(store: Store, clock: ManualClock) -> None:
    """Make the store use this clock from now on."""
    small_store.set_clock(store._engine.writer, clock)
    store._engine.writer.log_clock = LogClock(clock, 0)


class RunningClock(ManualClock):
    """A clock whose monotonic seconds advance with its time."""

    def monotonic(self) -> float:
        return self.ms / 1000


def set_clock_after_idle(store: Store, clock: ManualClock) -> None:
    """Make the store use this clock from now on, as if its last message were twelve hours old."""
    small_store.set_clock(store._engine.writer, clock)
    store._engine.writer.log_clock = LogClock(clock, clock.ms - 12 * 3_600_000)


def put_half(store: Store, body: bytes = b"body", **fields: object) -> HalfMessage:
    message = reput.Message("orders", body, tags="paid", keys=["k1"], queue_id=2, flag=9, **fields)
    return store.transactions.put_half(GROUP, message)


def put_clients_half(store: Store, body: bytes = b"body", **properties: str) -> HalfMessage:
    """Put a half message as a broker does for a client, with arbitrary properties."""
    message = MessageExtBrokerInner("orders", body, properties=properties, queue_id=2)
    return store.transactions.put_half(GROUP, message)


def advance(store: Store, ms: int) -> None:
    """Advance the clock, and wait until the service has noticed."""
    assert isinstance(store._engine.writer.clock, ManualClock)
    clock, log_clock = store._engine.writer.clock, store._engine.writer.log_clock
    while ms > 0:
        # The service does not trust a clock that jumps.
        clock.ms += min(ms, PARTED_MS // 2)
        ms -= PARTED_MS // 2
        log_clock.now_ms()
    with store.transactions._open.changed:
        store.transactions._open.changed.notify_all()


def of_topic(store: Store, topic: str) -> list[Record]:
    return [record for record in all_records(store) if record.topic == topic]


def progress(path: Path) -> tuple[int | None, int | None]:
    """Return the committed offsets of the half and the op topic."""
    manager = ConsumerOffsetManager(path)
    manager.load()
    return tuple(manager.query_offset("CID_RMQ_SYS_TRANS", topic, 0) for topic in (HALF_TOPIC, OP_TOPIC))


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


@pytest.mark.parametrize("answer", [True, "ROLLBACK", 5, sys.exit])
def test_an_answer_that_is_none_is_asked_for_again(store, answer, caplog):
    """The invalid answer is logged; the next answer counts."""
    put_half(store)
    answers = [answer, COMMIT]
    store.transactions.on_check(GROUP, lambda half: sys.exit() if answers[0] is sys.exit else answers.pop(0))
    advance(store, 6_000)
    wait_until(lambda: "a checker" in caplog.text)
    assert store.transactions.status() == 1
    assert of_topic(store, "orders") == []
    answers[:] = [COMMIT]
    advance(store, 60_000)
    wait_until(lambda: store.transactions.status() == 0)
    assert len(of_topic(store, "orders")) == 1


def test_who_cannot_be_asked_is_refused(store):
    """The same holds for a value that is not a message."""
    with pytest.raises(ConfigError, match="checker=5"):
        store.transactions.on_check(GROUP, 5)
    with pytest.raises(MessageIllegal, match="not a message"):
        store.transactions.put_half(GROUP, b"body")


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


def test_a_sender_that_says_nothing_is_asked(store):
    """After the time-out, with the message and its real topic; the answer settles the transaction."""
    asked: list[Record] = []

    def checker(half: Record) -> TransactionState:
        asked.append(half)
        return COMMIT

    store.transactions.on_check(GROUP, checker)
    put_half(store)
    advance(store, 5_999)
    assert asked == []
    advance(store, 1)
    wait_until(lambda: store.transactions.status() == 0)
    (half,) = asked
    assert (half.topic, half.queue_id, half.queue_offset) == ("orders", 2, 1)
    assert half.properties["TRANSACTION_CHECK_TIMES"] == "1"
    (record,) = of_topic(store, "orders")
    assert record.prepared_transaction_offset == half.commit_log_offset
    assert [op.body for op in of_topic(store, OP_TOPIC)] == [b"1"]


def test_a_checker_that_does_not_return_keeps_no_store_open(tmp_path, monkeypatch, caplog):
    """Its late answer is ignored; the sender is asked again after the next opening."""
    monkeypatch.setattr("reput.consume.delivery.transaction_checks.CHECKER_PATIENCE_S", 0.01)
    asked, go_on = threading.Event(), threading.Event()

    def checker(half: Record) -> TransactionState:
        asked.set()
        go_on.wait(60)
        return COMMIT

    with open_inline(tmp_path / "store", transaction_time_out=1) as store:
        store.transactions.on_check(GROUP, checker)
        put_half(store)
        assert asked.wait(60)
        thread = store._engine.transactional_messages.checks.thread
    assert "a checker does not return" in caplog.text
    go_on.set()
    thread.join()
    with open_inline(tmp_path / "store") as store:
        assert store.transactions.status() == 1
        assert of_topic(store, "orders") == []


def test_a_late_commit_by_the_first_copy_delivers_once(store):
    """The sender was asked, answered "unknown", and commits with the offsets of the first copy."""
    half = put_half(store)
    store.transactions.on_check(GROUP, lambda _: UNKNOWN)
    advance(store, 6_000)
    wait_until(lambda: len(of_topic(store, HALF_TOPIC)) == 2)
    store.transactions.commit(half)
    store.transactions.on_check(GROUP, lambda _: COMMIT)
    advance(store, 600_000)
    put_half(store)
    store.transactions.rollback(put_half(store))
    assert len(of_topic(store, "orders")) == 1
    assert store.transactions.status() == 1


def test_a_message_says_itself_for_how_long_nobody_asks(store):
    """CHECK_IMMUNITY_TIME_IN_SECONDS; a commit that comes later must be the answer to a check."""
    asked: list[Record] = []
    store.transactions.on_check(GROUP, asked.append)
    half = put_half(store, properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
    put_half(store)
    advance(store, 59_000)
    wait_until(lambda: len(asked) == 1)
    assert asked[0].uniq_key != half.transaction_id
    advance(store, 1_001)
    wait_until(lambda: half.transaction_id in [record.uniq_key for record in asked])
    with pytest.raises(RequestRefused) as refused:
        store.transactions.commit(half)
    assert refused.value.response_code == ResponseCode.ILLEGAL_OPERATION
    offsets = (half.commit_log_offset, half.queue_offset)
    assert store._engine.transactional_messages.end(GROUP, *offsets, COMMIT, from_check=True) is not None


def test_who_was_asked_often_enough_is_given_up(tmp_path, caplog):
    """Its message goes to TRANS_CHECK_MAX_TIME_TOPIC, once, and the transaction ends."""
    with open_inline(tmp_path / "store", transaction_check_max=3, transaction_check_interval=1000) as store:
        set_clock(store, ManualClock())
        asked: list[Record] = []

        def checker(half: Record) -> None:
            asked.append(half)
            if len(asked) == 2:
                raise ValueError("the checker is broken")

        store.transactions.on_check(GROUP, checker)
        half = put_half(store)
        advance(store, 6_000)
        for count in (1, 2, 3):
            wait_until(lambda count=count: len(asked) == count)
            advance(store, 1_000)
        wait_until(lambda: store.transactions.status() == 0)
        assert [record.properties["TRANSACTION_CHECK_TIMES"] for record in asked] == ["1", "2", "3"]
        (discarded,) = of_topic(store, DISCARDED_TOPIC)
        assert (discarded.uniq_key, discarded.body, discarded.queue_id) == (half.transaction_id, b"body", 0)
        assert of_topic(store, "orders") == []
        assert "the checker is broken" in caplog.text
    manager = TopicConfigManager(tmp_path / "store")
    manager.load()
    assert {HALF_TOPIC, OP_TOPIC, DISCARDED_TOPIC} <= set(manager.entries)
    assert progress(tmp_path / "store") == (4, 1)


def test_a_transaction_that_was_given_up_can_be_opened_again(tmp_path):
    """Its sender is asked from the first question on; a commit delivers it once."""
    with open_inline(tmp_path / "store", transaction_check_max=1, transaction_check_interval=1000) as store:
        set_clock(store, ManualClock())
        asked: list[Record] = []
        answers = [None, None, COMMIT]

        def checker(half: Record) -> TransactionState | None:
            asked.append(half)
            return answers[len(asked) - 1]

        store.transactions.on_check(GROUP, checker)
        put_half(store)
        advance(store, 6_000)
        wait_until(lambda: len(asked) == 1)
        advance(store, 1_000)
        wait_until(lambda: store.transactions.status() == 0)
        (discarded,) = of_topic(store, DISCARDED_TOPIC)
        store.transactions.resume(discarded)
        assert store.transactions.status() == 1
        with pytest.raises(RequestRefused, match="open"):
            store.transactions.resume(discarded)
        advance(store, 1_000)
        wait_until(lambda: len(asked) == 2)
        assert [half.properties["TRANSACTION_CHECK_TIMES"] for half in asked] == ["1", "1"]
        advance(store, 1_000)
        wait_until(lambda: store.transactions.status() == 0)
        assert len(of_topic(store, DISCARDED_TOPIC)) == 2
        assert of_topic(store, "orders") == []


def test_a_transaction_that_was_opened_again_is_open_after_a_kill(tmp_path):
    """The record that gave it up lies before its half message, and settles nothing."""
    path = tmp_path / "store"
    with open_inline(path, transaction_check_max=1, transaction_check_interval=1000) as store:
        set_clock(store, ManualClock())
        # Nobody can be asked about this one, so it stays open, and the log is read from there on.
        other = store.transactions.put_half("others", reput.Message("orders", b"other"))
        asked: list[Record] = []
        store.transactions.on_check(GROUP, asked.append)
        put_half(store)
        advance(store, 6_000)
        wait_until(lambda: len(asked) == 1)
        advance(store, 1_000)
        wait_until(lambda: store.transactions.status() == 1)
        (discarded,) = of_topic(store, DISCARDED_TOPIC)
        assert other.commit_log_offset < discarded.commit_log_offset
        store.transactions.resume(discarded)
        assert store.transactions.status() == 2
        store.flush()
        killed = tmp_path / "killed"
        shutil.copytree(path, killed)
    with open_inline(killed) as store:
        assert store.transactions.status() == 2


def test_only_what_was_given_up_is_opened_again(store):
    """Not a half message, and not a message of another topic."""
    half = put_half(store)
    put = store.put(reput.Message("orders", b"x"))
    for offset in (half.commit_log_offset, put.commit_log_offset):
        record = next(record for record in all_records(store) if record.commit_log_offset == offset)
        with pytest.raises(RequestRefused, match="no half message that was given up"):
            store.transactions.resume(record)


def test_a_message_without_room_for_a_count_is_asked_about_as_often_as_any(tmp_path, caplog):
    """It does not block others; neither does one that cannot be put anywhere."""
    with open_inline(tmp_path / "store", transaction_check_max=2) as store:
        set_clock(store, ManualClock())
        asked: list[bytes] = []
        store.transactions.on_check(GROUP, lambda half: COMMIT if half.topic == "../x" else asked.append(half.body))
        size = next(size for size in range(PROPERTIES_SIZE_MAX, 0, -1) if has_room(store, size))
        odd = {"PGROUP": GROUP, "REAL_TOPIC": "../x", "REAL_QID": "0"}
        nowhere = store.put(MessageExtBrokerInner(HALF_TOPIC, b"nowhere", properties=odd))
        with store.transactions._open.changed:
            store.transactions._open.know(store.transactions._open.half_at(nowhere.commit_log_offset))
        put_half(store, b"large", properties={"large": "x" * size})
        put_half(store, b"small")
        for number in (1, 2):
            advance(store, store.settings.transaction_check_interval)
            wait_until(lambda times=number: sorted(asked) == [b"large"] * times + [b"small"] * times)
        advance(store, store.settings.transaction_check_interval)
        wait_until(lambda: store.transactions.status() == 0)
        assert sorted(record.body for record in of_topic(store, DISCARDED_TOPIC)) == [b"large", b"nowhere", b"small"]
        assert sum("cannot be settled" in record.message for record in caplog.records) == 2


@pytest.mark.parametrize("name", ["CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES", "DELAY"])
@pytest.mark.parametrize("value", ["9" * 400, "9" * 5000, "x"])
def test_a_number_that_is_none_counts_as_absent(tmp_path, name, value):
    """Otherwise any client could block all checks with such a message, again at every start."""
    path = tmp_path / "store"
    with open_inline(path) as store:
        put_clients_half(store, b"odd", **{name: value})
    with open_inline(path) as store:
        set_clock(store, ManualClock(Clock().now_ms() + 10_000))
        store.transactions.on_check(GROUP, lambda half: COMMIT)
        wait_until(lambda: store.transactions.status() == 0)
        assert [record.body for record in of_topic(store, "orders")] == [b"odd"]


def has_room(store: Store, size: int) -> bool:
    """Whether a half message with a property of *size* can be put."""
    message = reput.Message("orders", b"", tags="paid", keys=["k1"], properties={"large": "x" * size})
    try:
        store._engine.writer.preparer.prepare(half_message(message, GROUP, store._engine.writer.born_host))
    except MessageIllegal:
        return False
    return True


@pytest.mark.parametrize("fields", [{"delay_level": 2}, {"properties": {"DELAY": "2"}}])
def test_a_transaction_is_not_delayed(store, fields):
    """For every way to request a delay."""
    with pytest.raises(MessageIllegal, match="a transaction's message is not delayed: delay_level=2"):
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


def test_without_anybody_to_ask_a_transaction_waits(store):
    """Only real checks are counted; a checker that is registered later is asked then."""
    put_half(store)
    advance(store, 3_600_000)
    store.transactions.on_check("others", lambda _: COMMIT)
    assert len(of_topic(store, HALF_TOPIC)) == 1
    store.transactions.on_check(GROUP, lambda _: ROLLBACK)
    wait_until(lambda: store.transactions.status() == 0)
    assert of_topic(store, "orders") == []


@pytest.mark.slow
def test_a_clock_that_runs_ahead_for_a_moment_gives_up_no_transaction(store, caplog):
    """Its age is that of the log; RocketMQ discards messages that seem older than the log's retention."""
    put_half(store)
    asked = []
    store.transactions.on_check(GROUP, asked.append)
    advance(store, 6_000)
    wait_until(lambda: len(asked) == 1)
    assert isinstance(store._engine.writer.clock, ManualClock)
    store._engine.writer.clock.ms += 100 * 3_600_000
    advance(store, 59_000)
    assert "have parted" in (store._engine.writer.notice or "")
    assert "the clock was set" in caplog.text
    store._engine.writer.clock.ms -= 100 * 3_600_000
    # Read before it advances: two more seconds would part the clocks, and the service would check again only in a
    # minute.
    store._engine.writer.log_clock.now_ms()
    advance(store, 2_000)
    wait_until(lambda: len(asked) == 2)
    assert store.transactions.status() == 1
    assert of_topic(store, DISCARDED_TOPIC) == []
    assert store._engine.writer.notice is None


def test_a_sender_is_asked_in_time_after_the_store_has_lain_idle(store):
    """The time-out counts from the put, although the log's clock is hours behind for a while."""
    set_clock_after_idle(store, RunningClock())
    store.transactions.on_check(GROUP, lambda _: COMMIT)
    put_half(store)
    advance(store, 5_999)
    assert store.transactions.status() == 1
    advance(store, 1)
    wait_until(lambda: store.transactions.status() == 0)
    assert len(of_topic(store, "orders")) == 1


def test_a_sender_is_asked_once_the_clock_shows_that_it_is_due(store, monkeypatch):
    """The log's clock catches up with the machine's after ten minutes, without a notification."""
    monkeypatch.setattr("reput.consume.delivery.open_transactions.LOOK_S", 0.01)
    clock = RunningClock()
    set_clock_after_idle(store, clock)
    store.transactions.on_check(GROUP, lambda _: COMMIT)
    put_clients_half(store, CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    clock.ms += SETTLED_MS
    wait_until(lambda: store.transactions.status() == 0)
    assert len(of_topic(store, "orders")) == 1


def test_a_transaction_that_is_as_old_as_the_log_is_kept_is_given_up(store):
    """By elapsed hours, whatever a clock has shown meanwhile."""
    put_half(store)
    asked = []
    store.transactions.on_check("others", asked.append)
    advance(store, 72 * 3_600_000 + 60_000)
    wait_until(lambda: store.transactions.status() == 0)
    assert len(of_topic(store, DISCARDED_TOPIC)) == 1


def test_transactions_go_on_after_the_store_was_closed(tmp_path):
    """Settled ones stay settled; the others can be committed with the sender's stored offsets."""
    path = tmp_path / "store"
    with open_inline(path) as store:
        halves = [put_half(store, str(number).encode()) for number in range(6)]
        store.transactions.commit(halves[0])
        store.transactions.rollback(halves[2])
    assert progress(path) == (1, 1)
    with open_inline(path) as store:
        assert store.transactions.status() == 4
        for half in (halves[0], halves[2]):
            with pytest.raises(RequestRefused, match="settled"):
                store.transactions.commit(half)
        for half in halves[3:]:
            store.transactions.commit(half)
        assert [record.body for record in of_topic(store, "orders")] == [b"0", b"3", b"4", b"5"]
    assert progress(path) == (1, 1)
    with open_inline(path) as store:
        store.transactions.rollback(halves[1])
    assert progress(path) == (6, 6)


def test_a_transaction_that_a_full_disk_cuts_is_settled_once(tmp_path, monkeypatch):
    """The disk accepted the message of an overlong batch but not its op record, which follows."""
    path = tmp_path / "store"
    with open_inline(path) as store:
        half = put_half(store, b"x" * 1000)
        append_batch = store._engine.writer.appender.append_batch

        def append_first(messages: list[reput.Message]) -> None:
            append_batch(messages[:1])
            error = StoreFull("no room for a further segment")
            error.stored_count = 1
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(store._engine.writer.appender, "append_batch", append_first)
            with pytest.raises(StoreFull):
                store.transactions.commit(half)
        assert store.transactions.status() == 0
        assert len(of_topic(store, "orders")) == 1
        with pytest.raises(RequestRefused, match="settled"):
            store.transactions.commit(half)
        with store.transactions._open.changed:
            store.transactions._open.changed.notify_all()
        wait_until(lambda: len(of_topic(store, OP_TOPIC)) == 1)
    assert progress(path) == (1, 1)


def test_a_transaction_for_which_the_disk_has_no_room_waits(tmp_path, monkeypatch):
    """Message and op record are stored together or not at all; the transaction can be settled later."""
    path = tmp_path / "store"
    with open_inline(path) as store:
        half = put_half(store)

        def no_room(record_size: int) -> int:
            raise StoreFull("no room for a further segment")

        with monkeypatch.context() as patched:
            patched.setattr(store._engine.writer.commit_log, "room", no_room)
            with pytest.raises(StoreFull):
                store.transactions.commit(half)
        assert (store.transactions.status(), of_topic(store, "orders")) == (1, [])
        store.transactions.commit(half)
        assert len(of_topic(store, "orders")) == 1
    assert progress(path) == (1, 1)


@pytest.mark.slow
def test_transactions_of_rocketmq_are_carried_on(golden):
    """Its pending ones are checked and settled; its settled ones stay settled."""
    path = golden("transaction-4.9") / "store"
    with reput.open(path, mode="inline") as store:
        before = list(store.records())
        end = store.appended
        done = {offset for op in before if op.topic == OP_TOPIC for offset in done_offsets(op)}
        expected = {
            record.uniq_key
            for record in before
            if record.topic == HALF_TOPIC and record.queue_offset >= 72 and record.queue_offset not in done
        }
        assert len(expected) == store.transactions.status() == 9
        asked: list[Record] = []

        def checker(half: Record) -> TransactionState:
            asked.append(half)
            return COMMIT if len(asked) % 2 else ROLLBACK

        store.transactions.on_check("PID_Meadow_tx-11", checker)
        wait_until(lambda: store.transactions.status() == 0)
        assert {half.uniq_key for half in asked} == expected
        assert Counter(half.properties["TRANSACTION_CHECK_TIMES"] for half in asked) == {"1": 4, "5": 5}
        committed = [record for record in store.records(end) if record.topic == "Meadow_tx-11"]
        assert [record.uniq_key for record in committed] == [half.uniq_key for half in asked[::2]]
        originals = {record.uniq_key: record for record in before if record.topic == HALF_TOPIC}
        for record in committed:
            original = originals[record.uniq_key]
            for name in ("body", "flag", "born_timestamp", "born_host", "store_host"):
                assert getattr(record, name) == getattr(original, name)
            assert {**original.properties, "TRANSACTION_CHECK_TIMES": "?"} == {
                **record.properties,
                "TRANSACTION_CHECK_TIMES": "?",
            }
    with reput.open(path, mode="inline") as store:
        assert store.transactions.status() == 0


def test_committed_messages_that_rocketmq_wrote_are_those_that_reput_writes(golden, golden_listing):
    """Each half message that its broker committed is committed here: the records are the same except for times."""
    with reput.open(golden("transaction-4.9") / "store", mode="inline") as store:
        before = list(store.records())
        transactions = store.transactions
        halves = {record.commit_log_offset: record for record in before if record.topic == HALF_TOPIC}
        compared = 0
        for record in before:
            if record.sys_flag & 12 != 8:
                continue
            half = halves[record.prepared_transaction_offset]
            # As if it was not settled yet.
            with transactions._open.changed:
                transactions._open.know(half)
            store._engine.transactional_messages.end(
                half.properties["PGROUP"], half.commit_log_offset, half.queue_offset, COMMIT
            )
            own, op = list(store.records())[-2:]
            for name in (
                "topic",
                "queue_id",
                "flag",
                "sys_flag",
                "born_timestamp",
                "born_host",
                "store_host",
                "reconsume_times",
                "prepared_transaction_offset",
                "body",
                "body_crc",
            ):
                assert getattr(own, name) == getattr(record, name)
            assert list(own.properties.items()) == list(record.properties.items())
            assert (op.topic, op.body) == (OP_TOPIC, str(half.queue_offset).encode())
            compared += 1
    assert compared > 20


KILLED_PROGRAM = """
import contextlib, sys
import reput
import reput.errors
from tests_settings import SETTINGS
from reput.consume.delivery.transaction_messages import TransactionState

store = reput.open(sys.argv[1], mode="inline", dispatchers=["consume_queue"], **SETTINGS)
number = int(sys.argv[2])


def checker(half):
    return {0: TransactionState.COMMIT, 1: TransactionState.ROLLBACK}.get(int(half.body) % 3)


transactions = store.transactions
transactions.on_check("senders", checker)
print(number, flush=True)
while True:
    half = transactions.put_half("senders", reput.Message("orders", b"%d" % number))
    if number % 15 == 0:
        # The checker may have been faster.
        with contextlib.suppress(reput.errors.RequestRefused):
            transactions.commit(half)
    number += 1
    print(number, flush=True)
"""


@pytest.mark.processes
def test_nothing_is_committed_twice_through_kills_at_random(tmp_path):
    """Five programs in turn; each is killed somewhere between half message, check, commit and op record."""
    seed = random.randrange(1 << 30)
    print(f"seed={seed}")
    chance = random.Random(seed)
    settings = {
        **SMALL,
        "transaction_time_out": 10,
        "transaction_check_interval": 20,
        "transaction_check_max": 3,
        "flush_consumer_offset_interval": 20,
    }
    (tmp_path / "tests_settings.py").write_text(f"SETTINGS = {settings!r}\n")
    (tmp_path / "program.py").write_text(KILLED_PROGRAM)
    path = tmp_path / "store"
    number = 0
    for _ in range(5):
        program = subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py"), str(path), str(number)], stdout=subprocess.PIPE
        )
        assert program.stdout is not None
        try:
            last = number + chance.randrange(1, 400)
            while number < last:
                line = program.stdout.readline()
                assert line, "the program ended by itself"
                number = int(line)
        finally:
            program.kill()
            number = max([number, *map(int, program.stdout.read().split())]) + 1
            program.wait(LIMIT_S)
            program.stdout.close()
    with open_inline(path, **settings) as store:
        store.transactions.on_check(GROUP, lambda half: {0: COMMIT, 1: ROLLBACK}.get(int(half.body) % 3))
        set_clock(store, ManualClock(Clock().now_ms() + 60_000))

        def settled() -> bool:
            advance(store, 50)
            return store.transactions.status() == 0

        wait_until(settled)
        found = list(store.records())
    halves = {int(record.body) for record in found if record.topic == HALF_TOPIC}
    committed = Counter(int(record.body) for record in found if record.topic == "orders")
    discarded = Counter(int(record.body) for record in found if record.topic == DISCARDED_TOPIC)
    assert len(halves) >= number - 10
    assert committed == {body: 1 for body in halves if body % 3 == 0}
    assert discarded == {body: 1 for body in halves if body % 3 == 2}

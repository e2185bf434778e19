"""Senders that are asked about their transactions: when, how often, and what is given up."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import reput
from consume.delivery.transacting import (
    GROUP,
    RunningClock,
    advance,
    has_room,
    of_topic,
    progress,
    put_clients_half,
    put_half,
    set_clock,
    set_clock_after_idle,
)
from delivering import all_records, open_inline, wait_until
from reput.consume.delivery.half_messages import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC
from reput.consume.delivery.transaction_messages import TransactionState
from reput.embedded.store import Store
from reput.errors import ConfigError, MessageIllegal, RequestRefused
from reput.remoting.response_code import ResponseCode
from reput.store.config.topic_config_manager import TopicConfigManager
from reput.store.disk.files import Clock
from reput.store.log.log_clock import SETTLED_MS
from reput.store.record.message import MessageExtBrokerInner
from reput.store.record.properties import PROPERTIES_SIZE_MAX
from reput_hooks import Record
from small_store import ManualClock, SetClock

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_inline(tmp_path / "store") as opened:
        set_clock(opened, ManualClock())
        yield opened


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
    assert "clock disagrees" in (store._engine.writer.notice or "")
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


@pytest.mark.parametrize("is_asked", [False, True], ids=["not asked yet", "asked before"])
def test_a_clock_that_is_set_back_delays_no_question(store, monkeypatch, is_asked):
    """It comes when its time has elapsed, not an hour later."""
    monkeypatch.setattr("reput.consume.delivery.open_transactions.LOOK_S", 0.01)
    clock = SetClock()
    set_clock(store, clock)
    put_half(store)
    answers = [UNKNOWN, COMMIT] if is_asked else [COMMIT]
    store.transactions.on_check(GROUP, lambda _: answers.pop(0))
    if is_asked:
        clock.elapse(6_000)
        wait_until(lambda: len(answers) == 1)
    looked = store.transactions._open.looked_at
    clock.elapse(1_000)
    wait_until(lambda: store.transactions._open.looked_at != looked)
    clock.ms -= 3_600_000
    clock.elapse(store._engine.settings.transaction_check_interval)
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

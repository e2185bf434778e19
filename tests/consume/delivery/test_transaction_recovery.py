"""Transactions through closes, kills, full disks and a RocketMQ before."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import reput
from consume.delivery.transacting import GROUP, advance, of_topic, progress, put_half, set_clock
from delivering import LIMIT_S, SMALL, open_inline, wait_until
from reput.consume.delivery.half_messages import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC, done_offsets
from reput.consume.delivery.transaction_messages import TransactionState
from reput.embedded.store import Store
from reput.errors import RequestRefused, StoreFull
from reput.store.disk.files import Clock
from reput_hooks import Record
from small_store import ManualClock

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_inline(tmp_path / "store") as opened:
        set_clock(opened, ManualClock())
        yield opened


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

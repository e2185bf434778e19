"""Waiting messages in a closed store: delays and half messages, counted from its queues and offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

import reput
from delivering import open_inline, wait_until
from golden_sets import tree_digest
from reput.consume.delivery.transaction_messages import TransactionState


def waiting(store: Path, **settings: object) -> tuple[dict[int, int] | None, int | None]:
    """Return the counts in the status of a closed store."""
    before = tree_digest(store)
    with reput.open(store, read_only=True, **settings) as opened:
        status = opened.status()
    assert tree_digest(store) == before
    assert status.statistics is None
    return status.waiting_delays, status.half_messages


@pytest.mark.parametrize(
    ("name", "delays", "half_messages"),
    [("basic-5.3", {}, 0), ("delay-retry-5.3", {17: 4, 18: 9}, 0), ("transaction-4.9", {}, 9)],
)
def test_what_waits_in_a_brokers_store_is_counted(golden_read_only, name, delays, half_messages):
    """The same counts as after the next opening."""
    assert waiting(golden_read_only(name) / "store") == (delays, half_messages)


def test_what_waits_after_a_close_is_counted(tmp_path):
    """Delivered and settled messages do not count; a transaction counts once, however often its sender was asked."""
    path = tmp_path / "store"
    settings = {"message_delay_level": "0s 1h 2h", "transaction_time_out": 0, "transaction_check_interval": 3_600_000}
    with open_inline(path, **settings) as store:
        for level in (1, 2, 2, 3):
            store.put(reput.Message("orders", b"late", delay_level=level))
        transactions = store.transactions
        halves = [transactions.put_half("shop", reput.Message("orders", b"%d" % number)) for number in range(4)]
        transactions.commit(halves[0])
        transactions.rollback(halves[1])
        asked = []
        transactions.on_check("shop", lambda half: asked.append(half) or TransactionState.UNKNOWN)
        # A half message that was already due when the checker was registered may be asked about twice.
        wait_until(lambda: len({half.body for half in asked}) == 2 and store.delays()[0].waiting == 0)
        assert store.statistics().half_messages == 2
    assert waiting(path) == ({2: 2, 3: 1}, 2)


def test_a_close_before_anything_was_looked_for_leaves_it_known(tmp_path):
    """A message is delayed, and the program ends at once; so does the next one."""
    path = tmp_path / "store"
    for number in range(1, 4):
        with open_inline(path) as store:
            store.put(reput.Message("orders", b"late", delay_level=18))
        assert waiting(path) == ({18: number}, 0)


def test_after_a_kill_nothing_is_known(tmp_path):
    """Units missing in the queues, and deliveries since the last stored offsets, are only in the log."""
    path = tmp_path / "store"
    with open_inline(path) as store:
        store.put(reput.Message("orders", b"late", delay_level=18))
        # RocketMQ's sign of a program that did not close the store.
        abort = (path / "abort").read_bytes()
    (path / "abort").write_bytes(abort)
    assert waiting(path) == (None, None)


def test_a_search_that_a_close_has_cut_short_leaves_it_unknown(tmp_path):
    """The next opening searches again."""
    path = tmp_path / "store"
    with open_inline(path) as store:
        store.put(reput.Message("orders", b"late", delay_level=18))
        store._engine.schedule.stop()
        store._engine.schedule.known = False
    assert waiting(path) == (None, 0)
    with open_inline(path) as store:
        wait_until(lambda: store.statistics().waiting_delays == {18: 1})
    assert waiting(path) == ({18: 1}, 0)


@pytest.mark.parametrize("name", ["delayOffset.json", "consumerOffset.json"])
def test_a_file_that_cannot_be_read_keeps_nobody_from_the_status(tmp_path, name):
    """Its counts are unknown."""
    path = tmp_path / "store"
    with open_inline(path) as store:
        store.put(reput.Message("orders", b"late", delay_level=18))
    (path / "config").mkdir(exist_ok=True)
    for suffix in ("", ".bak"):
        (path / "config" / f"{name}{suffix}").write_text("{")
    assert waiting(path) == (None, None)

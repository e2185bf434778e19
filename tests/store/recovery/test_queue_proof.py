"""QueueProof: the end of a queue, as proved by the view's cursor and the log."""

from __future__ import annotations

import shutil

import pytest

import reput
from reput.store.recovery.queue_proof import QueueProof

SIZES = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 160}


@pytest.fixture
def written(tmp_path):
    """Return a closed store with 10 messages in one queue, others between them, and the log's end."""
    store = tmp_path / "store"
    with reput.open(store, mode="inline", dispatchers=["consume_queue"], **SIZES) as opened:
        for number in range(10):
            opened.put(reput.Message("others", bytes(100)))
            result = opened.put(reput.Message("orders", b"%d" % number, queue_id=1))
        opened.wait_for("consume_queue", result.next_commit_log_offset, timeout=60)
    return store, result.next_commit_log_offset


@pytest.mark.parametrize("at_rest", [True, False])
def test_the_views_cursor_says_how_far_a_queue_reached(written, at_rest):
    """The log has the last message."""
    store, log_end = written
    assert QueueProof(store).end("orders", 1, 4, 0, log_end, at_rest) == (10, None)


def test_a_cursor_of_another_log_proves_nothing(written):
    """RocketMQ has cut the log since, or the cursor is beyond the built part."""
    store, log_end = written
    proof = QueueProof(store)
    assert proof.kept_end("orders", 1, log_end - 1) is None
    assert proof.kept_end("orders", 1, log_end).end == 200
    (segment,) = [path for path in (store / "commitlog").iterdir() if path.name == f"{0:020d}"]
    segment.write_bytes(bytes(4096))
    (store / "lock").write_bytes(b"lock")
    assert proof.end("orders", 1, 4, 0, log_end, True) == (4, None)


def test_messages_that_the_log_lost_are_not_the_queues_end(written):
    """Only reput has written this log, so the view's cursor is right, and the log is damaged."""
    store, log_end = written
    (segment,) = [path for path in (store / "commitlog").iterdir() if path.name == f"{0:020d}"]
    segment.write_bytes(bytes(4096))
    assert QueueProof(store).end("orders", 1, 4, 0, log_end, True) == (10, None)


def test_the_log_says_how_far_a_queue_reaches_where_there_is_no_cursor(written):
    """From the queue's last valid record on; a record of another queue or of a later place is no proof."""
    store, log_end = written
    shutil.rmtree(store / "reput")
    proof = QueueProof(store)
    assert proof.kept_ends() is None
    assert proof.end("orders", 1, 4, 0, log_end, True) == (10, None)
    assert proof.end("orders", 0, 0, 0, log_end, True) == (0, None)
    assert proof.end("orders", 1, 10, 0, log_end, True) == (10, None)
    assert proof.end("orders", 1, 4, log_end // 2, log_end, True) == (4, None)


def test_further_queues_of_a_record_are_proven_by_it(tmp_path):
    """The record contains their names and its queue offset in each."""
    store = tmp_path / "store"
    further = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
    with reput.open(store, mode="inline", enable_multi_dispatch=True, enable_lmq=True, **SIZES) as opened:
        for _ in range(3):
            result = opened.put(reput.Message("orders", b"body", queue_id=2, properties=further))
    shutil.rmtree(store / "reput")
    assert QueueProof(store).end("%LMQ%b", 0, 1, 0, result.next_commit_log_offset, True) == (3, None)
    assert QueueProof(store).end("%LMQ%c", 0, 0, 0, result.next_commit_log_offset, True) == (0, None)


def test_the_chain_of_records_tells_where_one_begins(written):
    """It also tells where none begins."""
    store, _ = written
    with reput.open(store, read_only=True, **SIZES) as opened:
        second = opened.get("orders", 1, 1, 1).records[0].commit_log_offset
    proof = QueueProof(store)
    assert proof.is_begin_of_record(second, 0)
    assert not proof.is_begin_of_record(second + 8, 0)

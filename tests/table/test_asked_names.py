"""Topics and queue offsets that a reader requests and the store does not have."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import reput
from reput.errors import ConfigError, OffsetOutOfRange
from reput.table import LogTable, QueueRange, table_options
from reput.table.asked_names import asked_topics, require_queue_offsets, require_topics
from written_log import WrittenLog


def filled_log(store: Path) -> WrittenLog:
    """Return a log of several segments: orders and payments alternately, and one refund at the beginning."""
    log = WrittenLog(store)
    log.append(b"x" * 90, topic=b"refunds")
    for number in range(60):
        log.append(b"x" * 90, topic=(b"orders", b"payments")[number % 2])
    log.save()
    return log


def asking(store: Path, topic: str, begin: int, **options: object) -> LogTable:
    """Return the table of one queue's messages from queue offset *begin* on."""
    return LogTable(store, table_options(queue_ranges={(topic, 0): QueueRange(begin)}, **options))


def test_a_misspelled_topic_is_named_with_the_nearest(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Reading it would silently return nothing; a table that accepts losses only warns."""
    log = filled_log(tmp_path)
    require_topics(LogTable(log.store), ["orders", "payments"])
    with pytest.raises(ConfigError, match="no such topic: topic=ordrs nearest=orders store=") as raised:
        require_topics(LogTable(log.store), ["orders", "ordrs"])
    assert "reput topic create" in raised.value.advice
    with caplog.at_level(logging.WARNING):
        require_topics(LogTable(log.store, table_options(fail_on_data_loss=False)), ["ordrs"])
    assert "topic=ordrs nearest=orders" in caplog.text


def test_a_topic_that_is_described_or_has_a_queue_is_there(tmp_path: Path):
    """Its first message may come later, or its last one may be gone."""
    log = filled_log(tmp_path)
    (log.store / "consumequeue" / "queued" / "0").mkdir(parents=True)
    (log.store / "config").mkdir()
    (log.store / "config" / "topics.json").write_text('{"topicConfigTable":{"described":{"topicName":"described"}}}')
    require_topics(LogTable(log.store), ["queued", "described", "refunds"])
    (log.store / "config" / "topics.json").write_text("no longer readable")
    require_topics(LogTable(log.store), ["queued", "refunds"])


def test_topics_are_asked_for_alone_or_with_a_queue():
    """A pattern selects whatever topics there will be."""
    options = table_options(
        topics=frozenset(["a"]), queues=frozenset([("b", 1)]), queue_ranges={("c", 0): QueueRange(5)}
    )
    assert asked_topics(options.row_filter) == {"a", "b", "c"}
    assert asked_topics(table_options(topic_pattern="a.*").row_filter) == set()


def test_queue_offsets_that_retention_took_are_an_error(tmp_path: Path):
    """The error has the queue and its first offset; the rest can be read if losses are accepted."""
    log = filled_log(tmp_path)
    (log.store / "commitlog" / f"{0:020d}").unlink()
    first = sum(at < 4096 for at in log.offsets[1::2])
    require_queue_offsets(asking(log.store, "orders", first))
    with pytest.raises(OffsetOutOfRange, match=f"topic=orders queue_id=0 queue_offset=3 queue_offset_min={first}"):
        require_queue_offsets(asking(log.store, "orders", 3))
    require_queue_offsets(asking(log.store, "orders", 3, fail_on_data_loss=False))
    with pytest.raises(OffsetOutOfRange, match="topic=refunds queue_id=0 queue_offset=1 commit_log_offset_min=4096"):
        require_queue_offsets(asking(log.store, "refunds", 1))


def test_a_queue_that_was_read_to_its_end_may_lose_all_its_records(tmp_path: Path):
    """reput's counts show that nothing after the requested offset was removed."""
    with reput.open(tmp_path, dispatchers=[], mode="inline", mapped_file_size_commit_log=4096) as store:
        store.put_batch([reput.Message("quiet", b"x" * 100) for _ in range(3)])
        store.put_batch([reput.Message("orders", b"x" * 100) for _ in range(60)])
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    require_queue_offsets(asking(tmp_path, "quiet", 3))
    with pytest.raises(OffsetOutOfRange, match="topic=quiet queue_id=0 queue_offset=2"):
        require_queue_offsets(asking(tmp_path, "quiet", 2))


def test_a_whole_log_has_lost_nothing(tmp_path: Path):
    """A future offset, or a queue without messages, is not a loss."""
    log = filled_log(tmp_path)
    require_queue_offsets(asking(log.store, "orders", 3))
    require_queue_offsets(asking(log.store, "orders", 1000))
    require_queue_offsets(asking(log.store, "absent", 0))

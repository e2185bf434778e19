"""Topics that a reader requests and the store does not have."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from reput.errors import ConfigError
from reput.table import LogTable, QueueRange, table_options
from reput.table.asked_names import asked_topics, require_topics
from written_log import WrittenLog


def filled_log(store: Path) -> WrittenLog:
    """Return a log of several segments: orders and payments alternately, and one refund at the beginning."""
    log = WrittenLog(store)
    log.append(b"x" * 90, topic=b"refunds")
    for number in range(60):
        log.append(b"x" * 90, topic=(b"orders", b"payments")[number % 2])
    log.save()
    return log


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

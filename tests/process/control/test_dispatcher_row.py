"""The row of a dispatcher in `reput status`."""

from __future__ import annotations

import os
import time

import pytest

from process.log_writer import STORE_TIMESTAMP
from reput.errors import GroupUnreachable
from reput.process.control.dispatcher_row import dispatcher_row, store_timestamp_at
from reput.process.owner.inline_ring import InlineCell, InlineRing
from reput.process.owner.stopped_status import as_run_last, stopped_status
from reput.process.plugin.catalogue import select_dispatchers
from reput.process.views.gaps import Gap, Gaps
from reput.settings import load_settings
from reput.store.disk.files import Files
from reput.store.state.dispatcher_cursors import keep_dispatcher_cursors, keep_dispatcher_plugins

(INDEX,) = select_dispatchers(["index"], {})


def row_of(log, *, progress=None, ordinal=None):
    """Return the row of a dispatcher at the given position."""
    ring = InlineRing(capacity=1 << 16, **log.header())
    cell = InlineCell("index", 0, ring)
    if progress is not None:
        cell.set_progress(progress, ordinal)
    return dispatcher_row(INDEX, cell, ring, log.store_directory)


def test_what_is_not_known_is_none(log):
    """Neither 0 nor -1."""
    row = row_of(log)
    assert (row.pid, row.progress, row.durable_cursor, row.error) == (None,) * 4
    assert (row.lag_bytes, row.lag_messages, row.lag_seconds) == (None,) * 3
    assert (row.heartbeat_age_ms, row.rss_bytes) == (None, None)


def test_lag_is_told_in_bytes_messages_and_seconds(log):
    """The seconds are the age of the oldest missing record."""
    log.put(10)
    row = row_of(log, progress=log.offsets[4], ordinal=4)
    assert row.lag_bytes == log.end - log.offsets[4]
    assert row.lag_messages == 6
    assert row.lag_seconds == pytest.approx(time.time() - (STORE_TIMESTAMP + 4) / 1000, abs=5)


def test_messages_are_not_known_while_the_log_is_read(log):
    """The records below are not counted yet."""
    log.put(10)
    row = row_of(log, progress=log.offsets[4])
    assert row.lag_messages is None
    assert row.lag_bytes > 0


def test_no_lag_is_zero_in_every_unit(log):
    """That is known without counting."""
    log.put(10)
    row = row_of(log, progress=log.end)
    assert (row.lag_bytes, row.lag_messages, row.lag_seconds) == (0, 0, 0.0)


def test_the_time_of_a_record_is_read_off_the_log(log):
    """None if there is no record."""
    log.put(3)
    assert store_timestamp_at(log.store_directory, log.offsets[2]) == STORE_TIMESTAMP + 2
    assert store_timestamp_at(log.store_directory, 1 << 40) is None
    assert store_timestamp_at(log.store_directory / "nothing", 0) is None


@pytest.mark.slow
def test_without_a_configuration_those_that_ran_last_are_shown(log):
    """By their own names, with the distribution of their plugins; a configuration overrides that."""
    log.put(1)
    keep_dispatcher_cursors(log.store_directory, {"consume_queue": 5, "hook": 7}, Files())
    keep_dispatcher_plugins(log.store_directory, {"consume_queue": "consume_queue", "hook": "index"}, Files())

    def rows(*assignments):
        settings = as_run_last(log.store_directory, load_settings(None, assignments))
        found = stopped_status(log.store_directory, settings).dispatchers
        return [(row.name, row.plugin, row.distribution, row.durable_cursor) for row in found]

    assert rows() == [("consume_queue", "consume_queue", "reput", 5), ("hook", "index", "reput", 7)]
    assert rows("flushIntervalCommitLog=100") == rows()
    assert rows("dispatchers=index") == [("index", "index", "reput", None)]
    assert rows("messageIndexEnable=false") == [("consume_queue", "consume_queue", "reput", 5)]


def test_dispatchers_that_cannot_be_asked_are_not_called_stopped(log, monkeypatch):
    """Their state is UNKNOWN, with the reason, and values from earlier files are not shown."""

    def refuse(_):
        raise GroupUnreachable("it belongs to another user: uid=5")

    log.put(10)
    keep_dispatcher_cursors(log.store_directory, {"index": 0}, Files())
    monkeypatch.setattr("reput.process.owner.stopped_status.group_status", refuse)
    status = stopped_status(log.store_directory, load_settings().settings)
    assert status.writer.reason == "it belongs to another user: uid=5"
    assert [(row.name, row.state, row.error, row.durable_cursor, row.lag_bytes) for row in status.dispatchers] == [
        ("consume_queue", "UNKNOWN", "it belongs to another user: uid=5", None, None),
        ("index", "UNKNOWN", "it belongs to another user: uid=5", None, None),
    ]


def test_a_store_that_nobody_has_open_shows_what_is_on_disk(log):
    """State STOPPED, the log's end, and no unknown numbers."""
    log.put(10)
    status = stopped_status(log.store_directory, load_settings().settings)
    assert (status.writer.state, status.writer.pid, status.started) == ("STOPPED", None, None)
    assert (status.writer.appended, status.writer.commit_log_offset_min) == (log.end, 0)
    assert [(row.name, row.state, row.progress) for row in status.dispatchers] == [
        ("consume_queue", "STOPPED", None),
        ("index", "STOPPED", None),
    ]
    assert os.listdir(log.store_directory / "reput") == []


def test_a_gap_is_shown_of_a_dispatcher_that_has_not_run(tmp_path):
    """A broken dispatcher never wrote its cell; its files tell what it missed."""
    Gaps(tmp_path, "index").add(Gap(0, 100, 250))
    ring = InlineRing(capacity=1 << 16, appended=300, durable=300, commit_log_offset_min=250, epoch=1, ordinal=3)
    row = dispatcher_row(INDEX, InlineCell("index", 0, ring), ring, tmp_path)
    assert (row.gap_bytes, row.rejected_count) == (150, 0)

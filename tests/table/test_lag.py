"""`LogTable.lag`: how far a reader is behind."""

from __future__ import annotations

import time

from reput.table import log_table
from reput.table.log_table import LogLag, LogTable
from written_log import WrittenLog


def test_a_lag_counts_messages_and_has_the_age_of_the_oldest(tmp_path):
    """Over the ends of segments; nothing is behind at the end."""
    log = WrittenLog(tmp_path / "store", segment_size=1024)
    stored_ms = int(time.time() * 1000) - 90_000
    for number in range(30):
        log.append(b"body", store_timestamp=stored_ms + number * 1000)
    log.save()
    table = LogTable(log.store)
    lag = table.lag(log.offsets[10], log.end)
    assert (lag.byte_count, lag.messages) == (log.end - log.offsets[10], 20)
    assert 80 <= lag.seconds < 80 + 60
    assert table.lag(log.end, log.end) == LogLag(0, 0, 0.0)


def test_a_large_lag_is_estimated(tmp_path, monkeypatch):
    """By the messages at its beginning."""
    log = WrittenLog(tmp_path / "store", segment_size=1 << 16)
    for _ in range(100):
        log.append(bytes(100))
    log.save()
    monkeypatch.setattr(log_table, "LAG_BYTES_COUNTED", 4096)
    assert LogTable(log.store).lag(0, log.end).messages == 100


def test_damage_does_not_hide_a_lag(tmp_path):
    """The messages around it count."""
    log = WrittenLog(tmp_path / "store")
    for _ in range(5):
        log.append(b"body")
    log.data[log.offsets[2] : log.offsets[2] + 8] = bytes(8)
    log.save()
    assert LogTable(log.store).lag(0, log.end).messages == 4

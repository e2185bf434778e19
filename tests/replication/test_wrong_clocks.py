"""Masters whose clocks are wrong: logs are copied as they are, and a promoted copy's store times never go back."""

from __future__ import annotations

import time

import pytest

import reput
from command_line import run_reput
from replication.copies import INLINE, SMALL_SEGMENT, assert_same_log, following, reaches
from written_log import WrittenLog

HOUR_MS = 3_600_000


@pytest.mark.parametrize("shift", [-HOUR_MS, HOUR_MS, -50 * 365 * 24 * HOUR_MS], ids=["back", "ahead", "long-ago"])
def test_a_log_whose_store_times_jump_is_copied_and_continued(fake_master, tmp_path, shift):
    """RocketMQ's masters store what their clock says, also when it was set."""
    now = int(time.time() * 1000)
    log = WrittenLog(tmp_path / "master", SMALL_SEGMENT)
    times = [now + number + (shift if 40 <= number < 80 else 0) for number in range(120)]
    for store_timestamp in times:
        log.append(b"b" * 200, store_timestamp=store_timestamp)
    log.save()
    fake_master.log = bytes(log.data)
    copy = tmp_path / "copy"
    with following(fake_master.address, copy) as store:
        reaches(store, log.end)
        store.wait_for("consume_queue", log.end, 60)
        assert [record.store_timestamp for record in store.get("orders", 0, 0, count_max=200)] == times
        assert [record.queue_offset for record in store.query("orders", "k50")] == [50]
    assert_same_log(tmp_path / "master", copy, 0, log.end, SMALL_SEGMENT)
    assert run_reput("check", copy).code == 0
    assert run_reput("promote", copy).code == 0
    with reput.open(copy, **INLINE) as store:
        result = store.put(reput.Message("orders", b"of the new master"))
        assert result.queue_offset == 120
        assert result.store_timestamp >= times[-1]
    assert run_reput("check", copy).code == 0

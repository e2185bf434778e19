"""After a crash of the one, the other finds what it needs: abort, checkpoint, a log that is cut where it is torn."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import reput
from interop.ledger import (
    Ledger,
    assert_read_by_reput,
    assert_read_by_rocketmq,
    put_by_reput,
    put_by_rocketmq,
    random_messages,
)
from interop.reput_writer import ReputWriter
from reput.settings import Settings

pytestmark = [pytest.mark.java, pytest.mark.processes]

# Index files are large enough for all keys, so that a crash always meets one that is not full.
FILE_SIZES = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 1000,
}
SETTINGS = Settings(**FILE_SIZES)
HOURS_MS = 3_600_000


def hours_ago(hours: int) -> int:
    """Return a time in the past, in ms."""
    return time.time_ns() // 1_000_000 - hours * HOURS_MS


def kill_after_puts(directory: Path, ledger: Ledger, count: int, seed: int) -> None:
    """Have a reput of its own process put *count* messages and be killed."""
    messages = random_messages(random.Random(seed), count)
    with ReputWriter(directory, {**FILE_SIZES, "mode": "inline"}) as writer:
        for message, result in zip(messages, writer.put(messages), strict=True):
            ledger.add_put(message, result)


def test_a_killed_reput_leaves_a_checkpoint_by_which_rocketmq_finds_every_key(tmp_path, rocketmq):
    """RocketMQ drops the index file that was not full and dispatches again only from the checkpoint's times on.

    So those must not lie behind the begin of that file, which a RocketMQ has begun hours before.
    """
    directory = tmp_path / "store"
    directory.mkdir()
    ledger = Ledger(SETTINGS)
    # With synchronous flush the checkpoint has all its times after a short run, too.
    opened = rocketmq(directory, SETTINGS, flushDiskType="SYNC_FLUSH")
    put_by_rocketmq(opened, ledger, random_messages(random.Random(1), 60), hours_ago(5))
    opened.shutdown()
    kill_after_puts(directory, ledger, 20, seed=2)
    opened = rocketmq(directory, SETTINGS)
    assert_read_by_rocketmq(opened, ledger, by_time=False)
    opened.shutdown()


def test_keys_that_rocketmq_loses_in_a_crash_are_found_by_reput(tmp_path, rocketmq):
    """Killed and started again, RocketMQ has dropped its last index file and built only the end of it again."""
    directory = tmp_path / "store"
    ledger = Ledger(SETTINGS)
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        put_by_reput(store, ledger, random_messages(random.Random(1), 20))
    opened = rocketmq(directory, SETTINGS)
    put_by_rocketmq(opened, ledger, random_messages(random.Random(2), 60), ledger.records[-1].store_timestamp + 60_000)
    opened.ask("queues")
    opened.shutdown()
    opened = rocketmq(directory, SETTINGS)
    put_by_rocketmq(opened, ledger, random_messages(random.Random(3), 5), ledger.records[-1].store_timestamp + 60_000)
    opened.kill()
    opened = rocketmq(directory, SETTINGS)
    assert any(opened.query(topic, key) != records for (topic, key), records in ledger.keys().items())
    opened.shutdown()
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        assert_read_by_reput(store, ledger)

"""After a crash of one program, the other finds what it needs: abort, checkpoint, a log cut where it is torn."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

import reput
from interop.java_program import OLDER_VERSIONS
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
from reput.store.record.message import Message
from reput_hooks import Record
from small_store import overwrite

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow]

# Index files are large enough for all keys, so that a crash always meets a partial one.
FILE_SIZES = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 1000,
}
SETTINGS = Settings(**FILE_SIZES)
HOURS_MS = 3_600_000
# Its last 200 bytes begin in its body, its last 10 in its properties.
LAST = Message("orders", b"x" * 300, tags="torn", properties={"note": "y" * 40})


def hours_ago(hours: int) -> int:
    """Return a time in the past, in ms."""
    return time.time_ns() // 1_000_000 - hours * HOURS_MS


def kill_after_puts(directory: Path, ledger: Ledger, messages: list[Message]) -> None:
    """Let a reput in a separate process put *messages* and be killed."""
    with ReputWriter(directory, {**FILE_SIZES, "mode": "inline"}) as writer:
        for message, result in zip(messages, writer.put(messages), strict=True):
            ledger.add_put(message, result)


def test_a_killed_reput_leaves_a_checkpoint_by_which_rocketmq_finds_every_key(tmp_path, rocketmq):
    """RocketMQ drops the partial index file and dispatches again only from the checkpoint's times on.

    So those must not be later than the begin of that file, which RocketMQ created hours before.
    """
    directory = tmp_path / "store"
    directory.mkdir()
    ledger = Ledger(SETTINGS)
    # With synchronous flush the checkpoint also has all its times after a short run.
    opened = rocketmq(directory, SETTINGS, flushDiskType="SYNC_FLUSH")
    put_by_rocketmq(opened, ledger, random_messages(random.Random(1), 60), hours_ago(5))
    opened.shutdown()
    kill_after_puts(directory, ledger, random_messages(random.Random(2), 20))
    opened = rocketmq(directory, SETTINGS)
    assert_read_by_rocketmq(opened, ledger)
    opened.shutdown()


@pytest.mark.parametrize("version", OLDER_VERSIONS, indirect=True)
def test_keys_that_rocketmq_loses_in_a_crash_are_found_by_reput(tmp_path, rocketmq):
    """Killed and started again, RocketMQ has dropped its last index file and rebuilt only the end of it.

    That is the usual case, depending on the progress of its flush service. reput must find every key in any case.
    """
    assert any(keys_are_lost_by_rocketmq_alone(tmp_path / f"store-{crash}", rocketmq) for crash in range(10))


def keys_are_lost_by_rocketmq_alone(directory, rocketmq):
    """Let RocketMQ crash, ask both for every key, and return whether RocketMQ has lost any."""
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
    lost = any(opened.query(topic, key) != records for (topic, key), records in ledger.keys().items())
    opened.shutdown()
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        assert_read_by_reput(store, ledger)
    return lost


@pytest.mark.parametrize("flush_disk_type", [pytest.param("ASYNC_FLUSH", marks=pytest.mark.long), "SYNC_FLUSH"])
def test_a_reput_killed_under_load_loses_nothing_that_it_acknowledged(tmp_path, rocketmq, flush_disk_type):
    """RocketMQ finds every acknowledged message; further ones follow in order, without gaps."""
    directory = tmp_path / "store"
    ledger = Ledger(SETTINGS)
    for seed in range(3):
        messages = random_messages(random.Random(seed), 400)
        with ReputWriter(directory, {**FILE_SIZES, "mode": "inline", "flush_disk_type": flush_disk_type}) as writer:
            writer.send(messages)
            acknowledged = writer.results(30)
            acknowledged += writer.kill()
        for message, result in zip(messages, acknowledged, strict=False):
            ledger.add_put(message, result)
        assert len(acknowledged) < len(messages), "the writer was done before it was killed"
        opened = rocketmq(directory, SETTINGS)
        for record in opened.records()[len(ledger.records) :]:
            ledger.take_over(record)
        assert_read_by_rocketmq(opened, ledger)
        opened.shutdown()


def test_rocketmq_cuts_a_record_that_reput_could_not_write_whole(tmp_path, rocketmq):
    """The queue already has its unit and the index its keys; all are removed, and the queue offset is reused."""
    directory = tmp_path / "store"
    ledger = Ledger(SETTINGS)
    kill_after_puts(directory, ledger, [*random_messages(random.Random(1), 50), LAST])
    tear(directory, ledger.take_back(), size=200)
    opened = rocketmq(directory, SETTINGS)
    assert_read_by_rocketmq(opened, ledger)
    put_by_rocketmq(opened, ledger, random_messages(random.Random(2), 20))
    opened.shutdown()
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        assert_read_by_reput(store, ledger)


def test_reput_cuts_a_record_that_rocketmq_could_not_write_whole(tmp_path, rocketmq):
    """RocketMQ continues after what reput put in its place."""
    directory = tmp_path / "store"
    directory.mkdir()
    ledger = Ledger(SETTINGS)
    opened = rocketmq(directory, SETTINGS)
    put_by_rocketmq(opened, ledger, [*random_messages(random.Random(1), 50), LAST])
    opened.queues()
    opened.kill()
    tear(directory, ledger.take_back(), size=200)
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        assert_read_by_reput(store, ledger)
        put_by_reput(store, ledger, random_messages(random.Random(2), 20))
        assert_read_by_reput(store, ledger)
    opened = rocketmq(directory, SETTINGS)
    assert_read_by_rocketmq(opened, ledger)
    opened.shutdown()


@pytest.mark.parametrize("version", OLDER_VERSIONS, indirect=True)
def test_a_record_torn_in_its_properties_is_kept_where_rocketmq_has_kept_it(tmp_path, rocketmq):
    """Sizes and body are right, so RocketMQ continues after it; then it is an ordinary record, even with zeros."""
    directory = tmp_path / "store"
    ledger = Ledger(SETTINGS)
    kill_after_puts(directory, ledger, [*random_messages(random.Random(1), 50), LAST])
    tear(directory, ledger.take_back(), size=10)
    opened = rocketmq(directory, SETTINGS)
    ledger.take_over(opened.records()[-1])
    put_by_rocketmq(opened, ledger, random_messages(random.Random(2), 20))
    opened.shutdown()
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        assert_read_by_reput(store, ledger)


@pytest.mark.parametrize("version", OLDER_VERSIONS, indirect=True)
@pytest.mark.parametrize("end", [pytest.param("shutdown", marks=pytest.mark.long), "kill"])
def test_what_rocketmq_has_cut_without_zeroing_is_no_part_of_the_log(tmp_path, rocketmq, end):
    """Whole records after RocketMQ's end, older than its last one, neither come back nor count as damage."""
    directory = tmp_path / "store"
    ledger = Ledger(SETTINGS)
    kill_after_puts(directory, ledger, [*random_messages(random.Random(1), 50), *[LAST] * 5])
    for _ in range(5):
        first_lost = ledger.take_back()
    tear(directory, first_lost, size=200)
    opened = rocketmq(directory, SETTINGS)
    assert_read_by_rocketmq(opened, ledger)
    put_by_rocketmq(opened, ledger, [Message("orders", b"short", keys=["short"])])
    opened.queues()
    getattr(opened, end)()
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        assert_read_by_reput(store, ledger)
        put_by_reput(store, ledger, random_messages(random.Random(2), 20))
        assert_read_by_reput(store, ledger)
    opened = rocketmq(directory, SETTINGS)
    assert_read_by_rocketmq(opened, ledger)
    opened.shutdown()


@pytest.mark.parametrize("version", OLDER_VERSIONS, indirect=True)
def test_what_fits_behind_rocketmqs_end_comes_back_in_both(tmp_path, rocketmq):
    """RocketMQ cuts without zeroing: old records that happen to follow its last one count again at its next start."""
    directory, copy = tmp_path / "store", tmp_path / "copy"
    ledger = Ledger(SETTINGS)
    kill_after_puts(directory, ledger, [*random_messages(random.Random(1), 50), *[LAST] * 5])
    come_back = ledger.records[-4:]
    for _ in range(5):
        first_lost = ledger.take_back()
    tear(directory, first_lost, size=200)
    opened = rocketmq(directory, SETTINGS)
    put_by_rocketmq(opened, ledger, [LAST])
    opened.shutdown()
    for record in come_back:
        ledger.take_over(record)
    shutil.copytree(directory, copy)
    opened = rocketmq(copy, SETTINGS)
    assert opened.records() == ledger.records
    opened.shutdown()
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        assert_read_by_reput(store, ledger)


def tear(directory: Path, record: Record, size: int) -> None:
    """Zero the last *size* bytes of a record, like a disk after a power failure."""
    overwrite(directory, record.commit_log_offset + record.record_size - size, bytes(size))

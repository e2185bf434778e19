"""The store's lock excludes all writers but one, and names the last one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reput.errors import StoreLocked
from reput.store.state.store_lock import StoreLock, is_claimed
from small_store import drop, message_of_size, open_store


def start_rocketmq(store: Path) -> None:
    """Change the lock file like RocketMQ at its start."""
    with (store / "lock").open("r+b") as lock:
        lock.write(b"lock")


def test_a_store_is_claimed_until_a_rocketmq_starts_on_it(tmp_path):
    """The file's last entry belongs to the last writer."""
    assert not is_claimed(tmp_path / "store")
    drop(open_store(tmp_path / "store"))
    assert is_claimed(tmp_path / "store")
    start_rocketmq(tmp_path / "store")
    assert not is_claimed(tmp_path / "store")
    drop(open_store(tmp_path / "store"))
    assert is_claimed(tmp_path / "store")


def test_a_rocketmq_after_a_crash_is_noticed_by_the_claim(tmp_path):
    """Version 4 keeps the abort file of a killed reput; the known part of the log ends with the last mark."""
    opened = open_store(tmp_path / "store")
    marked = opened.put(message_of_size(300)).next_commit_log_offset
    opened.close(views_complete=True)
    opened = open_store(tmp_path / "store")
    opened.put(message_of_size(300))
    drop(opened)
    start_rocketmq(tmp_path / "store")
    opened = open_store(tmp_path / "store")
    assert opened.epochs.history[-1].start_offset == marked
    assert opened.appended > marked
    opened.close(views_complete=True)


def test_who_has_just_taken_the_lock_is_named(tmp_path):
    """Its name is not written yet; the name of the previous writer, which may still live, would be wrong."""
    first = StoreLock(tmp_path)
    try:
        with pytest.raises(StoreLocked, match=f"pid={os.getpid()}"):
            StoreLock(tmp_path)
    finally:
        first.close()
    assert StoreLock.holder(tmp_path) is None

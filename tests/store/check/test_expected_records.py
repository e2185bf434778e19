"""A check beside a writer: records that retention or a topic deletion removes meanwhile are not findings."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import reput
from delivering import wait_until
from reput.store.check.check import check_store

SETTINGS = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "mapped_file_size_consume_queue_ext": 400,
    "enable_consume_queue_ext": True,
    "max_hash_slot_num": 16,
    "max_index_num": 20,
    "delete_when": ";".join(map(str, range(24))),
    "delete_commit_log_files_interval": 1,
    "delete_file_batch_max": 1000,
    "dispatcher_flush_interval": 10,
}
VIEWS = ("consume_queue_ext", "consume_queue", "index")
TIMEOUT = 60.0


@pytest.fixture
def store(tmp_path: Path):
    """A store of some ten segments that is being written; views and log are on disk."""
    with reput.open(tmp_path / "store", mode="inline", dispatchers=VIEWS, **SETTINGS) as opened:
        put(opened, "orders", 150)
        put(opened, "bills", 50)
        opened.flush()
        wait_until(lambda: opened._engine.views.durable_cursors() == dict.fromkeys(VIEWS, opened.appended))
        yield opened


def put(store: reput.Store, topic: str, count: int) -> None:
    """Put *count* messages with a key each."""
    for number in range(count):
        store.put(reput.Message(topic, b"x" * 50, keys=[f"{topic}{number}"]))


def files_of_views(store: reput.Store) -> int:
    """Return the number of the views' files."""
    return sum(len(names) for view in VIEWS for _, _, names in os.walk(store.directory / view.replace("_", "", 1)))


def trim(store: reput.Store) -> None:
    """Remove the first segments, and the views' files for them."""
    for path in sorted((store.directory / "commitlog").iterdir())[:-3]:
        os.utime(path, (0, time.time() - 100 * 3600))
    before = files_of_views(store), len(os.listdir(store.directory / "index"))
    going = [fate for fate in store.clean() if fate.goes]
    if going:
        wait_until(lambda: store.status().writer.commit_log_offset_min == going[-1].segment.end)
        wait_until(lambda: files_of_views(store) < before[0] and len(os.listdir(store.directory / "index")) < before[1])


def delete(store: reput.Store) -> None:
    """Delete a topic, and create it again with other messages."""
    store.delete_topic("orders", TIMEOUT)
    put(store, "orders", 20)
    store.wait_for("index", store.appended, TIMEOUT)


@pytest.mark.parametrize("what", [trim, delete])
@pytest.mark.parametrize("after", [0, 1, 3, 7])
def test_what_goes_while_it_is_looked_at_is_no_finding(store, what, after):
    """Whether it was already compared, only listed, or neither."""
    steps = 0

    def progress(done: int) -> None:
        nonlocal steps
        if steps == after:
            what(store)
        steps += 1

    report = check_store(store.directory, store.settings, progress)
    assert steps > after
    assert report.damage == []
    assert [view.differences for view in report.views.values()] == [[], [], []]
    assert {name: view.state for name, view in report.views.items()} == dict.fromkeys(VIEWS, "equal")
    assert 0 <= report.bytes <= store.appended

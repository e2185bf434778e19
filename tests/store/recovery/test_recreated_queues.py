"""Topics that RocketMQ deleted and recreated: every builder gives a queue only its new records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import reput
from reput.process.owner.offline_rebuild import rebuild
from reput.settings import load_settings
from reput.store.check.check import check_store
from reput.store.log.segments import Segments
from reput.store.queue.consume_queue import UNIT, UNIT_SIZE
from reput.store.recovery.recovery import present_recreated_queues
from reput.store.recovery.recreated_queues import read_recreated_queues
from small_store import overwrite

SMALL = {
    "mapped_file_size_commit_log": 1 << 14,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
WAIT_S = 60.0
OLD, NEW = 12, 5


def put(
    store: reput.Store, life: str, queue_id: int, count: int, topic: str = "orders"
) -> list[reput.PutMessageResult]:
    """Put *count* messages whose bodies name their generation."""
    return [
        store.put(reput.Message(topic, f"{life} {queue_id} {number}".encode() + bytes(300), queue_id=queue_id))
        for number in range(count)
    ]


def as_rocketmq_left(store: Path, *, killed: bool) -> Path:
    """Remove reput's own files, and the lock file's note that reput wrote last."""
    shutil.rmtree(store / "reput")
    (store / "lock").write_bytes(b"lock")
    if killed:
        (store / "abort").touch()
    return store


@pytest.fixture
def remade(tmp_path: Path) -> Path:
    """A store whose topic ``orders`` was deleted and created again. One of its three queues got no message since."""
    store = tmp_path / "store"
    with reput.open(store, mode="inline", **SMALL) as opened:
        put(opened, "bills", 0, 3, "bills")
        for queue_id in (0, 1, 2):
            put(opened, "old", queue_id, OLD)
        opened.delete_topic("orders", WAIT_S)
        put(opened, "bills", 0, 3, "bills")
        put(opened, "new", 0, NEW)
        put(opened, "new", 1, 1)
        opened.wait_for("index", opened.appended, WAIT_S)
    return store


def bodies(store: reput.Store | reput.ReadOnlyStore, queue_id: int) -> list[str]:
    """Return the bodies that a reader gets from one queue of ``orders``."""
    found = store.get("orders", queue_id, 0, count_max=64)
    return [record.body.rstrip(b"\0").decode() for record in found]


def new_life(queue_id: int, count: int) -> list[str]:
    """Return the bodies of a queue's new generation."""
    return [f"new {queue_id} {number}" for number in range(count)]


def assert_new_life(store: reput.Store) -> None:
    """The queues hold their new generation, and continue after it."""
    store.wait_for("consume_queue", store.appended, WAIT_S)
    assert bodies(store, 0) == new_life(0, NEW)
    assert bodies(store, 1) == new_life(1, 1)
    assert bodies(store, 2) == []
    assert [store.queue_range("orders", queue_id) for queue_id in (0, 1, 2)] == [(0, NEW), (0, 1), (0, 0)]


def views(store: Path) -> dict[str, str]:
    """Return the states of the views from `check`; the log must be undamaged."""
    report = check_store(store, load_settings(**SMALL).settings)
    assert report.damage == []
    return {name: view.state for name, view in report.views.items() if name != "consume_queue_ext"}


EQUAL = {"consume_queue": "equal", "index": "equal"}


@pytest.mark.processes
@pytest.mark.parametrize("left", ["closed", "killed", "killed, without queues"])
def test_a_topic_that_was_made_again_is_its_new_life(remade, tmp_path, left):
    """Adopted or rebuilt: at once, after more puts, and without opening the store."""
    store = as_rocketmq_left(remade, killed=left != "closed")
    if left == "killed, without queues":
        shutil.rmtree(store / "consumequeue")
    else:
        assert views(store) == EQUAL
    settings = load_settings(**SMALL).settings
    list(rebuild(store, ["consume_queue"], tmp_path / "target", settings))
    built = tmp_path / "target" / "consumequeue" / "orders"
    assert sorted(path.name for path in built.iterdir()) == ["0", "1"]
    assert not (store / "reput").exists()
    with reput.open(store, mode="inline", **SMALL) as opened:
        assert_new_life(opened)
        assert {path.name: path.read_bytes() for path in (built / "0").iterdir()} == {
            path.name: path.read_bytes() for path in (store / "consumequeue" / "orders" / "0").iterdir()
        }
        assert [put(opened, "newer", queue_id, 1)[0].queue_offset for queue_id in (0, 1, 2)] == [NEW, 1, 0]
        opened.wait_for("consume_queue", opened.appended, WAIT_S)
        assert bodies(opened, 2) == ["newer 2 0"]
        assert bodies(opened, 0) == [*new_life(0, NEW), "newer 0 0"]
    assert views(store) == EQUAL
    with reput.open(store, **SMALL, dispatchers=["consume_queue"]) as opened:
        opened.rebuild("consume_queue")
        assert bodies(opened, 2) == ["newer 2 0"]
        assert bodies(opened, 1) == [*new_life(1, 1), "newer 1 0"]


def test_a_topic_that_rocketmq_made_again_behind_reput_is_its_new_life(tmp_path):
    """RocketMQ had the store for a while, and then reput again: the deletion lies after the part that reput knew."""
    store, ahead = tmp_path / "store", tmp_path / "ahead"
    with reput.open(store, mode="inline", **SMALL) as opened:
        for queue_id in (0, 1, 2):
            put(opened, "old", queue_id, OLD)
        opened.wait_for("consume_queue", opened.appended, WAIT_S)
    shutil.copytree(store, ahead)
    with reput.open(ahead, mode="inline", **SMALL) as opened:
        opened.delete_topic("orders", WAIT_S)
        put(opened, "new", 0, NEW)
        put(opened, "new", 1, 1)
        opened.wait_for("consume_queue", opened.appended, WAIT_S)
    as_rocketmq_left(ahead, killed=True)
    shutil.copytree(store / "reput", ahead / "reput")
    with reput.open(ahead, mode="inline", **SMALL) as opened:
        assert_new_life(opened)
    assert {queue.queue_id for queue in read_recreated_queues(ahead)} == {0, 1, 2}
    assert views(ahead) == EQUAL


def test_a_record_that_lost_its_queue_offset_makes_no_queue_anew(tmp_path):
    """The queue's files have its older records, which a deletion would have removed; the record is reported."""
    store = tmp_path / "store"
    with reput.open(store, mode="inline", **SMALL) as opened:
        results = put(opened, "old", 0, OLD)
        opened.wait_for("consume_queue", opened.appended, WAIT_S)
    as_rocketmq_left(store, killed=True)
    last = results[-1].commit_log_offset
    overwrite(store, last + 20, bytes(8))
    with reput.open(store, mode="inline", **SMALL) as opened:
        opened.wait_for("consume_queue", opened.appended, WAIT_S)
        assert bodies(opened, 0) == [f"old 0 {number}" for number in range(OLD - 1)]
    assert read_recreated_queues(store) == []


def test_a_queue_with_files_was_not_deleted_with_the_others(remade):
    """RocketMQ removes the files of all queues of a topic; existing files count."""
    store = as_rocketmq_left(remade, killed=True)
    directory = store / "consumequeue" / "orders" / "2"
    directory.mkdir()
    (directory / f"{0:020d}").write_bytes(UNIT.pack(1000, 100, 0).ljust(10 * UNIT_SIZE, b"\0"))
    recreated = present_recreated_queues(store, Segments(store / "commitlog"), "0" * 32)
    assert [(queue.topic, queue.queue_id) for queue in recreated] == [("orders", 0), ("orders", 1)]
    assert recreated == sorted(recreated)

"""Errors of the system, such as a full disk, reach a program as errors of the store."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys

import pytest

from delivering import wait_until
from embedded.tiny_stores import TIMEOUT, message, open_tiny
from reput.errors import DamagedStore, StoreError, StoreFull


@pytest.fixture
def store(tmp_path):
    """A store whose dispatchers run on a thread of the test."""
    with open_tiny(tmp_path / "store", mode="inline") as opened:
        yield opened


def test_a_full_disk_is_named_by_everything_that_writes_configuration(store, tmp_path, monkeypatch):
    """The error names the file; nothing is lost once there is space again."""
    store.put(message(0))
    sharing = store.consumer("billing", "orders")
    alone = store.consumer("caches", "orders", broadcast=True, offset_store=tmp_path / "offsets.json")
    for consumer in (sharing, alone):
        consumer.ack(consumer.receive(TIMEOUT))
    managers = store._engine.services.managers

    def refuse(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    for files in (managers.topics.files, managers.offsets.files, alone._shared.offsets.files):
        monkeypatch.setattr(files, "replace", refuse)
    with pytest.raises(StoreFull, match=r"configuration cannot be written: .*consumerOffset\.json"):
        sharing.commit()
    with pytest.raises(StoreFull, match=r"No space left .*topics\.json"):
        store.administration.create_topic("payments", 2)
    with pytest.raises(StoreFull, match=r"No space left .*offsets\.json"):
        alone.close()
    monkeypatch.undo()
    sharing.commit()
    sharing.close()
    store.administration.create_topic("payments", 2)
    assert store.administration.topic_config("payments").read_queue_nums == 2


EXHAUSTED = """
import os, resource, sys
import reput

with reput.open(sys.argv[1], mode="inline", mapped_file_size_commit_log=4096) as store:
    for number in range(20):
        store.put(reput.Message("orders", b"a" * 100, queue_id=number, keys=["k"]))
    store.wait_for("index", store.appended)
    reading = reput.open(sys.argv[1], read_only=True)
    calls = {
        "get": lambda: [store.get("orders", number) for number in range(20)],
        "query": lambda: store.query("orders", "k"),
        "put": lambda: [store.put(reput.Message("orders", b"a" * 2000)) for _ in range(4)],
        "consumer": lambda: store.consumer("billing", "orders"),
        "broadcast": lambda: store.consumer("caches", "orders", broadcast=True),
        "records": lambda: list(store.records()),
        "status": store.status,
        "statistics": store.statistics,
        "transactions": lambda: store.transactions,
        "administration": lambda: store.administration,
        "create_topic": lambda: store.administration.create_topic("payments", 8),
        "delete_topic": lambda: store.delete_topic("orders"),
        "read-only get": lambda: [reading.get("orders", number) for number in range(20)],
        "read-only query": lambda: reading.query("orders", "k"),
        "read-only records": lambda: list(reading.records()),
        "read-only status": reading.status,
        "open": lambda: reput.open(sys.argv[1], read_only=True),
    }
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    said = {}
    for name, call in calls.items():
        # A thread of the store may close one between the taking and the call, which then has what it needs: again.
        for _ in range(20):
            try:
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            try:
                call()
            except Exception as error:
                said[name] = (type(error), str(error))
                break
    for descriptor in taken:
        os.close(descriptor)
    for name, (kind, text) in said.items():
        print(name, kind.__name__, text)
    reading.close()
    with store.consumer("billing", "orders") as consumer:
        assert consumer.receive(timeout=60) is not None
    store.administration.create_topic("payments", 8)
"""


@pytest.mark.processes
def test_too_few_descriptors_are_named_by_every_method(tmp_path):
    """Each says so with an error of the store, and works again once there are descriptors."""
    # A program of its own: the first use of most methods imports modules, which needs descriptors, too.
    run = subprocess.run(
        [sys.executable, "-c", EXHAUSTED, tmp_path / "store"], capture_output=True, text=True, check=True
    )
    said = dict(line.split(" StoreError ") for line in run.stdout.splitlines())
    assert {"get", "query", "put", "consumer", "broadcast", "records", "status", "statistics", "open"} <= said.keys()
    assert {"administration", "create_topic", "delete_topic", "transactions"} <= said.keys()
    assert all("error=Too many open files" in text for text in said.values())


def test_a_file_that_the_disk_cannot_read_is_named_by_status(store):
    """The system's error has a place in `reput.StoreError`."""
    path = store.directory / "reput" / "damage"
    # Reading a directory is refused like a bad sector.
    path.mkdir()
    with pytest.raises(StoreError, match=r"the status cannot be read: error=Is a directory path=.*damage"):
        store.status()


@pytest.mark.processes
@pytest.mark.parametrize("name", ["shadow.swap", "shadow"])
@pytest.mark.parametrize("mode", ["inline", "processes"])
def test_a_store_says_what_an_earlier_rebuild_left_in_its_way(tmp_path, mode, name):
    """The opening names the file and the way out; without the file the store opens."""
    path = tmp_path / "store" / "reput" / name
    open_tiny(tmp_path / "store", mode=mode).close()
    path.touch()
    with pytest.raises(DamagedStore, match=f"path={path}") as caught:
        open_tiny(tmp_path / "store", mode=mode)
    assert caught.value.advice.startswith("Move it away")
    path.unlink()
    open_tiny(tmp_path / "store", mode=mode).close()


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["inline", "processes"])
def test_a_file_in_the_place_of_a_view_stops_that_view_alone(tmp_path, mode):
    """The store opens and takes messages; the dispatcher's status names the file."""
    path = tmp_path / "store" / "reput" / "views" / "index"
    open_tiny(tmp_path / "store", mode=mode).close()
    shutil.rmtree(path)
    path.touch()
    with open_tiny(tmp_path / "store", mode=mode) as store:
        store.wait_for("consume_queue", store.put(message(0)).next_commit_log_offset, TIMEOUT)

        def error_of_index():
            return next(row.error for row in store.status().dispatchers if row.name == "index") or ""

        wait_until(lambda: f"this is not a directory: path={path}" in error_of_index())
        assert len(store.get("orders", store.topics()["orders"][0])) == 1
        store.close(timeout=0)

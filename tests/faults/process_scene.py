"""ProcessScene: a store with a process group and third-party plugins, for the faults of processes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import reput
from process.probe_plugin import PluginFolder
from reput.process.control.dispatcher_row import DispatcherRow
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.state.store_lock import StoreLock
from small_store import records

__all__ = [
    "SIZES",
    "TIMEOUT",
    "VIEWS",
    "ProcessScene",
    "await_all",
    "process_scene",
    "put",
    "row_of",
    "strike",
    "wait_until",
]

TIMEOUT = 60.0
VIEWS = ("consume_queue", "index")
# Sizes of files that are quick to copy.
SIZES = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 100, "max_index_num": 10_000}


class ProcessScene:
    """One store, in *path*; *plugins* are found like installed ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "store"
        self.plugins = PluginFolder(root / "plugins")

    def open(self, *names: str, **settings: Any) -> reput.Store:
        """Open the store with the built-in views and these dispatchers."""
        store = reput.open(self.path, dispatchers=[*VIEWS, *names], **{**SIZES, **settings})
        assert isinstance(store, reput.Store)
        return store

    def saved(self, name: str) -> list[int]:
        """Return the offsets that a test's dispatcher has on disk."""
        folder = self.path / "reput" / "views" / name
        (file,) = [folder / found for found in ("probe.json", "saved.json") if (folder / found).exists()]
        offsets: list[int] = json.loads(file.read_bytes())["offsets"]
        return offsets

    def settle(self, *names: str, gap: tuple[int, int] = (0, 0)) -> None:
        """For the closed store: every view agrees with the log, and nothing is left over.

        Args:
            names: the tests' dispatchers, each of which has the offsets of all records.
            gap: range that retention removed before they had it.
        """
        report = check_store(self.path, Settings(**SIZES))
        assert report.ok, report
        assert {report.views[view].state for view in VIEWS} == {"equal"}, report
        offsets = [record.commit_log_offset for record in records(self.path)]
        for name in names:
            assert [at for at in self.saved(name) if at >= gap[1]] == [at for at in offsets if at >= gap[1]], name
        left = [path for path in self.path.rglob("*") if path.suffix == ".draft" or path.name in ("abort", "shadow")]
        assert not left, left
        assert not (self.path / "reput" / "group.json").exists()
        StoreLock(self.path).close()


@contextmanager
def process_scene(root: Path) -> Iterator[ProcessScene]:
    """Create a scene whose descriptions of plugins are cached below *root*."""
    root.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        scene = ProcessScene(root)
        patch.syspath_prepend(str(scene.plugins.folder))
        yield scene


def put(store: reput.Store, count: int = 20) -> int:
    """Put a few messages and return the log's end."""
    messages = [
        reput.Message("orders", b"body", keys=[f"key-{number}"], queue_id=number % 3) for number in range(count)
    ]
    return store.put_batch(messages)[-1].next_commit_log_offset


def row_of(store: reput.Store, name: str) -> DispatcherRow:
    """Return the status of one dispatcher."""
    return next(row for row in store.status().dispatchers if row.name == name)


def wait_until(holds: Callable[[], object], store: reput.Store) -> None:
    """Check a condition until it holds, not so often that the checks take time from those that are waited for."""
    pause = threading.Event()
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, store.status()
        pause.wait(0.02)


def await_all(store: reput.Store, end: int, *names: str) -> None:
    """Wait until these dispatchers and the built-in ones have reached *end*."""
    for name in (*VIEWS, *names):
        store.wait_for(name, end, TIMEOUT)


def strike(pid: int | None, number: int) -> None:
    """Send a signal to a process that must exist."""
    assert pid is not None
    os.kill(pid, number)

"""A program that fills a real, small disk under a store: ``small_disk_program.py ACT DIRECTORY``.

It runs in its own mount namespace, in which it mounts a file system of a few MiB on DIRECTORY; other processes do not
see it, and it ends with the program.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

import reput
from faults.process_scene import wait_until
from reput.errors import StoreFull
from reput.settings import Settings
from reput.store.check.check import check_store

__all__ = ["ACTS", "REFUSED"]

REFUSED = 77
DISK_SIZE = 6 << 20
BLOCK_SIZE = 4096
TIMEOUT = 60.0
VIEWS = ("consume_queue", "index")
SIZES = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 5000 * 20,
    "max_hash_slot_num": 1000,
    "max_index_num": 2000,
}


class SmallDisk:
    """The disk, with a store on it and a filler that takes the remaining space."""

    def __init__(self, directory: Path) -> None:
        self.store_directory = directory / "store"
        self.filler = directory / "filler"
        self.acknowledged = 0

    def fill(self) -> None:
        """Take all remaining space."""
        with self.filler.open("ab") as file:
            try:
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, BLOCK_SIZE)
            except OSError:
                return

    def make_room(self) -> None:
        self.filler.unlink()

    def open(self) -> reput.Store:
        store = reput.open(self.store_directory, mode="inline", dispatchers=VIEWS, **SIZES)
        assert isinstance(store, reput.Store)
        return store

    def put(self, store: reput.Store, count: int, topic: str = "orders") -> None:
        for _ in range(count):
            body = f"{self.acknowledged} ".encode().ljust(2000)
            store.put(reput.Message(topic, body, keys=[f"{self.acknowledged}"]))
            self.acknowledged += 1

    def verify(self) -> None:
        """Every acknowledged message exists once, and the views agree with the log."""
        with self.open() as store:
            self.put(store, 3)
            for view in VIEWS:
                store.wait_for(view, store.appended, TIMEOUT)
            numbers = [int(record.body.split()[0]) for record in store.records()]
        assert numbers == list(range(self.acknowledged)), numbers
        report = check_store(self.store_directory, Settings(**SIZES))
        assert report.ok, report
        assert {report.views[view].state for view in VIEWS} == {"equal"}, report
        left = [path for path in self.store_directory.rglob("*") if path.suffix == ".draft" or path.name == "abort"]
        assert not left, left


def fill_log(disk: SmallDisk) -> None:
    """No space is left for the next bytes of the log, or for its next segment."""
    with disk.open() as store:
        disk.put(store, 100)
        disk.fill()
        refusal = ""
        while not refusal:
            try:
                disk.put(store, 1)
            except StoreFull as error:
                refusal = str(error)
        assert "No space left" in refusal, refusal
        disk.make_room()
        disk.put(store, 100)
    disk.verify()


def fill_views(disk: SmallDisk) -> None:
    """The log has reserved its space, the views have none: they wait, report it, and continue once there is space."""
    with disk.open() as store:
        disk.put(store, 3)
        for view in VIEWS:
            store.wait_for(view, store.appended, TIMEOUT)
        disk.fill()
        # Each topic has its own queue, which needs a file.
        for number in range(20):
            disk.put(store, 1, f"topic-{number}")
        wait_until(lambda: any("No space left" in (row.error or "") for row in store.status().dispatchers), store)
        disk.make_room()
        for view in VIEWS:
            store.wait_for(view, store.appended, TIMEOUT)
    disk.verify()


def fill_before_close(disk: SmallDisk) -> None:
    """A close without space raises an error, and loses nothing."""
    store = disk.open()
    disk.put(store, 10)
    disk.fill()
    with pytest.raises(StoreFull, match="No space left"):
        store.close()
    disk.make_room()
    disk.verify()


def fill_before_open(disk: SmallDisk) -> None:
    """An opening without space raises an error, and loses nothing."""
    with disk.open() as store:
        disk.put(store, 10)
    disk.fill()
    with pytest.raises(StoreFull, match="No space left"):
        disk.open()
    disk.make_room()
    disk.verify()


ACTS = {act.__name__: act for act in (fill_log, fill_views, fill_before_close, fill_before_open)}


def mount(directory: Path) -> None:
    """Mount an empty file system in memory on *directory*.

    Raises:
        OSError: this process may not mount file systems.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"small", os.fsencode(directory), b"tmpfs", 0, f"size={DISK_SIZE}".encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    try:
        mount(directory)
    except OSError as error:
        print(f"no disk can be mounted: error={error.strerror}", file=sys.stderr)
        sys.exit(REFUSED)
    ACTS[name](SmallDisk(directory))


if __name__ == "__main__":
    main()

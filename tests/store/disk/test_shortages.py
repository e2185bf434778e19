"""Shortages: a refusal of the system becomes a store error with a reason and advice."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import reput
from reput.errors import StoreError, StoreFull, StoreReadOnly
from reput.store.disk.files import Files
from reput.store.disk.shortages import do_all, go_back, store_error, tell_read_error, tell_store_error

SIZES = {"mapped_file_size_commit_log": 1 << 16, "max_hash_slot_num": 1000, "max_index_num": 2000}
VIEWS = ["consume_queue", "index"]


@pytest.fixture
def written(tmp_path) -> Path:
    """Return a closed store with one message."""
    with open_inline(tmp_path / "store") as store:
        store.put(reput.Message("orders", b"body", keys=["key"]))
    return tmp_path / "store"


def open_inline(path: Path) -> reput.Store:
    return reput.open(path, mode="inline", dispatchers=VIEWS, **SIZES)


def failing_reads(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    """Make reads of files fail whose path contains *wanted*."""
    pread, read_bytes = os.pread, Path.read_bytes

    def failing_pread(descriptor: int, size: int, at: int) -> bytes:
        if wanted in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, at)

    def failing_read_bytes(path: Path) -> bytes:
        if wanted in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read_bytes(path)

    monkeypatch.setattr(os, "pread", failing_pread)
    monkeypatch.setattr(Path, "read_bytes", failing_read_bytes)


READS: dict[str, Callable[[reput.Store | reput.ReadOnlyStore], object]] = {
    "consumequeue/": lambda store: store.get("orders"),
    "/index/": lambda store: store.query("orders", "key"),
}


@pytest.mark.parametrize("folder", READS)
@pytest.mark.parametrize("read_only", [True, False])
def test_a_view_that_the_disk_cannot_read_is_named(written, monkeypatch, folder, read_only):
    """The error of a get or a query names the file."""
    store = reput.open(written, read_only=True, **SIZES) if read_only else open_inline(written)
    with store:
        if not read_only:
            for view in VIEWS:
                store.wait_for(view, store.appended, timeout=60)
        with monkeypatch.context() as patch:
            failing_reads(patch, folder)
            with pytest.raises(
                StoreError, match=rf"cannot be read: topic=orders.* error=Input/output error path=.*{folder}"
            ):
                READS[folder](store)
            if folder == "consumequeue/":
                with pytest.raises(StoreError, match="the queue cannot be read"):
                    store.queue_range("orders")


@pytest.mark.parametrize("name", ["store.json", "epochs", "queue_offsets"])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_of_ours_that_the_disk_cannot_read_is_named_at_the_opening(written, monkeypatch, name, read_only):
    """For writing or not."""
    failing_reads(monkeypatch, f"reput/{name}")
    with pytest.raises(StoreError, match=rf"cannot be opened.*: error=Input/output error path=.*/{name}") as error:
        reput.open(written, read_only=read_only, **({} if read_only else {"mode": "inline"}), **SIZES)
    assert "disk may be failing" in error.value.advice


def test_a_status_that_cannot_be_read_is_named(written, monkeypatch):
    """With the file."""
    with reput.open(written, read_only=True, **SIZES) as store:
        failing_reads(monkeypatch, "dispatcher_cursors")
        with pytest.raises(StoreError, match=r"the status cannot be read: .*dispatcher_cursors"):
            store.status()


@pytest.mark.parametrize("count", range(4))
def test_a_store_that_gets_too_few_threads_is_not_opened(written, monkeypatch, count):
    """The error says so, and leaves no lock behind."""
    start, left = threading.Thread.start, [count]

    def limited(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(StoreError, match=r"cannot be .*: error=the system cannot start a thread") as error:
            open_inline(written)
    assert "ulimit -u" in error.value.advice
    with open_inline(written) as store:
        store.put(reput.Message("orders", b"body"))


def test_what_fails_on_the_way_back_does_not_hide_why_it_was_gone(written, monkeypatch):
    """A disk that is full at the opening is still full when the store is closed again."""
    replace = Files.replace
    paths = []

    def full(files: Files, path: Path, data: bytes) -> None:
        if paths or path.name == "dispatcher_cursors":
            paths.append(path.name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        replace(files, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "replace", full)
        with pytest.raises(StoreFull, match=r"the store cannot be opened: .*path=.*dispatcher_cursors") as error:
            reput.open(written, mode="inline", dispatchers=["consume_queue"], **SIZES)
    assert len(paths) > 1
    assert isinstance(error.value.__cause__, OSError)
    assert any("on the way back" in note for note in error.value.__cause__.__notes__)
    with open_inline(written) as store:
        assert len(store.get("orders")) == 1


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError(errno.ENOSPC, "No space left", "f"), StoreFull, "work: error=No space left path=f"),
        (OSError(errno.EROFS, "Read-only", "f"), StoreReadOnly, "work: error=Read-only path=f"),
        (OSError(errno.EMFILE, "Too many open files"), StoreError, "work: error=Too many open files"),
        (MemoryError(), StoreError, "work: error=out of memory"),
        (ImportError("x.so: failed to map segment from shared object"), StoreError, "out of memory for a library"),
        (RuntimeError("can't start new thread"), StoreError, "work: error=the system cannot start a thread"),
    ],
)
def test_what_the_system_refuses_is_told_as_the_stores_error(error, kind, text):
    """With the failed action, and with the file if there is one."""
    with pytest.raises(kind) as told, tell_store_error("work"):
        raise error
    assert text in str(told.value)
    assert told.value.advice


@pytest.mark.parametrize("error", [RuntimeError("other"), ImportError("no such module"), ValueError("value")])
def test_what_is_no_shortage_stays_what_it_is(error):
    """A bug is not reported as a shortage."""
    with pytest.raises(type(error)) as told, tell_store_error("work"):
        raise error
    assert told.value is error


def test_who_may_not_read_is_not_told_to_read_only():
    """That advice is for a user without write permission."""
    with pytest.raises(StoreError) as told, tell_read_error("work"):
        raise PermissionError(errno.EACCES, "Permission denied", "f")
    assert not isinstance(told.value, StoreReadOnly)
    assert "run as a user with read permission" in told.value.advice
    assert str(store_error("work", OSError("odd"))) == "work: error=odd"


def test_each_step_of_the_way_back_is_made():
    """Even if the step before fails."""
    error, made = ValueError("first"), []

    def fails() -> None:
        raise OSError("second")

    go_back(error, fails, lambda: made.append(1))
    assert made == [1]
    assert error.__notes__ == ["Then, on the way back: OSError: second"]


def test_what_fails_keeps_nothing_else_from_being_done():
    """All steps are done in order; the first error is raised, and mentions the later ones."""
    done = []

    def fail(name: str) -> None:
        done.append(name)
        raise ValueError(name)

    actions = (lambda: done.append("a"), lambda: fail("b"), lambda: done.append("c"), lambda: fail("d"))
    with pytest.raises(ValueError, match="b") as raised:
        do_all(*actions)
    assert done == ["a", "b", "c", "d"]
    assert raised.value.args == ("b",)
    assert raised.value.__notes__ == ["Then, on the way back: ValueError: d"]

"""OpenFiles reads files that appear and disappear; DirectoryStamp tells when a directory must be listed again."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from reput.store.disk import open_files
from reput.store.disk.open_files import DirectoryStamp, OpenFiles


def open_names(directory: Path) -> list[str]:
    """Return this process's open files of *directory*; others may be closed at any time."""
    links = [Path(link_of(descriptor)) for descriptor in os.listdir("/proc/self/fd")]
    return sorted(link.name for link in links if link.parent == directory)


@pytest.fixture
def files():
    """Return an `OpenFiles` with a limit of three open files."""
    files = OpenFiles(3)
    yield files
    files.close()


def test_bytes_are_read_from_any_place(tmp_path, files):
    """Fewer at the end of the file, and none after it."""
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    assert files.read(path, 4, 3) == b"3456"
    assert files.read(str(path), 4, 8) == b"89"
    assert files.read(path, 4, 20) == b""


def test_a_file_that_is_not_there_is_said_to_be_so(tmp_path, files):
    """It is found as soon as it exists."""
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "a", 1, 0)
    (tmp_path / "a").write_bytes(b"x")
    assert files.read(tmp_path / "a", 1, 0) == b"x"


def test_the_file_that_was_not_read_for_longest_is_closed_first(tmp_path, files):
    """The number of open files stays below the limit."""
    for name in "abcd":
        (tmp_path / name).write_bytes(name.encode())
    for name in "abca":
        files.read(tmp_path / name, 1, 0)
    files.read(tmp_path / "d", 1, 0)
    assert [os.path.basename(path) for path in files.descriptors] == ["c", "a", "d"]
    assert open_names(tmp_path) == ["a", "c", "d"]
    files.close()
    assert open_names(tmp_path) == []


def test_a_file_that_was_replaced_is_read_on_until_it_is_forgotten(tmp_path, files):
    """Only files below the prefix are forgotten."""
    for name in ("q/a", "q/b", "other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"old")
        files.read(tmp_path / name, 3, 0)
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(b"new")
    assert files.read(tmp_path / "q/a", 3, 0) == b"old"
    files.forget(f"{tmp_path}/q/")
    assert [files.read(tmp_path / name, 3, 0) for name in ("q/a", "q/b", "other")] == [b"new", b"new", b"old"]


def test_threads_never_read_another_file_than_their_own(tmp_path):
    """However often descriptors are closed and their numbers reused."""
    files = OpenFiles(2)
    wrong: list[bytes] = []
    for number in range(8):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 100)

    def read(number):
        for _ in range(500):
            data = files.read(tmp_path / str(number), 100, 0)
            if data != bytes([number]) * 100:
                wrong.append(data)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    files.close()
    assert wrong == []


@pytest.fixture
def stamp(tmp_path, monkeypatch):
    """Return the stamp of a directory whose last change, by the clock, is long past."""
    directory = tmp_path / "d"
    directory.mkdir()
    os.utime(directory, ns=(0, 1_000_000_000))
    return DirectoryStamp(directory)


def test_a_directory_is_looked_at_once_and_then_when_it_has_changed(tmp_path, stamp):
    """An added or removed name is a change."""
    assert [stamp.changed(), stamp.changed(), stamp.changed()] == [True, False, False]
    (tmp_path / "d" / "a").write_bytes(b"")
    assert stamp.changed()
    os.utime(tmp_path / "d", ns=(0, 2_000_000_000))
    assert [stamp.changed(), stamp.changed()] == [True, False]


def test_a_directory_that_took_the_place_of_another_is_a_change(tmp_path, stamp):
    """Even if both were changed at the same time."""
    assert [stamp.changed(), stamp.changed()] == [True, False]
    (tmp_path / "e").mkdir()
    (tmp_path / "d").rename(tmp_path / "f")
    (tmp_path / "e").rename(tmp_path / "d")
    os.utime(tmp_path / "d", ns=(0, 1_000_000_000))
    assert [stamp.changed(), stamp.changed()] == [True, False]


def test_a_change_just_now_may_not_have_been_the_last_of_its_tick(tmp_path, stamp, monkeypatch):
    """The kernel's time stamps are coarse; until its clock has advanced, the directory is listed again."""
    stamp.changed()
    changed_ns = 5_000_000_000
    os.utime(tmp_path / "d", ns=(0, changed_ns))
    monkeypatch.setattr(open_files.time, "time_ns", lambda: changed_ns + open_files.TICK_NS)
    assert [stamp.changed(), stamp.changed()] == [True, True]
    monkeypatch.setattr(open_files.time, "time_ns", lambda: changed_ns + open_files.TICK_NS + 1)
    assert [stamp.changed(), stamp.changed()] == [True, False]


def test_an_absent_directory_is_always_worth_a_look(tmp_path, stamp):
    """It may be created at any time; a forgotten one is listed again."""
    stamp.changed()
    stamp.forget()
    assert [stamp.changed(), stamp.changed()] == [True, False]
    (tmp_path / "d").rmdir()
    assert [stamp.changed(), stamp.changed()] == [True, True]


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_reader_that_nobody_has_any_more_keeps_no_file_open(tmp_path):
    """Whether closed or not, like Python's own files."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    files = OpenFiles()
    files.read(path, 7, 0)
    assert str(path) in map(link_of, os.listdir("/proc/self/fd"))
    del files
    gc.collect()
    assert str(path) not in map(link_of, os.listdir("/proc/self/fd"))


def link_of(descriptor: str) -> str:
    """Return the target of a descriptor; nothing if it is closed meanwhile."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""

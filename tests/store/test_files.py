"""Files: what the store asks of the operating system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource

import pytest

from reput.store import files as files_module
from reput.store.files import FORCES_TOGETHER_MAX, Files, WrittenFile


def test_a_file_has_its_size_before_it_has_its_name(tmp_path, monkeypatch):
    """Whoever is killed in between leaves no file that is too short: RocketMQ 4 would refuse the whole store."""
    path = tmp_path / "00000000000000000000"
    truncate = os.ftruncate
    names: list[list[str]] = []

    def look_and_truncate(descriptor: int, size: int) -> None:
        names.append(os.listdir(tmp_path))
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", look_and_truncate)
    Files().create(path, 4096)
    assert names == [[]]
    assert path.read_bytes() == bytes(4096)
    assert path.stat().st_mode & 0o777 == 0o644 & ~current_umask()


def test_a_file_is_made_with_its_first_bytes(tmp_path, monkeypatch):
    """It has no name while they are not all in it: RocketMQ takes the zeros of a new queue file for a unit."""
    names = []
    write = os.pwrite

    def look_and_write_a_part(descriptor: int, data: bytes, at: int) -> int:
        names.append(os.listdir(tmp_path))
        return write(descriptor, data[:2], at)

    monkeypatch.setattr(os, "pwrite", look_and_write_a_part)
    Files().create(tmp_path / "0", 4096, b"data")
    assert names == [[], []]
    assert (tmp_path / "0").read_bytes() == b"data" + bytes(4092)


def test_a_file_that_exists_is_not_made_again(tmp_path):
    """What is in it stays."""
    path = tmp_path / "0"
    path.write_bytes(b"here")
    with pytest.raises(FileExistsError):
        Files().create(path, 4096)
    assert path.read_bytes() == b"here"
    assert os.listdir(tmp_path) == ["0"]


def test_a_file_is_made_where_no_nameless_one_can_be(tmp_path, monkeypatch):
    """Some file systems know none; the file then has its name first."""
    open_file = os.open

    def refuse_nameless(path: object, flags: int, *more: object) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return open_file(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse_nameless)
    Files().create(tmp_path / "0", 4096)
    assert (tmp_path / "0").read_bytes() == bytes(4096)


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_error_names_the_file(tmp_path):
    """The system's calls on a descriptor do not know it."""
    path = tmp_path / "0"
    Files().create(path, 4096)
    written = Files().open(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large") as refused:
            written.write(b"x", 4096)
        with pytest.raises(OSError, match="File too large") as not_replaced:
            Files().replace(tmp_path / "1", bytes(8192))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        written.close()
    assert refused.value.filename == str(path)
    assert not_replaced.value.filename == str(tmp_path / "1.draft")


def test_many_files_are_forced_together_and_none_fails_unnoticed(tmp_path, monkeypatch):
    """All are on their way to the disk before the first is waited for; whoever hears nothing has all of them there."""
    files = [tmp_path / str(number) for number in range(2 * FORCES_TOGETHER_MAX + 3)]
    directories = [tmp_path / f"directory-{number}" for number in range(3)]
    for path in files:
        path.touch()
    for path in directories:
        path.mkdir()
    called: list[tuple[str, str]] = []

    def name_of(descriptor: int) -> str:
        return os.readlink(f"/proc/self/fd/{descriptor}")

    monkeypatch.setattr(os, "fdatasync", lambda descriptor: called.append(("force", name_of(descriptor))))
    monkeypatch.setattr(os, "fsync", lambda descriptor: called.append(("force", name_of(descriptor))))
    begin = WrittenFile.begin_force
    monkeypatch.setattr(
        WrittenFile, "begin_force", lambda file: (called.append(("begin", str(file.path))), begin(file))
    )
    Files().force_together(files, directories)
    assert [path for deed, path in called if deed == "force"] == [str(path) for path in (*files, *directories)]
    assert [path for deed, path in called if deed == "begin"] == [str(path) for path in files]
    assert [deed for deed, _ in called[: FORCES_TOGETHER_MAX + 1]] == ["begin"] * FORCES_TOGETHER_MAX + ["force"]
    monkeypatch.undo()
    files[50].unlink()
    with pytest.raises(FileNotFoundError):
        Files().force_together(files, directories)


def test_a_disk_that_refuses_to_begin_is_heard(tmp_path, monkeypatch):
    """The kernel may tell it only once."""
    path = tmp_path / "file"
    path.touch()
    file = WrittenFile(path)
    for number, heard in ((errno.EIO, True), (errno.ENOSYS, False)):

        def refuse(*_: object, number: int = number) -> int:
            ctypes.set_errno(number)
            return -1

        monkeypatch.setattr(files_module, "sync_file_range", refuse)
        with pytest.raises(OSError, match=r"file'$") if heard else contextlib.nullcontext():
            file.begin_force()
    file.close()

"""Files: the store's calls of the operating system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reput.store.disk import files as files_module
from reput.store.disk.files import (
    FORCES_BY_ONE_THREAD_MAX,
    FORCES_PER_PART,
    FORCES_TOGETHER_MAX,
    Files,
    Mapping,
    WrittenFile,
)


def test_a_file_has_its_size_before_it_has_its_name(tmp_path, monkeypatch):
    """A kill in between leaves no short file: RocketMQ 4 would refuse the whole store."""
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
    """It gets its name only after they are written: RocketMQ treats the zeros of a new queue file as a unit."""
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
    """Its content stays."""
    path = tmp_path / "0"
    path.write_bytes(b"here")
    with pytest.raises(FileExistsError):
        Files().create(path, 4096)
    assert path.read_bytes() == b"here"
    assert os.listdir(tmp_path) == ["0"]


def test_a_file_is_made_where_no_nameless_one_can_be(tmp_path, monkeypatch):
    """Some file systems do not support them; then the file gets its name first."""
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


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("count", [FORCES_TOGETHER_MAX, FORCES_TOGETHER_MAX * 3, FORCES_BY_ONE_THREAD_MAX])
def test_many_files_are_forced_together_and_none_fails_unnoticed(tmp_path, monkeypatch, count):
    """The names come after the files; without an error all of them are on disk. Progress is reported meanwhile."""
    files = [tmp_path / str(number) for number in range(count)]
    directories = [tmp_path / f"directory-{number}" for number in range(3)]
    for path in files:
        path.touch()
    for path in directories:
        path.mkdir()
    called: list[str] = []

    def force(descriptor: int) -> None:
        called.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fdatasync", force)
    monkeypatch.setattr(os, "fsync", force)
    parts: list[int] = []
    Files().force_together(files, directories, lambda: parts.append(len(called)))
    assert sorted(called[:count]) == sorted(str(path) for path in files)
    assert called[count:] == [str(path) for path in directories]
    assert parts[-1] == count + 3
    part = FORCES_TOGETHER_MAX if count + 3 <= FORCES_BY_ONE_THREAD_MAX else FORCES_PER_PART
    assert len(parts) == count // part + 1
    monkeypatch.undo()
    files[50].unlink()
    with pytest.raises(FileNotFoundError):
        Files().force_together(files, directories)


def test_many_files_are_forced_also_where_no_thread_can_be_had(tmp_path, monkeypatch):
    """For example in an exit handler, when Python's pools accept no more work."""
    files = [tmp_path / str(number) for number in range(FORCES_BY_ONE_THREAD_MAX)]
    for path in files:
        path.touch()
    forced: list[Path] = []
    monkeypatch.setattr(Files, "force_files", lambda self, paths: forced.extend(paths))

    def refuse(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    Files().force_together(files, [tmp_path])
    assert forced == files


def test_a_few_files_are_on_their_way_before_the_first_is_waited_for(tmp_path, monkeypatch):
    """Then they share one commit of the file system's journal."""
    files = [tmp_path / str(number) for number in range(3)]
    for path in files:
        path.touch()
    called: list[str] = []
    begin = WrittenFile.begin_force
    monkeypatch.setattr(WrittenFile, "begin_force", lambda file: (called.append("begin"), begin(file)))
    monkeypatch.setattr(os, "fdatasync", lambda _: called.append("force"))
    Files().force_together(files, [])
    assert called == ["begin"] * 3 + ["force"] * 3


def test_a_disk_that_refuses_to_begin_is_heard(tmp_path, monkeypatch):
    """The kernel may report it only once."""
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


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_what_cannot_be_written_and_forced_by_one_call_is_by_two(tmp_path, monkeypatch, error):
    """Neither gVisor nor an old kernel supports that call."""
    calls = spied(monkeypatch)

    def refuse(descriptor: int, buffers: list[bytes], at: int, flags: int) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pwritev", refuse)
    assert forced_write(tmp_path) == b"..one two.."
    assert calls == ["write", "force"]


def test_a_python_whose_c_library_has_no_forced_write_does_with_two_calls(tmp_path, monkeypatch):
    """Some versions of musl do not."""
    calls = spied(monkeypatch)
    monkeypatch.setattr(files_module, "WRITE_FORCED", 0)
    monkeypatch.delattr(os, "pwritev")
    assert forced_write(tmp_path) == b"..one two.."
    assert calls == ["write", "force"]


def test_a_forced_write_that_falls_short_goes_on(tmp_path, monkeypatch):
    """The rest is written at its place; the flag requires that it is on disk."""
    calls = spied(monkeypatch)
    write = os.pwritev

    def write_a_part(descriptor: int, buffers: list[bytes], at: int, flags: int) -> int:
        assert flags == os.RWF_DSYNC
        return write(descriptor, [buffers[0][:3]], at, flags)

    monkeypatch.setattr(os, "pwritev", write_a_part)
    assert forced_write(tmp_path) == b"..one two.."
    assert calls == []


def test_a_forced_write_beyond_what_a_file_may_have_names_the_file(tmp_path, monkeypatch):
    """Like any error of the disk."""

    def refuse(descriptor: int, buffers: list[bytes], at: int, flags: int) -> int:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "pwritev", refuse)
    with pytest.raises(OSError, match=r"File too large.*segment"):
        forced_write(tmp_path)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of a mapping's calls, which now take two system calls."""
    calls: list[str] = []
    for name in ("write", "force"):
        call = getattr(Mapping, name)

        def note(*arguments: object, name: str = name, call: Callable[..., None] = call) -> None:
            calls.append(name)
            call(*arguments)

        monkeypatch.setattr(Mapping, name, note)
    return calls


def forced_write(directory: Path) -> bytes:
    """Write into a mapped file and return its content."""
    path = directory / "segment"
    path.write_bytes(b"." * 11)
    mapping = Mapping(path, 11)
    try:
        mapping.write_forced(b"one two", 2)
        return bytes(mapping.memory)
    finally:
        mapping.close()

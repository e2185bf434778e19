"""The recorded address of a group, and the errors for a missing one."""

from __future__ import annotations

import os
import shutil

import msgspec
import pytest

from reput.process.group.group_lock import GroupLock
from reput.process.group.group_place import place_path, read_place, remove_place, why_silent, write_place
from reput.store.state.store_lock import StoreLock, Writer, process_start_time


@pytest.fixture
def directory(tmp_path):
    """A store's directory with a group's lock."""
    (tmp_path / "store" / "reput").mkdir(parents=True)
    lock = GroupLock(tmp_path / "store")
    assert lock.try_take()
    yield tmp_path / "store"
    lock.release()


def test_a_place_is_read_as_it_was_written(directory):
    """Name of the socket and process id of the supervisor; nothing once it is removed."""
    write_place(directory, "some-name")
    place = read_place(directory)
    assert (place.socket, place.pid) == ("some-name", os.getpid())
    remove_place(directory)
    remove_place(directory)
    assert read_place(directory) is None


def test_a_copy_of_a_store_does_not_lead_to_the_originals_group(directory, tmp_path):
    """Its lock file is a different one."""
    write_place(directory, "some-name")
    shutil.copytree(directory, tmp_path / "copy")
    assert read_place(tmp_path / "copy") is None
    directory.rename(tmp_path / "moved")
    assert read_place(tmp_path / "moved").socket == "some-name"


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"[]", b'{"socket":5}'])
def test_rubbish_is_no_place(directory, content):
    """A power cut may leave such content."""
    place_path(directory).write_bytes(content)
    assert read_place(directory) is None


def claim(directory, *, by=None):
    """Take the store's lock like a writer; *by*: the process id in `writer.json`."""
    pid = by or os.getpid()
    lock = StoreLock(directory)
    lock.claim()
    writer = Writer(pid, process_start_time(pid))
    (directory / "reput" / "writer.json").write_bytes(msgspec.json.encode(writer))
    return lock


def test_nobody_is_silent_where_nobody_has_the_store_open(directory):
    """The lock file is missing or free."""
    assert why_silent(directory) is None
    claim(directory).close()
    assert why_silent(directory) is None


def test_a_writer_without_a_socket_is_named(directory):
    """With its process id, and the possible reason."""
    lock = claim(directory)
    assert "mode='inline'" in why_silent(directory)
    assert f"pid={os.getpid()}" in why_silent(directory)
    write_place(directory, "some-name")
    assert "network namespace" in why_silent(directory)
    lock.close()


def test_those_who_hold_the_lock_without_dispatchers_are_not_a_group(directory):
    """RocketMQ, and a verb that changes a closed store."""
    lock = claim(directory, by=1)
    assert why_silent(directory) is None
    lock.close()
    lock = claim(directory)
    (directory / "lock").write_bytes(b"lock")
    assert why_silent(directory) is None
    lock.close()


def test_who_may_not_look_at_the_lock_does_not_know(directory, monkeypatch):
    """An unreadable lock does not prove that no process has the store open."""

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("reput.store.state.store_lock.os.open", refuse)
    assert why_silent(directory) == "this user may not see whether the store is open"

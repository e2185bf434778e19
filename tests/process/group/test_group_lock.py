"""One process group at a time."""

from __future__ import annotations

import os

import pytest

from reput.process.group.group_lock import GroupLock

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")]


@pytest.fixture
def store(tmp_path):
    """A store's directory."""
    (tmp_path / "reput").mkdir()
    return tmp_path


def forked(function):
    """Run *function* in a forked child that lives until the returned function is called."""
    reader, writer = os.pipe()
    ready, say_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        function()
        os.write(say_ready, b"x")
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    os.read(ready, 1)

    def end():
        os.close(writer)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(say_ready)

    return end


def test_the_lock_excludes_and_is_given_back(store):
    """Also within one process: the lock belongs to the open file."""
    first, second = GroupLock(store), GroupLock(store)
    assert first.try_take()
    assert not second.try_take()
    first.release()
    assert second.try_take()
    second.release()


def test_members_of_the_group_hold_it_by_fork(store):
    """It is free only when the last of them has ended."""
    first, second = GroupLock(store), GroupLock(store)
    assert first.try_take()
    end = forked(lambda: None)
    first.release()
    assert not second.try_take()
    end()
    assert second.try_take()
    second.release()


def test_what_a_plugin_forks_does_not_hold_it(store):
    """Its processes do not belong to the group."""
    first, second = GroupLock(store), GroupLock(store)
    assert first.try_take()
    first.withhold()
    end = forked(lambda: None)
    first.release()
    assert second.try_take()
    second.release()
    end()

"""Parent-death signals, and why only the supervisor's children use them."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from reput.process.system.parent_death import die_with_parent

# The parent forks with threads on purpose, and its children call nothing that needs a lock.
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")]


def wait_for_end(pid):
    """Return the exit status of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_dies_with_the_process_that_forked_it():
    """Whatever it is doing."""
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        pid = os.getpid()
        if os.fork() == 0:
            die_with_parent(pid)
            os.write(writer, b"x")
            threading.Event().wait()
        os.read(reader, 1)
        os._exit(0)
    os.close(writer)
    wait_for_end(parent)
    # The pipe's last writer is the grandchild.
    assert os.read(reader, 10) in (b"", b"x")
    os.close(reader)


def test_a_parent_that_has_ended_already_is_noticed():
    """The kernel sends no signal for an end before the request."""
    child = os.fork()
    if child == 0:
        die_with_parent(1 << 30)
        os._exit(0)
    assert wait_for_end(child) == -signal.SIGKILL


def test_the_signal_comes_when_the_thread_ends_though_the_process_lives():
    """The pitfall: a program may end the thread that opened a store, and must not lose its group."""
    children = []

    def fork():
        parent = os.getpid()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            die_with_parent(parent)
            os.write(writer, b"x")
            threading.Event().wait()
        os.read(reader, 1)
        os.close(reader)
        os.close(writer)
        children.append(child)

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    assert wait_for_end(children[0]) == -signal.SIGKILL

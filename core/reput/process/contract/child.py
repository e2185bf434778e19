"""run_in_child: a piece of work in a forked process that may die of it."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable

from msgspec import Struct

__all__ = ["Ended", "run_in_child"]

CHILD_TIME_MAX_S = 60.0


class Ended(Struct, frozen=True):
    """How the process ended: *status* as `os.waitstatus_to_exitcode` has it, and the whole *lines* that it said."""

    status: int
    lines: list[str]


def run_in_child(work: Callable[[Callable[[str], None]], None], time_max: float = CHILD_TIME_MAX_S) -> Ended:
    """Run *work* in a forked child; it is given a function that says a line to the parent, at once.

    The child ends without exit handlers, destructors and buffers that were not written, as a process does that is
    killed. An exception of *work* is status 1, and its traceback is said.

    Raises:
        AssertionError: it did not end in *time_max* seconds, and was killed.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with warnings.catch_warnings():
        # Other threads of the caller's are not in the child, which runs the one loop and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work(lambda line: say(writing, line))
            status = 0
        except BaseException:
            say(writing, traceback.format_exc())
        finally:
            os._exit(status)
    os.close(writing)
    # What the plugin itself forks may keep the pipe open; the process's end counts.
    ending = os.pidfd_open(pid)
    try:
        said = receive(reading, ending, time.monotonic() + time_max)
    finally:
        os.close(reading)
        signal.pidfd_send_signal(ending, signal.SIGKILL)
        os.close(ending)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert said is not None, f"the dispatcher did not come to its end: seconds={time_max}"
    return Ended(status, said.decode("utf-8", "replace").split("\n")[:-1])


def say(writing: int, line: str) -> None:
    """Write one line, all of it."""
    data = line.encode("utf-8", "replace") + b"\n"
    while data:
        data = data[os.write(writing, data) :]


def receive(reading: int, ending: int, deadline: float) -> bytes | None:
    """Return what the process says until it ends; None: it does not in time."""
    said = b""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(ending, select.POLLIN)
    while (remaining := deadline - time.monotonic()) > 0:
        ready = dict(poll.poll(remaining * 1000))
        if reading in ready:
            data = os.read(reading, 1 << 16)
            said += data
            if data:
                continue
            poll.unregister(reading)
        if ending in ready:
            return said
    return None

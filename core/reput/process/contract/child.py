"""run_in_child: runs a function in a forked process, which may crash."""

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
    """How the process ended: *status* as in `os.waitstatus_to_exitcode`, and the complete *lines* that it sent."""

    status: int
    lines: list[str]


def run_in_child(work: Callable[[Callable[[str], None]], None], time_max: float = CHILD_TIME_MAX_S) -> Ended:
    """Run *work* in a forked child; its argument is a function that sends one line to the parent immediately.

    The child ends without running exit handlers and destructors or writing its buffers, like a killed process. If
    *work* raises an exception, the status is 1 and the traceback is sent.

    Raises:
        AssertionError: the child did not end within *time_max* seconds, and was killed.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with warnings.catch_warnings():
        # The caller's other threads do not exist in the child, which runs one loop and ends.
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
    # Processes forked by the plugin may keep the pipe open, so wait for the process itself.
    ending = os.pidfd_open(pid)
    try:
        said = receive(reading, ending, time.monotonic() + time_max)
    finally:
        os.close(reading)
        signal.pidfd_send_signal(ending, signal.SIGKILL)
        os.close(ending)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert said is not None, f"the dispatcher did not finish in time: seconds={time_max}"
    return Ended(status, said.decode("utf-8", "replace").split("\n")[:-1])


def say(writing: int, line: str) -> None:
    """Write one whole line."""
    data = line.encode("utf-8", "replace") + b"\n"
    while data:
        data = data[os.write(writing, data) :]


def receive(reading: int, ending: int, deadline: float) -> bytes | None:
    """Return what the process sends until it ends; None if it does not end in time."""
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

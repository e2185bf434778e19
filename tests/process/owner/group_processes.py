"""What tests of the process group ask of its processes."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import msgspec

TIMEOUT = 60.0


def is_gone(pid):
    """Tell whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def await_end(pid):
    """Wait until a process that is not our child has ended."""
    pause = threading.Event()
    for _ in range(int(TIMEOUT / 0.005)):
        if is_gone(pid):
            return
        pause.wait(0.005)
    raise AssertionError(f"process lives: pid={pid}")


def named_memory(pid):
    """Return the files in memory that a process has open or mapped and that would outlive it."""
    opened = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # The process runs meanwhile, and closes its files.
        with contextlib.suppress(FileNotFoundError):
            opened.add(os.readlink(link))
    mapped = {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    return {name for name in opened | mapped if name.startswith("/dev/shm/")}


def group_log(log):
    """Return the group's log."""
    return (log.store_directory / "reput" / "log" / "group.log").read_text()


class Answer(msgspec.Struct):
    """More than any socket accepts at once."""

    text: str = "x" * (3 << 20)

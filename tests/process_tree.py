"""The processes that a process has started, as the system lists them."""

from __future__ import annotations

import contextlib

import psutil

__all__ = ["descendants"]


def descendants(pid: int) -> dict[int, str]:
    """Return the processes below *pid*, with their command lines."""
    found: dict[int, str] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                found[process.pid] = " ".join(process.cmdline())
    return found

"""The processors for which the ring's memory order is proved."""

from __future__ import annotations

import platform
import sys

from reput.errors import RingError

__all__ = ["refuse_unproved_processor"]

PROVED = frozenset({"x86_64", "amd64"})
ADVICE = 'open the store with mode="inline": the dispatchers then run in the program itself'


def refuse_unproved_processor(machine: str | None = None, system: str | None = None, lock: str | None = None) -> None:
    """Accept only x86-64 Linux, where stores and loads happen in program order.

    Args:
        machine: as named by `platform.machine`; default: this machine.
        system: as named by `sys.platform`; default: this system.
        lock: implementation of the interpreter's locks as named by `sys.thread_info.lock`; default: this interpreter's.

    Raises:
        RingError: the memory order that the ring relies on is not proved on this platform.
    """
    machine = platform.machine() if machine is None else machine
    system = sys.platform if system is None else system
    lock = sys.thread_info.lock if lock is None else lock
    if system != "linux" or machine.lower() not in PROVED:
        raise RingError(
            f"dispatchers in processes of their own need Linux on x86-64, the order of memory accesses is not proved "
            f"elsewhere: system={system} machine={machine}",
            ADVICE,
        )
    # While a process has one thread, glibc's mutexes lock without a locked instruction, so they are no barrier.
    if lock == "mutex+cond":
        raise RingError(f"this Python's locks are no memory barrier: sys.thread_info.lock={lock}", ADVICE)

"""Which processors the ring's memory order is proved for."""

from __future__ import annotations

import platform
import sys

from reput.errors import RingError

__all__ = ["refuse_unproved_processor"]

PROVED = frozenset({"x86_64", "amd64"})
ADVICE = 'open the store with mode="inline": the dispatchers then run in the program itself'


def refuse_unproved_processor(machine: str | None = None, system: str | None = None, lock: str | None = None) -> None:
    """Pass on x86-64 Linux, where stores become visible in their order and loads happen in theirs.

    Args:
        machine: as `platform.machine` names it; this machine's by default.
        system: as `sys.platform` names it; this system's by default.
        lock: as `sys.thread_info.lock` names what the interpreter's locks are made of; this one's by default.

    Raises:
        RingError: the order of loads and stores that the ring relies on was not proved here.
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
    # glibc's mutexes lock without a locked instruction while a process has one thread, so they are no barrier.
    if lock == "mutex+cond":
        raise RingError(f"this Python's locks are no memory barrier: sys.thread_info.lock={lock}", ADVICE)

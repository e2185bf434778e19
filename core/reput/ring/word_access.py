"""How this machine's processes read and write the words of the ring, and the machines on which they cannot.

x86-64     memory views and the interpreter's locks: stores and loads stay in program order, but for a load after a
           store of another word, and these locks are a full barrier
aarch64    words and barriers of the kernel (`reput.kernel`), which keep the same order on a processor that does not
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from reput.errors import RingError

if TYPE_CHECKING:
    from reput.kernel import RingBarrier, RingWords

__all__ = ["Barrier", "WordAccess", "Words", "word_access"]

Words: TypeAlias = "memoryview[int] | RingWords"
Barrier: TypeAlias = "Lock | RingBarrier"

IN_ORDER = frozenset({"x86_64", "amd64"})
# Little-endian with 64 bits; its name elsewhere than in Linux is arm64.
OUT_OF_ORDER = frozenset({"aarch64", "arm64"})
INLINE = 'open the store with mode="inline": the dispatchers then run in the program itself'
KERNEL = f"Install the kernel with `pip install 'reput[kernel]'`, or {INLINE}"


class WordAccess(NamedTuple):
    """How words are read and written.

    Attributes:
        words: takes a view of bytes and returns its 8-byte words. Loads and stores of them keep the program's order.
        barrier: makes a full barrier, which a thread passes when it acquires it without blocking and releases it.
    """

    words: Callable[[memoryview], Words]
    barrier: Callable[[], Barrier]


def cast_to_words(octets: memoryview) -> Words:
    return octets.cast("Q")


def word_access(machine: str | None = None, system: str | None = None, lock: str | None = None) -> WordAccess:
    """Return how this machine's processes read and write the ring.

    Args:
        machine: as named by `platform.machine`; default: this machine.
        system: as named by `sys.platform`; default: this system.
        lock: implementation of the interpreter's locks as named by `sys.thread_info.lock`; default: this interpreter's.

    Raises:
        RingError: the memory order that the ring relies on is not proved on this platform.
        ConfigError: as `reput.kernel.kernel`, where the kernel is needed.
    """
    machine = (platform.machine() if machine is None else machine).lower()
    system = sys.platform if system is None else system
    lock = sys.thread_info.lock if lock is None else lock
    if system != "linux" or machine not in IN_ORDER | OUT_OF_ORDER:
        raise RingError(
            f"dispatchers in processes of their own need Linux on x86-64 or aarch64, the order of memory accesses is "
            f"not proved elsewhere: system={system} machine={machine}",
            INLINE,
        )
    if machine in OUT_OF_ORDER:
        # Here, because no process on x86-64 needs it.
        from reput.kernel import kernel

        used = kernel()
        if used is None:
            raise RingError(
                f"dispatchers in processes of their own need the kernel on this processor, which keeps no order of "
                f"memory accesses by itself: machine={machine}",
                KERNEL,
            )
        return WordAccess(used.RingWords, used.RingBarrier)
    # While a process has one thread, glibc's mutexes lock without a locked instruction, so they are no barrier.
    if lock == "mutex+cond":
        raise RingError(f"this Python's locks are no memory barrier: sys.thread_info.lock={lock}", INLINE)
    return WordAccess(cast_to_words, Lock)

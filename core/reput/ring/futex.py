"""The two futex calls of Linux on a word that processes share, which Python does not have.

A wait needs read access alone, so that a process which may not write the word can sleep on it.

Source: futex(2). The kernel knows the word of a shared mapping by its file, so each process may map it where it likes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct

__all__ = ["ReadOnlyPages", "futex_wait", "futex_wake"]

# The numbers of x86-64, and of the table that aarch64 and all newer processors share.
SYS_FUTEX = 202 if os.uname().machine == "x86_64" else 98
FUTEX_WAIT, FUTEX_WAKE = 0, 1
ALL = 2**31 - 1
TIMESPEC = struct.Struct("=qq")

libc = ctypes.CDLL(None, use_errno=True)
pointer, word, number = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
libc.syscall.argtypes = (ctypes.c_long, pointer, number, word, ctypes.c_char_p, pointer, word)
libc.mmap.argtypes = (pointer, ctypes.c_size_t, number, number, number, ctypes.c_long)
libc.mmap.restype = pointer
libc.munmap.argtypes = (pointer, ctypes.c_size_t)
MAP_FAILED = pointer(-1).value


def futex_wake(address: int) -> None:
    """Wake every thread that waits on the word at *address*. Without any it takes about 1.5 µs."""
    libc.syscall(SYS_FUTEX, address, FUTEX_WAKE, ALL, None, None, 0)


def futex_wait(address: int, value: int, timeout: float) -> None:
    """Sleep while the 32-bit word at *address* is *value*, until a wake-up, or for *timeout* seconds.

    It may return sooner. An address that is not mapped any more is no error.
    """
    seconds = int(timeout)
    libc.syscall(SYS_FUTEX, address, FUTEX_WAIT, value, TIMESPEC.pack(seconds, int((timeout - seconds) * 1e9)), None, 0)


class ReadOnlyPages:
    """A read-only shared mapping whose address is known; `mmap.mmap` tells the address of a writable one alone."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address is None or address == MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"memory cannot be mapped: size={size}")
        self.address: int = address

    def close(self) -> None:
        """Unmap. A thread that waits on a word of it sleeps on, for as long as it may."""
        address, self.address = self.address, 0
        if address:
            libc.munmap(address, self.size)

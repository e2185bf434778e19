"""Killing a real process in the n-th of its system calls that change files.

A child is forked, traced (ptrace), and given a filter (seccomp) that stops it only at those calls, so a run costs a
fork and one stop per call. It is killed *before* the n-th call is executed, as by SIGKILL, with all of its threads.

The child reports through shared memory when the calls begin to count, and which messages were acknowledged: shared
memory outlives it, and writing to it is not a system call.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["CALLS", "Ending", "Marks", "TracingRefused", "kill_at"]

MACHINE = "x86_64"
# Numbers of this machine, the only one on which these tests run.
CALLS = {
    "write": 1,
    "pwrite64": 18,
    "writev": 20,
    "msync": 26,
    "sendfile": 40,
    "fcntl": 72,
    "fsync": 74,
    "fdatasync": 75,
    "truncate": 76,
    "ftruncate": 77,
    "rename": 82,
    "mkdir": 83,
    "rmdir": 84,
    "link": 86,
    "unlink": 87,
    "symlink": 88,
    "chmod": 90,
    "mkdirat": 258,
    "unlinkat": 263,
    "renameat": 264,
    "linkat": 265,
    "utimensat": 280,
    "fallocate": 285,
    "pwritev": 296,
    "renameat2": 316,
    "copy_file_range": 326,
    "pwritev2": 328,
}
OPENAT = 257
# An open counts if it may create or shorten a file: O_CREAT, O_TRUNC, __O_TMPFILE.
OPEN_FLAGS = 0o100 | 0o1000 | 0o20000000
FLAGS_AT = 32
ARCHITECTURE_AT = 4
AUDIT_ARCH_X86_64 = 0xC000003E

LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, TRACE = 0x7FFF0000, 0x7FF00000

PTRACE_TRACEME, PTRACE_CONT, PTRACE_SETOPTIONS = 0, 7, 0x4200
TRACE_FORK, TRACE_VFORK, TRACE_CLONE, TRACE_SECCOMP, EXIT_KILL = 0x2, 0x4, 0x8, 0x80, 0x100000
EVENT_SECCOMP = 7
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
WALL = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
libc.ptrace.restype = ctypes.c_long


class TracingRefused(Exception):
    """No child can be traced here: the system refuses it, as in some containers, or has other numbers for its calls."""


class Marks:
    """The information that a child leaves.

    Attributes:
        acknowledged: number of acknowledged messages.
    """

    def __init__(self) -> None:
        self.words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    @property
    def counting(self) -> bool:
        """Whether its calls count now."""
        return bool(self.words[0])

    @counting.setter
    def counting(self, value: bool) -> None:
        self.words[0] = value

    @property
    def acknowledged(self) -> int:
        return self.words[1]

    @acknowledged.setter
    def acknowledged(self, value: int) -> None:
        self.words[1] = value


class Ending(NamedTuple):
    """How a child ended: its number of calls, and whether it was killed in the last of them."""

    calls: int
    killed: bool


class FilterProgram(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_char_p))


def filter_code() -> bytes:
    """Return the program that the kernel runs at every call of the child."""
    step = struct.Struct("=HBBI").pack
    code = [step(LOAD, 0, 0, ARCHITECTURE_AT), step(EQUAL, 1, 0, AUDIT_ARCH_X86_64), step(RETURN, 0, 0, ALLOW)]
    code.append(step(LOAD, 0, 0, 0))
    for number in CALLS.values():
        code += [step(EQUAL, 0, 1, number), step(RETURN, 0, 0, TRACE)]
    code += [step(EQUAL, 1, 0, OPENAT), step(RETURN, 0, 0, ALLOW)]
    code += [step(LOAD, 0, 0, FLAGS_AT), step(ANY_BIT, 0, 1, OPEN_FLAGS)]
    code += [step(RETURN, 0, 0, TRACE), step(RETURN, 0, 0, ALLOW)]
    return b"".join(code)


def ptrace(request: int, pid: int, data: int = 0) -> None:
    if libc.ptrace(request, pid, None, ctypes.c_void_p(data)) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def kill_at(number: int, act: Callable[[Marks], object], marks: Marks) -> Ending:
    """Do *act* in a child; kill the process that makes counted call number *number*, from 1 on; 0 kills none.

    That is the child or a direct or indirect child of it. Returns when all of them have ended, and leaves none alive.
    The caller must have only one thread and no other child.

    Raises:
        TracingRefused: no child can be traced here.
        AssertionError: the child itself failed; its output is on stderr.
    """
    if os.uname().machine != MACHINE:
        raise TracingRefused(f"the numbers of the system calls are those of {MACHINE}: machine={os.uname().machine}")
    child = os.fork()
    if child == 0:
        run_child(act, marks)
    _, status = os.waitpid(child, WALL)
    if not os.WIFSTOPPED(status):
        raise TracingRefused(f"a child cannot be traced: status={status}")
    ptrace(PTRACE_SETOPTIONS, child, TRACE_FORK | TRACE_VFORK | TRACE_CLONE | TRACE_SECCOMP | EXIT_KILL)
    ptrace(PTRACE_CONT, child)
    calls, victim = 0, 0
    while True:
        try:
            pid, status = os.waitpid(-1, WALL)
        except ChildProcessError:
            return Ending(calls, victim != 0)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            assert pid != child or status == 0 or victim == child, f"the child failed: status={status}"
            continue
        signal_number, event = os.WSTOPSIG(status), status >> 16
        if event == EVENT_SECCOMP and marks.counting and not victim:
            calls += 1
            if calls == number:
                victim = process_of(pid)
                os.kill(victim, signal.SIGKILL)
                continue
        # Processes and threads begin with a SIGSTOP, and programs with a SIGTRAP, which must not be passed on.
        passed_on = 0 if event or signal_number in (signal.SIGSTOP, signal.SIGTRAP) else signal_number
        # A thread that has ended dies with its process.
        with contextlib.suppress(ProcessLookupError):
            ptrace(PTRACE_CONT, pid, passed_on)


def process_of(thread: int) -> int:
    """Return the process of a thread."""
    with open(f"/proc/{thread}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))


def run_child(act: Callable[[Marks], object], marks: Marks) -> None:
    """Do *act* under the filter and end; its threads have the filter from their beginning."""
    try:
        code = filter_code()
        program = FilterProgram(len(code) // 8, code)
        ptrace(PTRACE_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
            if libc.prctl(*arguments, 0, 0):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        act(marks)
        marks.counting = False
    except OSError as error:
        traceback.print_exc()
        os._exit(2 if error.errno in (errno.EPERM, errno.ENOSYS) else 1)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)

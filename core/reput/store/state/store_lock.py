"""The store's lock: it admits only one writer.

An open-file-description lock on byte 0 of ``lock``. A classic POSIX lock is lost when anything in the process closes
that file; this one is not, and still excludes RocketMQ's. It names no process, so the holder's process id and start
time are in ``reput/writer.json``; for RocketMQ's lock the system knows the process.

The file's four bytes name the program that wrote the store last, also after a kill: RocketMQ writes ``lock`` when it
starts, reput writes ``rput``. Neither uses the other's bytes for anything else.

Source: RocketMQ store, DefaultMessageStore.start (``lock`` bytes [0, 1)).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from reput.errors import StoreLocked
from reput.store.disk.shortages import tell_store_error

__all__ = ["LockState", "StoreLock", "Writer", "is_claimed", "process_start_time", "read_writer"]

F_OFD_GETLK = 36
F_OFD_SETLK = 37
FLOCK = struct.Struct("hhqqi")
# As long as RocketMQ's word, which is written over it.
CLAIM = b"rput"
# The pause between two attempts to take a lock that another process holds, while the caller waits.
TRY_INTERVAL_S = 0.05


class Writer(msgspec.Struct, frozen=True):
    """``reput/writer.json``: the process that writes, or wrote last.

    Attributes:
        start_time: the kernel's, in clock ticks.
        boot_id: of the machine's start that it ran, or runs, in; None: not known.
        kernel: version of the kernel that it puts through; None: it takes the Python path.
    """

    pid: int
    start_time: int | None
    boot_id: str | None = None
    kernel: str | None = None


class LockState(NamedTuple):
    """Whether a store's lock is held, and by which process.

    Attributes:
        held: None: this user may not look.
        pid: the holder's process id; None: the lock is free, or the holder is not visible from here, for example in
            another container.
    """

    held: bool | None
    pid: int | None


def process_start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot, which tells reused ids apart; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def read_writer(store_directory: Path) -> Writer | None:
    """Return the reput process that writes the store, or wrote it last; None if that is not known."""
    try:
        return msgspec.json.decode((store_directory / "reput" / "writer.json").read_bytes(), type=Writer)
    except (OSError, msgspec.MsgspecError):
        return None


def is_claimed(store_directory: Path) -> bool:
    """Tell whether no RocketMQ has started on this store since reput wrote it."""
    try:
        return (store_directory / "lock").read_bytes() == CLAIM
    except OSError:
        return False


class StoreLock:
    """Held from construction to `close`."""

    def __init__(self, store_directory: Path, timeout: float | None = 0.0) -> None:
        """Take the lock, after waiting up to *timeout* seconds for it; None: without limit.

        Raises:
            StoreLocked: another process holds the lock; the text names the process.
            StoreReadOnly: this user may not write there, or the file system is read-only.
        """
        self.path = store_directory / "lock"
        with tell_store_error(f"the store cannot be locked for writing: store={store_directory}"):
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        pause = threading.Event()
        end = None if timeout is None else time.monotonic() + timeout
        try:
            while not self.try_lock():
                if end is not None and time.monotonic() >= end:
                    raise locked_error(store_directory, self.holder(store_directory, self.descriptor), timeout)
                pause.wait(TRY_INTERVAL_S)
        except BaseException:
            os.close(self.descriptor)
            raise

    def try_lock(self) -> bool:
        """Take the lock if it is free."""
        try:
            fcntl.fcntl(self.descriptor, F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    @classmethod
    def holder(cls, store_directory: Path, descriptor: int | None = None) -> int | None:
        """Return the process id of the lock's holder, None if the lock is free or the holder cannot be seen."""
        return cls.look(store_directory, descriptor).pid

    @classmethod
    def may_be_held(cls, store_directory: Path) -> bool:
        """Tell whether a process writes the store, or may do so where this user cannot see it."""
        return cls.look(store_directory).held is not False

    @staticmethod
    def look(store_directory: Path, descriptor: int | None = None) -> LockState:
        """Return the state of a store's lock. Never takes the lock, and never creates the file."""
        own = None
        if descriptor is None:
            try:
                own = descriptor = os.open(store_directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return LockState(False, None)
            except OSError:
                return LockState(None, None)
        try:
            answer = fcntl.fcntl(descriptor, F_OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0) + bytes(4))
        finally:
            if own is not None:
                os.close(own)
        kind, _, _, _, pid = FLOCK.unpack_from(answer)
        if kind == fcntl.F_UNLCK:
            return LockState(False, None)
        return LockState(True, int(pid) if pid > 0 else holder_of_open_file(store_directory))

    def is_in_place(self) -> bool:
        """Tell whether the store is still where it was opened: its directory may have been moved, or removed."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False
        except OSError:
            # It cannot be seen for now.
            return True

    def claim(self) -> None:
        """Record that reput wrote this store last."""
        os.pwrite(self.descriptor, CLAIM, 0)
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Give the lock back; a second time changes nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def locked_error(store_directory: Path, holder: int | None, timeout: float | None) -> StoreLocked:
    """Return the error that names the process that holds the lock of a store, *holder* if it is known."""
    waited = f" waited_s={timeout:g}" if timeout else ""
    if holder == os.getpid():
        return StoreLocked(
            f"this program already has the store open: pid={holder} store={store_directory}{waited}",
            "Use the open store, from any thread, or close it first.",
        )
    writer = "the parent of this process" if holder == os.getppid() else "another process"
    return StoreLocked(f"{writer} writes this store: pid={holder or 'unknown'} store={store_directory}{waited}")


def holder_of_open_file(store_directory: Path) -> int | None:
    """Return which process holds an open-file-description lock on a store's lock file, None if it cannot be seen."""
    writer = read_writer(store_directory)
    lock = os.stat(store_directory / "lock")
    if writer is not None and locks(str(writer.pid), lock):
        return writer.pid
    # A process that has just taken the lock has not written its name yet; the file still names the writer before it.
    for process in os.listdir("/proc"):
        if process.isdigit() and locks(process, lock):
            return int(process)
    # The descriptors of another user's process are not visible.
    return writer.pid if writer is not None and process_start_time(writer.pid) == writer.start_time else None


def locks(process: str, lock: os.stat_result) -> bool:
    """Tell whether a process, by its number, holds an open-file-description lock on the file *lock* is of."""
    try:
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            # A descriptor that was closed meanwhile, or may not be examined, is not the lock.
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{process}/fd/{descriptor}"), lock):
                    facts = Path(f"/proc/{process}/fdinfo/{descriptor}").read_text()
                    if "OFDLCK" in facts:
                        return True
    except OSError:
        pass
    return False

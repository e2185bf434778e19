"""System errors as errors of the store: those that pass once an operator makes room, and all others."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from reput.errors import StoreError, StoreFull, StoreReadOnly
from reput_hooks import RetryLater

__all__ = ["NO_ROOM", "do_all", "go_back", "retry_on_shortage", "store_error", "tell_read_error", "tell_store_error"]

NOT_ALLOWED = frozenset((errno.EROFS, errno.EACCES, errno.EPERM))
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

SHORTAGES = NO_ROOM | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
MAY_NOT_WRITE = "Open it with read_only=True, or mend its owner, mode or mount; verbs that only read work as it is."
NO_MEMORY = "Give the program more memory: see `ulimit -v` and the limit of its container."
ADVICE = {
    errno.EMFILE: "Raise the limit of open files: ulimit -n.",
    errno.ENFILE: "Raise the system's limit of open files: sysctl fs.file-max.",
    errno.ENOMEM: NO_MEMORY,
    errno.EAGAIN: "Raise the limit of processes and threads: ulimit -u, or that of the container.",
    errno.EIO: "The disk may be failing: see the system's log (dmesg), and `reput check STORE`.",
    errno.EACCES: "Check its owner and mode; run as a user with read permission.",
}
# Python's message if the system starts no thread, or the program ends; the error has no own class.
NO_THREAD = ("can't start new thread", "can't create new thread")
# The dynamic loader's message if a library, such as numpy, no longer fits into the address space.
NO_ROOM_FOR_LIBRARY = "failed to map segment"


class retry_on_shortage:
    """Turn a shortage into `RetryLater`, which says *what* could not be done.

    Do not use it around the force of a `flush`, which continues in place: a failed force must not be retried. Work that
    starts again from the durable cursor may be.
    """

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and error.errno in SHORTAGES:
            raise RetryLater(f"{self.what}: error={error.strerror} path={error.filename}") from error


def store_error(what: str, error: OSError) -> StoreError:
    """Return the error that says *what* could not be done, why, and with which file."""
    where = "" if error.filename is None else f" path={error.filename}"
    text = f"{what}: error={error.strerror or error}{where}"
    if error.errno in NO_ROOM:
        return StoreFull(text, "Free space on the disk; no stored message is lost.")
    return StoreError(text, ADVICE.get(error.errno or 0, ""))


@contextmanager
def tell_store_error(what: str) -> Iterator[None]:
    """Turn an error of the system into one of the store that says *what* could not be done, and with which file.

    Raises:
        StoreFull: the disk has no space.
        StoreReadOnly: this user may not write there, or the file system is read-only.
        StoreError: anything else that the system refused, a thread or memory included.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NOT_ALLOWED:
            raise StoreReadOnly(f"{what}: error={error.strerror} path={error.filename}", MAY_NOT_WRITE) from None
        raise store_error(what, error) from error
    except MemoryError as error:
        raise StoreError(f"{what}: error=out of memory", NO_MEMORY) from error
    except (RuntimeError, ImportError) as error:
        if str(error).startswith(NO_THREAD):
            raise StoreError(f"{what}: error=the system cannot start a thread", ADVICE[errno.EAGAIN]) from error
        if NO_ROOM_FOR_LIBRARY in str(error):
            raise StoreError(f"{what}: error=out of memory for a library", NO_MEMORY) from error
        raise


@contextmanager
def tell_read_error(what: str) -> Iterator[None]:
    """Turn an error of the system into one of the store that says *what* could not be read, and which file.

    Raises:
        StoreError: the system cannot, or this user may not.
    """
    try:
        yield
    except OSError as error:
        raise store_error(what, error) from error


def do_all(*actions: Callable[[], object]) -> None:
    """Do each of *actions* in turn, whatever becomes of those before it.

    Raises:
        BaseException: the first error; those that came after it are added to it.
    """
    rest = iter(actions)
    for action in rest:
        try:
            action()
        except BaseException as error:
            go_back(error, *rest)
            raise


def go_back(error: BaseException, *actions: Callable[[], object]) -> None:
    """Undo what was done before *error*; what goes wrong with that is added to it, and does not take its place."""
    for action in actions:
        try:
            action()
        except Exception as further:
            error.add_note(f"Then, on the way back: {type(further).__name__}: {further}")

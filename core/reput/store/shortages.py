"""Shortages: errors of the system that pass by themselves, or once an operator has made room; and the others."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from reput.errors import StoreError, StoreFull, StoreReadOnly
from reput_hooks import RetryLater

__all__ = ["NO_ROOM", "retry_on_shortage", "tell_store_error"]

NOT_ALLOWED = frozenset((errno.EROFS, errno.EACCES, errno.EPERM))
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

SHORTAGES = NO_ROOM | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
MAY_NOT_WRITE = "Open it with read_only=True, or mend its owner, mode or mount; verbs that only read work as it is."


class retry_on_shortage:
    """Turn a shortage into `RetryLater`, which says *what* could not be done.

    Not around the force of a `flush`, which goes on where it is: a force that failed must not be tried again. What
    begins again from the durable cursor may.
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


@contextmanager
def tell_store_error(what: str) -> Iterator[None]:
    """Turn an error of the system into one of the store that says *what* could not be done, and with which file.

    Raises:
        StoreFull: the disk has no room.
        StoreReadOnly: this user may not write there, or nobody may.
        StoreError: anything else that the system refused.
    """
    try:
        yield
    except OSError as error:
        text = f"{what}: error={error.strerror} path={error.filename}"
        if error.errno in NO_ROOM:
            raise StoreFull(text, "Make room on the disk; nothing that was stored is lost.") from error
        if error.errno in NOT_ALLOWED:
            raise StoreReadOnly(text, MAY_NOT_WRITE) from None
        raise StoreError(text) from error

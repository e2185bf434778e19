"""Shortages: errors of the system that pass by themselves, or once an operator has made room; and the others."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from reput.errors import StoreError, StoreFull
from reput_hooks import RetryLater

__all__ = ["NO_ROOM", "retry_on_shortage", "tell_store_error"]

NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

SHORTAGES = NO_ROOM | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


@contextmanager
def retry_on_shortage(what: str) -> Iterator[None]:
    """Turn a shortage into `RetryLater`, which says *what* could not be done.

    Not around the force of a `flush`, which goes on where it is: a force that failed must not be tried again. What
    begins again from the durable cursor may.
    """
    try:
        yield
    except OSError as error:
        if error.errno in SHORTAGES:
            raise RetryLater(f"{what}: error={error.strerror} path={error.filename}") from error
        raise


@contextmanager
def tell_store_error(what: str) -> Iterator[None]:
    """Turn an error of the system into one of the store that says *what* could not be done, and with which file.

    Raises:
        StoreFull: the disk has no room.
        StoreError: anything else that the system refused.
    """
    try:
        yield
    except OSError as error:
        text = f"{what}: error={error.strerror} path={error.filename}"
        if error.errno in NO_ROOM:
            raise StoreFull(text, "Make room on the disk; nothing that was stored is lost.") from error
        raise StoreError(text) from error

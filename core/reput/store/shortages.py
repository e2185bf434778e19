"""Shortages: errors of the system that pass by themselves, or once an operator has made room."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from reput_hooks import RetryLater

__all__ = ["retry_on_shortage"]

SHORTAGES = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM))


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

"""exchange_paths: exchange two names in one step, so that neither is ever absent."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from reput.errors import DispatcherError

__all__ = ["exchange_paths"]

AT_FDCWD = -100
RENAME_EXCHANGE = 2  # linux/fs.h
libc = ctypes.CDLL(None, use_errno=True)


def exchange_paths(left: Path, right: Path) -> None:
    """Exchange the names *left* and *right* atomically. Both exist, on one file system.

    Raises:
        DispatcherError: the file system cannot exchange names.
        OSError: a path is absent, or the disk refused; nothing was changed.
    """
    if libc.renameat2(AT_FDCWD, os.fsencode(left), AT_FDCWD, os.fsencode(right), RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):
        raise DispatcherError(
            f"this file system cannot exchange two folders in one step: path={left}",
            "Build into another directory with --target, and move it into place while the store is closed.",
        )
    raise OSError(number, os.strerror(number), str(left), None, str(right))

"""Where a measurement makes its stores, so that one does not pay for what another has removed.

ext4 does not reuse the inode of a file for a minute after it was removed - for minutes, until its table is written -
and passes over those one by one whenever it looks for a free one. A store of a thousand queues that is made where
another was removed a moment ago takes twice as long. Every scratch directory is therefore put into a part of the disk
that is chosen by its name, as far as the file system knows of such parts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

__all__ = ["scratch_directory", "spread_directories"]

PREFIX = "reput-bench-"
# linux/fs.h: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_TOPDIR_FL. The numbers speak of a long, what is passed is an int.
GET_FLAGS = 0x80086601
SET_FLAGS = 0x40086602
TOP_OF_HIERARCHIES = 0x20000
FLAGS = Struct("=I4x")


@contextlib.contextmanager
def scratch_directory(directory: Path | None) -> Iterator[Path]:
    """Make a directory for scratch stores, and remove it in the end with all that is in it.

    Args:
        directory: where it is made; None: the system's place for such.
    """
    outer = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    try:
        spread_directories(Path(outer))
        yield Path(tempfile.mkdtemp(prefix=PREFIX, dir=outer))
    finally:
        shutil.rmtree(outer)


def spread_directories(path: Path) -> None:
    """Have the directories that are made in *path* far from each other on the disk, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # What does not know this has no such parts either.
        with contextlib.suppress(OSError):
            (flags,) = FLAGS.unpack(fcntl.ioctl(descriptor, GET_FLAGS, bytes(FLAGS.size)))
            fcntl.ioctl(descriptor, SET_FLAGS, FLAGS.pack(flags | TOP_OF_HIERARCHIES))
    finally:
        os.close(descriptor)

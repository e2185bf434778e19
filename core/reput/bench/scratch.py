"""The location of scratch stores, chosen so that one measurement does not pay for files that another removed.

For a minute after a file was removed (for minutes, until its table is written), ext4 does not reuse its inode, and
skips such inodes one by one in each search for a free one. Creating a store of a thousand queues where another was just
removed takes twice as long. Every scratch directory is therefore placed in a block group chosen by its name, if the
file system has block groups.
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
# linux/fs.h: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_TOPDIR_FL. The numbers encode a long, but an int is passed.
GET_FLAGS = 0x80086601
SET_FLAGS = 0x40086602
TOP_OF_HIERARCHIES = 0x20000
FLAGS = Struct("=I4x")


@contextlib.contextmanager
def scratch_directory(directory: Path | None) -> Iterator[Path]:
    """Create a directory for scratch stores, and remove it afterwards with its contents.

    Args:
        directory: where it is created; None: the system's temporary directory.
    """
    outer = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    try:
        spread_directories(Path(outer))
        yield Path(tempfile.mkdtemp(prefix=PREFIX, dir=outer))
    finally:
        shutil.rmtree(outer)


def spread_directories(path: Path) -> None:
    """Place the directories created in *path* far from each other on the disk, if the file system can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A file system without this flag has no block groups, either.
        with contextlib.suppress(OSError):
            (flags,) = FLAGS.unpack(fcntl.ioctl(descriptor, GET_FLAGS, bytes(FLAGS.size)))
            fcntl.ioctl(descriptor, SET_FLAGS, FLAGS.pack(flags | TOP_OF_HIERARCHIES))
    finally:
        os.close(descriptor)

"""Folders for the temporary files of a running Spark.

A killed process leaves its folder behind, and the next one to make a folder removes it. Each owner holds a lock on its
folder that ends with its process, so an unlocked folder has no owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["scratch_folder"]

PREFIX = "reput-spark-"
# A folder exists for a moment before it is locked, and a JVM still writes for a moment after its owner dies.
YOUNG_SECONDS = 60


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder in the system's temporary directory, removed at the end."""
    remove_what_was_left()
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_what_was_left() -> None:
    """Remove folders whose owners were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # It may belong to another user, or be locked or just removed by its owner.
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < YOUNG_SECONDS:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)

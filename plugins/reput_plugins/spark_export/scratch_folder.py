"""Folders for what Spark writes down while it runs, which nobody needs afterwards.

Who is killed leaves one behind; whoever makes one next removes it. An owner holds a lock on its folder, which goes with
the owner's process, so a folder without one is nobody's.
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
# A folder is made a moment before it is locked, and a JVM writes for a moment after its owner has died.
YOUNG_SECONDS = 60


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Lend a new folder in the system's place for such, removed at the end."""
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
        # Another user's, or one that its owner removes just now.
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < YOUNG_SECONDS:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)

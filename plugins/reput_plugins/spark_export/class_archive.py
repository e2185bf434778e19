"""The class-data archive (AppCDS): Spark's parsed classes, with which its JVM starts in a fraction of the time.

The JVM writes the archive when it exits, which takes some seconds once; every later start maps it. It is valid for one
Java and one Spark, so its name depends on both; the JVM ignores an archive that does not fit. It lies in the user's
cache directory and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import time
from pathlib import Path

__all__ = ["ClassArchive"]

# A draft that has not grown for so long belongs to a start that was killed.
DRAFT_SECONDS_MAX = 3600


class ClassArchive:
    """The archive of one Java and one Spark."""

    def __init__(self, java: Path, spark_home: Path, spark_version: str) -> None:
        told = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
        key = b"\0".join((told, os.fsencode(java.resolve()), os.fsencode(spark_home)))
        digest = hashlib.sha256(key).hexdigest()[:16]
        self.path = cache_directory() / f"spark-{spark_version}-{digest}.jsa"
        # Two processes may write an archive at the same time; each renames its finished draft into place.
        self.draft = self.path.with_suffix(f".{os.getpid()}.draft")

    def options(self, make: bool) -> str:
        """Return the JVM options: use the archive if it exists; else, with *make*, write it at exit."""
        self.remove_old_drafts()
        if self.path.exists():
            return f"-Xshare:auto -XX:SharedArchiveFile={self.path}"
        if not make:
            return ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.draft.touch()
        except OSError:
            # Without a writable cache directory there is no archive, and every start is slow.
            return ""
        self.draft.unlink()
        return f"-XX:ArchiveClassesAtExit={self.draft}"

    def remove_old_drafts(self) -> None:
        """Remove what killed programs have left in the cache directory, up to 150 MiB each."""
        for draft in self.path.parent.glob("spark-*.draft"):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > DRAFT_SECONDS_MAX:
                    draft.unlink()

    def keep(self) -> None:
        """Move the archive that the JVM wrote into place. Call it after the JVM has ended."""
        if self.draft.exists():
            self.draft.rename(self.path)


def cache_directory() -> Path:
    """Return reput's folder in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "reput"

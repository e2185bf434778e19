"""The class-data archive (AppCDS): Spark's classes, parsed and kept, so that its JVM starts in a fraction of the time.

The JVM writes one when it ends, which takes it some seconds once; every later start maps it. It holds for one Java and
one Spark, so both are in its name; an archive that does not fit is ignored by the JVM. It lies in the user's cache
directory and may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

__all__ = ["ClassArchive"]


class ClassArchive:
    """The archive of one Java and one Spark."""

    def __init__(self, java: Path, spark_home: Path, spark_version: str) -> None:
        told = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
        key = b"\0".join((told, os.fsencode(java.resolve()), os.fsencode(spark_home)))
        digest = hashlib.sha256(key).hexdigest()[:16]
        self.path = cache_directory() / f"spark-{spark_version}-{digest}.jsa"
        # Two may be made at once; each is moved into place whole.
        self.draft = self.path.with_suffix(f".{os.getpid()}.draft")

    def options(self, make: bool) -> str:
        """Return the JVM's options: use the archive if there is one; else, with *make*, write it at the end."""
        if self.path.exists():
            return f"-Xshare:auto -XX:SharedArchiveFile={self.path}"
        if not make:
            return ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.draft.touch()
        except OSError:
            # Without a cache directory that can be written, each start takes its time.
            return ""
        self.draft.unlink()
        return f"-XX:ArchiveClassesAtExit={self.draft}"

    def keep(self) -> None:
        """Take over what the JVM wrote, after its end."""
        if self.draft.exists():
            self.draft.rename(self.path)


def cache_directory() -> Path:
    """Return the user's place for what can be made again."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "reput"

"""A SPARK_HOME of links, with which the Python processes that Spark starts need not compile PySpark each time.

Spark puts ``python/lib/pyspark.zip`` first in the path of each such process. Python keeps nothing of what it compiles
from a zip file, so that every start takes 0.7 s of processor time longer than it must; a stream starts several. Here
that name is a folder with links to the installed packages, and everything else is a link to the installation's own.

It lies in the user's cache directory and may be deleted while no Spark runs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from reput_plugins.spark_export.class_archive import cache_directory

__all__ = ["spark_home"]

LINKED = ("bin", "conf", "jars", "sbin")
ZIPS = Path("python", "lib")


def spark_home(master: str) -> Path:
    """Return the SPARK_HOME with which a JVM for *master* starts.

    It is the installation's own if the user has named one, for a cluster, whose machines have theirs, and where the
    cache directory cannot be written.
    """
    from pyspark.find_spark_home import _find_spark_home

    own = Path(_find_spark_home())
    if "SPARK_HOME" in os.environ or not master.startswith("local"):
        return own
    folder = cache_directory() / f"spark-home-{hashlib.sha256(os.fsencode(own)).hexdigest()[:16]}"
    try:
        if not folder.exists():
            make_links(own, folder)
    except OSError:
        return own
    return folder


def make_links(own: Path, folder: Path) -> None:
    """Make *folder* at once, whole: of two processes that do so, one comes first."""
    import py4j
    import pyspark

    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(suffix=".draft", dir=folder.parent))
    try:
        for name in LINKED:
            if (own / name).exists():
                (draft / name).symlink_to(own / name)
        for archive in (own / ZIPS).glob("*.zip"):
            (draft / ZIPS / archive.name).mkdir(parents=True)
            for package in (pyspark, py4j):
                installed = Path(next(iter(package.__path__)))
                (draft / ZIPS / archive.name / installed.name).symlink_to(installed)
        draft.rename(folder)
    except OSError:
        shutil.rmtree(draft)
        if not folder.exists():
            raise

"""The archive of Spark's classes, made once: without it each of the dozen JVMs of a run takes five seconds longer.

It lies where an export of a large log would leave it, in the user's cache directory.
"""

from __future__ import annotations

import fcntl
import functools
import subprocess
import sys

__all__ = ["archive_spark_classes"]

TIMEOUT = 300
PROGRAM = """
from reput_plugins.spark_export.spark_session import spark_session

settings = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "1"}
with spark_session(settings, "class archive", make_class_archive=True) as session:
    session.range(10).selectExpr("id + 1 as x").groupBy("x").count().collect()
"""


@functools.cache
def archive_spark_classes() -> None:
    """Make the archive unless there is one. Of several test processes one makes it, and the others wait."""
    import pyspark

    from reput_plugins.spark_export.class_archive import ClassArchive
    from reput_plugins.spark_export.requirements import find_java
    from reput_plugins.spark_export.spark_home import spark_home

    archive = ClassArchive(find_java(), spark_home("local[2]"), pyspark.__version__)
    archive.path.parent.mkdir(parents=True, exist_ok=True)
    with archive.path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.path.exists():
            done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=TIMEOUT)
            assert done.returncode == 0, done.stderr

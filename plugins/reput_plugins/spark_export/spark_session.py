"""SparkSession for an export: a Spark in this machine unless the settings name another, quiet and without leftovers.

In local mode Spark is the control plane alone - the bytes are decoded and written by Python workers - so its JVM gets
the settings that start fastest. Everything it prints goes to a file, of which the last lines are shown if it fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.errors import DispatcherError
from reput_plugins.spark_export.class_archive import ClassArchive
from reput_plugins.spark_export.requirements import find_java
from reput_plugins.spark_export.scratch_folder import scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_session"]

LOOPBACK = "127.0.0.1"
LOG_LINES_SHOWN = 12
# Writing a class archive is the longest part of it.
EXIT_SECONDS_MAX = 120
# A control plane compiles little and keeps little: the simplest compiler and collector start soonest. Young objects get
# little room, because each part of it that was once used stays in memory.
JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m -Xmn64m"
# Spark refuses less than 450 MiB.
DRIVER_MEMORY = "512m"
# Each thread would else get an arena of its own, which keeps what it once needed.
MALLOC_ARENAS = "2"
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


@contextlib.contextmanager
def spark_session(
    settings: Mapping[str, str],
    app_name: str,
    *,
    make_class_archive: bool = False,
    driver_memory: str = DRIVER_MEMORY,
) -> Iterator[SparkSession]:
    """Lend a Spark session: the program's own if it has one, else one that is started here and stopped at the end.

    Args:
        settings: ``spark.*`` settings; ``spark.remote`` points to Spark Connect, ``spark.master`` to a cluster.
        driver_memory: heap of a JVM that is started here, unless the settings say.
        make_class_archive: have the next start be faster, if there is no archive yet; ending takes some seconds then.

    Raises:
        DispatcherError: Java is missing, or Spark does not start.
    """
    import pyspark
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession() or program_session()
    if active is not None:
        yield active
        return
    if "spark.remote" in settings:
        builder: Any = SparkSession.builder.remote(settings["spark.remote"]).appName(app_name)
        for name, value in settings.items():
            if name != "spark.remote":
                builder = builder.config(name, value)
        try:
            session = builder.create()
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            raise DispatcherError(
                f"Spark cannot be reached: spark.remote={settings['spark.remote']} error={first_line}",
                "Name a Spark Connect server like sc://host:15002.",
            ) from error
        try:
            yield session
        finally:
            session.stop()
        return
    archive = ClassArchive(find_java(), Path(pyspark.__file__).parent, pyspark.__version__)
    with scratch_folder() as scratch:
        java_options = archive.options(make_class_archive)
        wanted = local_settings({"spark.driver.memory": driver_memory, **settings}, scratch, java_options)
        with started(wanted, app_name, scratch) as session:
            yield session
        archive.keep()


def program_session() -> SparkSession | None:
    """Return the one Spark session that the program has, made the session of this thread; None if it has none.

    Spark finds what a session has registered only in threads that have a session of their own.
    """
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession
    if session is None or session._jvm is None:
        return None
    SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    return session


def local_settings(settings: Mapping[str, str], scratch: Path, java_options: str) -> dict[str, str]:
    """Return *settings* over what an export in this machine wants; all scratch files go below *scratch*."""
    log4j = scratch / "log4j2.properties"
    log4j.write_text(LOG4J)
    wanted = {
        "spark.master": "local[*]",
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Without the checksum files that Hadoop else writes beside each file of a checkpoint, and by the one of its two
        # interfaces that starts no process (chmod, readlink) for each of them.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **settings,
    }
    options = f"{JVM_OPTIONS} -Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile={log4j} {java_options}"
    if wanted["spark.master"].startswith("local"):
        wanted.setdefault("spark.driver.host", LOOPBACK)
        wanted.setdefault("spark.driver.bindAddress", LOOPBACK)
    wanted["spark.driver.extraJavaOptions"] = f"{options} {settings.get('spark.driver.extraJavaOptions', '')}".strip()
    return wanted


@contextlib.contextmanager
def started(settings: Mapping[str, str], app_name: str, scratch: Path) -> Iterator[SparkSession]:
    """Start a JVM whose output goes to a file, lend its session, and see it gone."""
    from pyspark import SparkConf, SparkContext
    from pyspark.find_spark_home import _find_spark_home
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # It tells of each of its connections, which is of no use to anybody.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # SparkContext puts a handler of its own in this place.
    interrupted = signal.getsignal(signal.SIGINT)
    conf = SparkConf().setAppName(app_name).setAll(list(settings.items()))
    log_path = scratch / "spark.log"
    gateway = None
    try:
        # PySpark asks the environment for the workers' Python and for its own address, not only its settings.
        variables = {
            "PYSPARK_PYTHON": settings["spark.pyspark.python"],
            # Else its script starts a Python to find out.
            "SPARK_HOME": _find_spark_home(),
            # Of a first JVM, which only writes the command line of the second.
            "SPARK_LAUNCHER_OPTS": f"{JVM_OPTIONS} {os.environ.get('SPARK_LAUNCHER_OPTS', '')}".strip(),
            "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", MALLOC_ARENAS),
        }
        if settings["spark.master"].startswith("local"):
            variables["SPARK_LOCAL_IP"] = LOOPBACK
        with log_path.open("wb") as log, environment(**variables), unblocked_signals():
            try:
                gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
                session = SparkSession(SparkContext(conf=conf, gateway=gateway))
            except Exception as error:
                raise DispatcherError(f"Spark did not start: error={error} log={last_lines(log_path)}") from error
        try:
            with without_tracebacks_of_py4j():
                yield session
        finally:
            stop_session(session, gateway)
    finally:
        # PySpark keeps its JVM for the life of the program; this program may go on without Spark.
        if gateway is not None:
            stop_jvm(gateway)
        SparkContext._gateway = SparkContext._jvm = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupted)


def stop_session(session: SparkSession, gateway: Any) -> None:
    """End the session; one whose JVM has died is only forgotten."""
    if gateway.proc.poll() is None:
        session.stop()
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = session.sparkContext
    # The first call gives up at the JVM, the second ends what this process has of it.
    for _ in range(2):
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            context.stop()
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextlib.contextmanager
def without_tracebacks_of_py4j() -> Iterator[None]:
    """Keep py4j from logging each call that a dead JVM does not answer: it raises, too."""
    root = logging.getLogger()

    def is_not_py4js(record: logging.LogRecord) -> bool:
        return Path(record.pathname).parent.name != "py4j"

    root.addFilter(is_not_py4js)
    try:
        yield
    finally:
        root.removeFilter(is_not_py4js)


def stop_jvm(gateway: Any) -> None:
    """End the JVM and see it gone."""
    if gateway.proc.poll() is None:
        gateway.shutdown()
    with contextlib.suppress(BrokenPipeError):
        gateway.proc.stdin.close()
    try:
        gateway.proc.wait(EXIT_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for what is started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def unblocked_signals() -> Iterator[None]:
    """Have what is started meanwhile begin without blocked signals.

    A dispatcher's process blocks some, children inherit that, and Spark ends its workers by signals.
    """
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def last_lines(path: Path) -> str:
    """Return the end of a log as one line."""
    return " | ".join(path.read_text("utf-8", "replace").splitlines()[-LOG_LINES_SHOWN:])

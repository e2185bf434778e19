"""SparkSession for an export: a local Spark unless the settings name another, quiet and without leftover files.

In local mode Spark is only the control plane (Python workers decode and write the bytes), so its JVM gets the settings
that start fastest. Its output goes to a file; if Spark fails, the error shows the last lines of that file.
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
from reput_plugins.spark_export.spark_home import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_session"]

LOCAL = "local[*]"
LOOPBACK = "127.0.0.1"
LOG_LINES_SHOWN = 12
CONNECT_SECONDS_MAX = 30
# Most of the time goes into writing a class archive.
EXIT_SECONDS_MAX = 120
# A control plane compiles little and keeps little, so the simplest compiler and collector start fastest. The young
# generation is small because every page of it that was once used stays resident.
# An export of this size is likely to be repeated. For a smaller one, writing the archive takes longer than the export.
CLASS_ARCHIVE_BYTES = 256 << 20
JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m -Xmn64m"
# Spark refuses less than 450 MiB.
DRIVER_MEMORY = "512m"
# Otherwise each thread gets its own malloc arena, which never shrinks.
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
    """Yield a Spark session: the program's own if it has one, else a new one that is stopped at the end.

    Args:
        settings: ``spark.*`` settings; ``spark.remote`` points to Spark Connect, ``spark.master`` to a cluster.
        driver_memory: heap of a JVM that is started here, unless the settings set it.
        make_class_archive: write a class archive if there is none, for a faster next start; stopping then takes some
            seconds longer.

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
            require_server(settings["spark.remote"])
            session = builder.create()
        except Exception as error:
            # The address may be followed by a token.
            address = settings["spark.remote"].partition("/;")[0]
            first_line = str(error).strip().partition("\n")[0]
            raise DispatcherError(
                f"Spark cannot be reached: spark.remote={address} error={first_line}",
                "Name a Spark Connect server like sc://host:15002.",
            ) from error
        try:
            yield session
        finally:
            session.stop()
        return
    home = spark_home(settings.get("spark.master", LOCAL))
    archive = ClassArchive(find_java(), home, pyspark.__version__)
    with scratch_folder() as scratch:
        java_options = archive.options(make_class_archive)
        wanted = local_settings({"spark.driver.memory": driver_memory, **settings}, scratch, java_options)
        with started(wanted, app_name, scratch, home) as session:
            yield session
        archive.keep()


def require_server(remote: str) -> None:
    """Refuse the address of a Spark Connect server that does not answer; Spark's client would try for ten minutes.

    Raises:
        TimeoutError: there is no connection after `CONNECT_SECONDS_MAX`.
    """
    if not remote.startswith("sc://"):
        return
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    channel = DefaultChannelBuilder(remote).toChannel()
    try:
        grpc.channel_ready_future(channel).result(CONNECT_SECONDS_MAX)
    except grpc.FutureTimeoutError:
        raise TimeoutError(f"no connection in {CONNECT_SECONDS_MAX} s") from None
    finally:
        channel.close()


def program_session() -> SparkSession | None:
    """Return the program's Spark session and make it active in this thread; None if there is none.

    Spark finds what a session has registered only in threads that have an active session.
    """
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession
    if session is None or session._jvm is None:
        return None
    SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    return session


def local_settings(settings: Mapping[str, str], scratch: Path, java_options: str) -> dict[str, str]:
    """Return the defaults of a local export, overridden by *settings*; all scratch files go below *scratch*."""
    log4j = scratch / "log4j2.properties"
    log4j.write_text(LOG4J)
    wanted = {
        "spark.master": LOCAL,
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Avoids the checksum file that Hadoop writes beside each checkpoint file, and uses the one of its two
        # interfaces that starts no process (chmod, readlink) per file.
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
def started(settings: Mapping[str, str], app_name: str, scratch: Path, home: Path) -> Iterator[SparkSession]:
    """Start a JVM whose output goes to a file, yield its session, and wait for the JVM to end."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # py4j logs each connection, which is of no use.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # SparkContext installs its own SIGINT handler.
    interrupted = signal.getsignal(signal.SIGINT)
    conf = SparkConf().setAppName(app_name).setAll(list(settings.items()))
    log_path = scratch / "spark.log"
    gateway = None
    try:
        # PySpark reads the workers' Python and its own address from the environment as well as from its settings.
        variables = {
            "PYSPARK_PYTHON": settings["spark.pyspark.python"],
            # Otherwise Spark's script starts a Python to find it.
            "SPARK_HOME": str(home),
            # For the launcher JVM, which only prints the command line of the real one.
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
            finally:
                # Also where a signal has ended the start.
                if gateway is None:
                    kill_what_starts(scratch)
        try:
            with without_tracebacks_of_py4j():
                yield session
        finally:
            stop_session(session, gateway)
    finally:
        # PySpark keeps its JVM until the program ends; this program may continue without Spark.
        if gateway is not None:
            stop_jvm(gateway)
        SparkContext._gateway = SparkContext._jvm = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupted)


def kill_what_starts(scratch: Path) -> None:
    """Kill the JVM of a start that was interrupted, by the folder that its command line names.

    PySpark has removed the folder for the file with the JVM's port. A JVM that cannot write that file never ends.
    """
    for children in Path("/proc/self/task").glob("*/children"):
        # A thread or a child may have ended.
        with contextlib.suppress(OSError):
            for pid in map(int, children.read_text().split()):
                if os.fsencode(scratch) in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def stop_session(session: SparkSession, gateway: Any) -> None:
    """Stop the session. If its JVM has died, only clear this process's references to it."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if gateway.proc.poll() is None:
        # A signal in the middle of a call leaves the call's answer to the next one, which then fails.
        with contextlib.suppress(Py4JError):
            session.stop()
            return

    context = session.sparkContext
    # The first call fails at the JVM, the second cleans up this process's side.
    for _ in range(2):
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            context.stop()
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextlib.contextmanager
def without_tracebacks_of_py4j() -> Iterator[None]:
    """Suppress py4j's log entry for each call that a dead JVM does not answer: the call raises anyway."""
    root = logging.getLogger()

    def is_not_py4js(record: logging.LogRecord) -> bool:
        return Path(record.pathname).parent.name != "py4j"

    root.addFilter(is_not_py4js)
    try:
        yield
    finally:
        root.removeFilter(is_not_py4js)


def stop_jvm(gateway: Any) -> None:
    """Shut the JVM down and wait for it to end; kill it if that takes too long."""
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
    """Set environment variables for processes started inside the block."""
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
    """Unblock all signals for processes started inside the block.

    A dispatcher's process blocks some signals, children inherit the mask, and Spark stops its workers by signals.
    """
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def last_lines(path: Path) -> str:
    """Return the end of a log as one line."""
    return " | ".join(path.read_text("utf-8", "replace").splitlines()[-LOG_LINES_SHOWN:])

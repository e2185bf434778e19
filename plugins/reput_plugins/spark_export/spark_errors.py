"""Translate Spark's errors into reput's.

Spark passes on a worker's error as text, with a traceback of every process that it passed through. The text starts
with the first process, so the innermost error comes first. A JVM that dies reports nothing: each call in progress and
each later one fails in its own way.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from reput.errors import DispatcherError, ReputError
from reput.table.advice_notes import error_in

__all__ = ["dead_jvm", "from_spark", "spark_errors"]

RAISED_IN_PYTHON = re.compile(
    r"^(?!Caused by|(?:org|java|scala)\.)([\w.]*(?:Error|Exception|Interrupt)(?:: .+)?)$", re.MULTILINE
)
# A connection may break a moment before the process ends.
JVM_END_SECONDS = 2
# Source: Spark, SparkExitCode.OOM, and the JVM's own for -XX:+ExitOnOutOfMemoryError.
OUT_OF_MEMORY = (52, 3)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise Spark errors from inside the block as reput errors.

    Raises:
        DispatcherError: Spark could not do it, or its JVM has died.
        ReputError: the error that a worker raised.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, OSError, EOFError) as error:
        # A PySparkException means that the JVM runs or shuts down by itself, so only other errors wait for its end.
        dead = dead_jvm(0 if isinstance(error, PySparkException) else JVM_END_SECONDS)
        if dead is not None:
            raise dead from error
        if isinstance(error, PySparkException | Py4JError):
            raise from_spark(error) from error
        raise


def dead_jvm(seconds: float) -> DispatcherError | None:
    """Return the error for the JVM that this process started if it ends within *seconds*; None if it runs elsewhere."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    # A shell in between reports a signal as a status above 128.
    number = -status if status < 0 else status - 128
    if number == signal.SIGKILL:
        how = "signal=SIGKILL"
        advice = "The system kills processes that use too much memory, and logs it (dmesg). Free memory, or run "
        advice += "fewer tasks at once with spark.master=local[1]. The next run continues where this one stopped."
    elif status in OUT_OF_MEMORY:
        how = f"exit_status={status}"
        advice = "The JVM's heap was too small. Give it more memory, for example --set spark.driver.memory=1g."
    else:
        how = f"exit_status={status}"
        advice = "Another process killed the JVM, or it crashed. The next run continues where this one stopped."
    return DispatcherError(f"Spark's JVM died during the export: pid={process.pid} {how}", advice)


def from_spark(error: Exception) -> ReputError:
    """Return the reput error inside *error*, else a `DispatcherError` with the line that names the failure."""
    text = str(error)
    found = error_in(text)
    if found is not None:
        return found
    raised = RAISED_IN_PYTHON.findall(text)
    first_line = text.strip().partition("\n")[0]
    return DispatcherError(f"Spark failed to export: error={raised[-1] if raised else first_line}")

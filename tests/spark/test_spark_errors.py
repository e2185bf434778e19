"""Failures in Spark become one sentence with advice, even the death of a JVM, which has no message of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import reput
from command_line import REPUT
from process_tree import descendants
from reput.errors import DispatcherError, ReputError
from reput_plugins.spark_export import spark_session
from reput_plugins.spark_export.spark_errors import spark_errors
from reput_plugins.spark_export.spark_session import stop_session

SECONDS_MAX = 120


def test_a_server_that_does_not_answer_is_told_soon(monkeypatch: pytest.MonkeyPatch):
    """Spark's own client would try for ten minutes, without a word; the token of the address is not shown."""
    pytest.importorskip("grpc_status")
    # As in a program without a session of its own.
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(spark_session, "program_session", lambda: None)
    monkeypatch.setattr(spark_session, "CONNECT_SECONDS_MAX", 0.2)
    remote = "sc://127.0.0.1:1/;token=not-shown"
    with (
        pytest.raises(
            DispatcherError, match=r"Spark cannot be reached: spark.remote=sc://127.0.0.1:1 error=no conn"
        ) as it,
        spark_session.spark_session({"spark.remote": remote}, "test"),
    ):
        pass
    assert "not-shown" not in str(it.value)


class Gateway:
    """The gateway of a JVM that ends at once."""

    def __init__(self, command: str) -> None:
        self.proc = subprocess.Popen(["sh", "-c", command])


class Interrupted:
    """A session and its context after a signal came in the middle of a call."""

    def __init__(self) -> None:
        self.sparkContext = self

    def stop(self) -> None:
        """Get the answer of the call before."""
        raise Py4JError("SparkSession does not exist in the JVM")


def failing(error: Exception) -> None:
    """Raise an error in a call of Spark."""
    with spark_errors():
        raise error


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError("no"),
        EOFError(),
        PySparkException("x"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    ("command", "how", "advice"),
    [
        ("kill -KILL $$", "signal=SIGKILL", "use too much memory"),
        ("exit 137", "signal=SIGKILL", "use too much memory"),
        ("exit 52", "exit_status=52", "spark.driver.memory"),
        ("exit 134", "exit_status=134", "or it crashed"),
    ],
)
def test_a_jvm_that_died_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, command: str, how: str, advice: str
):
    """Whatever the failing call reports; the advice depends on the JVM's exit status."""
    gateway = Gateway(command)
    gateway.proc.wait()
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    with pytest.raises(DispatcherError) as raised:
        failing(error)
    assert str(raised.value) == f"Spark's JVM died during the export: pid={gateway.proc.pid} {how}"
    assert advice in raised.value.advice


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch):
    """A living or remote JVM is unrelated to a full disk; reput's own errors are not changed."""
    monkeypatch.setattr("reput_plugins.spark_export.spark_errors.JVM_END_SECONDS", 0)
    gateway = Gateway("exec sleep 60")
    try:
        for present in (gateway, None):
            monkeypatch.setattr(SparkContext, "_gateway", present)
            for error in (OSError(28, "full"), ReputError("ours"), KeyboardInterrupt()):
                with pytest.raises(type(error)) as raised:
                    failing(error)
                assert raised.value is error
            with pytest.raises(DispatcherError, match="Spark failed to export: error=job aborted"):
                failing(PySparkException("job aborted"))
    finally:
        gateway.proc.kill()
        gateway.proc.wait()


def jvm_below(pid: int) -> int | None:
    """Return Spark's JVM among the descendants of a process; None if there is none yet."""
    commands = descendants(pid).items()
    return next((child for child, command in commands if "org.apache.spark.deploy.SparkSubmit" in command), None)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.processes
@pytest.mark.usefixtures("spark_classes")
def test_an_export_whose_jvm_is_killed_says_so_in_two_lines(tmp_path: Path):
    """Without a traceback, with exit code 3; the next export continues."""
    with reput.open(tmp_path / "store", dispatchers=[], mode="inline") as store:
        store.put_batch([reput.Message("orders", b"x" * 1000) for _ in range(20_000)])
    command = [REPUT, "export", tmp_path / "store", tmp_path / "lake", "--set", "spark.master=local[1]"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        end = time.monotonic() + SECONDS_MAX
        while (pid := jvm_below(running.pid)) is None or not (tmp_path / "lake").exists():
            assert time.monotonic() < end
            assert running.poll() is None
        os.kill(pid, signal.SIGKILL)
        out, error = running.communicate(timeout=SECONDS_MAX)
    assert running.returncode == 3, out
    first, second, *more = error.splitlines()
    assert first.startswith(f"reput: Spark's JVM died during the export: pid={pid} signal=SIGKILL")
    assert "The next run continues where this one stopped." in second
    assert more == []


def test_a_session_that_was_interrupted_in_a_call_is_stopped_without_an_error(monkeypatch: pytest.MonkeyPatch):
    """Its JVM is ended afterwards anyway, and the program may start another one."""
    session: Any = Interrupted()
    monkeypatch.setattr(SparkContext, "_active_spark_context", session)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", session)
    monkeypatch.setattr(SparkSession, "_activeSession", session)
    gateway = Gateway("sleep 600")
    try:
        stop_session(session, gateway)
    finally:
        gateway.proc.kill()
        gateway.proc.wait()
    assert SparkContext._active_spark_context is None
    assert SparkSession._instantiatedSession is None

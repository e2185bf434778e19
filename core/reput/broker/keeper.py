"""Keeper: the foreground process of `reput serve`. It keeps the sockets, and starts the broker again when it dies.

    keeper ── owns the listening sockets ──▶ broker's process ──▶ supervisor of the dispatchers

The sockets stay open while the broker is away, so that clients that connect meanwhile wait instead of being refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from reput import errors
from reput.broker.serving import Failed, Ready, ServeOptions
from reput.errors import BrokerError, ReputError
from reput.process.system.command import role_command

__all__ = ["Keeper"]

MAIN = Path(__file__).with_name("__main__.py")
# A broker that lived so long has earned a restart at once.
LIVED_S = 10.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 5.0
# Starts that fail one after the other before the keeper gives up.
FAILURES_MAX = 10
# The dispatchers of a broker that was killed end within a second; until then they may hold the store.
RESTART_LOCK_TIMEOUT_S = 10.0
ENDING = (signal.SIGTERM, signal.SIGINT)

logger = logging.getLogger(__name__)


class Keeper:
    """Runs the broker of one store until SIGTERM or Ctrl-C."""

    def __init__(self, options: ServeOptions, listeners: list[socket.socket], on_ready: Callable[[], None]) -> None:
        """*on_ready* is called when clients can connect for the first time."""
        self.options = options
        self.listeners = listeners
        self.on_ready = on_ready
        self.process: subprocess.Popen[bytes] | None = None
        self.is_stopping = False
        self.was_ready = False

    def run(self) -> int:
        """Keep the broker running; return the exit code.

        Raises:
            ReputError: it could not be started.
        """
        former = {number: signal.signal(number, self.stop) for number in ENDING}
        try:
            return self.keep()
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def stop(self, number: int, frame: object) -> None:
        """Let the broker drain and end."""
        del number, frame
        self.is_stopping = True
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)

    def keep(self) -> int:
        """Start the broker, and again whenever it dies."""
        failures = 0
        pause = PAUSE_MIN_S
        while not self.is_stopping:
            started = time.monotonic()
            error = self.start()
            if error is not None and not self.is_stopping and (not self.was_ready or failures >= FAILURES_MAX):
                raise error
            assert self.process is not None
            code = self.process.wait()
            if self.is_stopping:
                return 0 if code == 0 else 1
            lived = time.monotonic() - started
            failures = failures + 1 if error is not None else 0
            pause = PAUSE_MIN_S if error is None and lived > LIVED_S else min(pause * 2, PAUSE_MAX_S)
            logger.error("the broker has ended and is started again: exit_code=%d lived_s=%.1f", code, lived)
            self.options = msgspec.structs.replace(self.options, lock_timeout=RESTART_LOCK_TIMEOUT_S)
            if lived < LIVED_S and pause > 2 * PAUSE_MIN_S:
                self.rest(pause)
        return 0

    def rest(self, seconds: float) -> None:
        """Wait before the next start; a signal ends it."""
        former = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            if not self.is_stopping and signal.sigtimedwait(ENDING, seconds) is not None:
                self.is_stopping = True
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def start(self) -> ReputError | None:
        """Start the broker's process, and wait until clients can connect; return why it could not start."""
        reading, writing = os.pipe()
        command = role_command(
            "broker", msgspec.json.encode(self.options).decode(), str(writing), path=sys.path, main=MAIN
        )
        descriptors = [listener.fileno() for listener in self.listeners]
        try:
            # In a session of its own: Ctrl-C in the terminal reaches the keeper, which lets the broker drain.
            self.process = subprocess.Popen(command, pass_fds=(*descriptors, writing), start_new_session=True)
        finally:
            os.close(writing)
        if self.is_stopping:
            self.process.send_signal(signal.SIGTERM)
        with os.fdopen(reading, "rb") as report:
            line = report.readline()
        if not line:
            return BrokerError(
                f"the broker's process ended before it was ready: pid={self.process.pid}", "See its messages above."
            )
        message = msgspec.json.decode(line, type=Ready | Failed)
        if isinstance(message, Failed):
            return failure(message)
        if not self.was_ready:
            self.was_ready = True
            self.on_ready()
        return None


def failure(message: Failed) -> ReputError:
    """Return the error that the broker's process met."""
    kind = getattr(errors, message.kind, BrokerError)
    try:
        error = kind(message.text, message.advice)
    except TypeError:
        return BrokerError(message.text, message.advice)
    return error if isinstance(error, ReputError) else BrokerError(message.text, message.advice)

"""Keeper: the foreground process of `reput serve`. It keeps the sockets, and starts the broker again when it dies.

    command line ── begins a broker's process, binds sockets, sends them ── becomes ──▶ keeper
                            │                                                             │ waits, starts again
                            └──────────────▶ broker's process ◀───────────────────────────┘ ──▶ supervisor

The sockets stay open while the broker is away, so that clients that connect meanwhile wait instead of being refused.
When the broker is to stop, they are closed: a client that waited there until the store is closed would have no time
left for another broker.
The command line has loaded much that a keeper does not need, so it executes a fresh program under the same process id.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from reput import errors
from reput.broker.beside import Beside
from reput.broker.broker_process import MAIN, give, start_process
from reput.broker.serve_options import ROLE_ENDED, Failed, Ready, ServeOptions
from reput.errors import BrokerError, ReputError
from reput.process.system.command import role_command

__all__ = ["become_keeper", "keep"]

# A broker that served clients for at least this long is restarted at once, because its clients wait for it.
SERVED_S = 1.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 5.0
# After this many failed starts in a row the keeper gives up.
FAILURES_MAX = 10
# The dispatchers of a killed broker end within a second; until then they may hold the store.
RESTART_LOCK_TIMEOUT_S = 10.0
ENDING = (signal.SIGTERM, signal.SIGINT)
# The signals that the keeper handles; blocked until its handlers are installed.
HANDLED = (*ENDING, signal.SIGHUP)

logger = logging.getLogger(__name__)


class StartedBroker(msgspec.Struct, frozen=True):
    """A broker's process, and the descriptor of the socket through which it reports."""

    pid: int
    report: int


def start_broker(options: ServeOptions) -> StartedBroker:
    """Start a broker's process, and give it its options."""
    pid, channel = start_process()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        # If the process has died already, the keeper notices it by the closed socket.
        give(channel, msgspec.json.encode(options), options.listeners)
    return StartedBroker(pid, channel.detach())


def become_keeper(options: ServeOptions, listeners: Sequence[socket.socket]) -> NoReturn:
    """Start the broker, and replace this process by its keeper."""
    started = start_broker(options)
    for descriptor in (started.report, *inherited(options), *(listener.fileno() for listener in listeners)):
        os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    # Unblocked once the keeper handles them.
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    words = (encoded(options), encoded(started), str(started.report))
    command = role_command("keeper", *words, path=sys.path, main=MAIN)
    os.execv(command[0], command)


def inherited(options: ServeOptions) -> list[int]:
    """Return the descriptor that a console listens on, if there is one."""
    return [] if options.console is None else [options.console_listener]


def keep(options: ServeOptions, started: StartedBroker) -> int:
    """Keep the broker of *options* running until SIGTERM or Ctrl-C; return the exit code.

    Raises:
        ReputError: the broker could not be started.
    """
    return Keeper(options, started).run()


class Keeper:
    """Keeps one broker."""

    def __init__(self, options: ServeOptions, started: StartedBroker) -> None:
        self.options = msgspec.structs.replace(options, lock_timeout=RESTART_LOCK_TIMEOUT_S, announces=False)
        self.started = started
        self.is_stopping = False
        self.is_starting = False
        self.listeners = list(options.listeners)
        self.was_ready = False
        self.failures = 0
        self.pause = PAUSE_MIN_S
        self.console: Beside | None = None

    def run(self) -> int:
        """Wait for the broker, and start it again whenever it dies; the console beside it ends with it."""
        try:
            return self.keep_running()
        finally:
            if self.console is not None:
                self.console.stop()

    def keep_running(self) -> int:
        """Do the work of `run`."""
        for number in ENDING:
            signal.signal(number, self.stop)
        signal.signal(signal.SIGHUP, self.reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        while True:
            error = self.wait_until_ready()
            ready = time.monotonic()
            code = os.waitstatus_to_exitcode(os.waitpid(self.started.pid, 0)[1])
            if self.is_stopping:
                # A node of a lease may wait for its role, which is not serving yet, or leave it.
                was_waiting = error is not None and code == -signal.SIGTERM
                return 0 if was_waiting or code in (0, ROLE_ENDED) else 1
            self.failures = 0 if error is None else self.failures + 1
            if error is not None and (not self.was_ready or self.failures >= FAILURES_MAX):
                raise error
            served = time.monotonic() - ready if error is None else 0.0
            if code == ROLE_ENDED:
                logger.info("the broker is started again for another role: served_s=%.1f", served)
            else:
                logger.error("the broker has ended and is started again: exit_code=%d served_s=%.1f", code, served)
            if served > SERVED_S:
                self.pause = PAUSE_MIN_S
            else:
                self.rest(self.pause)
                self.pause = min(self.pause * 2, PAUSE_MAX_S)
            if self.is_stopping:
                return 0
            self.is_starting = True
            self.started = start_broker(self.options)
            self.is_starting = False
            if self.is_stopping:
                # The signal came meanwhile.
                self.end_broker()

    def wait_until_ready(self) -> ReputError | None:
        """Wait until clients can connect; return the error if the broker failed to start."""
        line = b""
        # Connection reset: the process died before it had read its options.
        with os.fdopen(self.started.report, "rb") as report, contextlib.suppress(ConnectionResetError):
            line = report.readline()
        if not line:
            return BrokerError(
                f"the broker's process ended before it was ready: pid={self.started.pid}", "See its messages above."
            )
        message = msgspec.json.decode(line, type=Ready | Failed)
        if isinstance(message, Failed):
            return failure(message)
        if not self.was_ready:
            self.was_ready = True
            notify_systemd("READY=1")
            if self.options.console is not None:
                self.console = Beside(self.options.console_command, self.options.console_listener)
        return None

    def stop(self, number: int, frame: object) -> None:
        """Let the broker drain and end."""
        del number, frame
        self.is_stopping = True
        notify_systemd("STOPPING=1")
        if not self.is_starting:
            self.end_broker()

    def end_broker(self) -> None:
        """Let the broker drain and end; it alone has the sockets from now on."""
        while self.listeners:
            os.close(self.listeners.pop())
        self.send(signal.SIGTERM)

    def reload(self, number: int, frame: object) -> None:
        """Let the broker reload its configuration."""
        del number, frame
        self.send(signal.SIGHUP)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the broker."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.started.pid, number)

    def rest(self, seconds: float) -> None:
        """Wait before the next start; a signal ends the wait."""
        former = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            if not self.is_stopping and signal.sigtimedwait(ENDING, seconds) is not None:
                self.is_stopping = True
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)


def encoded(value: msgspec.Struct) -> str:
    """Return *value* as an argument of a command line."""
    return msgspec.json.encode(value).decode()


def failure(message: Failed) -> ReputError:
    """Return the error that the broker's process reported."""
    kind = getattr(errors, message.kind, BrokerError)
    try:
        error = kind(message.text, message.advice)
    except TypeError:
        return BrokerError(message.text, message.advice)
    return error if isinstance(error, ReputError) else BrokerError(message.text, message.advice)


def notify_systemd(state: str) -> None:
    """Tell systemd the state of the service, if it has started this process (``Type=notify``).

    Source: sd_notify(3).
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified, contextlib.suppress(OSError):
        notified.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)

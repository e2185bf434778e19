"""Beside: keeps the console running beside the broker. If the console dies, the broker is not affected."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

__all__ = ["Beside"]

PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 30.0
# One that has lived so long is started again without the pauses of those before it.
STEADY_S = 300.0
# Then it is killed.
STOP_S = 5.0
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

logger = logging.getLogger(__name__)


class Beside:
    """Starts a command again whenever it ends, after a growing pause."""

    def __init__(self, command: Sequence[str], descriptor: int) -> None:
        """Start *command*, which inherits *descriptor*."""
        self.command = command
        self.descriptor = descriptor
        self.stopping = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self.thread = threading.Thread(target=self.run, name="reput-beside", daemon=True)
        # The main thread alone takes signals: they must end its waits.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            self.thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def run(self) -> None:
        """Start the command, and wait for its end, until `stop`."""
        pause = PAUSE_MIN_S
        while not self.stopping.is_set():
            # The kernel ends the process with this thread, see die_with_parent.
            begun = time.monotonic()
            self.process = subprocess.Popen(self.command, pass_fds=[self.descriptor], start_new_session=True)
            if self.stopping.is_set():
                self.process.terminate()
            code = self.process.wait()
            if time.monotonic() - begun > STEADY_S:
                pause = PAUSE_MIN_S
            if not self.stopping.is_set():
                logger.error("the console has ended and is started again: exit_code=%d pause_s=%g", code, pause)
                self.stopping.wait(pause)
                pause = min(pause * 2, PAUSE_MAX_S)

    def stop(self) -> None:
        """End the command."""
        self.stopping.set()
        if self.process is not None:
            self.process.terminate()
        self.thread.join(STOP_S)
        if self.thread.is_alive() and self.process is not None:
            self.process.kill()
            self.thread.join()

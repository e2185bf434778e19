"""ServiceThread: a thread that works in rounds until it is stopped, and that others can wake.

Source: RocketMQ common, ServiceThread.
"""

from __future__ import annotations

import threading

from reput.store.service.threads import StartedThread, Threads
from reput.store.service.wake import Wake

__all__ = ["ServiceThread"]


class ServiceThread:
    """One thread of a store. Subclasses define what a round does, and how long the thread waits before it.

    Attributes:
        thread: None before `start`.
        stopping: set by `stop`. No round begins after it.
    """

    def __init__(self, service_name: str, threads: Threads | None = None) -> None:
        self.service_name = service_name
        self.threads = threads or Threads()
        self.thread: StartedThread | None = None
        self.stopping = False
        self.wake = Wake()

    # Defined by each service.

    def seconds_to_next(self) -> float | None:
        """Return how long to wait before the next round; None: until `wakeup`."""
        return None

    def do_round(self) -> None:
        """Do the work. Called after each wait, until `stop`."""
        raise NotImplementedError

    def end_waits(self, reason: str) -> None:
        """End the waits of callers: an error has ended the thread. Called by the thread as it dies."""

    # Inherited.

    def start(self) -> None:
        """Start the thread.

        Raises:
            StoreError: the system starts no thread.
        """
        self.thread = self.threads.start(self.service_name, self.run, self.end_waits)

    def run(self) -> None:
        """Do rounds until stopped; the thread."""
        while not self.stopping:
            self.wait_for_running(self.seconds_to_next())
            if not self.stopping:
                self.do_round()

    def wait_for_running(self, timeout: float | None) -> None:
        """Wait until `wakeup` is called, or *timeout* seconds went by."""
        self.wake.wait(timeout)
        self.wake.clear()

    def wakeup(self) -> None:
        """Begin the next round at once."""
        self.wake.set()

    def stop(self) -> None:
        """End the thread, and return once it has ended; at once if the thread itself calls."""
        self.stopping = True
        self.wakeup()
        self.join()

    def join(self, timeout: float | None = None) -> bool:
        """Return whether the thread has ended, after up to *timeout* seconds; True at once in the thread itself."""
        thread = self.thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

"""BackgroundWork: work that a thread does while its owner continues. Its errors are raised in the owner."""

from __future__ import annotations

import threading
from collections.abc import Callable

from reput.errors import StoreError
from reput.store.service.threads import StartedThread, Threads

__all__ = ["BackgroundWork"]


class BackgroundWork:
    """The work begins at once. It has one owner, which calls `is_done` before it uses the result."""

    def __init__(self, name: str, work: Callable[[], None], threads: Threads) -> None:
        self.work = work
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.thread: StartedThread | None = None
        try:
            self.thread = threads.start(name, self.run)
        except StoreError:
            # The program ends, or the system has no thread to spare: the owner does the work.
            self.run()

    def run(self) -> None:
        """Do the work; the thread."""
        try:
            self.work()
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()

    def is_done(self, timeout: float | None) -> bool:
        """Wait up to *timeout* seconds, None: as long as it takes, and return whether the work is done.

        Raises:
            BaseException: what the work raised.
        """
        if timeout is not None and not self.ended.wait(timeout):
            return False
        if self.thread is not None:
            self.thread.join()
        if self.error is not None:
            raise self.error
        return True

"""Threads: the threads of a store, and why an error has ended one of them.

An unexpected error ends a thread. Callers that wait for that thread would then wait for ever, so each thread is started
with a function that ends these waits. Its death is kept: the store's status and the log name the thread and the error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from reput.errors import StoreError
from reput.store.disk.shortages import tell_store_error

__all__ = ["DEATH_ADVICE", "StartedThread", "Threads", "thread_death"]

DEATH_ADVICE = "Close the store and open it again; its log has the traceback; please report it."

logger = logging.getLogger("reput.store")


class StartedThread(Protocol):
    """A thread that runs."""

    def join(self, timeout: float | None = None) -> None:
        """Return when it has ended, or after *timeout* seconds."""

    def is_alive(self) -> bool:
        """Whether it has not ended yet."""


class Threads:
    """The threads of one store.

    Attributes:
        deaths: by the name of a thread, why an error has ended it.
        on_death: called after each death, by the thread that dies.
    """

    def __init__(self) -> None:
        self.deaths: dict[str, str] = {}
        self.on_death: Callable[[], None] | None = None

    def start(
        self, name: str, target: Callable[[], None], end_waits: Callable[[str], None] | None = None
    ) -> StartedThread:
        """Run *target* in a thread of its own, which does not keep the program alive.

        Args:
            end_waits: called with the reason if an error ends the thread; None: no caller ever waits for it.

        Raises:
            StoreError: the system starts no thread.
        """
        thread = threading.Thread(target=self.run, args=(name, target, end_waits), name=name, daemon=True)
        with tell_store_error(f"a thread of the store cannot be started: thread={name}"):
            thread.start()
        return thread

    def run(self, name: str, target: Callable[[], None], end_waits: Callable[[str], None] | None) -> None:
        """Run *target*; the thread."""
        try:
            target()
        except BaseException as error:
            reason = f"a thread of the store has died: thread={name} error={error!r}"
            logger.critical("%s", reason, exc_info=True)
            self.deaths[name] = reason
            try:
                if end_waits is not None:
                    end_waits(reason)
            finally:
                if self.on_death is not None:
                    self.on_death()


def thread_death(reason: str) -> StoreError:
    """Return the error for callers that need a thread that has died."""
    return StoreError(reason, DEATH_ADVICE)

"""The stores that this process has open for writing. They are closed when the program ends; a forked child has none.

A program that ends closes its stores, whether it returns, raises or calls `sys.exit`. Once its threads have ended, all
but daemons, dispatchers are drained and acknowledged messages are committed. `os._exit` and signals without a handler
end a process at once; the next opening recovers such a store.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

__all__ = ["close_with_program", "open_stores"]

# Most other finalizers of multiprocessing have 0; the higher priority runs first.
EXIT_PRIORITY = 10


class OpenStore(Protocol):
    """A store that this process writes."""

    directory: Path

    def close(self) -> None:
        """Close it."""

    def forget(self) -> None:
        """Called in a forked child, where the store belongs to the parent."""


open_stores: set[OpenStore] = set()


def close_with_program(store: OpenStore) -> None:
    """Close *store* when the program ends, unless it is taken out of `open_stores` before."""
    open_stores.add(store)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        # A forked child ends with `os._exit`, and runs only these finalizers before that.
        Finalize(None, close_in_child, exitpriority=EXIT_PRIORITY)


def close_in_child() -> None:
    """Close the open stores once the threads of the program have ended; the end of a child waits for them later."""
    if open_stores:
        # These end the idle threads of executors. The end of a child does so before it waits for threads, too.
        before_waiting = vars(threading)["_threading_atexits"]
        while before_waiting:
            before_waiting.pop()()
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
        close_open_stores()


def close_open_stores() -> None:
    """Close the stores that are still open, and warn of each."""
    with ExitStack() as closing:
        for store in list(open_stores):
            closing.callback(store.close)
            closing.callback(
                warnings.warn,
                f"a store was not closed, and is closed as the program ends: store={store.directory}",
                ResourceWarning,
                source=store,
            )


def forget_in_child() -> None:
    """A forked child must not write: close its copies of the stores."""
    for store in open_stores:
        store.forget()
    open_stores.clear()


atexit.register(close_open_stores)
os.register_at_fork(after_in_child=forget_in_child)

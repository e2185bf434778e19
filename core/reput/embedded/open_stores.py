"""The stores that this process has open for writing: closed when the program ends, and not this process's after a fork.

A program that ends closes them, whether it returns, raises or calls `sys.exit`: once its threads have ended, all but
daemons, dispatchers are drained and what consumers have acknowledged is committed. `os._exit` and signals without a
handler end a process at once; what they leave the next opening recovers.
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

# Of what else a child of multiprocessing has to do in the end, most has 0.
EXIT_PRIORITY = 10


class OpenStore(Protocol):
    """A store that this process writes."""

    directory: Path

    def close(self) -> None:
        """Close it."""

    def forget(self) -> None:
        """In a forked child: it is the parent's."""


open_stores: set[OpenStore] = set()


def close_with_program(store: OpenStore) -> None:
    """Have *store* closed when the program ends, unless it is taken out of `open_stores` before."""
    open_stores.add(store)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        # A child that was forked ends by `os._exit`, and calls these alone before.
        Finalize(None, close_in_child, exitpriority=EXIT_PRIORITY)


def close_in_child() -> None:
    """Close what is open once the threads of the program have ended, for which only the end of a child would wait."""
    if open_stores:
        # What ends the idle threads of executors. The end of the child would do it before it waits for threads, too.
        before_waiting = vars(threading)["_threading_atexits"]
        while before_waiting:
            before_waiting.pop()()
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
        close_open_stores()


def close_open_stores() -> None:
    """Close what is still open, and say that nobody has."""
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
    """A forked child of the writer must not write: its copies of the stores are closed."""
    for store in open_stores:
        store.forget()
    open_stores.clear()


atexit.register(close_open_stores)
os.register_at_fork(after_in_child=forget_in_child)

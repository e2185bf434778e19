"""Bars on stderr, for work of more than a second and for people only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["progress_bar"]

SHOWN_AFTER_S = 1.0


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function that is told how many bytes of how many are done, and shows it with rate and time left.

    Where stderr is no terminal nothing is ever shown, and rich not even imported.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    bar = Bar(title)
    try:
        yield bar.update
    finally:
        bar.close()


class Bar:
    """One bar, which appears when the work has lasted for a second."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.begun_at = time.monotonic()
        self.shown: Progress | None = None

    def update(self, done: int, total: int) -> None:
        """Show that *done* of *total* bytes are done."""
        if self.shown is None:
            if time.monotonic() - self.begun_at < SHOWN_AFTER_S:
                return
            self.shown = self.show()
        self.shown.update(self.shown.task_ids[0], completed=done, total=total)

    def show(self) -> Progress:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        # Results go to stdout as they are, also while a bar is shown.
        shown = Progress(
            *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, redirect_stdout=False
        )
        shown.add_task(self.title)
        shown.start()
        return shown

    def close(self) -> None:
        """Take the bar away."""
        if self.shown is not None:
            self.shown.stop()

"""Progress bars on stderr, only on a terminal and only for work of more than a second."""

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
    """Yield a function that takes the done and total bytes, and shows them with rate and remaining time.

    If stderr is not a terminal, nothing is shown, and rich is not imported.
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
    """A progress bar that appears once the work has lasted a second."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.begun_at = time.monotonic()
        self.shown: Progress | None = None

    def update(self, done: int, total: int) -> None:
        """Show the progress: *done* of *total* bytes."""
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
        # stdout stays untouched while a bar is shown.
        shown = Progress(
            *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, redirect_stdout=False
        )
        shown.add_task(self.title)
        shown.start()
        return shown

    def close(self) -> None:
        """Remove the bar."""
        if self.shown is not None:
            self.shown.stop()

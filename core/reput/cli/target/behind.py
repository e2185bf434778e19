"""note_if_behind: a note on stderr for the reader of a view that has not caught up with the log."""

from __future__ import annotations

import sys

from reput.embedded.read_only_engine import ReadOnlyEngine

__all__ = ["note_if_behind"]


def note_if_behind(engine: ReadOnlyEngine, view: str) -> None:
    """Print a note if *view* lacks the latest messages, so that an empty result is not mistaken for an answer."""
    progress = engine.view_behind(view)
    if progress is not None:
        print(
            f"reput: the view is behind the log, the latest messages may not be found yet: view={view} "
            f"progress={progress} log_end={engine.log_end()}",
            file=sys.stderr,
        )

"""note_if_behind: a note on stderr for the reader of a view that has not caught up with the log."""

from __future__ import annotations

import sys

from reput.embedded.read_only_engine import ReadOnlyEngine

__all__ = ["note_if_behind"]


def note_if_behind(engine: ReadOnlyEngine, view: str) -> None:
    """Say so if what was put last may not be in *view* yet, so that "there is none" is not taken for an answer."""
    progress = engine.view_behind(view)
    if progress is not None:
        print(
            f"reput: the view is behind the log, messages put last may not be found yet: view={view} "
            f"progress={progress} log_end={engine.log_end()}",
            file=sys.stderr,
        )

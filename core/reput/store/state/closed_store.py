"""The error for use of a closed store, the same everywhere."""

from __future__ import annotations

from pathlib import Path

from reput.errors import StoreClosed

__all__ = ["closed_store"]


def closed_store(directory: Path, owner_pid: int | None) -> StoreClosed:
    """Return the error for a store that was closed, or, in a forked child, that process *owner_pid* has opened."""
    if owner_pid is None:
        return StoreClosed(f"the store is closed: store={directory}")
    return StoreClosed(
        f"the store was opened before this process was forked, and its parent holds it: parent_pid={owner_pid} "
        f"store={directory}",
        "Open the store after the fork, in one worker alone: gunicorn without --preload and with --workers 1.",
    )

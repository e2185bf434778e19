"""Exports: jobs over the log that plugins bring, found by their entry points and imported when one is run."""

from __future__ import annotations

from typing import Any

from reput.errors import DispatcherError

__all__ = ["DELTA", "DELTA_FOLLOW", "find_export"]

ENTRY_POINT_GROUP = "reput.exports"
DELTA = "delta"
DELTA_FOLLOW = "delta_follow"


def find_export(name: str) -> Any:
    """Return the export of that name, which a plugin brings.

    Raises:
        DispatcherError: none does.
    """
    # Here, because most commands have no use for it.
    from importlib import metadata

    for point in metadata.entry_points(group=ENTRY_POINT_GROUP, name=name):
        return point.load()
    raise DispatcherError(f"no such export is installed: export={name}", "Install reput with its plugins again.")

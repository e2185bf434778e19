"""Where the views of the dispatchers stood last, in ``reput/dispatcher_cursors``: for times when none of them runs.

Each view keeps its own cursor in its own way, and only its dispatcher can read it. The owner of the group notes what
they say of themselves when it begins and when it ends; a cursor only grows meanwhile, so the note is never too high
unless a view was thrown away since.

For those whose name differs from their plugin's, ``reput/dispatcher_plugins`` has the plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reput.errors import DispatcherError
from reput.store.disk.files import Files
from reput.store.disk.sealed_file import read_sealed, seal

__all__ = [
    "keep_dispatcher_cursors",
    "keep_dispatcher_plugins",
    "noted_progress",
    "read_dispatcher_cursors",
    "read_dispatcher_plugins",
]

NAME = "dispatcher_cursors"
PLUGINS_NAME = "dispatcher_plugins"


def read_dispatcher_cursors(store_directory: Path) -> dict[str, int | None]:
    """Return the commit-log offset up to which the view of each dispatcher is durable; None: it has not said yet.

    Those are named that were enabled when the store was open last.

    Raises:
        DamagedStore: the file's bytes are not what was written.
    """
    return read_sealed(store_directory / "reput" / NAME, dict[str, int | None]) or {}


def noted_progress(store_directory: Path, name: str, appended: int) -> int:
    """Return the commit-log offset that a view reaches whose dispatcher does not start: as far as it was noted.

    Raises:
        DispatcherError: nothing was noted.
        DamagedStore: the file's bytes are not what was written.
    """
    progress = read_dispatcher_cursors(store_directory).get(name)
    if progress is None:
        raise DispatcherError(
            f"the dispatcher has not started, so it is not known how far its view reaches: dispatcher={name}"
        )
    return min(progress, appended)


def keep_dispatcher_cursors(store_directory: Path, cursors: Mapping[str, int | None], files: Files) -> None:
    """Note the cursors of all enabled dispatchers. A dispatcher without a cursor yet keeps its earlier note.

    Raises:
        OSError: the note was not written.
    """
    before = read_dispatcher_cursors(store_directory)
    noted = {name: before.get(name) if cursor is None else cursor for name, cursor in cursors.items()}
    files.replace(store_directory / "reput" / NAME, seal(noted))


def read_dispatcher_plugins(store_directory: Path) -> dict[str, str]:
    """Return the plugin of each dispatcher that was enabled when the store was open last, and has another name.

    Raises:
        DamagedStore: the file's bytes are not what was written.
    """
    return read_sealed(store_directory / "reput" / PLUGINS_NAME, dict[str, str]) or {}


def keep_dispatcher_plugins(store_directory: Path, plugins: Mapping[str, str], files: Files) -> None:
    """Note the plugin of each enabled dispatcher; most are named as their plugin is, and need no note.

    Raises:
        OSError: the note was not written.
    """
    noted = {name: plugin for name, plugin in plugins.items() if plugin != name}
    if noted != read_dispatcher_plugins(store_directory):
        files.replace(store_directory / "reput" / PLUGINS_NAME, seal(noted))

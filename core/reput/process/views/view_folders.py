"""ViewFolders: where a view lies, and how to empty it so that a crash cannot leave half of it.

A view is ``reput/views/NAME`` (the plugin's own folder, with its cursor) and the ``store_folders`` it declares in
the store's root. Emptying both takes several steps, and a cursor without its data, or old data without its cursor,
would look valid. So the intent ``reput/views/NAME.emptying`` is written first; a start that finds one completes it.

If a plugin declares a ``view_version``, its view has that number as text in ``.view_version`` in its own folder. The
host writes it before the plugin writes anything, and it moves with the folder. Without the file the version is 0.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from reput.errors import DamagedStore, DispatcherError
from reput_hooks import replace_durably

__all__ = ["VIEW_VERSION", "ViewFolders", "not_a_directory"]

VIEW_VERSION = ".view_version"


class ViewFolders:
    """The folders of the dispatcher *name* under *root*, a store's directory or one with the same layout."""

    def __init__(self, root: Path, name: str, store_folders: tuple[str, ...]) -> None:
        self.root = root
        self.name = name
        self.store_folders = store_folders
        self.views = root / "reput" / "views"
        self.directory = self.views / name
        self.intent = self.views / f"{name}.emptying"

    def folder(self, name: str) -> Path:
        """Return the place of one of the declared folders.

        Raises:
            DispatcherError: it was not declared.
        """
        if name not in self.store_folders:
            raise DispatcherError(
                f"the dispatcher did not declare this folder: dispatcher={self.name} folder={name} "
                f"store_folders={','.join(self.store_folders)}"
            )
        return self.root / name

    def is_empty(self) -> bool:
        """Whether the plugin has written nothing to its own folder.

        Raises:
            DamagedStore: a file has the name of a folder.
        """
        try:
            return all(name.startswith(VIEW_VERSION) for name in os.listdir(self.directory))
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            raise not_a_directory(self.views if self.views.is_file() else self.directory) from None

    def version(self) -> int | None:
        """Return the ``view_version`` that the view was written in; None: the file holds no number."""
        try:
            text = (self.directory / VIEW_VERSION).read_text("ascii", "replace")
        except FileNotFoundError:
            return 0
        return int(text) if text.isdigit() else None

    def is_stale(self, version: int) -> bool:
        """Whether there is a view that was written in another format than *version*."""
        return not self.is_empty() and self.version() != version

    def format_changed(self, version: int) -> str:
        """Return the message for a stale view."""
        return f"its format was changed: dispatcher={self.name} view_version={self.version()} declared={version}"

    def keep_version(self, version: int) -> None:
        """Record the format of a new view before anything is written to it."""
        path = self.directory / VIEW_VERSION
        if version:
            replace_durably(path, b"%d" % version)
        else:
            path.unlink(missing_ok=True)

    def prepare(self) -> None:
        """Create the plugin's own folder, and finish an emptying that a crash interrupted.

        Raises:
            DamagedStore: a file has the name of a folder.
        """
        if self.intent.exists():
            self.finish_emptying()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise not_a_directory(self.views if self.views.is_file() else self.directory) from None
        # A process that was killed after renaming its cursor has not synced the folder. The cursor read here counts
        # as durable, and retention removes the log below it.
        force_directory(self.directory)

    def empty(self) -> None:
        """Remove the whole view, and create an empty folder."""
        self.views.mkdir(parents=True, exist_ok=True)
        replace_durably(self.intent, b"")
        self.finish_emptying()
        self.directory.mkdir(parents=True)

    def finish_emptying(self) -> None:
        for path in (self.directory, *(self.root / folder for folder in self.store_folders)):
            if path.exists():
                shutil.rmtree(path)
                force_directory(path.parent)
        self.intent.unlink()
        force_directory(self.views)


def not_a_directory(path: Path) -> DamagedStore:
    """Return the error for something else in the place of one of reput's own folders."""
    return DamagedStore(f"this is not a directory: path={path}", "Move it away; reput keeps a folder of its own there.")


def force_directory(path: Path) -> None:
    """Sync the directory *path*, and so the names in it, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

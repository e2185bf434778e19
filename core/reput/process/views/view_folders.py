"""ViewFolders: where a view lies, and how it is emptied so that a crash in the middle cannot leave half of it.

A view is ``reput/views/NAME`` (the plugin's own folder, its cursor included) and the ``store_folders`` it declares in
the store's root. Emptying both is not one step, and a cursor without its data, or old data without its cursor, would be
taken for the truth. So the intent ``reput/views/NAME.emptying`` is written first, and a start that finds one goes on.

A view whose plugin declares a ``view_version`` has it in ``.view_version`` in its own folder, a number as text. It is
written before the plugin writes anything, and goes where the folder goes: without that file the version is 0.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from reput.errors import DispatcherError
from reput_hooks import replace_durably

__all__ = ["VIEW_VERSION", "ViewFolders"]

VIEW_VERSION = ".view_version"


class ViewFolders:
    """The folders of the dispatcher *name* under *root*, a store's directory or one that is laid out as such."""

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
        """Whether the plugin has written nothing to its own folder."""
        try:
            return all(name.startswith(VIEW_VERSION) for name in os.listdir(self.directory))
        except FileNotFoundError:
            return True

    def version(self) -> int | None:
        """Return the ``view_version`` that the view was written in; None: the file does not say any."""
        try:
            text = (self.directory / VIEW_VERSION).read_text("ascii", "replace")
        except FileNotFoundError:
            return 0
        return int(text) if text.isdigit() else None

    def is_stale(self, version: int) -> bool:
        """Whether there is a view that was written in another format than *version*."""
        return not self.is_empty() and self.version() != version

    def format_changed(self, version: int) -> str:
        """Return what is to be said of a stale view."""
        return f"its format was changed: dispatcher={self.name} view_version={self.version()} declared={version}"

    def keep_version(self, version: int) -> None:
        """Note, in a view that is begun, in which format it will be written."""
        path = self.directory / VIEW_VERSION
        if version:
            replace_durably(path, b"%d" % version)
        else:
            path.unlink(missing_ok=True)

    def prepare(self) -> None:
        """Have the plugin's own folder, and finish an emptying that a crash cut short."""
        if self.intent.exists():
            self.finish_emptying()
        self.directory.mkdir(parents=True, exist_ok=True)
        # A process that was killed behind the renaming of its cursor has not forced the name. What is read here counts
        # as durable, and retention removes what lies below.
        force_directory(self.directory)

    def empty(self) -> None:
        """Remove everything that the view holds, and have an empty folder."""
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


def force_directory(path: Path) -> None:
    """Force the names in *path* to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""ViewFolders: where a view lies, and how it is emptied so that a crash in the middle cannot leave half of it.

A view is ``reput/views/NAME`` (the plugin's own folder, its cursor included) and the ``store_folders`` it declares in
the store's root. Emptying both is not one step, and a cursor without its data, or old data without its cursor, would be
taken for the truth. So the intent ``reput/views/NAME.emptying`` is written first, and a start that finds one goes on.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from reput.errors import DispatcherError
from reput_hooks import replace_durably

__all__ = ["ViewFolders"]


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

"""ShadowFolders: where views are rebuilt beside the running ones, and how the new views replace them.

    reput/shadow/         laid out as a store: reput/views/NAME and the store folders of each view that is rebuilt;
                          symbolic links to the views that they read and that are not rebuilt with them
    reput/shadow.swap     the intent: from here on the new views are valid

A view has several folders (its own, with the cursor, and those in the store's root), and several views may be swapped
together. No system call exchanges them all, so the intent is written first. It identifies the folders of each pair by
inode, so that after a crash the next start exchanges the remaining pairs, and none twice:

    no intent   reput/shadow holds an incomplete view, or an old one: it is removed
    an intent   the exchange is completed, then the intent is removed

So after a kill at any point the next start has either all the old views or all the new ones.

One process at a time uses it, with the group's lock.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from reput.errors import DamagedStore, DispatcherError
from reput.process.views.dead_letters import DeadLetters
from reput.process.views.folder_exchange import exchange_paths
from reput.process.views.gaps import Gaps
from reput.process.views.view_folders import ViewFolders, force_directory, not_a_directory
from reput.store.disk.sealed_file import read_sealed, seal
from reput_hooks import replace_durably

__all__ = ["ShadowFolders"]


class FolderPair(msgspec.Struct, frozen=True):
    """One folder of a view: its place below a root, and the inodes of the old and the new one."""

    place: str
    old: int
    new: int


class Swap(msgspec.Struct, frozen=True):
    """The intent: the folder pairs to exchange, by view."""

    views: dict[str, list[FolderPair]]


class ShadowFolders:
    """The shadow of one store."""

    def __init__(self, store_directory: Path) -> None:
        self.store = store_directory
        self.root = store_directory / "reput" / "shadow"
        self.intent = store_directory / "reput" / "shadow.swap"

    def settle(self) -> tuple[str, ...]:
        """Complete or undo what a killed rebuild left, and remove the shadow; return the swapped views.

        Raises:
            DamagedStore: the intent is not what was written, or a file has the name of the shadow.
            OSError: the disk refused.
        """
        swapped: tuple[str, ...] = ()
        if self.intent.exists():
            swapped = self.complete()
            self.forget_intent()
        # The draft of an intent whose writing was killed; nothing else would remove it.
        self.intent.with_name(self.intent.name + ".draft").unlink(missing_ok=True)
        self.remove()
        return swapped

    def prepare(self, linked: Mapping[str, tuple[str, ...]]) -> None:
        """Create an empty shadow.

        Args:
            linked: views that are only read, each with its folders in the store's root.

        Raises:
            DispatcherError: the file system cannot exchange folders; tested here, not first at the swap.
            OSError: the disk refused.
        """
        views = self.root / "reput" / "views"
        views.mkdir(parents=True)
        tried = [self.root / name for name in ("try-1", "try-2")]
        for directory in tried:
            directory.mkdir()
        exchange_paths(*tried)
        for directory in tried:
            directory.rmdir()
        for name, store_folders in linked.items():
            (views / name).symlink_to(Path("../../../views") / name)
            for folder in store_folders:
                (self.root / folder).symlink_to(Path("../..") / folder)

    def check(self, views: Sequence[str]) -> None:
        """Refuse views that lack records which the old ones may have.

        Raises:
            DispatcherError: retention removed a part of the log before it was read.
        """
        for view in views:
            size = Gaps(self.root, view).size
            if size:
                raise DispatcherError(
                    f"retention removed a part of the log before the rebuild read it: view={view} gap_bytes={size}",
                    "The view is unchanged. Try again, if necessary with a longer file_reserved_time.",
                )

    def begin_swap(self, views: Mapping[str, tuple[str, ...]]) -> None:
        """Write the intent for *views*, each with its folders in the store's root; `complete` carries it out.

        Raises:
            OSError: the disk refused; the old views stay valid.
        """
        swap = Swap({name: [self.pair(place) for place in places(name, views[name])] for name in views})
        for view in views:
            self.keep_dead_letters(view)
        # The disk must have the new folders and their names before it has the intent.
        for directory in (self.store, self.store / "reput" / "views", self.root, self.root / "reput" / "views"):
            force_directory(directory)
        replace_durably(self.intent, seal(swap))

    def pair(self, place: str) -> FolderPair:
        """Return one pair; create a folder, empty, if the view does not have it yet."""
        for root in (self.store, self.root):
            (root / place).mkdir(parents=True, exist_ok=True)
        return FolderPair(place, inode(self.store / place), inode(self.root / place))

    def keep_dead_letters(self, view: str) -> None:
        """Add the records that only the rebuild rejected to the view's dead letters."""
        kept = DeadLetters(self.store, view)
        for letter in DeadLetters(self.root, view).lines.read():
            kept.add(letter)

    def complete(self) -> tuple[str, ...]:
        """Exchange the folder pairs of the intent that are not exchanged yet; return the views.

        Raises:
            DamagedStore: the intent is not what was written.
            OSError: the disk refused; the next start tries again.
        """
        try:
            swap = read_sealed(self.intent, Swap)
        except DamagedStore as error:
            # Some of its folders may have been exchanged, and some not.
            raise DamagedStore(
                str(error), "Move it away, then rebuild the views, which it may have left in a mixture: reput rebuild."
            ) from None
        assert swap is not None
        for view, pairs in swap.views.items():
            folders = ViewFolders(self.store, view, ())
            waiting = [pair for pair in pairs if inode(self.store / pair.place) != pair.new]
            if not all(self.can_be_exchanged(pair) for pair in waiting):
                # The store was copied, or a folder deleted, during the swap: empty the view, which may be a mixture.
                folders.views.mkdir(parents=True, exist_ok=True)
                replace_durably(folders.intent, b"")
                continue
            # An interrupted emptying of the old view must not continue in the new one.
            folders.intent.unlink(missing_ok=True)
            for pair in waiting:
                exchange_paths(self.store / pair.place, self.root / pair.place)
        force_directory(self.store)
        force_directory(self.store / "reput" / "views")
        return tuple(swap.views)

    def can_be_exchanged(self, pair: FolderPair) -> bool:
        """Tell whether both folders are still where they were when the intent was written."""
        return inode(self.store / pair.place) == pair.old and inode(self.root / pair.place) == pair.new

    def forget_intent(self) -> None:
        """Remove the intent: the swap is done."""
        self.intent.unlink(missing_ok=True)
        force_directory(self.intent.parent)

    def remove(self) -> None:
        """Remove the shadow with all its contents."""
        if self.root.is_file():
            raise not_a_directory(self.root)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.root)


def places(view: str, store_folders: tuple[str, ...]) -> list[str]:
    """Return the paths of a view's folders below a root."""
    return [*store_folders, f"reput/views/{view}"]


def inode(path: Path) -> int:
    """Return the inode of a folder, 0 if it does not exist."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0

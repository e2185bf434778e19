"""BuilderDispatcher: a dispatcher that keeps its cursor, and what its files hold there, in one sealed file.

    start     kept state read ──▶ files restored to it ──▶ the log is dispatched from there on
    flush     files forced, on a thread ──▶ cursor and state replaced as one file
    truncate  shorter state kept ──▶ files cut; after a crash in between, the files hold more than the state
    expire    state without the old files kept ──▶ files removed

The views in RocketMQ's own places are built this way. Each has a builder, which knows its files and their state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from reput.errors import DamagedStore
from reput.store.disk.files import Files, Progress
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.disk.shortages import retry_on_shortage
from reput.store.log.segments import Segments
from reput.store.service.background_work import BackgroundWork
from reput.store.service.threads import Threads
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import was_clean_when_adopted
from reput_hooks import CommitLogDispatcher, Cursor, DispatcherContext, RebuildNeeded

__all__ = ["BuilderDispatcher", "Kept", "ViewBuilder"]


class ViewBuilder(Protocol):
    """Writes the files of a view."""

    def begin_force(self) -> Callable[[Progress], None]:
        """Return a function that forces all that was put so far; any thread may call it, while more is put.

        It calls its argument after each part.
        """

    def end_force(self) -> None:
        """The force has ended: all of that is on disk."""

    def abandon_force(self) -> None:
        """The force has failed: the next one covers its part, too."""

    def expire(self, commit_log_offset_min: int) -> list[Path]:
        """Leave out files and return them. They are removed once the state without them is kept."""

    def close(self) -> None:
        """Close all files."""


class KeptState(Protocol):
    """The state of a view as it is kept, a msgspec struct."""

    @property
    def cursor(self) -> Cursor: ...


Builder = TypeVar("Builder", bound=ViewBuilder)
Kept = TypeVar("Kept", bound=KeptState)


class BuilderDispatcher(CommitLogDispatcher, Generic[Builder, Kept]):
    """One view of one store.

    A force that failed is not tried again: its error ends the dispatcher, and the next one starts at the state that was
    kept before. If the disk is full, the dispatcher waits for room.

    Args:
        kept_type: of the state in the sealed file.
        threads: start the thread that forces files while batches are dispatched.

    Attributes:
        end: up to where the view is dispatched; None: it was not begun.
    """

    def __init__(
        self,
        context: DispatcherContext,
        builder: Builder,
        kept_type: type[Kept],
        files: Files,
        threads: Threads | None = None,
    ) -> None:
        self.context = context
        self.builder = builder
        self.kept_type = kept_type
        self.files = files
        self.threads = threads or Threads()
        self.path = context.directory / "cursor"
        self.end: Cursor | None = None
        # The flush in the background, up to where the view is durable after it, and whether it has ended.
        self.flushing: BackgroundWork | None = None
        self.flushing_to: Cursor | None = None
        self.flushed = False
        # Forced parts of a flush, how many of them the host knows of, and whether the dispatcher waits for the flush.
        self.part_count = self.told_count = 0
        self.is_awaited = False

    # Defined by each view.

    def restore(self, kept: Kept) -> None:
        """Restore the files to the state *kept*.

        Raises:
            DamagedStore: the files do not hold what *kept* says.
        """
        raise NotImplementedError

    def adopt(self) -> Kept | None:
        """Bring the files to what they surely hold after a RocketMQ that was closed; None: nothing is sure."""
        raise NotImplementedError

    def begin_empty(self) -> None:
        """Remove all files: the view begins with the log."""
        raise NotImplementedError

    def state_to_keep(self, cursor: Cursor) -> Kept:
        """Return what the files hold at *cursor*, where they were at `begin_force`."""
        raise NotImplementedError

    def state_below(self, cursor: Cursor) -> Kept:
        """Return what they hold without the records from *cursor* on. Changes nothing."""
        raise NotImplementedError

    # Called by the host.

    def start(self) -> Cursor | None:
        """Start at the durable cursor; in a store that RocketMQ closed, after the last record that it dispatched."""
        with self.rebuild_if_damaged(), retry_on_shortage("the view cannot be brought to its cursor"):
            kept = read_sealed(self.path, self.kept_type)
            if kept is not None:
                self.refuse_unknown_history(kept.cursor)
                self.restore(kept)
                self.end = kept.cursor
                return self.end
            adopted = self.adopt() if was_clean_when_adopted(self.context.store_directory) else None
            if adopted is None:
                # A killed RocketMQ leaves views that may lack anything, so the whole view is built again.
                self.begin_empty()
                return None
            self.end = adopted.cursor
        self.flush_all()
        return self.end

    def refuse_unknown_history(self, cursor: Cursor) -> None:
        """Refuse a kept state that may belong to another history of the log below its present beginning.

        The view's entries for records there are useless then, and queue offsets of another history would collide with
        those of the records that follow.

        Raises:
            DamagedStore: the state may belong to another history.
        """
        store_directory = self.context.store_directory
        epochs = read_epochs(store_directory, self.context.store_id)
        if cursor.store_id != epochs.store_id or epochs.holds(cursor):
            return
        offset_min = Segments(store_directory / "commitlog").offset_min
        difference = epochs.first_difference(cursor, offset_min)
        if offset_min > 0 and (difference is None or difference.commit_log_offset == offset_min):
            raise DamagedStore(
                f"the log's history below its beginning may not be the view's: commit_log_offset_min={offset_min} "
                f"view={cursor.commit_log_offset} view_epoch={cursor.epoch} epoch={epochs.epoch}"
            )

    @contextmanager
    def rebuild_if_damaged(self) -> Iterator[None]:
        """Ask for a rebuild if the view is not what its cursor says: deleted, or replaced by an older copy."""
        try:
            yield
        except DamagedStore as error:
            self.context.logger.error("%s", error)
            raise RebuildNeeded from error

    def prepare_flush(self) -> bool:
        """Flush in the background: on a disk that is busy with the log it takes long, and would hold up the
        dispatch."""
        try:
            if self.flushing is None:
                if self.end is None:
                    return False
                force = self.builder.begin_force()
                work = partial(self.force_and_keep, force, self.state_to_keep(self.end), self.count_part)
                self.flushing_to = self.end
                self.flushing = BackgroundWork("reput-flush", work, self.threads)
            self.flushed = self.flushing.is_done(0.0)
            if self.part_count != self.told_count:
                # As long as the disk answers, a flush of many files does not run into its time limit.
                self.told_count = self.part_count
                self.context.alive()
        except BaseException:
            self.flushing = None
            self.builder.abandon_force()
            raise
        return not self.flushed

    def flush(self) -> Cursor | None:
        """Finish the flush in the background; without one, make durable all that was dispatched."""
        if self.flushed:
            self.flushing, self.flushed = None, False
            self.builder.end_force()
            return self.flushing_to
        self.flush_all()
        return self.end

    def truncate(self, cursor: Cursor) -> None:
        """Keep the shorter state before anything is cut: after a crash in between, the files only hold more than it."""
        self.await_flush()
        force = self.builder.begin_force()
        force(self.context.alive)
        self.builder.end_force()
        with self.rebuild_if_damaged(), retry_on_shortage("the view cannot be brought to its cursor"):
            kept = self.state_below(cursor)
            self.end = cursor
            self.keep(kept)
            self.restore(kept)

    def expire(self, commit_log_offset_min: int) -> None:
        """Remove files once the state that does not need them is on disk."""
        self.await_flush()
        expired = self.builder.expire(commit_log_offset_min)
        if expired:
            self.flush_all()
            for path in expired:
                self.files.remove(path)

    def close(self) -> None:
        """Wait for a flush in the background, and close all files."""
        try:
            self.await_flush()
        finally:
            self.builder.close()

    # Flushing.

    def flush_all(self) -> None:
        """Make durable all that was dispatched."""
        self.await_flush()
        if self.end is not None:
            force = self.builder.begin_force()
            self.force_and_keep(force, self.state_to_keep(self.end), self.context.alive)
            self.builder.end_force()

    def await_flush(self) -> None:
        """Wait until no flush runs in the background.

        Raises:
            OSError: the flush failed.
        """
        flushing, self.flushing, self.flushed = self.flushing, None, False
        if flushing is not None:
            self.is_awaited = True
            try:
                flushing.is_done(None)
            finally:
                self.is_awaited = False

    def count_part(self) -> None:
        """A part of the flush in the background is done; its thread calls this."""
        self.part_count += 1
        if self.is_awaited:
            # The dispatcher's own thread only waits for this one, which reports the sign of life in its place.
            self.context.alive()

    def force_and_keep(self, force: Callable[[Progress], None], kept: Kept, on_progress: Progress) -> None:
        """Call *force*, and only then keep the state that needs it."""
        force(on_progress)
        self.keep(kept)

    def keep(self, kept: Kept) -> None:
        """Write the cursor and the state of the files durably."""
        with retry_on_shortage("the cursor cannot be written"):
            self.files.replace(self.path, seal(kept))

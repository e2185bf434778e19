"""ReadOnlyEngine: reads a store that another process writes, that RocketMQ left, or that is not open anywhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from reput.embedded.reading_engine import ReadingEngine
from reput.embedded.store_status import owners_statistics, with_statistics
from reput.errors import ReputError
from reput.in_thread import begin_in_thread
from reput.process.control.control_socket import connect_observer
from reput.process.control.group_status import GroupStatus
from reput.process.dispatcher.states import BEGIN_WAIT_S, WILL_NOT_START, State
from reput.ring.layout import UNKNOWN
from reput.ring.progress_futex import ProgressFutex, SeenProgress
from reput.settings import Settings
from reput.store.disk.shortages import tell_read_error
from reput.store.reader.message_reader import MessageReader
from reput.store.reader.readable_store import ReadableStore
from reput.store.state.dispatcher_cursors import noted_progress
from reput.store.state.identity import require_store
from reput.store.state.store_lock import StoreLock, read_writer

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

__all__ = ["ReadOnlyEngine"]

T = TypeVar("T")

# How often a follower looks at a live writer's position, if no dispatcher wakes it: none runs, or it is behind.
LOOK_S = 0.1
# How often it then looks whether the writer is still there: one that was killed says nothing.
WRITER_LOOK_S = 1.0


class ReadOnlyEngine(ReadingEngine):
    """Reads files, and beside a live writer the progress that its dispatchers publish.

    Without a live writer every view is taken to reach up to the end of the log.
    """

    def __init__(self, directory: Path, settings: Settings) -> None:
        """Open the files, and connect to the writer if there is one.

        Raises:
            NotAStore: the directory holds no store.
            StoreError: a file cannot be read.
        """
        require_store(directory)
        self.directory = directory
        self.settings = settings
        self.read_lock = threading.Lock()
        self.end = 0
        # Before the connection: another writer that comes meanwhile is one too many rather than none.
        self.writer = read_writer(directory)
        self.writer_looked_at = time.monotonic()
        with tell_read_error(f"the store cannot be opened: store={directory}"):
            self.observed = connect_observer(directory)
            if self.observed is None:
                from reput.store.log.segments import Segments
                from reput.store.recovery.log_end import find_log_end

                self.end = find_log_end(directory, Segments(directory / "commitlog"))
            self.futex = None if self.observed is None else ProgressFutex(self.observed.memory)
        # Per event loop, the wait in a thread that all of its tasks share.
        self.waits: WeakKeyDictionary[AbstractEventLoop, Future[None]] = WeakKeyDictionary()
        store = ReadableStore(directory, settings, self.readable_up_to, self.generation, at_rest=self.observed is None)
        self.reader = MessageReader(store)
        self.closing = threading.Event()
        self.closed = False

    def readable_up_to(self, view: str) -> int:
        """Return the progress of a view; 0 if no dispatcher builds it.

        The dispatchers of a writer that has just opened the store say it a moment later. A question waits for that, as
        in the writer's own process: "there is nothing" would be a wrong answer.

        Raises:
            DispatcherError: the dispatcher cannot start, and has noted nothing.
        """
        if self.observed is None:
            return self.end
        progress = self.observed.progress(view)
        member = self.observed.members.get(view)
        if progress is None and member is not None:
            progress = self.progress_at_start(view, member.slot)
        return progress or 0

    def progress_at_start(self, view: str, slot: int) -> int:
        """Wait until a dispatcher of the writer's has started; if it does not, return what was noted of its view."""
        assert self.observed is not None
        assert self.futex is not None
        cell, header = self.observed.memory.view(slot), self.observed.memory.header
        end = time.monotonic() + BEGIN_WAIT_S
        while (progress := cell.progress) is None:
            if header.appended == header.commit_log_offset_min:
                return 0
            is_over = self.closed or header.closed or time.monotonic() > end or self.writer_has_gone()
            if is_over or State(cell.state or 0) in WILL_NOT_START:
                return noted_progress(self.directory, view, header.appended or 0)
            self.futex.wait(SeenProgress(slot, UNKNOWN), LOOK_S)
        return progress

    def generation(self, view: str) -> int:
        """Return the generation number of a view, which rises when a rebuilt view takes its place."""
        return 0 if self.observed is None else self.observed.generation(view)

    def log_end(self) -> int:
        """Return the commit-log offset up to which records can be read."""
        observed = self.observed
        return self.end if observed is None else self.unless_closed(lambda: observed.memory.header.appended or 0, 0)

    def wait_for_growth(self, end: int) -> bool:
        """Wait until a live writer has appended past *end*; return False if there is none, or it has gone."""
        while True:
            # Before the log's end: a dispatcher that takes in what was appended since changes this.
            seen = self.seen_progress()
            grown = self.has_grown(end)
            if grown is not None:
                return grown
            self.wait_for_progress(seen)

    async def await_growth(self, end: int) -> bool:
        """Like `wait_for_growth`, for a task."""
        import asyncio

        loop = asyncio.get_running_loop()
        while True:
            seen = self.seen_progress()
            grown = self.has_grown(end)
            if grown is not None:
                return grown
            wait = self.waits.get(loop)
            if wait is None or wait.done():
                # A wait that another task began earlier has seen no more progress than this task, so it ends no later.
                wait = self.waits[loop] = begin_in_thread(self.wait_for_progress, seen)
            await asyncio.shield(wait)

    def seen_progress(self) -> SeenProgress | None:
        """Return the progress of the foremost dispatcher of a live writer; None: none runs."""
        if self.closed or self.observed is None or self.futex is None:
            return None
        futex, members = self.futex, self.observed.members
        return self.unless_closed(lambda: futex.look(member.slot for member in members.values()), None)

    def wait_for_progress(self, seen: SeenProgress | None) -> None:
        """Wait until a dispatcher gets beyond *seen*, the store is closed here, or it is time to look again."""
        if seen is None or self.futex is None:
            self.closing.wait(LOOK_S)
        elif not self.closed:
            self.futex.wait(seen, LOOK_S)

    def has_grown(self, end: int) -> bool | None:
        """Tell whether the log goes past *end*; False if it never will, None if it does not yet."""
        if self.closed or self.observed is None:
            return False
        if self.log_end() > end:
            return True
        header = self.observed.memory.header
        if self.unless_closed(lambda: header.closed, True):
            return False
        return False if self.writer_has_gone() and self.log_end() <= end else None

    def writer_has_gone(self) -> bool:
        """Tell whether the writer was killed, by a look at the store's lock once in a while."""
        now = time.monotonic()
        if now - self.writer_looked_at < WRITER_LOOK_S:
            return False
        if StoreLock.look(self.directory).held is False or read_writer(self.directory) != self.writer:
            # The next follower looks at once.
            return True
        self.writer_looked_at = now
        return False

    def unless_closed(self, look: Callable[[], T], otherwise: T) -> T:
        """Return what *look* finds in the writer's memory; *otherwise* if another thread closes the store meanwhile."""
        try:
            return look()
        except ValueError:
            # The views of the memory were released.
            if not self.closed:
                raise
            return otherwise

    def status(self) -> GroupStatus:
        """Return the known state of the store and of the process that writes it.

        Raises:
            StoreError: a file with a part of it cannot be read.
        """
        with tell_read_error(f"the status cannot be read: store={self.directory}"):
            status = self.group_status()
        if status.started is not None:
            statistics = owners_statistics(self.directory)
            return status if statistics is None else with_statistics(status, statistics)
        if status.writer.state != "STOPPED" or self.observed is not None:
            return status
        from reput.consume.delivery.stopped_counts import count_stopped

        with self.read_lock, contextlib.suppress(ReputError, OSError):
            # The status shows what can be read. A configuration file that is wrong is reported by what needs that
            # file: `reput group list`, and the next opening.
            counts = count_stopped(self.directory, self.settings, self.reader, self.end)
            return msgspec.structs.replace(status, **msgspec.structs.asdict(counts))
        return status

    def group_status(self) -> GroupStatus:
        """Return the known state of the store's group."""
        from reput.process.owner.stopped_status import stopped_status

        return stopped_status(self.directory, self.settings)

    def view_behind(self, view: str) -> int | None:
        """Return the commit-log offset that *view* has reached if it is known to be behind the log; else None."""
        row = next((row for row in self.group_status().dispatchers if row.name == view), None)
        if row is None or not row.lag_bytes:
            return None
        return row.durable_cursor if row.progress is None else row.progress

    def close(self) -> None:
        """Close the files."""
        if self.closed:
            return
        self.closed = True
        self.closing.set()
        self.reader.close()
        if self.observed is not None and self.futex is not None:
            self.futex.wake(member.slot for member in self.observed.members.values())
            self.futex.close()
            self.observed.memory.close()

"""ReadingEngine: the reading parts of both engines, for stores written by this or by another process."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from reput.errors import DamagedStore
from reput.in_thread import in_thread, opened_in_thread
from reput.kernel import KernelReads
from reput.process.control.group_status import GroupStatus
from reput.settings import Settings
from reput.store.disk.shortages import tell_read_error
from reput.store.reader.message_reader import MessageReader
from reput.store.state.closed_store import closed_store
from reput_hooks import Record

if TYPE_CHECKING:
    from reput.embedded.log_records import LogRecords

__all__ = ["ReadingEngine"]


class ReadingEngine:
    """The parts that `Store` and `ReadOnlyStore` read with. `reader` needs `read_lock`.

    Attributes:
        reads: what the kernel reads alone; None: it reads nothing alone, or the store is closed.
    """

    directory: Path
    settings: Settings
    reader: MessageReader
    read_lock: threading.Lock
    closed: bool
    reads: KernelReads | None = None

    @property
    def forked_from(self) -> int | None:
        """In a forked child of the writer, the process that opened the store; else None."""
        return None

    def require_open(self) -> None:
        """Refuse a closed store.

        Raises:
            StoreClosed: the store was closed, or this is a forked child of its writer.
        """
        if self.closed:
            raise closed_store(self.directory, self.forked_from)

    def found_damage(self, error: DamagedStore) -> None:
        """Note damage that a reader found. A process that only reads the store keeps no notes."""

    def log_end(self) -> int:
        """Return the commit-log offset up to which records can be read."""
        raise NotImplementedError

    def following(self) -> AbstractContextManager[None]:
        """Count as a follower of the log inside a ``with`` block."""
        return nullcontext()

    def wait_for_growth(self, end: int) -> bool:
        """Wait until the log has grown past *end*; return False once it never will."""
        raise NotImplementedError

    async def await_growth(self, end: int) -> bool:
        """Like `wait_for_growth`, for a task."""
        raise NotImplementedError

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queue ids of one topic, ascending."""
        return self.reader.queue_ids(topic)

    def group_status(self) -> GroupStatus:
        """Return the status of the store, its writer and its dispatchers."""
        raise NotImplementedError

    def status(self) -> GroupStatus:
        """Return `group_status` with the counts."""
        raise NotImplementedError

    def records(self, commit_log_offset: int, follow: bool) -> Iterator[Record]:
        """Yield the records from *commit_log_offset* on; `OpenedStore.records` promises the rest."""
        records = self.log_records(commit_log_offset)
        with closing(records), self.following() if follow else nullcontext():
            while True:
                piece = records.read()
                if piece is not None:
                    yield from piece
                elif not follow or not self.wait_for_growth(records.end):
                    return

    async def arecords(self, commit_log_offset: int, follow: bool) -> AsyncIterator[Record]:
        """As `records`, for a task: threads of the event loop's executor read the files."""
        records = await opened_in_thread(self.log_records, commit_log_offset)
        with closing(records), self.following() if follow else nullcontext():
            while True:
                piece = await in_thread(records.read)
                if piece is not None:
                    for record in piece:
                        yield record
                elif not follow or not await self.await_growth(records.end):
                    return

    def log_records(self, commit_log_offset: int) -> LogRecords:
        """Return a reader of the log from *commit_log_offset* on."""
        with tell_read_error(f"the log cannot be read: store={self.directory}"):
            # Reading the log in bulk needs numpy, which a program that only puts never loads.
            from reput.embedded.log_records import LogRecords

            return LogRecords(self.directory, commit_log_offset, self.log_end, self.found_damage)

    def close(self) -> None:
        """Close the store."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

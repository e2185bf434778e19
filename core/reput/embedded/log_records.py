"""LogRecords: the records of a log in its order, read in pieces, for threads and for tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reput.errors import DamagedStore
from reput.store.disk.shortages import tell_read_error
from reput.store.log.log_scan import LogScan
from reput.store.record.sent_record import sent_record
from reput.store.recovery.damage_list import accepted_damage
from reput_hooks import Record

__all__ = ["LogRecords"]


class LogRecords:
    """Reads the log piece by piece. One thread at a time calls `read`; any thread may close it meanwhile.

    Attributes:
        end: commit-log offset up to which the last `read` searched.
    """

    def __init__(
        self,
        store_directory: Path,
        commit_log_offset: int,
        log_end: Callable[[], int],
        on_damage: Callable[[DamagedStore], None],
    ) -> None:
        """Begin at the first record at or after *commit_log_offset*; *on_damage* is called before damage is raised."""
        self.store_directory = store_directory
        self.log_end = log_end
        self.on_damage = on_damage
        self.lock = threading.Lock()
        self.closed = False
        self.scan = LogScan(store_directory, passed_over=accepted_damage(store_directory), verify=True)
        self.wanted = max(commit_log_offset, self.scan.offset_min)
        # The scan finds records from the start of a segment; the wanted offset may lie inside a record.
        segment = self.scan.segments.find(self.wanted)
        self.at = segment.begin if segment is not None else self.wanted
        self.end = self.at

    def read(self) -> Iterator[Record] | None:
        """Return the next records, some MiB of the log; None at the current end.

        Raises:
            DamagedStore: the bytes at the next offset are not a record.
        """
        with self.lock:
            if self.closed:
                return None
            try:
                with tell_read_error(f"the log cannot be read: store={self.store_directory}"):
                    return self.read_piece()
            finally:
                if self.closed:
                    self.scan.close()

    def read_piece(self) -> Iterator[Record] | None:
        """Do the work of `read`, under the lock."""
        scan = self.scan
        while True:
            if self.at >= self.end:
                self.end = self.log_end()
                if self.closed or self.at >= self.end:
                    return None
            if self.at in scan.passed_over:
                self.at = scan.passed_over[self.at]
                continue
            try:
                columns, following = scan.locate(self.at, self.end)
            except DamagedStore as error:
                error.place = (self.at, None)
                self.on_damage(error)
                raise
            begin, self.at = self.at, following
            return decoded(columns.data, [at for at in columns.position.tolist() if begin + at >= self.wanted])

    def close(self) -> None:
        """Close the open segment, or let a `read` in another thread close it when it ends."""
        self.closed = True
        if self.lock.acquire(blocking=False):
            self.scan.close()
            self.lock.release()


def decoded(data: bytes | bytearray | memoryview, positions: Sequence[int]) -> Iterator[Record]:
    """Yield the records at *positions* of *data*, each decoded on demand."""
    for position in positions:
        yield sent_record(data, position)

"""CopiedRecords: the bytes of a master's log, cut anywhere, as whole records that were checked.

    pieces ── feed ──▶ held bytes ── take ──▶ CopiedRun: records of one segment, and the blank before them

A blank waits for the record behind it, so a copy never ends with a bare blank. What is held is bounded by one record,
and by what was fed since the last `take`.

Bytes lie in pieces of memory: a large frame goes from the socket to where it is taken apart, and then to the file.
The log keeps what it has not forced where it lies, so a piece is used again only once the disk has all of it.

    │ taken │ held, first to end │ room ── given out, filled by the socket, then fed │
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from reput.errors import FollowError
from reput.replication.ha_protocol import new_memory
from reput.store.log.log_scan import PlainRows
from reput.store.record.record_columns import RecordColumns, locate_records, stop_at
from reput.store.writer.copied_run import CopiedRun

__all__ = ["CopiedRecords"]

# Bytes that are checked at once: the cost of a call is spread over thousands of records, and its arrays stay small.
RUN_SIZE = 2 << 20
# Room for a large frame behind a record that has not come whole; more is taken if that is larger.
MEMORY_SIZE = (1 << 20) + (128 << 10)
CUT_AND_FOLLOW = (
    "The master's log is damaged, or its bytes changed on the way: look at the master with `reput check`, then start "
    "`reput follow` again; it continues before that place."
)


class CopiedRecords:
    """The stream of one connection.

    Attributes:
        end: commit-log offset up to which records were taken.
        held_size: bytes that were not taken yet.
    """

    def __init__(
        self,
        begin: int,
        segment_size: int,
        record_size_max: int,
        plain_rows: Callable[[bytes | memoryview, int], PlainRows | None] = lambda data, commit_log_offset: None,
        durable: Callable[[], int] = lambda: -1,
    ) -> None:
        """*plain_rows*: checks the records that these bytes begin with, as `LogScan.rows_of_plain` does.

        *durable*: returns the commit-log offset up to which the records that were taken are not needed here any more.
        """
        self.end = begin
        self.segment_size = segment_size
        self.record_size_max = record_size_max
        self.plain_rows = plain_rows
        self.durable = durable
        self.memory = new_memory(MEMORY_SIZE)
        # Memory that was full, oldest first, each with the end of the last record in it.
        self.full: deque[tuple[int, memoryview]] = deque()
        self.held_from = self.held_to = 0
        # What `room` has returned last.
        self.given: memoryview | None = None
        self.blank = b""
        # As long as fewer bytes are held, there is nothing to take.
        self.needed = 1

    @property
    def held_size(self) -> int:
        """Bytes that were not taken yet."""
        return self.held_to - self.held_from

    def room(self, size: int) -> memoryview:
        """Return memory for the next *size* bytes of the log: what is received there need not be copied by `feed`."""
        if self.held_to + size > len(self.memory):
            held = self.memory[self.held_from : self.held_to]
            self.full.append((self.end, self.memory))
            self.memory = self.free_memory(len(held) + size)
            self.memory[: len(held)] = held
            self.held_from, self.held_to = 0, len(held)
        self.given = self.memory[self.held_to : self.held_to + size]
        return self.given

    def free_memory(self, size: int) -> memoryview:
        """Return memory for *size* bytes of which the log needs nothing any more."""
        durable = self.durable()
        while self.full and self.full[0][0] <= durable:
            memory = self.full.popleft()[1]
            if len(memory) >= size:
                return memory
        return new_memory(max(size, MEMORY_SIZE))

    def feed(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the log."""
        if data is not self.given:
            # They may be a part of the room; memory views are copied as by `memmove`.
            self.room(len(data))[:] = data
        self.given = None
        self.held_to += len(data)

    def take(self) -> Iterator[CopiedRun]:
        """Yield the whole records that are held. Their bytes stay as they are until `durable` is behind them.

        Raises:
            FollowError: there is something else.
        """
        while self.held_size >= self.needed:
            run, size = self.next_run(self.memory[self.held_from : self.held_to])
            if not size:
                return
            self.held_from += size
            if run is not None:
                self.end = run.begin + size
                yield run

    def next_run(self, data: memoryview) -> tuple[CopiedRun | None, int]:
        """Return the next records, with which *data* begins, and how many bytes are done.

        None: there are none yet. `needed` says what has to come first.
        """
        begin = self.end + len(self.blank)
        remaining = self.segment_size - begin % self.segment_size
        run = data[: min(remaining, max(RUN_SIZE, self.needed))]
        stop = stop_at(run, 0, remaining, "")
        if stop.kind == "damage":
            raise self.no_record(begin, stop.reason)
        # A blank is smaller than the record that it had no room for, and both have to be held.
        if stop.size > self.record_size_max:
            what = "blank" if stop.kind == "blank" else "record"
            raise FollowError(
                f"the master sent a {what} that is too large: commit_log_offset={begin} {what}_size={stop.size} "
                f"record_size_max={self.record_size_max}",
                "If the master once took messages as large as that, start again with --set max_message_size=SIZE.",
            )
        if len(run) < stop.size:
            # It has not come whole, or it is larger than a run.
            self.needed = stop.size
            return None, 0
        self.needed = 1
        if stop.kind == "blank":
            self.blank = bytes(run[: stop.size])
            return None, stop.size
        plain = self.plain_rows(run, begin)
        blank, self.blank = self.blank, b""
        if plain is not None:
            return CopiedRun(run[: plain.size], begin, blank, plain, None), plain.size
        columns = self.checked(run, begin, remaining)
        return CopiedRun(run[: columns.end], begin, blank, None, columns), columns.end

    def checked(self, data: memoryview, begin: int, remaining: int) -> RecordColumns:
        """Return the records that *data* begins with, before the first one with a wrong CRC.

        Raises:
            FollowError: it is the first one, or there is none.
        """
        columns, stop = locate_records(data, begin, remaining)
        if not len(columns):
            assert stop is not None
            raise self.no_record(begin, stop.reason)
        bad = columns.first_bad_record()
        if bad == 0:
            size = int(columns.header["record_size"][0])
            raise FollowError(
                f"the master sent a record with a wrong CRC: from={begin} until={begin + size}", CUT_AND_FOLLOW
            )
        # The records before it are whole; the next call meets it.
        return columns if bad is None else columns.until(bad)

    @staticmethod
    def no_record(begin: int, reason: str) -> FollowError:
        """Return the error for bytes that are no record."""
        return FollowError(
            f"the master sent bytes that are no record: commit_log_offset={begin} reason={reason!r}", CUT_AND_FOLLOW
        )

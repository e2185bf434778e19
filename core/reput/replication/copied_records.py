"""CopiedRecords: the bytes of a master's log, cut anywhere, as whole records that were checked.

    pieces ── feed ──▶ held bytes ── take ──▶ CopiedRun: records of one segment, and the blank before them

A blank waits for the record behind it, so a copy never ends with a bare blank. What is held is bounded by one record,
and by what was fed since the last `take`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reput.errors import FollowError
from reput.store.log.log_scan import PlainRows
from reput.store.record.record_columns import RecordColumns, locate_records, stop_at
from reput.store.writer.copied_run import CopiedRun

__all__ = ["CopiedRecords"]

# Bytes that are checked at once: the cost of a call is spread over thousands of records, and its arrays stay small.
RUN_SIZE = 2 << 20
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
        plain_rows: Callable[[bytes, int], PlainRows | None] = lambda data, commit_log_offset: None,
    ) -> None:
        """*plain_rows*: checks the records that these bytes begin with, as `LogScan.rows_of_plain` does."""
        self.end = begin
        self.segment_size = segment_size
        self.record_size_max = record_size_max
        self.plain_rows = plain_rows
        self.held: list[bytes | memoryview] = []
        self.held_size = 0
        self.blank = b""
        # As long as fewer bytes are held, there is nothing to take.
        self.needed = 1

    def feed(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the log, which must not change any more."""
        self.held.append(data)
        self.held_size += len(data)

    def take(self) -> Iterator[CopiedRun]:
        """Yield the whole records that are held.

        Raises:
            FollowError: there is something else.
        """
        if self.held_size < self.needed:
            return
        # The only copy of them on their way from the socket to the file.
        data, at = b"".join(self.held), 0
        try:
            while len(data) - at >= self.needed:
                run, size = self.next_run(data, at)
                at += size
                if run is not None:
                    self.end = run.begin + size
                    yield run
        finally:
            # What is left over is less than a record.
            self.held = [data[at:]]
            self.held_size -= at

    def next_run(self, data: bytes, at: int) -> tuple[CopiedRun | None, int]:
        """Return the next records, which begin at ``data[at]``, and how many bytes are done.

        None: there are none yet. `needed` says what has to come first.
        """
        begin = self.end + len(self.blank)
        remaining = self.segment_size - begin % self.segment_size
        run = data[at : at + min(remaining, max(RUN_SIZE, self.needed))]
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
            self.blank = run[: stop.size]
            return None, stop.size
        plain = self.plain_rows(run, begin)
        blank, self.blank = self.blank, b""
        if plain is not None:
            return CopiedRun(memoryview(run)[: plain.size], begin, blank, plain, None), plain.size
        columns = self.checked(run, begin, remaining)
        return CopiedRun(memoryview(run)[: columns.end], begin, blank, None, columns), columns.end

    def checked(self, data: bytes, begin: int, remaining: int) -> RecordColumns:
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

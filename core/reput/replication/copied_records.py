"""CopiedRecords: the bytes of a master's log, cut anywhere, as whole records that were checked.

    pieces ── feed ──▶ held bytes ── take ──▶ CopiedPiece: records of one segment, and the blank before them

A blank waits for the record behind it, so a copy never ends with a bare blank. What is held is bounded by one record.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from reput.errors import FollowError
from reput.store.record.record_columns import RecordColumns, locate_records

__all__ = ["CopiedPiece", "CopiedRecords"]

# Bytes that are checked at once: numpy's cost of a call is spread over a thousand records, and its arrays stay small.
PIECE_SIZE = 1 << 20
CUT_AND_FOLLOW = (
    "The master's log is damaged, or its bytes changed on the way: look at the master with `reput check`, then start "
    "`reput follow` again; it continues before that place."
)


class CopiedPiece(msgspec.Struct, frozen=True):
    """*columns* fill their data; *blank* lies between the record before and the first one here."""

    columns: RecordColumns
    blank: bytes


class CopiedRecords:
    """The stream of one connection.

    Attributes:
        end: commit-log offset up to which records were taken.
    """

    def __init__(self, begin: int, segment_size: int, record_size_max: int) -> None:
        self.end = begin
        self.segment_size = segment_size
        self.record_size_max = record_size_max
        self.held = bytearray()
        self.blank = b""
        # As long as fewer bytes are held, there is nothing to take.
        self.needed = 1

    @property
    def place(self) -> int:
        """Commit-log offset of the first held byte."""
        return self.end + len(self.blank)

    def feed(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the log."""
        self.held += data

    def take(self) -> Iterator[CopiedPiece]:
        """Yield the whole records that are held.

        Raises:
            FollowError: there is something else.
        """
        while len(self.held) >= self.needed:
            piece = self.next_piece()
            if piece is not None:
                yield piece

    def next_piece(self) -> CopiedPiece | None:
        """Return the next records, None if there are none yet: `needed` says what has to come first."""
        begin = self.place
        remaining = self.segment_size - begin % self.segment_size
        size = min(len(self.held), remaining, max(PIECE_SIZE, self.needed))
        data = bytes(memoryview(self.held)[:size])
        columns, stop = locate_records(data, begin, remaining)
        self.needed = 1
        if len(columns):
            return self.checked(columns, data, begin)
        assert stop is not None
        if stop.kind == "damage":
            raise FollowError(
                f"the master sent bytes that are no record: commit_log_offset={begin} reason={stop.reason!r}",
                CUT_AND_FOLLOW,
            )
        if stop.kind == "more" and stop.size > self.record_size_max:
            raise FollowError(
                f"the master sent a record that is too large: commit_log_offset={begin} record_size={stop.size} "
                f"record_size_max={self.record_size_max}",
                "Set max_message_size to the master's maxMessageSize.",
            )
        if len(self.held) < stop.size:
            self.needed = stop.size
        elif stop.kind == "blank":
            self.blank = data[: stop.size] if size >= stop.size else bytes(memoryview(self.held)[: stop.size])
            del self.held[: stop.size]
        else:
            # It is held as a whole, only not in one piece.
            self.needed = stop.size
        return None

    def checked(self, columns: RecordColumns, data: bytes, begin: int) -> CopiedPiece:
        """Return whole records after a look at their CRCs.

        Raises:
            FollowError: one does not fit.
        """
        bad = columns.first_bad_record()
        if bad == 0:
            size = int(columns.header["record_size"][0])
            raise FollowError(
                f"the master sent a record with a wrong CRC: from={begin} until={begin + size}", CUT_AND_FOLLOW
            )
        if bad is not None:
            # The records before it are whole; the next call meets it.
            columns = columns.until(bad)
        if columns.end < len(data):
            # Bytes, not a view: a search for a property's name in a view finds nothing.
            columns.data = data[: columns.end]
        del self.held[: columns.end]
        piece = CopiedPiece(columns, self.blank)
        self.end = begin + columns.end
        self.blank = b""
        return piece

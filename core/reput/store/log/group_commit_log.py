"""GroupCommitLog: a commit log whose messages are written into its files by the force that they wait for.

    put ──▶ memory ── flush ──▶ file and disk
            appended            committed, durable

With SYNC_FLUSH no put returns before its message is on disk. So all messages since the last force are written and
forced by one system call. That is faster than forcing a mapping: there the kernel writes the whole folio of a message,
many pages in recent kernels; here it writes only the message. And no page has to be in memory before.

A killed writer loses the messages it had not forced; none of their puts had returned.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from reput.store.disk.files import Files
from reput.store.log.commit_log import CommitLog, OpenSegment, write_sizes
from reput.store.service.threads import Threads

__all__ = ["GroupCommitLog"]

# With more bytes than this in memory a put forces the log: a disk that is slower than the puts must not fill memory.
GATHERED_MAX = 8 << 20
# This much may gather behind a running force: a put that waits for a hanging disk holds the put lock, and the other
# puts would not learn in time that the disk takes too long.
GATHERED_BEHIND_MAX = 32 << 20
# Up to so much is copied into one piece, for one system call that writes and forces it.
JOINED_MAX = 1 << 20


class GroupCommitLog(CommitLog):
    """The end of the log. As `CommitLog`; `flush` may be called from any thread, with the put lock or without."""

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        end: int,
        files: Files,
        *,
        warm_up: bool = False,
        force_pages: int = 0,
        threads: Threads | None = None,
    ) -> None:
        """Open the log for appending at *end*, as `CommitLog`."""
        # Appended but not forced ranges, by their first offset; no entry crosses a segment's end. An entry counts once
        # `appended` lies behind it, and is removed once `durable` does. So a put that is interrupted in between, by
        # Ctrl-C or a lack of memory, leaves the log as it was, and the next put goes to the same place.
        self.gathered: dict[int, bytes | bytearray | memoryview] = {}
        self.forcing = threading.Lock()
        super().__init__(directory, segment_size, end, files, warm_up=warm_up, force_pages=force_pages, threads=threads)

    @property
    def committed(self) -> int:
        """Commit-log offset up to which the files hold what was appended."""
        return self.durable

    def peek(self, commit_log_offset: int) -> bytes | bytearray | memoryview | None:
        """As `CommitLog`; *commit_log_offset* is where one call of `append` began."""
        return self.gathered.get(commit_log_offset)

    def append(self, records: bytes | memoryview) -> int:
        """Keep *records* for the next force and return where the log ends now."""
        begin = self.appended
        self.gathered[begin] = records
        # Last: a force up to there finds the records.
        end = self.appended = begin + len(records)
        return end

    def append_run(self, records: bytes | bytearray, sizes: Sequence[int]) -> int:
        """As `CommitLog`; a force writes the records in their order."""
        run = bytearray(records)
        write_sizes(run, 0, sizes)
        return self.append(bytes(run))

    def append_blank(self, blank: bytes) -> None:
        """Keep *blank* for the next force."""
        self.gathered[self.appended] = blank

    def flush(self) -> int:
        """Force everything appended before this call, and return that offset, which is `durable` now.

        Raises:
            StoreError: the disk refused. As `CommitLog`.
        """
        with self.forcing:
            durable = self.force_until(self.appended)
            gathered = self.gathered
            for begin in list(gathered):
                if begin < durable:
                    del gathered[begin]
            return durable

    def force(self, segment: OpenSegment, target: int) -> None:
        """Write and force the records of *segment* up to *target*."""
        first = at = max(self.durable, segment.begin)
        until = min(target, segment.begin + segment.content_size)
        if at >= until:
            # Another thread has just forced it.
            return
        try:
            while at < until:
                begin = at
                data = self.gathered[at]
                at += len(data)
                pieces = [data]
                # Usually one write. Large batches take several, so that they are not copied.
                while at < until and at - begin + len(self.gathered[at]) <= JOINED_MAX:
                    pieces.append(self.gathered[at])
                    at += len(pieces[-1])
                if len(pieces) > 1:
                    data = b"".join(pieces)
                if begin == first and at == until:
                    segment.mapping.write_forced(data, begin - segment.begin)
                    return
                segment.mapping.write(memoryview(data), begin - segment.begin)
            segment.mapping.force()
        except MemoryError:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None

    def make_safe(self, end: int) -> None:
        """As `CommitLog`; forces the log if much was gathered."""
        # After a running force, another one follows for the bytes that came meanwhile. It comes first: if it fails, so
        # does the next put.
        if end - self.durable > (GATHERED_BEHIND_MAX if self.forcing.locked() else GATHERED_MAX):
            self.flush()
        super().make_safe(end)

    def populate(self, segment: OpenSegment, at: int, size: int) -> None:
        """Do nothing: no page is written through the mapping."""

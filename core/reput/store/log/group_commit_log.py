"""GroupCommitLog: a commit log whose messages are written into its files by the force that they wait for.

    put ──▶ memory ── flush ──▶ file and disk
            appended            committed, durable

With SYNC_FLUSH nobody is told of a message before it is on disk. So whatever came since the last force is written, and
forced, by one system call. That is faster than to force what was written through a mapping: of that the disk gets the
whole folio that a message lies in, which in recent kernels is many pages, of this just what was written. And no page
has to be in memory before.

A writer that is killed loses what it had not forced. Nobody was promised that.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from reput.store.disk.files import Files
from reput.store.log.commit_log import CommitLog, OpenSegment
from reput.store.service.threads import Threads

__all__ = ["GroupCommitLog"]

# With more than that in memory a put forces it: a disk that is slower than the puts is not to fill memory.
GATHERED_MAX = 8 << 20
# So much may gather behind a force: a put that waits for a disk that hangs has the put lock, and nobody else is told in
# time that the disk takes too long.
GATHERED_BEHIND_MAX = 32 << 20


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
        # What was appended and not forced, by where it begins; none of it goes over a segment's end. What is put there
        # counts once `appended` lies behind it, and goes once `durable` does: who is interrupted in between, by Ctrl-C
        # or for want of memory, leaves the log as it was, and the next one puts, or writes, to the same place.
        self.gathered: dict[int, bytes] = {}
        self.forcing = threading.Lock()
        super().__init__(directory, segment_size, end, files, warm_up=warm_up, force_pages=force_pages, threads=threads)

    @property
    def committed(self) -> int:
        """Commit-log offset up to which whoever reads the files finds what was appended."""
        return self.durable

    def peek(self, commit_log_offset: int) -> bytes | None:
        """As `CommitLog`, of what was appended by one call."""
        return self.gathered.get(commit_log_offset)

    def append(self, records: bytes) -> int:
        """Keep *records* for the next force and return where the log ends now."""
        begin = self.appended
        self.gathered[begin] = records
        # Whoever forces up to there finds them.
        end = self.appended = begin + len(records)
        return end

    def append_blank(self, blank: bytes) -> None:
        """Keep *blank* for the next force."""
        self.gathered[self.appended] = blank

    def flush(self) -> int:
        """Have on disk all that was appended when this was called, and return that offset, which is `durable` now.

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
        """Write and force what *segment* is to have up to *target*."""
        at = max(self.durable, segment.begin)
        until = min(target, segment.begin + segment.content_size)
        try:
            while at < until:
                begin = at
                pieces: list[bytes] = []
                # Mostly all of it. Of more, say of large batches, there is no copy as a whole.
                while at < until and at - begin < GATHERED_MAX:
                    pieces.append(self.gathered[at])
                    at += len(pieces[-1])
                segment.mapping.write_forced(b"".join(pieces), begin - segment.begin)
        except MemoryError:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None

    def make_safe(self, end: int) -> None:
        """As `CommitLog`; forces what was gathered where that is much."""
        super().make_safe(end)
        # Whoever forces now is followed by one who forces what has come meanwhile.
        if end - self.durable > (GATHERED_BEHIND_MAX if self.forcing.locked() else GATHERED_MAX):
            self.flush()

    def populate(self, segment: OpenSegment, at: int, size: int) -> None:
        """No page is written through the mapping."""

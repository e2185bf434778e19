"""PooledCommitLog: a commit log that writes messages to a buffer in memory first, and from there to the file.

    put ──▶ buffer ── commit ──▶ file ── flush ──▶ disk
            appended            committed         durable

A put never waits for the system's page cache or its write-back. In return a message is only in this process's memory
until it is committed: a killed writer loses the uncommitted messages, and no reader sees a message before its commit.
Each segment being written has its own buffer of the segment's size. Once the whole segment is committed, the buffer
goes back to the pool.

Source: RocketMQ store, TransientStorePool and DefaultMappedFile.commit.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from reput.errors import StoreBusy, StoreError
from reput.store.disk.files import Buffer, Files
from reput.store.log.commit_log import CommitLog, OpenSegment
from reput.store.service.threads import Threads

__all__ = ["PooledCommitLog", "TransientStorePool"]

# One for the current segment, one for the next: a roll writes to both.
BUFFER_COUNT_MIN = 2

logger = logging.getLogger(__name__)


class TransientStorePool:
    """Up to *buffer_count* buffers of *buffer_size* bytes, each made when it is first needed, and locked in memory.

    The pool lends the buffer that came back last, so that it touches no more buffers than were ever lent at once.
    """

    def __init__(self, buffer_size: int, buffer_count: int) -> None:
        self.buffer_size = buffer_size
        self.not_made = max(buffer_count, BUFFER_COUNT_MIN)
        self.free: list[Buffer] = []
        self.guard = threading.Lock()

    def borrow(self) -> Buffer | None:
        """Return a buffer, None if all are lent."""
        with self.guard:
            if self.free:
                return self.free.pop()
            if not self.not_made:
                return None
            self.not_made -= 1
        buffer = Buffer(self.buffer_size)
        try:
            buffer.lock()
        except OSError as error:
            # The buffer works without the lock; log that it may be swapped out.
            logger.warning(
                "a buffer of the transient pool is not locked in memory: size=%d error=%s (ulimit -l limits it)",
                self.buffer_size,
                error.strerror,
            )
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Take a buffer back."""
        with self.guard:
            self.free.append(buffer)

    def close(self) -> None:
        """Give the buffers that are not lent back to the system."""
        with self.guard:
            for buffer in self.free:
                buffer.close()
            self.free.clear()
            self.not_made = 0


class PooledCommitLog(CommitLog):
    """The end of the log. As `CommitLog`; `commit` may be called from any thread, with the put lock or without."""

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        end: int,
        files: Files,
        *,
        buffer_count: int,
        fast_fail: bool,
        warm_up: bool = False,
        threads: Threads | None = None,
    ) -> None:
        """Open the log for appending at *end*.

        Args:
            buffer_count: buffers in the pool, two at least.
            fast_fail: refuse a put that finds no buffer for the next segment, instead of committing to free one.
            As `CommitLog`.
        """
        self.pool = TransientStorePool(segment_size, buffer_count)
        self.fast_fail = fast_fail
        self.committed_offset = end
        self.committing = threading.Lock()
        super().__init__(directory, segment_size, end, files, warm_up=warm_up, threads=threads)

    @property
    def committed(self) -> int:
        """Commit-log offset up to which the files hold what was appended."""
        return self.committed_offset

    def peek(self, commit_log_offset: int) -> memoryview | None:
        """As `CommitLog`."""
        if not self.committed_offset <= commit_log_offset < self.appended:
            return None
        for segment in list(self.unforced):
            at = commit_log_offset - segment.begin
            # A returned buffer is written to the file already; only a holder of the put lock borrows it again.
            buffer = segment.buffer
            if 0 <= at < self.segment_size and buffer is not None:
                return buffer.memory[at : min(self.appended - segment.begin, segment.content_size)]
        return None

    def commit(self) -> int:
        """Write everything appended before this call into the files, and return that offset.

        Raises:
            StoreError: the disk refused. As after a failed force, nothing is trusted again.
        """
        with self.committing:
            if self.failed is not None:
                raise StoreError(self.failed)
            target, begin = self.appended, self.committed_offset
            if begin == target:
                # A closed log has no buffers, and whoever followed it may still commit.
                return target
            for segment in list(self.unforced):
                if segment.begin < target and begin < segment.begin + self.segment_size:
                    self.write(segment, max(begin, segment.begin), target)
            self.committed_offset = target
            return target

    def write(self, segment: OpenSegment, begin: int, target: int) -> None:
        """Write the bytes of *segment* from *begin* to *target* into its file."""
        buffer, mapping = segment.buffer, segment.mapping
        assert buffer is not None
        at = begin - segment.begin
        until = min(target - segment.begin, segment.content_size)
        try:
            mapping.write(buffer.memory[at:until], at)
        except OSError as error:
            self.failed = (
                f"the log could not be written from the transient pool: path={mapping.path} durable={self.durable} "
                f"committed={begin} appended={target} error={error.strerror}"
            )
            raise StoreError(self.failed) from error
        if segment.begin + self.segment_size <= target:
            self.free_buffer(segment)

    def memory_of(self, segment: OpenSegment) -> memoryview:
        """Return the segment's buffer, which is borrowed at the first call.

        Raises:
            StoreBusy: all buffers are lent, and puts do not wait for one.
        """
        if segment.buffer is None:
            buffer = self.pool.borrow()
            if buffer is None and not self.fast_fail:
                self.commit()
                buffer = self.pool.borrow()
            if buffer is None:
                raise StoreBusy(
                    f"all buffers of the transient pool wait to be committed: status=CREATE_MAPEDFILE_FAILED "
                    f"committed={self.committed} appended={self.appended}",
                    "Put again; a larger transient_store_pool_size lets puts run further ahead of the disk.",
                )
            segment.buffer = buffer
        return segment.buffer.memory

    def populate(self, segment: OpenSegment, at: int, size: int) -> None:
        """Bring these bytes of the segment's buffer into memory."""
        buffer = segment.buffer
        if buffer is not None:
            buffer.populate(at, size)

    def flush(self) -> int:
        """Commit and force everything appended before this call, and return that offset.

        Raises:
            StoreError: the disk refused.
        """
        self.commit()
        return super().flush()

    def forget_removed(self) -> None:
        """Discard the segment that was made ahead if its file is gone."""
        segment = self.next_segment
        super().forget_removed()
        if self.next_segment is None:
            self.free_buffer(segment)

    def unmap(self) -> None:
        """Release every mapping and buffer, and the segment that holds nothing yet."""
        for segment in (*self.unforced, self.next_segment):
            self.free_buffer(segment)
        self.pool.close()
        super().unmap()

    def free_buffer(self, segment: OpenSegment | None) -> None:
        """Give back the buffer of *segment*, if there is one."""
        if segment is not None and segment.buffer is not None:
            self.pool.give_back(segment.buffer)
            segment.buffer = None

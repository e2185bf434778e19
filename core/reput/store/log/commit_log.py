"""CommitLog: all messages in the order of their arrival, in segments of one size.

One writer, under one lock. `append` writes at the end and moves `appended`; `flush` forces what was appended and
moves `durable`. Both are commit-log offsets, and move only on success: after a failed force nothing is trusted again.
Between them lies `committed`, up to which the files hold what was appended. Here it equals `appended`; in a log that
keeps messages in memory first (`pooled_commit_log`, `group_commit_log`) it lags behind.

A segment ends with a blank of at least 8 bytes, so a record that would leave less goes to the next one. A helper
thread reserves room ahead of the end, brings pages into memory before they are written, and makes the next segment. A
put waits for this work only if it outruns the helper.

Source: RocketMQ store, CommitLog.DefaultAppendMessageCallback and MappedFileQueue.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from reput.errors import MessageIllegal, StoreError, StoreFull, StoreReadOnly
from reput.store.disk.file_name import file_name
from reput.store.disk.files import Buffer, Files, Mapping
from reput.store.disk.shortages import NO_ROOM
from reput.store.record.layout import BLANK_MAGIC_CODE, BLANK_SIZE_MIN, SIZE, SIZE_AND_MAGIC
from reput.store.service.service_thread import ServiceThread
from reput.store.service.threads import Threads

__all__ = ["CommitLog"]

# Room is reserved in steps, so that a new store takes little of the disk and a full disk is an error of the step.
RESERVE_SIZE = 16 << 20
RESERVE_SIZE_MIN = 1 << 20
POPULATE_SIZE = 16 << 20
# Between two steps the helper needs the interpreter lock, and may wait 5 ms for it while a thread puts. With small
# steps it falls behind, and puts meet pages that are not in memory.
POPULATE_STEP = 8 << 20
WARM_STEP = 1 << 20
CALL_SIZE = 256 << 10
COPIED_SIZE_MAX = 4096
PAGE_SIZE = 4096
# Takes all that an iterator yields, in one call into C, and keeps nothing.
take_all = deque[object](maxlen=0).extend

logger = logging.getLogger(__name__)


class OpenSegment:
    """A mapped segment. Writes to its first *reserved* bytes cannot fail; to its first *populated*, cannot fault."""

    __slots__ = ("begin", "buffer", "content_size", "is_warm", "mapping", "populated", "reserved")

    def __init__(self, begin: int, mapping: Mapping) -> None:
        self.begin = begin
        self.mapping = mapping
        self.reserved = 0
        self.populated = 0
        self.is_warm = False
        # Once the log has rolled on, this is where the blank's 8 bytes end: what follows them is never written.
        self.content_size = mapping.size
        # With a transient pool, appends go to this buffer first.
        self.buffer: Buffer | None = None


class CommitLog:
    """The end of the log. Call `append` and `roll` under the put lock, `flush` from one thread at a time."""

    # The kernel reads and changes the slots at each put.
    __slots__ = ("__dict__", "appended", "begin", "limit", "memory", "safe_until")

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
        """Open the log for appending at *end*.

        Args:
            warm_up: reserve all of a segment that is made ahead, bring it into memory, and lock it there.
            force_pages: while warming up, force after this many pages; 0: leave that to the system.

        Raises:
            StoreFull: there is no room for the first step.
        """
        self.directory = directory
        self.segment_size = segment_size
        self.files = files
        self.appended = end
        self.durable = end
        self.warm_up = warm_up
        self.force_size = force_pages * PAGE_SIZE
        self.failed: str | None = None
        self.next_segment: OpenSegment | None = None
        self.making = threading.Lock()
        # The helper holds it while it works, so that its segment is not unmapped.
        self.tending = threading.Lock()
        # Segments that were left behind but not yet forced, oldest first, then the current one.
        begin = end - end % segment_size
        self.current = self.open_segment(begin)
        self.current.reserved = self.current.populated = end - begin
        self.unforced: list[OpenSegment] = [self.current]
        self.memory = self.memory_of(self.current)
        self.begin = begin
        self.limit = begin + segment_size - BLANK_SIZE_MIN
        # Up to here `room` has nothing to do: a put compares one number.
        self.safe_until = end
        self.helper = SegmentHelper(self, threads)
        try:
            # Enough for the first puts; opening does not wait for more.
            self.prepare(end, POPULATE_STEP)
        except BaseException:
            self.unmap()
            raise
        self.helper.start()

    @property
    def committed(self) -> int:
        """Commit-log offset up to which the files hold what was appended."""
        return self.appended

    def commit(self) -> int:
        """Write everything appended before this call to the files, and return that offset.

        Raises:
            StoreError: the disk refused.
        """
        return self.appended

    def peek(self, commit_log_offset: int) -> bytes | bytearray | memoryview | None:
        """Return the bytes at *commit_log_offset* that are in no file yet; None: the files have them. Under the put
        lock."""
        return None

    def append(self, records: bytes | memoryview) -> int:
        """Write *records* at the end and return where the log ends now.

        The caller has made sure with `room` that they fit. One copy, no system call.
        """
        at = self.appended - self.begin
        memory, size = self.memory, len(records)
        # The first size word is written last: a reader that sees it may trust every byte behind it. A copy of a short
        # record costs less than a view of it.
        memory[at + 4 : at + size] = records[4:] if size <= COPIED_SIZE_MAX else memoryview(records)[4:]
        memory[at : at + 4] = records[:4]
        end = self.appended = self.appended + size
        return end

    def append_run(self, records: bytes | bytearray, sizes: Sequence[int]) -> int:
        """As `append`, for records of these *sizes*, whose size words are 0 in *records*.

        The words are written last, in their order: a process that is killed in a batch leaves a torn end, and not whole
        records behind a hole, which is damage.
        """
        at = self.appended - self.begin
        end = at + len(records)
        self.memory[at:end] = records
        write_sizes(self.memory, at, sizes)
        end = self.appended = self.begin + end
        return end

    def append_blank(self, blank: bytes) -> None:
        """Write *blank* at the end of the log, behind the segment's last record."""
        at = self.appended - self.begin
        self.memory[at : at + len(blank)] = blank

    def room(self, size: int) -> int:
        """Return the commit-log offset where the next *size* bytes go, in one segment; rolls if need be.

        Raises:
            MessageIllegal: no segment is large enough.
            StoreFull: the disk has no room for them; nothing was changed.
        """
        end = self.appended + size
        if end > self.limit:
            self.roll(size)
            end = self.appended + size
        if end > self.safe_until:
            self.make_safe(end)
        return self.appended

    def make_safe(self, end: int) -> None:
        """Reserve room up to *end*, and wake the helper well before pages or room are used up."""
        current = self.current
        if end - self.begin > current.reserved:
            self.reserve(current, end - self.begin)
        half_populated = self.begin + current.populated - POPULATE_SIZE // 2
        if half_populated < end:
            self.helper.wakeup()
        # If the helper is late, it is woken again after a while, not at every put.
        # Never beyond `limit`: a caller that stays below has no need of `room`.
        self.safe_until = min(self.limit, self.begin + current.reserved, max(end + CALL_SIZE, half_populated))

    def roll(self, size: int) -> None:
        """Fill the rest of the segment with a blank and go to the next one."""
        if size + BLANK_SIZE_MIN > self.segment_size:
            raise MessageIllegal(
                f"record exceeds the segment: record_size={size} segment_size={self.segment_size} "
                f"commit_log_offset={self.appended}"
            )
        left = self.begin + self.segment_size - self.appended
        following = self.begin + self.segment_size
        # Held until the next segment is the current one, or the helper would make the same one a second time.
        with self.making:
            self.forget_removed()
            segment = self.next_segment = self.next_segment or self.open_segment(following)
            assert segment.begin == following
            at = self.appended - self.begin
            # Before the blank is written: a full disk must leave everything as it was.
            memory = self.memory_of(segment)
            self.reserve(segment, size)
            self.reserve(self.current, at + BLANK_SIZE_MIN)
            self.append_blank(SIZE_AND_MAGIC.pack(left, BLANK_MAGIC_CODE))
            # No call from here on, after which Ctrl-C could interrupt: the log has rolled as a whole, or not at all.
            self.current.content_size = at + BLANK_SIZE_MIN
            self.unforced += [segment]
            self.current = segment
            self.next_segment = None
            self.memory = memory
            self.begin = following
            self.limit = following + self.segment_size - BLANK_SIZE_MIN
            self.appended = following
            self.safe_until = following
        self.make_safe(following)

    def forget_removed(self) -> None:
        """Discard the segment that was made ahead if its file is gone.

        RocketMQ, started on this store, removes the files that it finds empty before it checks the lock.
        """
        segment = self.next_segment
        if segment is not None and not segment.mapping.has_name():
            segment.mapping.close()
            self.next_segment = None

    def open_segment(self, begin: int) -> OpenSegment:
        """Return the segment that begins at *begin*; create its file if it is absent."""
        path = self.directory / file_name(begin)
        try:
            if path.exists() and path.stat().st_size == 0:
                # Its creation was interrupted before it had its size.
                self.files.remove(path)
            if not path.exists():
                self.files.create(path, self.segment_size)
                self.files.force_directory(self.directory)
            return OpenSegment(begin, self.files.map(path, self.segment_size))
        except OSError as error:
            raise self.refusal(error, f"segment cannot be made: path={path}") from error

    def memory_of(self, segment: OpenSegment) -> memoryview:
        """Return the memory that puts write to while *segment* is the current one."""
        return segment.mapping.memory

    def populate(self, segment: OpenSegment, at: int, size: int) -> None:
        """Fault in these bytes of `memory_of` before they are written."""
        segment.mapping.populate(at, size)

    def reserve(self, segment: OpenSegment, until: int) -> None:
        """Reserve room in *segment* up to *until* at least, and a step more if the disk has room for it."""
        if until <= segment.reserved:
            return
        mapping = segment.mapping
        generous = min(max(until, segment.reserved + RESERVE_SIZE), self.segment_size)
        for end in (generous, until):
            # Read again: the helper or a put may have reserved more meanwhile.
            begin = segment.reserved
            if end <= begin:
                return
            try:
                mapping.reserve(begin, end - begin)
            except OSError as error:
                if end == until:
                    raise self.refusal(error, f"no room for the log: path={mapping.path} until={until}") from error
            else:
                segment.reserved = max(segment.reserved, end)
                return

    @staticmethod
    def refusal(error: OSError, text: str) -> StoreError:
        """Return the error for a refusal of the operating system."""
        full = error.errno in NO_ROOM
        kind = StoreFull if full else StoreError
        advice = "Free space on the disk and put again; nothing was stored." if full else ""
        return kind(f"{text} error={error.strerror}", advice)

    def prepare_ahead(self) -> None:
        """Reserve, populate and make the next segment, ahead of the puts. The helper calls this."""
        # The put that needs the room gets the same error and reports it; no put waits for the helper.
        with contextlib.suppress(StoreError), self.tending:
            self.prepare(self.appended)

    def prepare(self, appended: int, populate_size: int = POPULATE_SIZE) -> None:
        """Prepare room, *populate_size* bytes of pages and the next segment for the puts that follow *appended*."""
        segment = self.current
        at = max(appended - segment.begin, 0)
        if at > self.segment_size:
            return
        if segment.reserved - at < RESERVE_SIZE // 2:
            # `reserve` first tries a step of RESERVE_SIZE, and reserves only this much if the disk has no more.
            self.reserve(segment, min(at + RESERVE_SIZE_MIN, self.segment_size))
        while segment.populated < min(at + populate_size, segment.reserved):
            step = min(POPULATE_STEP, segment.reserved - segment.populated)
            self.populate(segment, segment.populated, step)
            segment.populated += step
        if self.segment_size - at < max(self.segment_size // 4, RESERVE_SIZE):
            with self.making:
                if self.next_segment is None and segment is self.current and not self.helper.stopping:
                    self.next_segment = self.open_segment(segment.begin + self.segment_size)
            following = self.next_segment
            if self.warm_up and following is not None and not following.is_warm:
                self.warm(following)

    def warm(self, segment: OpenSegment) -> None:
        """Reserve all of *segment*, bring it into memory, and lock it there. The helper calls this, and holds
        `tending`.

        Source: RocketMQ store, MappedFile.warmMappedFile and mlock, which writes a byte to each page.
        """
        segment.is_warm = True
        forced = 0
        try:
            for begin in range(0, self.segment_size, WARM_STEP):
                if self.helper.stopping:
                    return
                end = min(begin + WARM_STEP, self.segment_size)
                self.reserve(segment, end)
                segment.mapping.populate(begin, end - begin)
                segment.populated = max(segment.populated, end)
                if self.force_size and end - forced >= self.force_size:
                    segment.mapping.force()
                    forced = end
            segment.mapping.lock()
        except OSError as error:
            # The segment works without the lock; log that warming up failed.
            logger.warning(
                "a segment could not be warmed up: path=%s size=%d error=%s (ulimit -l limits what may be locked)",
                segment.mapping.path,
                self.segment_size,
                error.strerror,
            )

    def flush(self) -> int:
        """Force everything committed before this call, and return that offset, which is `durable` now.

        Raises:
            StoreReadOnly: the disk refused. Records appended since the last success may be lost, whatever a second
                try says: the kernel forgets a failed write. So there is no second try.
        """
        return self.force_until(self.committed)

    def force_until(self, target: int) -> int:
        """Force the log up to *target* as `flush` does."""
        if self.failed is not None:
            raise StoreReadOnly(self.failed)
        segments = [segment for segment in self.unforced if segment.begin < target]
        for segment in segments:
            try:
                if not segment.mapping.has_name():
                    raise OSError(errno.ENOENT, "the file was removed")
                self.force(segment, target)
            except OSError as error:
                self.failed = (
                    f"the log could not be forced to disk: path={segment.mapping.path} durable={self.durable} "
                    f"appended={target} error={error.strerror}"
                )
                raise StoreReadOnly(self.failed) from error
        self.durable = target
        # A segment that was left behind is wholly forced now, its blank included.
        for segment in segments:
            if segment is not self.current and segment.begin + self.segment_size <= target:
                self.unforced.remove(segment)
                with self.tending:
                    segment.mapping.close()
        return target

    def force(self, segment: OpenSegment, target: int) -> None:
        """Force what *segment* holds of the log up to *target*.

        Raises:
            OSError: the disk refused.
        """
        segment.mapping.force()

    def close(self) -> None:
        """Stop the helper and unmap. A segment that was made ahead and not used is removed."""
        self.helper.stop()
        self.unmap()

    def unmap(self) -> None:
        """Give up every mapping, and the segment that nothing was written to."""
        self.forget_removed()
        if self.next_segment is not None:
            self.next_segment.mapping.close()
            # A store that was moved has it elsewhere; its next opening takes it.
            with contextlib.suppress(FileNotFoundError):
                self.files.remove(self.next_segment.mapping.path)
        for segment in self.unforced:
            segment.mapping.close()

    def forget(self) -> None:
        """In a forked child: give up the descriptors, leave the files alone."""
        for segment in self.unforced:
            os.close(segment.mapping.descriptor)


class SegmentHelper(ServiceThread):
    """The thread that prepares room, pages and the next segment of *log*."""

    def __init__(self, log: CommitLog, threads: Threads | None) -> None:
        super().__init__("reput-segments", threads)
        self.log = log

    def do_round(self) -> None:
        """Prepare what the puts need next."""
        self.log.prepare_ahead()


def write_sizes(memory: memoryview | bytearray, at: int, sizes: Sequence[int]) -> None:
    """Write the size word of each record of a run that begins at *at*.

    One call: Ctrl-C in a loop would leave records behind the log's end, which a shorter put would not cover.
    """
    begins = accumulate(sizes[:-1], initial=at)
    take_all(map(memory.__setitem__, [slice(begin, begin + 4) for begin in begins], map(SIZE.pack, sizes)))

"""RingWriter: hands every frame to all readers at once and waits for none of them.

One thread at a time calls `publish` and `close` (the caller holds its put lock), one at a time `set_durable` (the
flusher). What a reader makes of the stores, and why their order is what it is, stands in `reput.ring`. An exception
that a signal raises anywhere in here, as Ctrl-C does, may leave out the frame or delay its wake-ups; later frames are
whole.
"""

from __future__ import annotations

import os
from threading import Lock

from reput.errors import RingClosed, RingError
from reput.ring import layout
from reput.ring.layout import (
    ANNOUNCED,
    APPENDED,
    DURABLE,
    DURABLE_ANNOUNCED,
    FRAME_SHARE,
    HEADER_WORDS,
    HELD,
    INTENT,
    ORDINAL,
    TAIL,
    WORD_SIZE,
)
from reput.ring.ring_memory import RingMemory

__all__ = ["RingWriter"]

# From three quarters of the last-level cache on, memcpy stores past the caches, and such stores may overtake the
# intent. Frames above this size, which is far below, pass a full barrier first. Shorter copies keep their order.
UNFENCED_FRAME_SIZE_MAX = 64 << 10


class RingWriter:
    """The writing end of *memory*, in the process that created it.

    Args:
        appended: commit-log offset up to which records are readable now.
        durable: commit-log offset up to which the log is forced to disk.
        commit_log_offset_min: first byte of the log that exists.
        epoch: number of the log's history.
        ordinal: number of records since the log's birth, up to *appended*.

    Attributes:
        frame_size_max: bytes of the largest frame that `publish` takes, a quarter of the capacity.
    """

    __slots__ = (
        "_capacity",
        "_data",
        "_durable_acquire",
        "_durable_awaited",
        "_durable_release",
        "_fence_acquire",
        "_fence_release",
        "_mask",
        "_memory",
        "_nobody_awaits_durable",
        "_parked",
        "_seen",
        "_size_limit",
        "_tail",
        "_wake_descriptors",
        "_words",
        "frame_size_max",
    )

    def __init__(
        self,
        memory: RingMemory,
        *,
        appended: int,
        durable: int,
        commit_log_offset_min: int,
        epoch: int,
        ordinal: int,
    ) -> None:
        words = memory.words
        if words.readonly:
            raise RingError("only the process that created the ring may write it")
        self._memory = memory
        self._words = words
        self._data = memory.data
        self._capacity = memory.capacity
        self._mask = memory.capacity - 1
        self._tail: int = words[TAIL]
        self.frame_size_max = memory.capacity // FRAME_SHARE - WORD_SIZE
        self._size_limit = min(self.frame_size_max, UNFENCED_FRAME_SIZE_MAX)
        self._wake_descriptors = memory.wake_descriptors
        # One strided view over all cells: a comparison of it costs the same whether 0 or 32 slots are in use. It takes
        # 0.09 µs; `tobytes` of the view 0.23, `tolist` 0.19, `in` 0.4, a loop over the slots more than 1 µs. Compact
        # flags are no choice: what a dispatcher can write must be a page of its own.
        self._parked = memory.keep(memory.column(layout.PARKED))
        # What the column was when its parked readers were last woken. A parked reader that has not run yet costs no
        # second system call, and a running one differs from nothing.
        self._seen = memoryview(bytearray(self._parked.tobytes())).cast("Q")
        self._durable_awaited = memory.keep(memory.column(layout.DURABLE_AWAITED))
        fence, durable_fence = Lock(), Lock()
        self._fence_acquire, self._fence_release = fence.acquire, fence.release
        self._durable_acquire, self._durable_release = durable_fence.acquire, durable_fence.release
        words[layout.COMMIT_LOG_OFFSET_MIN] = commit_log_offset_min
        words[layout.EPOCH] = epoch
        words[ORDINAL] = ordinal
        words[APPENDED] = appended
        words[DURABLE] = durable

    def publish(self, frame: bytes, appended: int, ordinal: int) -> None:
        """Hand *frame* to all readers.

        Costs well under a microsecond, plus one system call per parked reader. Readers see
        the frame only whole.

        Args:
            appended: commit-log offset up to which records are readable, with this frame.
            ordinal: number of records since the log's birth, up to *appended*.

        Raises:
            RingError: the frame is larger than `frame_size_max`; nothing was published.
            RingClosed: the ring was closed.
        """
        size = len(frame)
        words = self._words
        tail = self._tail
        end = tail + (size + 15 & -8)
        if size > self._size_limit:
            self._admit(size, end)
        # The intent comes first: a reader that copied a byte which this frame overwrites finds the intent when it
        # looks for it after the copy.
        words[INTENT] = end
        at = tail & self._mask
        words[HEADER_WORDS + (at >> 3)] = size
        start = at + WORD_SIZE
        stop = start + size
        if stop <= self._capacity:
            self._data[start:stop] = frame
        else:
            self._wrap(frame, start)
        # Before the tail: a reader that loads the tail, then `appended`, gets at least the offset of that tail.
        words[APPENDED] = appended
        words[ORDINAL] = ordinal
        # Before the tail, too: a Ctrl-C between the two publishes this frame with the next one.
        self._tail = end
        words[TAIL] = end
        # Full barrier: the processor would otherwise load the flags before others can see the tail, while a reader
        # that parks sets its flag and loads the old tail. It would sleep on a frame. Without blocking: a Ctrl-C between
        # the two leaves the lock taken, and then its release alone is the barrier.
        self._fence_acquire(False)
        self._fence_release()
        if self._parked != self._seen:
            self._wake()
        words[ANNOUNCED] = end

    def begin_hold(self) -> bool:
        """Say that records wait to be published together, and return `has_parked`: if True, publish them now.

        A reader that parks from now on asks for them on `RingMemory.release_descriptor`. The words of the log leave
        them out until they are published.
        """
        self._words[HELD] = 1
        # Full barrier: this writer says that it holds something and looks for parked readers, and a reader says that it
        # parks and looks whether something is held. At least one sees the other.
        self._fence_acquire(False)
        self._fence_release()
        return self.has_parked()

    def has_parked(self) -> bool:
        """Tell whether a reader has parked since the last `publish`, or runs again."""
        return self._parked != self._seen

    def end_hold(self) -> None:
        """Say that nothing is held; what was comes with the next `publish`, which wakes the parked readers."""
        self._words[HELD] = 0

    def _wrap(self, frame: bytes, start: int) -> None:
        first = self._capacity - start
        self._data[start : self._capacity] = frame[:first]
        self._data[: len(frame) - first] = frame[first:]

    def _wake(self) -> None:
        """Wake each reader that is parked and was not woken for this parking."""
        seen = self._seen
        for slot, parking in enumerate(self._parked.tolist()):
            if parking != seen[slot]:
                # Woken first: a Ctrl-C between the two costs a needless wake-up instead of one that is missing.
                if parking & 1:
                    os.eventfd_write(self._wake_descriptors[slot], 1)
                seen[slot] = parking

    def _admit(self, size: int, end: int) -> None:
        """Let a large frame pass, its intent visible; refuse one that is too large, and every one when closed."""
        if self._size_limit < 0:
            raise RingClosed("the ring is closed")
        if size > self.frame_size_max:
            raise RingError(f"frame is too large for the ring: frame_size={size} frame_size_max={self.frame_size_max}")
        self._words[INTENT] = end
        self._fence_acquire(False)
        self._fence_release()

    def set_durable(self, durable: int) -> None:
        """Say that the log is forced to disk up to *durable*, and wake the readers that wait for that."""
        words = self._words
        words[DURABLE] = durable
        self._durable_acquire(False)
        self._durable_release()
        for slot, awaited in enumerate(self._durable_awaited.tolist()):
            if awaited <= durable:
                os.eventfd_write(self._wake_descriptors[slot], 1)
        words[DURABLE_ANNOUNCED] = durable

    @property
    def durable_awaited(self) -> int | None:
        """The smallest durable position that a reader waits for; None: none waits, the flusher may take its time."""
        awaited = min(self._durable_awaited.tolist())
        return None if awaited == layout.NEVER else awaited

    def set_commit_log_offset_min(self, commit_log_offset_min: int) -> None:
        """Say that the log was trimmed below *commit_log_offset_min*."""
        self._words[layout.COMMIT_LOG_OFFSET_MIN] = commit_log_offset_min

    def set_epoch(self, epoch: int) -> None:
        """Say that another epoch of the log's history has begun."""
        self._words[layout.EPOCH] = epoch

    def close(self) -> None:
        """Say that no frame will follow, and wake every reader. The memory stays mapped for its readers."""
        if self._size_limit < 0:
            return
        self._size_limit = -1
        self._words[layout.CLOSED] = 1
        self._fence_acquire(False)
        self._fence_release()
        for descriptor in self._wake_descriptors:
            os.eventfd_write(descriptor, 1)

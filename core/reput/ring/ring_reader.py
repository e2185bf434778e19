"""RingReader: reads the frames of a ring, detects when it was lapped, and parks while there are no frames.

One thread of a dispatcher's process uses it. Frames published before it joined, or overwritten before it read them, are
found in the commit log.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from typing import NamedTuple

from reput.errors import RingClosed, RingLapped
from reput.ring.cell import Cell
from reput.ring.layout import (
    ANNOUNCED,
    APPENDED,
    AWAITED,
    CELL_WORDS,
    CLOSED,
    DURABLE,
    DURABLE_ANNOUNCED,
    HELD,
    INTENT,
    NEVER,
    PROGRESS,
    PROGRESS_ANNOUNCED,
    TAIL,
    UNKNOWN,
    WORD_SIZE,
)
from reput.ring.ring_header import RingHeader
from reput.ring.ring_memory import RingMemory

__all__ = ["Joined", "RingReader"]

# Ready descriptors taken per poll.
EVENTS_MAX = 8


class Joined(NamedTuple):
    """Where a reader joined the ring.

    Attributes:
        position: of the first frame to read.
        appended: commit-log offset up to which the commit log must be read instead. Every record from there on comes in
            a frame. One frame may span this offset and repeat records below it.
    """

    position: int
    appended: int


class RingReader:
    """The reading end of *memory* for the dispatcher of *cell*.

    Attributes:
        position: of the next frame, bytes since the ring's birth.
        header: the writer's published state.
    """

    __slots__ = (
        "_barrier",
        "_capacity",
        "_cell",
        "_data",
        "_end_was_said",
        "_mask",
        "_memory",
        "_poll",
        "_release_descriptor",
        "_wake_descriptor",
        "_words",
        "header",
        "position",
    )

    def __init__(self, memory: RingMemory, cell: Cell) -> None:
        self._memory = memory
        self._cell = cell
        self._words = memory.words
        self._data = memory.data
        self._capacity = memory.capacity
        self._mask = memory.capacity - 1
        self._barrier = memory.access.barrier()
        self._end_was_said = False
        self._wake_descriptor = memory.wake_descriptors[cell.slot]
        self._release_descriptor = memory.release_descriptor
        # Edge-triggered: each wake-up is reported once, without reading the eventfd.
        self._poll = select.epoll()
        self._poll.register(self._wake_descriptor, select.EPOLLIN | select.EPOLLET)
        self.header: RingHeader = memory.header
        self.position = 0
        # The slot's previous process may have died while it was parked.
        cell.end_parking()
        self.join()

    def join(self) -> Joined:
        """Move to the current end of the ring, skipping earlier frames."""
        words = self._words
        self.position = words[TAIL]
        # After the tail: the writer stores `appended` first, so this value is at least the one of that tail.
        return Joined(self.position, words[APPENDED])

    def read(self, size_max: int = 1 << 20) -> list[bytes]:
        """Return the frames from `position` on, and advance past them; an empty list if there are none.

        Args:
            size_max: bytes of the ring to read at once; one frame is read even if it is larger.

        Raises:
            RingLapped: the writer overwrote unread frames. Call `join` to continue; the commit log has the rest.
            RingClosed: the writer has closed the ring and every frame was read.
        """
        words = self._words
        position = self.position
        closed = words[CLOSED]
        size: int = words[TAIL] - position
        if size == 0:
            if closed:
                self._end_was_said = True
                raise RingClosed("the ring was closed by its writer, and every frame was read")
            return []
        chunk = self._copy(position, min(size, size_max & -WORD_SIZE or WORD_SIZE))
        sizes = memoryview(chunk).cast("Q")
        if sizes[0] + WORD_SIZE > len(chunk):
            chunk = self._copy(position, sizes[0] + 2 * WORD_SIZE - 1 & -WORD_SIZE)
            sizes = memoryview(chunk).cast("Q")
        frames: list[bytes] = []
        at, limit = 0, len(chunk)
        while at < limit:
            start = at + WORD_SIZE
            stop = start + sizes[at >> 3]
            if stop > limit:
                break
            frames.append(chunk[start:stop])
            at = stop + 7 & -8
        self.position = position + at
        return frames

    def _copy(self, position: int, size: int) -> bytes:
        """Return a copy of *size* bytes from *position* on, none of which was overwritten before it was copied."""
        if size <= self._capacity:
            at = position & self._mask
            copy = self._data[at : at + size].tobytes()
            if len(copy) < size:
                copy += self._data[: size - len(copy)].tobytes()
            # After the copy: the writer announces what it will overwrite. Checking first would accept frames that were
            # torn while being copied.
            if self._words[INTENT] - position <= self._capacity:
                return copy
        self._cell.add_lapped()
        raise RingLapped(
            f"the ring's writer lapped this reader: position={position} intent={self._words[INTENT]} "
            f"capacity={self._capacity}"
        )

    def watch(self, descriptor: int) -> None:
        """Make `park` also return when *descriptor* is readable or hung up."""
        self._poll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""
        self._poll.unregister(descriptor)

    def park(
        self,
        timeout: float = 0.1,
        *,
        frames: bool = True,
        durable: int | None = None,
        predecessors: Iterable[int] = (),
        progress: int = 0,
    ) -> list[int]:
        """Sleep until there is work, and return the watched descriptors that are ready.

        It returns without sleeping if there is already work, and may return early for no reason. The timeout is a
        back-stop: if it expires although there was work, the cell counts it.

        Args:
            timeout: seconds.
            frames: wake for frames beyond `position`, and for the ring's end until `read` has reported it.
            durable: wake when the log is forced to disk up to this commit-log offset.
            predecessors: slots; wake when one of them whose progress is below *progress* reaches it. If none is below
                it, this condition is ignored.
            progress: commit-log offset.
        """
        asked = tuple(predecessors)
        below = [slot for slot in asked if not self._reached(slot, progress)]
        mask = sum(1 << slot for slot in below)
        cell = self._cell
        cell.begin_parking(frames=frames, durable=durable, predecessors=mask, progress=progress)
        # Full barrier: what this reader waits for must be visible before its last check.
        self._barrier.acquire(blocking=False)
        self._barrier.release()
        words = self._words
        # A writer that holds records and has not seen the flag is asked to publish them, and the flusher to force what
        # is appended but not durable yet.
        if words[HELD] or (durable is not None and words[DURABLE] < durable <= words[APPENDED]):
            os.eventfd_write(self._release_descriptor, 1)
        ready_already = self._has_work(frames, durable, below, progress) or (asked and not below)
        wait_s = 0.0 if ready_already else max(0.0, timeout)
        ready = self._poll.poll(wait_s, EVENTS_MAX)
        # Before the flag is cleared, after which this reader needs no wake-up.
        if wait_s and not ready and self._was_forgotten(frames, durable, below, progress):
            cell.add_backstop()
        cell.end_parking()
        wake_descriptor = self._wake_descriptor
        return [descriptor for descriptor, _ in ready if descriptor != wake_descriptor]

    def rest(self, milliseconds: int) -> None:
        """Let frames accumulate for this long, unless the owner waits for this dispatcher's progress.

        The writer does not wake this reader for frames meanwhile. A waiter for its progress ends the rest.
        """
        cell = self._cell
        cell.set_resting(True)
        # Full barrier: this reader sets its resting flag and checks whether it is awaited; a waiting thread sets what
        # it waits for and checks for resting readers. At least one sees the other.
        self._barrier.acquire(blocking=False)
        self._barrier.release()
        if self._words[AWAITED + cell.slot] == NEVER:
            self._poll.poll(milliseconds / 1000, EVENTS_MAX)
        cell.set_resting(False)

    def _reached(self, slot: int, progress: int) -> bool:
        reached: int = self._memory.cell_words[slot * CELL_WORDS + PROGRESS]
        return reached != UNKNOWN and reached >= progress

    def _has_work(self, frames: bool, durable: int | None, below: list[int], progress: int) -> bool:
        words = self._words
        return bool(
            (frames and (words[TAIL] != self.position or (words[CLOSED] and not self._end_was_said)))
            or (durable is not None and words[DURABLE] >= durable)
            or any(self._reached(slot, progress) for slot in below)
        )

    def _was_forgotten(self, frames: bool, durable: int | None, below: list[int], progress: int) -> bool:
        """Whether a process that announced waking all waiters for this event failed to wake this reader.

        Only *announced* events count: a process that is about to wake it, or died before doing so, has no bug.
        """
        words, cells = self._words, self._memory.cell_words
        announced = (frames and words[ANNOUNCED] > self.position) or (
            durable is not None and words[DURABLE_ANNOUNCED] >= durable
        )
        for slot in below:
            reached = cells[slot * CELL_WORDS + PROGRESS_ANNOUNCED]
            announced = announced or (reached != UNKNOWN and reached >= progress)
        # Last: an announcement after this check is not a bug.
        if not announced:
            return False
        # A wake-up found here is not reported again, which is fine: the caller now looks for work.
        return self._wake_descriptor not in [descriptor for descriptor, _ in self._poll.poll(0, EVENTS_MAX)]

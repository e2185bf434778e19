"""Cell: one dispatcher's page of numbers and texts, written by it and its supervisor, readable by every process.

`CellView` reads, even after the dispatcher's death; `Cell` is the writable page. `reput.ring.layout` draws the words
and marks those that the supervisor writes. Within a process, only one thread writes a cell.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from reput.errors import RingError
from reput.ring import layout
from reput.ring.futex import futex_wake
from reput.ring.layout import (
    CELL_WORDS,
    COUNTER_NAME_SIZE_MAX,
    COUNTER_NAMES_AT,
    COUNTER_VALUES,
    COUNTERS_MAX,
    NEVER,
    PREDECESSORS_AWAITED,
    PROGRESS_AWAITED,
    UNKNOWN,
)
from reput.ring.seqlock import Seqlock
from reput.ring.word_access import WordAccess, Words

__all__ = ["Cell", "CellCounter", "CellView", "CellWaiters", "DurableCursor"]

CURSOR = Struct("=QQQ")
assert CURSOR.size == layout.CURSOR_SIZE
# A process that waits for a view's progress in a loop asks again within this time.
ASKED_LATELY_NS = 1_000_000_000


class DurableCursor(NamedTuple):
    """The position up to which a view survives a power cut. The store id is the same for all views of a store.

    Attributes:
        commit_log_offset: bytes since the log's birth.
        epoch: number of the log's history.
        store_timestamp: of the last record below the offset, milliseconds since 1970 UTC.
    """

    commit_log_offset: int
    epoch: int
    store_timestamp: int


class CellView:
    """A cell, read-only. A value that was never set is None, not 0; counts begin at 0."""

    __slots__ = ("_cursor", "_error", "_name", "_octets", "_words", "slot")

    def __init__(self, words: Words, octets: memoryview, slot: int) -> None:
        self.slot = slot
        self._words = words
        self._octets = octets
        self._cursor = Seqlock(words, octets, layout.CURSOR_AT, layout.CURSOR_SIZE)
        self._name = Seqlock(words, octets, layout.NAME_AT, layout.NAME_SIZE_MAX)
        self._error = Seqlock(words, octets, layout.ERROR_AT, layout.ERROR_SIZE_MAX)

    def _load(self, index: int) -> int:
        word: int = self._words[index]
        return word

    def _known(self, index: int) -> int | None:
        word: int = self._words[index]
        return None if word == UNKNOWN else word

    @property
    def name(self) -> str | None:
        """The dispatcher's name; None: the slot is free."""
        octets = self._name.read()
        return octets.decode("utf-8", "replace") if octets else None

    @property
    def state(self) -> int | None:
        """Number of the state, as `reput.process` defines it."""
        return self._known(layout.STATE)

    @property
    def state_since(self) -> int | None:
        """When the state began, milliseconds since 1970 UTC."""
        return self._known(layout.STATE_SINCE)

    @property
    def pid(self) -> int | None:
        """Process id; None if no process runs."""
        return self._known(layout.PID)

    @property
    def restart_count(self) -> int:
        """How often the process was restarted."""
        return self._load(layout.RESTART_COUNT)

    @property
    def generation(self) -> int:
        """Number of the view; grows when a rebuilt view replaces it or files are removed with a deleted topic."""
        return self._load(layout.GENERATION)

    @property
    def progress(self) -> int | None:
        """Commit-log offset up to which the view is readable."""
        return self._known(layout.PROGRESS)

    @property
    def ordinal_dispatched(self) -> int | None:
        """Number of records since the log's birth, up to the progress."""
        return self._known(layout.ORDINAL_DISPATCHED)

    @property
    def batch_count(self) -> int:
        """Calls of `dispatch` that returned."""
        return self._load(layout.BATCH_COUNT)

    @property
    def batch_record_count(self) -> int:
        """Records of the batch being dispatched, or of the last one."""
        return self._load(layout.BATCH_RECORD_COUNT)

    @property
    def batch_size(self) -> int:
        """Bytes of the log that this batch covers."""
        return self._load(layout.BATCH_SIZE)

    @property
    def heartbeat_ns(self) -> int | None:
        """`time.monotonic_ns` of the last sign of life; the clock is the same in all processes of a machine."""
        return self._known(layout.HEARTBEAT_NS)

    @property
    def phase(self) -> int | None:
        """Number of the dispatcher's current phase, as `reput.process` defines it."""
        return self._known(layout.PHASE)

    @property
    def lapped_count(self) -> int:
        """Times the writer overwrote frames before the dispatcher read them."""
        return self._load(layout.LAPPED_COUNT)

    @property
    def backstop_count(self) -> int:
        """Back-stop wake-ups that found work; each one is a bug."""
        return self._load(layout.BACKSTOP_COUNT)

    @property
    def gap_bytes(self) -> int:
        """Bytes of the log that retention removed before they were dispatched."""
        return self._load(layout.GAP_BYTES)

    @property
    def rejected_count(self) -> int:
        """Records in the dead-letter file."""
        return self._load(layout.REJECTED_COUNT)

    @property
    def durable_cursor(self) -> DurableCursor | None:
        """The position up to which the view survives a power cut; all three numbers come from one write."""
        octets = self._cursor.read()
        return DurableCursor(*CURSOR.unpack(octets)) if octets else None

    @property
    def error(self) -> str | None:
        """Text of the last error."""
        octets = self._error.read()
        return octets.decode("utf-8", "replace") if octets else None

    @property
    def counters(self) -> dict[str, int]:
        """The named counters, in order of registration."""
        return {name: signed(self._load(COUNTER_VALUES + index)) for index, name in self._counter_names()}

    def _counter_names(self) -> Iterator[tuple[int, str]]:
        # The count is raised after the name was written, so a partial name is never visible.
        for index in range(min(self._load(layout.COUNTER_COUNT), COUNTERS_MAX)):
            at = COUNTER_NAMES_AT + index * COUNTER_NAME_SIZE_MAX
            yield index, bytes(self._octets[at : at + COUNTER_NAME_SIZE_MAX]).rstrip(b"\0").decode("utf-8", "replace")


def signed(word: int) -> int:
    """Return *word* as a two's complement number."""
    return word - (1 << 64) if word >> 63 else word


class CellCounter:
    """A number in the cell that every process can read. Setting it is one store of a signed 64-bit value."""

    __slots__ = ("_index", "_words")

    def __init__(self, words: Words, index: int) -> None:
        self._words = words
        self._index = index

    @property
    def value(self) -> int:
        return signed(self._words[self._index])

    @value.setter
    def value(self, value: int) -> None:
        self._words[self._index] = value & (1 << 64) - 1


class CellWaiters(NamedTuple):
    """What the writer of a cell needs to see and wake the waiters for its progress. All views are read-only.

    Attributes:
        access: how the process reads and writes words.
        ring_words: the ring in 8-byte words, with the offsets that the owner waits for.
        cell_words: all cells in 8-byte words, with the offsets that later dispatchers wait for.
        predecessors_awaited: that word of every cell; usually equal to *none_awaited*.
        wake_descriptors: per slot, the eventfd on which its reader parks.
        progress_descriptors: per slot, the eventfd on which the owner waits for its progress.
    """

    access: WordAccess
    ring_words: Words
    cell_words: Words
    predecessors_awaited: Words
    none_awaited: memoryview
    wake_descriptors: list[int]
    progress_descriptors: list[int]


class Cell(CellView):
    """The writable cell, for its dispatcher and the supervisor. `RingMemory.open_cell` makes one.

    The properties of `CellView` are set through methods, each of which is one store. None means that the value is
    unknown.
    """

    __slots__ = (
        "__weakref__",
        "_asked_index",
        "_awaited_index",
        "_barrier",
        "_cell_words",
        "_none_awaited",
        "_page",
        "_predecessors_awaited",
        "_progress_address",
        "_progress_descriptor",
        "_ring_words",
        "_wake_descriptors",
        "_woke_successors_ns",
    )

    def __init__(self, cells_descriptor: int, slot: int, waiters: CellWaiters) -> None:
        page = mmap.mmap(
            cells_descriptor,
            layout.CELL_SIZE,
            flags=mmap.MAP_SHARED,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
            offset=slot * layout.CELL_SIZE,
        )
        octets = memoryview(page)
        super().__init__(waiters.access.words(octets), octets, slot)
        self._page = page
        self._progress_address = ctypes.addressof(ctypes.c_char.from_buffer(page, layout.PROGRESS * layout.WORD_SIZE))
        self._ring_words = waiters.ring_words
        self._cell_words = waiters.cell_words
        self._predecessors_awaited = waiters.predecessors_awaited
        self._none_awaited = waiters.none_awaited
        self._wake_descriptors = waiters.wake_descriptors
        self._awaited_index = layout.AWAITED + slot
        self._asked_index = layout.ASKED_NS + slot
        self._woke_successors_ns = 0
        self._progress_descriptor = waiters.progress_descriptors[slot]
        self._barrier = waiters.access.barrier()

    def _store(self, index: int, value: int | None) -> None:
        self._words[index] = UNKNOWN if value is None else value

    # For the supervisor.

    def clear(self, name: str | None) -> None:
        """Assign the slot to the dispatcher *name*, or free it with None; all other values are reset.

        Only the generation is kept and grows, so that the next dispatcher's view is not mistaken for the old one.

        Raises:
            RingError: the name is empty or longer than 64 bytes.
        """
        octets = b"" if name is None else name.encode()
        if len(octets) > layout.NAME_SIZE_MAX or name == "":
            raise RingError(f"a dispatcher's name takes 1 to {layout.NAME_SIZE_MAX} bytes: name={name!r}")
        self._name.write(b"")
        self.end_parking()
        for index in (layout.STATE, layout.STATE_SINCE, layout.PID, layout.PROGRESS, layout.PROGRESS_ANNOUNCED):
            self._words[index] = UNKNOWN
        for index in (layout.ORDINAL_DISPATCHED, layout.HEARTBEAT_NS, layout.PHASE):
            self._words[index] = UNKNOWN
        for index in (layout.RESTART_COUNT, layout.BATCH_COUNT, layout.LAPPED_COUNT, layout.BACKSTOP_COUNT):
            self._words[index] = 0
        for index in (layout.GAP_BYTES, layout.REJECTED_COUNT, layout.COUNTER_COUNT):
            self._words[index] = 0
        for index in (layout.BATCH_RECORD_COUNT, layout.BATCH_SIZE):
            self._words[index] = 0
        self._cursor.write(b"")
        self._error.write(b"")
        self.raise_generation()
        self._name.write(octets)

    def set_state(self, state: int, since_ms: int) -> None:
        """Set the state and when it began, milliseconds since 1970 UTC."""
        self._words[layout.STATE_SINCE] = since_ms
        self._words[layout.STATE] = state

    def set_pid(self, pid: int | None) -> None:
        self._store(layout.PID, pid)

    def set_restart_count(self, restart_count: int) -> None:
        self._words[layout.RESTART_COUNT] = restart_count

    def raise_generation(self) -> int:
        """Record that another view took the place, and wake the waiters for the progress of the former one.

        Returns:
            The new view's number.
        """
        generation: int = self._words[layout.GENERATION] + 1
        self._words[layout.GENERATION] = generation
        os.eventfd_write(self._progress_descriptor, 1)
        return generation

    # For the dispatcher.

    def set_progress(self, commit_log_offset: int, ordinal: int | None) -> None:
        """Publish that the view is readable up to *commit_log_offset*, and wake the waiters for that.

        Waiters are threads and tasks of the owner, dispatchers that run after this one, and processes that only read
        the store. Without waiters it costs about two microseconds.
        """
        words = self._words
        words[layout.ORDINAL_DISPATCHED] = UNKNOWN if ordinal is None else ordinal
        words[layout.PROGRESS] = commit_log_offset
        # Full barrier: a waiter stores the offset it waits for, passes a barrier, and rechecks the progress. At least
        # one of the two sees the other's store.
        self._barrier.acquire(blocking=False)
        self._barrier.release()
        if commit_log_offset >= self._ring_words[self._awaited_index]:
            os.eventfd_write(self._progress_descriptor, 1)
        if self._predecessors_awaited != self._none_awaited:
            self._wake_successors(commit_log_offset)
        words[layout.PROGRESS_ANNOUNCED] = commit_log_offset
        # Last: processes that only read the store cannot say that they wait.
        futex_wake(self._progress_address)

    def forget_progress(self) -> None:
        """Mark the progress as unknown."""
        self._words[layout.PROGRESS_ANNOUNCED] = UNKNOWN
        self._words[layout.ORDINAL_DISPATCHED] = UNKNOWN
        self._words[layout.PROGRESS] = UNKNOWN

    def _wake_successors(self, commit_log_offset: int) -> None:
        bit = 1 << self.slot
        for slot, mask in enumerate(self._predecessors_awaited.tolist()):
            if mask & bit and commit_log_offset >= self._cell_words[slot * CELL_WORDS + PROGRESS_AWAITED]:
                os.eventfd_write(self._wake_descriptors[slot], 1)
                self._woke_successors_ns = time.monotonic_ns()

    def is_asked_for(self) -> bool:
        """Whether the owner's readers, or later dispatchers, have recently asked for this one's progress."""
        asked_ns = max(self._ring_words[self._asked_index], self._woke_successors_ns)
        return time.monotonic_ns() - asked_ns < ASKED_LATELY_NS

    def set_durable_cursor(self, commit_log_offset: int, epoch: int, store_timestamp: int) -> None:
        """Publish the position up to which the view survives a power cut. Readers see all three numbers or none."""
        self._cursor.write(CURSOR.pack(commit_log_offset, epoch, store_timestamp))

    def beat(self) -> None:
        """Send a heartbeat."""
        self._words[layout.HEARTBEAT_NS] = time.monotonic_ns()

    def set_phase(self, phase: int | None) -> None:
        """Set the dispatcher's phase. Sends a heartbeat first."""
        self._words[layout.HEARTBEAT_NS] = time.monotonic_ns()
        self._store(layout.PHASE, phase)

    def set_batch(self, record_count: int, size: int) -> None:
        """Announce the next batch: if the process dies, the supervisor knows which batch it was."""
        self._words[layout.BATCH_RECORD_COUNT] = record_count
        self._words[layout.BATCH_SIZE] = size

    def add_batch(self) -> None:
        self._words[layout.BATCH_COUNT] += 1

    def add_lapped(self) -> None:
        self._words[layout.LAPPED_COUNT] += 1

    def add_backstop(self) -> None:
        self._words[layout.BACKSTOP_COUNT] += 1

    def set_gap_bytes(self, gap_bytes: int) -> None:
        self._words[layout.GAP_BYTES] = gap_bytes

    def set_rejected_count(self, rejected_count: int) -> None:
        self._words[layout.REJECTED_COUNT] = rejected_count

    def set_error(self, text: str | None) -> None:
        """Store the first 1264 bytes of *text*. None: no error."""
        octets = (text or "").encode("utf-8", "replace")
        if len(octets) > layout.ERROR_SIZE_MAX:
            # Without the part of a character at the end.
            octets = octets[: layout.ERROR_SIZE_MAX].decode("utf-8", "ignore").encode()
        self._error.write(octets)

    def counter(self, name: str) -> CellCounter:
        """Return the counter called *name*, which begins at 0 and outlives the process.

        Raises:
            RingError: the name is empty or longer than 24 bytes, or there are already 32 other counters.
        """
        octets = name.encode()
        if not octets or len(octets) > COUNTER_NAME_SIZE_MAX or b"\0" in octets:
            raise RingError(f"a counter's name takes 1 to {COUNTER_NAME_SIZE_MAX} bytes: name={name!r}")
        count = 0
        for index, known in self._counter_names():
            if known == name:
                return CellCounter(self._words, COUNTER_VALUES + index)
            count += 1
        if count == COUNTERS_MAX:
            raise RingError(f"a dispatcher has at most {COUNTERS_MAX} counters: name={name!r}")
        at = COUNTER_NAMES_AT + count * COUNTER_NAME_SIZE_MAX
        self._words[COUNTER_VALUES + count] = 0
        self._octets[at : at + COUNTER_NAME_SIZE_MAX] = octets.ljust(COUNTER_NAME_SIZE_MAX, b"\0")
        self._words[layout.COUNTER_COUNT] = count + 1
        return CellCounter(self._words, COUNTER_VALUES + count)

    # For the dispatcher's `RingReader`.

    def begin_parking(self, *, frames: bool, durable: int | None, predecessors: int, progress: int) -> None:
        """Publish what ends the wait: frames, a durable position, or progress of the slots in *predecessors*."""
        words = self._words
        if predecessors:
            words[PROGRESS_AWAITED] = progress
            words[PREDECESSORS_AWAITED] = predecessors
        if durable is not None:
            words[layout.DURABLE_AWAITED] = durable
        if frames:
            # Odd, and a new number each time: the writer wakes once per number.
            words[layout.PARKED] = words[layout.PARKED] + 1 | 1

    def set_resting(self, resting: bool) -> None:
        """Set whether the dispatcher lets frames accumulate."""
        self._words[layout.RESTING] = resting

    def end_parking(self) -> None:
        """Publish that the dispatcher runs, so that no process spends a system call on waking it."""
        words = self._words
        words[layout.RESTING] = 0
        if words[layout.PARKED] & 1:
            words[layout.PARKED] += 1
        words[layout.DURABLE_AWAITED] = NEVER
        words[PREDECESSORS_AWAITED] = 0

    def close(self) -> None:
        """Unmap the page. Other processes can still read it."""
        if not self._page.closed:
            self._words.release()
            self._octets.release()
            self._page.close()

"""RingMemory: the ring, the cells and the eventfds as descriptors, without names, that processes pass to each other.

The owner of the store creates it and is the only one that maps the ring writable: a seal prevents any other writable
mapping and any write, in every process. The supervisor gets the descriptors over a socket, its dispatchers over fork; a
second process that only reads gets them over a socket, too.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import weakref
from collections.abc import Iterable
from typing import Protocol, Self, TypeVar

from reput.errors import RingError
from reput.ring import layout
from reput.ring.cell import Cell, CellView, CellWaiters
from reput.ring.layout import (
    CAPACITY_DEFAULT,
    CAPACITY_MIN,
    CELL_SIZE,
    CELL_WORDS,
    HEADER_SIZE,
    NEVER,
    RING_MAGIC,
    RING_VERSION,
    SLOTS_DEFAULT,
    SLOTS_MAX,
    UNKNOWN,
)
from reput.ring.ring_header import RingHeader
from reput.ring.word_access import WordAccess, Words, word_access

__all__ = ["RingMemory"]

F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h; Python's fcntl does not name it.
MADV_POPULATE_WRITE = 23  # linux/mman.h, since Linux 5.14; Python's mmap does not name it.

# All processes of the group share the memory, so its size must not change under an existing mapping.
SEALS_OF_CELLS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
SEALS_OF_RING = SEALS_OF_CELLS | F_SEAL_FUTURE_WRITE

created_here: weakref.WeakSet[RingMemory] = weakref.WeakSet()


class Releasable(Protocol):
    """A part of the memory that somebody uses."""

    def release(self) -> None:
        """Let go of it."""


View = TypeVar("View", bound=Releasable)


class RingMemory:
    """The memory shared by a writer and its dispatchers.

    Attributes:
        capacity: bytes of the data area.
        slot_count: dispatchers that fit.
        words: the ring in 8-byte words; writable only in the process that created it.
        data: the ring's data area in bytes, likewise.
        cell_words: all cells in 8-byte words, read-only.
        wake_descriptors: per slot, the eventfd on which its reader parks. Empty for an observer.
        progress_descriptors: per slot, the eventfd on which the owner waits for its progress. Empty for an observer.
        release_descriptor: the eventfd on which readers ask the owner to publish held records; -1 for an observer.
        header: the ring's header by name.
        access: how this process reads and writes words.
    """

    def __init__(
        self,
        access: WordAccess,
        descriptors: list[int],
        ring: mmap.mmap,
        cells: mmap.mmap,
        capacity: int,
        slot_count: int,
    ) -> None:
        self.access = access
        self._descriptors = descriptors
        self._ring = ring
        self._cells = cells
        self.capacity = capacity
        self.slot_count = slot_count
        ring_octets = memoryview(ring)
        cell_octets = memoryview(cells)
        self.words = access.words(ring_octets)
        self.data = ring_octets[HEADER_SIZE:]
        self.cell_words = access.words(cell_octets)
        self.header = RingHeader(self.words)
        self.wake_descriptors = descriptors[2 : 2 + slot_count]
        self.progress_descriptors = descriptors[2 + slot_count : 2 + 2 * slot_count]
        self.release_descriptor = descriptors[-1] if self.progress_descriptors else -1
        self._cell_octets = cell_octets
        self._cell_views: dict[int, CellView] = {}
        predecessors_awaited = self.column(layout.PREDECESSORS_AWAITED)
        self._cell_waiters = CellWaiters(
            access,
            self.words,
            self.cell_words,
            predecessors_awaited,
            memoryview(bytes(8 * slot_count)).cast("Q"),
            self.wake_descriptors,
            self.progress_descriptors,
        )
        self._views: list[Releasable] = [
            self.data,
            self.words,
            ring_octets,
            predecessors_awaited,
            self.cell_words,
            cell_octets,
        ]
        self._cells_opened: weakref.WeakSet[Cell] = weakref.WeakSet()

    @classmethod
    def create(cls, capacity: int = CAPACITY_DEFAULT, slot_count: int = SLOTS_DEFAULT) -> Self:
        """Make a ring whose data area takes *capacity* bytes, with cells for *slot_count* dispatchers.

        A child that this process forks closes the memory at once.

        Raises:
            RingError: the capacity is not a power of two of at least 4096 bytes, the number of slots is not 1 to 64, or
                the ring is not proved for this processor.
            OSError: no memory or no descriptors left.
        """
        access = word_access()
        if capacity < CAPACITY_MIN or capacity & (capacity - 1):
            raise RingError(f"a ring's capacity is a power of two from {CAPACITY_MIN} on: capacity={capacity}")
        if not 1 <= slot_count <= SLOTS_MAX:
            raise RingError(f"a ring has 1 to {SLOTS_MAX} slots: slot_count={slot_count}")
        descriptors: list[int] = []
        try:
            descriptors.append(make_memfd("reput-ring", HEADER_SIZE + capacity))
            descriptors.append(make_memfd("reput-cells", CELL_SIZE * slot_count))
            for _ in range(2 * slot_count + 1):
                descriptors.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            ring = mmap.mmap(descriptors[0], HEADER_SIZE + capacity)
            populate(ring)
            fcntl.fcntl(descriptors[0], fcntl.F_ADD_SEALS, SEALS_OF_RING)
            fcntl.fcntl(descriptors[1], fcntl.F_ADD_SEALS, SEALS_OF_CELLS)
            cells = map_read_only(descriptors[1], CELL_SIZE * slot_count)
            memory = cls(access, descriptors, ring, cells, capacity, slot_count)
        except BaseException:
            close_all(descriptors)
            raise
        for slot in range(slot_count):
            cell = memory.open_cell(slot)
            cell.clear(None)
            cell.close()
        memory._initialize_header()
        created_here.add(memory)
        return memory

    def _initialize_header(self) -> None:
        words = self.words
        words[layout.VERSION] = RING_VERSION
        words[layout.CAPACITY] = self.capacity
        words[layout.SLOT_COUNT] = self.slot_count
        words[layout.RING_ID] = secrets.randbits(63)
        for index in (layout.APPENDED, layout.ORDINAL, layout.DURABLE, layout.COMMIT_LOG_OFFSET_MIN, layout.EPOCH):
            words[index] = UNKNOWN
        for slot in range(self.slot_count):
            words[layout.AWAITED + slot] = NEVER
        words[layout.MAGIC] = RING_MAGIC

    @classmethod
    def from_descriptors(cls, descriptors: Iterable[int]) -> Self:
        """Map memory that another process created, read-only. This object now owns the descriptors.

        Args:
            descriptors: from `descriptors` or `open_observer_descriptors` of the process that passes them on.

        Raises:
            RingError: they do not belong to a ring, or to one with another layout.
        """
        access = word_access()
        owned = list(descriptors)
        try:
            if len(owned) < 2:
                raise RingError(f"a ring takes at least two descriptors: descriptor_count={len(owned)}")
            for descriptor in owned:
                os.set_inheritable(descriptor, False)
            ring_size, cells_size = os.fstat(owned[0]).st_size, os.fstat(owned[1]).st_size
            whole = ring_size % CAPACITY_MIN == 0 and cells_size % CELL_SIZE == 0
            if ring_size < HEADER_SIZE + CAPACITY_MIN or cells_size < CELL_SIZE or not whole:
                raise RingError(f"descriptors are not those of a ring: ring_size={ring_size} cells_size={cells_size}")
            ring = map_read_only(owned[0], ring_size)
            capacity, slot_count = check_header(ring, ring_size, cells_size, len(owned))
            return cls(access, owned, ring, map_read_only(owned[1], cells_size), capacity, slot_count)
        except BaseException:
            close_all(owned)
            raise

    @property
    def descriptors(self) -> list[int]:
        """All descriptors in the order of `from_descriptors`: ring, cells, wake, progress and release eventfds."""
        return list(self._descriptors)

    def open_observer_descriptors(self) -> list[int]:
        """Return new read-only descriptors of ring and cells, for a process that only reads the numbers.

        The caller closes them after sending them.
        """
        descriptors: list[int] = []
        try:
            for descriptor in self._descriptors[:2]:
                descriptors.append(open_read_only(descriptor))
        except BaseException:
            close_all(descriptors)
            raise
        return descriptors

    @property
    def cells_descriptor(self) -> int:
        return self._descriptors[1]

    @property
    def closed(self) -> bool:
        return self._ring.closed

    def column(self, index: int) -> Words:
        """Return word *index* of every cell as one strided view of ``slot_count`` words, read-only.

        Pass it to `keep`, which releases it when the memory is closed.
        """
        return self.cell_words[index : (self.slot_count - 1) * CELL_WORDS + index + 1 : CELL_WORDS]

    def keep(self, view: View) -> View:
        """Return *view*, which uses `words`, `data` or `cell_words`, and release it when the memory is closed."""
        self._views.insert(0, view)
        return view

    def view(self, slot: int) -> CellView:
        """Return the cell of *slot*, read-only."""
        found = self._cell_views.get(slot)
        if found is None:
            self._check_slot(slot)
            words = self.keep(self.cell_words[slot * CELL_WORDS : (slot + 1) * CELL_WORDS])
            octets = self.keep(self._cell_octets[slot * CELL_SIZE : (slot + 1) * CELL_SIZE])
            found = self._cell_views[slot] = CellView(words, octets, slot)
        return found

    def open_cell(self, slot: int) -> Cell:
        """Map the page of *slot* writable: for its dispatcher, and for the supervisor.

        Raises:
            RingError: there is no such slot, or this process has only an observer's descriptors.
        """
        self._check_slot(slot)
        if not self.progress_descriptors:
            raise RingError(f"an observer writes no cell: slot={slot}")
        cell = Cell(self.cells_descriptor, slot, self._cell_waiters)
        self._cells_opened.add(cell)
        return cell

    def confine(self, slot: int) -> Cell:
        """Remove this process's write access to everything except the cell of *slot*, and return that cell.

        A dispatcher's process calls it right after the supervisor forked it: the pages that the supervisor had mapped
        writable are unmapped, and the cells' descriptor becomes read-only, so that a stray write of the plugin faults
        in its own process. Cells that were opened before must not be used any more.
        """
        for cell in list(self._cells_opened):
            cell.close()
        # A mapping keeps a duplicate of its descriptor at the lowest free number, which could write all cells.
        duplicate = os.dup(self.cells_descriptor)
        os.close(duplicate)
        cell = self.open_cell(slot)
        assert os.path.sameopenfile(duplicate, self.cells_descriptor)
        read_only = open_read_only(self.cells_descriptor)
        for descriptor in (self.cells_descriptor, duplicate):
            os.dup2(read_only, descriptor, inheritable=False)
        os.close(read_only)
        return cell

    def close(self) -> None:
        """Unmap everything and close the descriptors. No thread may be using the memory."""
        if self.closed:
            return
        for cell in list(self._cells_opened):
            cell.close()
        for view in self._views:
            view.release()
        self._ring.close()
        self._cells.close()
        close_all(self._descriptors)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.slot_count:
            raise RingError(f"no such slot: slot={slot} slot_count={self.slot_count}")


def make_memfd(name: str, size: int) -> int:
    """Return a memfd of *size* zero bytes, all reserved: running out of memory is an error here, not a SIGBUS later."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_read_only(descriptor: int) -> int:
    """Return another descriptor of the same memory that can neither write nor be mapped writable."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def map_read_only(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


def populate(mapping: mmap.mmap) -> None:
    """Enter all pages into this process's page tables; otherwise the first put into each page pays 0.5 µs for it."""
    try:
        mapping.madvise(MADV_POPULATE_WRITE)
    except OSError:
        # Linux before 5.14 lacks this advice; touching the pages does the same, since they are still all zero.
        for at in range(0, len(mapping), mmap.PAGESIZE):
            mapping[at] = 0


def check_header(ring: mmap.mmap, ring_size: int, cells_size: int, descriptor_count: int) -> tuple[int, int]:
    """Return (capacity, slot count) of *ring*.

    Raises:
        RingError: it is not a ring, has another layout, or does not fit the sizes.
    """
    with memoryview(ring) as octets, octets.cast("Q") as words:
        magic, version = words[layout.MAGIC], words[layout.VERSION]
        capacity, slot_count = words[layout.CAPACITY], words[layout.SLOT_COUNT]
    if magic != RING_MAGIC:
        raise RingError(f"descriptors are not those of a ring: magic={magic:#x}")
    if version != RING_VERSION:
        raise RingError(f"the ring has another layout: version={version} expected={RING_VERSION}")
    if ring_size != HEADER_SIZE + capacity or cells_size != CELL_SIZE * slot_count:
        raise RingError(
            f"the ring's header does not fit its memory: capacity={capacity} slot_count={slot_count} "
            f"ring_size={ring_size} cells_size={cells_size}"
        )
    if descriptor_count not in (2, 3 + 2 * slot_count):
        raise RingError(f"descriptors are missing: descriptor_count={descriptor_count} slot_count={slot_count}")
    return capacity, slot_count


def close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def close_in_forked_child() -> None:
    """Close the memory: a child would share the writer's writable mapping and keep the memory alive."""
    for memory in list(created_here):
        memory.close()


os.register_at_fork(after_in_child=close_in_forked_child)

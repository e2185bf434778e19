"""ProgressFutex: a process that only reads the group's numbers sleeps until a dispatcher publishes progress.

An observer may write nothing into the ring's memory, so no writer can see that it waits. The kernel can: a dispatcher
wakes the futex of its progress after each batch, whether or not a process waits. The futex is the low half of the
cell's word PROGRESS, which each batch changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reput.ring.futex import ReadOnlyPages, futex_wait, futex_wake
from reput.ring.layout import CELL_SIZE, PROGRESS, WORD_SIZE
from reput.ring.ring_memory import RingMemory

__all__ = ["ProgressFutex", "SeenProgress"]

LOW_HALF = 0xFFFFFFFF


class SeenProgress(NamedTuple):
    """A dispatcher's progress at one moment, by which a wait knows whether it has changed since."""

    slot: int
    word: int


class ProgressFutex:
    """Waits for progress, in a process that has the memory read-only. Any thread."""

    def __init__(self, memory: RingMemory) -> None:
        self.memory = memory
        self.pages = ReadOnlyPages(memory.cells_descriptor, CELL_SIZE * memory.slot_count)

    def look(self, slots: Iterable[int]) -> SeenProgress | None:
        """Return the progress of the foremost running dispatcher; None: none of *slots* runs."""
        foremost = None
        for slot in slots:
            cell = self.memory.view(slot)
            progress = cell.progress
            if cell.pid is not None and progress is not None and (foremost is None or progress > foremost.word):
                foremost = SeenProgress(slot, progress)
        return foremost

    def wait(self, seen: SeenProgress, timeout: float) -> None:
        """Sleep until the dispatcher's progress is not *seen* any more, at most *timeout* seconds; maybe less."""
        futex_wait(self.address(seen.slot), seen.word & LOW_HALF, timeout)

    def wake(self, slots: Iterable[int]) -> None:
        """Let the waits of *slots* return, those of other processes, too, which then look and wait again."""
        for slot in slots:
            futex_wake(self.address(slot))

    def address(self, slot: int) -> int:
        """Return the address of a slot's futex."""
        return self.pages.address + slot * CELL_SIZE + PROGRESS * WORD_SIZE

    def close(self) -> None:
        """Unmap the pages. Waits that go on end by themselves."""
        self.pages.close()

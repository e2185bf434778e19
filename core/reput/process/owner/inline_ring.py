"""InlineRing, InlineReader, InlineCell: ring and cells of an inline group, as objects instead of shared memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple

from reput.errors import RingClosed, RingLapped
from reput.process.dispatcher.states import State, check_transition

__all__ = ["InlineCell", "InlineReader", "InlineRing"]


class InlineCounter:
    """A named number."""

    def __init__(self) -> None:
        self.value = 0


class InlineCursor(NamedTuple):
    """The numbers of a durable cursor."""

    commit_log_offset: int
    epoch: int
    store_timestamp: int


class InlineRing:
    """The latest frames, for any number of readers. Has the interface of the ring of `reput.ring`.

    Attributes:
        lock: held for each change.
        changed: notified at every publication and every change of progress.
        version: incremented with each notification, so that no thread misses a change.
    """

    def __init__(
        self, *, capacity: int, appended: int, durable: int, commit_log_offset_min: int, epoch: int, ordinal: int
    ) -> None:
        self.capacity = capacity
        self.frame_size_max = capacity // 4
        self.appended: int | None = appended
        self.durable: int | None = durable
        self.commit_log_offset_min: int | None = commit_log_offset_min
        self.epoch: int | None = epoch
        self.ordinal: int | None = ordinal
        self.closed = False
        # Taken by itself, not as `with changed`: a Condition is Python code, and Ctrl-C in a put, between its taking of
        # the lock and the block, would leave it locked for good.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.version = 0
        self.frames: deque[bytes] = deque()
        self.first = 0
        self.size = 0

    def publish(self, frame: bytes | bytearray, appended: int, ordinal: int) -> None:
        """Publish a copy of *frame* to all readers; drop the oldest frames beyond `capacity` bytes."""
        with self.lock:
            self.frames.append(bytes(frame))
            self.size += len(frame)
            while self.size > self.capacity:
                self.size -= len(self.frames.popleft())
                self.first += 1
            self.appended = appended
            self.ordinal = ordinal
            self.notify()

    def notify(self) -> None:
        """Wake all waiting threads; the caller holds `lock`."""
        self.version += 1
        self.changed.notify_all()

    def set_durable(self, durable: int) -> None:
        """Publish that the log is forced to disk up to *durable*."""
        with self.lock:
            self.durable = durable
            self.notify()

    def set_commit_log_offset_min(self, commit_log_offset_min: int) -> None:
        """Publish that the log was trimmed."""
        self.commit_log_offset_min = commit_log_offset_min

    def set_epoch(self, epoch: int) -> None:
        """Publish that another epoch has begun."""
        self.epoch = epoch

    def close(self) -> None:
        """Announce that no more frames follow."""
        with self.lock:
            self.closed = True
            self.notify()


class InlineJoined(NamedTuple):
    """The commit log must be read up to *appended*."""

    appended: int


class InlineReader:
    """The reading end of an `InlineRing` for one loop."""

    def __init__(self, ring: InlineRing, cell: InlineCell) -> None:
        self.ring = ring
        self.cell = cell
        self.position = 0
        self.header = ring

    def join(self) -> InlineJoined:
        """Move to the current end."""
        with self.ring.lock:
            self.position = self.ring.first + len(self.ring.frames)
            return InlineJoined(self.ring.appended or 0)

    def read(self, size_max: int = 1 << 20) -> list[bytes]:
        """Return the frames from the current position on, up to *size_max* bytes but at least one.

        Raises:
            RingLapped: some of them are gone.
            RingClosed: all frames were read, and no more follow.
        """
        ring = self.ring
        with ring.lock:
            index = self.position - ring.first
            if index < 0:
                self.cell.lapped_count += 1
                raise RingLapped(f"the writer lapped this reader: position={self.position} first={ring.first}")
            taken: list[bytes] = []
            size = 0
            while index < len(ring.frames) and (not taken or size + len(ring.frames[index]) <= size_max):
                taken.append(ring.frames[index])
                size += len(ring.frames[index])
                index += 1
            self.position = ring.first + index
            if not taken and ring.closed:
                raise RingClosed("the ring was closed by its writer, and every frame was read")
            return taken


class InlineCell:
    """The numbers of one dispatcher, like `reput.ring.cell.Cell`; written by the group's thread."""

    def __init__(self, name: str, slot: int, ring: InlineRing) -> None:
        self.name = name
        self.slot = slot
        self.ring = ring
        self.state: int | None = State.STOPPED
        self.pid: int | None = None
        self.restart_count = 0
        self.generation = 0
        self.progress: int | None = None
        self.ordinal_dispatched: int | None = None
        self.durable_cursor: InlineCursor | None = None
        self.heartbeat_ns: int | None = None
        self.phase: int | None = None
        self.batch_count = self.batch_record_count = self.batch_size = 0
        self.lapped_count = 0
        self.gap_bytes = 0
        self.rejected_count = 0
        # Every change wakes the group's thread, so there is no back-stop to count.
        self.backstop_count = 0
        self.error: str | None = None
        self._counters: dict[str, InlineCounter] = {}

    @property
    def counters(self) -> dict[str, int]:
        """The plugin's own numbers."""
        return {name: counter.value for name, counter in self._counters.items()}

    def set_progress(self, commit_log_offset: int, ordinal: int | None) -> None:
        with self.ring.lock:
            self.ordinal_dispatched = ordinal
            self.progress = commit_log_offset
            self.ring.notify()

    def forget_progress(self) -> None:
        self.progress = self.ordinal_dispatched = None

    def is_asked_for(self) -> bool:
        """Return True: no frame ever wakes this loop, so it gains nothing by letting frames accumulate."""
        return True

    def raise_generation(self) -> int:
        self.generation += 1
        return self.generation

    def set_durable_cursor(self, commit_log_offset: int, epoch: int, store_timestamp: int) -> None:
        self.durable_cursor = InlineCursor(commit_log_offset, epoch, store_timestamp)

    def beat(self) -> None:
        self.heartbeat_ns = time.monotonic_ns()

    def set_phase(self, phase: int | None) -> None:
        self.heartbeat_ns = time.monotonic_ns()
        self.phase = phase

    def set_batch(self, record_count: int, size: int) -> None:
        self.batch_record_count, self.batch_size = record_count, size

    def add_batch(self) -> None:
        self.batch_count += 1

    def set_gap_bytes(self, gap_bytes: int) -> None:
        self.gap_bytes = gap_bytes

    def set_rejected_count(self, rejected_count: int) -> None:
        self.rejected_count = rejected_count

    def set_error(self, text: str | None) -> None:
        self.error = text

    def set_state(self, state: State) -> None:
        """Change to *state*; the transition must be allowed."""
        check_transition(self.name, State(self.state or 0), state)
        with self.ring.lock:
            self.state = state
            self.ring.notify()

    def counter(self, name: str) -> InlineCounter:
        return self._counters.setdefault(name, InlineCounter())

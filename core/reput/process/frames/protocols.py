"""The interfaces of a dispatcher's loop: the ring's reader and cell, or the inline ones.

`RingReader`, `Cell` and `CellView` of `reput.ring` implement them, and so do the inline classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from reput_hooks import Counter

__all__ = ["FrameHeader", "FrameReader", "FrameWriter", "JoinedAt", "LoopCell", "Predecessor", "Waiting"]


class FrameHeader(Protocol):
    """The writer's numbers of the log, as `reput.ring.ring_header.RingHeader`; None: not published yet."""

    @property
    def appended(self) -> int | None: ...

    @property
    def durable(self) -> int | None: ...

    @property
    def ordinal(self) -> int | None: ...

    @property
    def commit_log_offset_min(self) -> int | None: ...

    @property
    def epoch(self) -> int | None: ...


class JoinedAt(Protocol):
    """Read the commit log up to *appended*; from there on all records come in frames."""

    @property
    def appended(self) -> int: ...


class FrameReader(Protocol):
    """Returns frames. `read` raises RingLapped and RingClosed as `reput.ring.ring_reader.RingReader` does."""

    @property
    def header(self) -> FrameHeader: ...

    def join(self) -> JoinedAt:
        """Move to the current end, skipping everything published before."""

    def read(self, size_max: int = ...) -> list[bytes]:
        """Return the frames from the current position on, and move behind them."""


class FrameWriter(Protocol):
    """Publishes frames to all readers, as `reput.ring.ring_writer.RingWriter`."""

    @property
    def frame_size_max(self) -> int: ...

    def publish(self, frame: bytes | bytearray, appended: int, ordinal: int) -> None:
        """Publish a copy of *frame* to all readers. The log has *ordinal* records now, up to *appended*."""

    def set_durable(self, durable: int) -> None:
        """Publish that the log is durable up to *durable*."""

    def set_commit_log_offset_min(self, commit_log_offset_min: int) -> None:
        """Publish that the log was trimmed below *commit_log_offset_min*."""

    def set_epoch(self, epoch: int) -> None:
        """Publish that another epoch of the log's history has begun."""


class CursorNumbers(Protocol):
    """The numbers of a durable cursor."""

    @property
    def commit_log_offset(self) -> int: ...


class Predecessor(Protocol):
    """The cell of a dispatcher that this one comes ``after``."""

    @property
    def slot(self) -> int: ...

    @property
    def state(self) -> int | None: ...

    @property
    def progress(self) -> int | None: ...

    @property
    def durable_cursor(self) -> CursorNumbers | None: ...


class LoopCell(Protocol):
    """The numbers that a loop publishes, as `reput.ring.cell.Cell`."""

    @property
    def durable_cursor(self) -> CursorNumbers | None: ...

    def set_progress(self, commit_log_offset: int, ordinal: int | None) -> None: ...

    def forget_progress(self) -> None: ...

    def is_asked_for(self) -> bool: ...

    def raise_generation(self) -> int: ...

    def set_durable_cursor(self, commit_log_offset: int, epoch: int, store_timestamp: int) -> None: ...

    def beat(self) -> None: ...

    def set_phase(self, phase: int | None) -> None: ...

    def set_batch(self, record_count: int, size: int) -> None: ...

    def add_batch(self) -> None: ...

    def set_gap_bytes(self, gap_bytes: int) -> None: ...

    def set_rejected_count(self, rejected_count: int) -> None: ...

    def set_error(self, text: str | None) -> None: ...

    def counter(self, name: str) -> Counter: ...


class Waiting(NamedTuple):
    """The events that an idle loop waits for; the arguments of `reput.ring.ring_reader.RingReader.park`."""

    timeout: float
    frames: bool
    durable: int | None
    predecessors: Iterable[int]
    progress: int

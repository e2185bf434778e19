"""Stores for tests that write: segments of 4 KiB, a manual clock, and files that can be made to fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from reput.settings import Settings
from reput.store.disk.files import Clock, Files, Mapping, WrittenFile
from reput.store.ext import consume_queue_ext_addresses, consume_queue_ext_builder
from reput.store.log.segments import Segments
from reput.store.message_store import MessageStore
from reput.store.record.message import Message
from reput.store.record.record import decode_record
from reput.store.recovery.log_walk import LogWalk
from reput.store.writer.kernel_puts import kernel_puts
from reput_hooks import Record

__all__ = [
    "SEGMENT_SIZE",
    "START_MS",
    "FailingFiles",
    "ManualClock",
    "SetClock",
    "UnforcedFiles",
    "drop",
    "extents",
    "log_bytes",
    "message_of_size",
    "open_store",
    "overwrite",
    "records",
    "small_settings",
    "small_sidecars",
]

SEGMENT_SIZE = 4096
START_MS = 1_700_000_000_000
# Size of a record without body and properties: 91 bytes plus the topic.
TOPIC = "orders"
OVERHEAD = 91 + len(TOPIC)


def small_settings(**settings: object) -> Settings:
    """Return settings with segments of 4 KiB."""
    return Settings(**{"mapped_file_size_commit_log": SEGMENT_SIZE, **settings})


def small_sidecars(patch: pytest.MonkeyPatch) -> None:
    """Use sidecar files of five ext-unit addresses instead of 300,000."""
    for module in (consume_queue_ext_builder, consume_queue_ext_addresses):
        patch.setattr(module, "ADDRESS_FILE_SIZE", 5 * 20)


class ManualClock(Clock):
    """A clock that moves only on request; *boot* numbers the machine's starts."""

    def __init__(self, ms: int = START_MS) -> None:
        self.ms = ms

        self.boot = 1

    def now_ms(self) -> int:
        return self.ms

    def boot_id(self) -> str:
        return f"start {self.boot}"


class SetClock(ManualClock):
    """A clock that is set by its `ms`; `elapsed_ms` counts what has elapsed."""

    elapsed_ms = 0

    def monotonic(self) -> float:
        return self.elapsed_ms / 1000

    def elapse(self, ms: int) -> None:
        self.ms += ms
        self.elapsed_ms += ms


class UnforcedFile(WrittenFile):
    """A file that is written and never forced."""

    def force(self) -> None:
        pass


class UnforcedMapping(Mapping):
    """A mapping that is never forced."""

    def force(self) -> None:
        pass

    def write_forced(self, data: bytes, at: int) -> None:
        self.write(memoryview(data), at)
        self.force()


class UnforcedFiles(Files):
    """Files that never wait for the disk: enough for tests that kill a process, but not the machine."""

    def map(self, path: Path, size: int) -> Mapping:
        return UnforcedMapping(path, size)

    def open(self, path: Path) -> WrittenFile:
        return UnforcedFile(path)

    def force_directory(self, path: Path) -> None:
        pass

    def replace(self, path: Path, data: bytes) -> None:
        draft = path.with_name(path.name + ".draft")
        draft.write_bytes(data)
        draft.rename(path)


class FailingMapping(UnforcedMapping):
    """A mapping that fails as its `FailingFiles` say."""

    files: FailingFiles

    def reserve(self, at: int, size: int) -> None:
        if at + size > self.files.reserve_until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(at, size)

    def force(self) -> None:
        self.files.before_force()
        if self.files.force_error is not None:
            raise OSError(self.files.force_error, os.strerror(self.files.force_error))


class FailingFiles(UnforcedFiles):
    """Files on a disk that can be full and can refuse to force.

    Attributes:
        reserve_until: bytes from a segment's begin that can still be reserved.
        force_error: errno of every force; None: they succeed.
        before_force: called before every force.
        create_error: errno of creating a segment; None: it succeeds.
    """

    def __init__(self) -> None:
        self.reserve_until = 1 << 62
        self.force_error: int | None = None
        self.create_error: int | None = None
        self.before_force: Callable[[], None] = lambda: None

    def create(self, path: Path, size: int, data: bytes = b"") -> None:
        if self.create_error is not None:
            raise OSError(self.create_error, os.strerror(self.create_error))
        super().create(path, size, data)

    def map(self, path: Path, size: int) -> Mapping:
        mapping = FailingMapping(path, size)
        mapping.files = self
        return mapping


def open_store(
    directory: Path,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    change_settings: Sequence[str] = (),
    **settings: object,
):
    """Open *directory* for writing, with segments of 4 KiB unless *settings* say otherwise."""
    clock = clock or ManualClock()
    return MessageStore(
        directory, small_settings(**settings), files=files, clock=clock, change_settings=change_settings
    )


def set_clock(writer: MessageStore, clock: Clock) -> None:
    """Replace the clock of an open store's writer, for record times and everything else that uses the clock."""
    appender = writer.appender
    writer.clock = appender.clock = clock
    appender.now_ms = clock.now_ms
    if appender.kernel is not None:
        appender.kernel = kernel_puts(appender, appender.commit_log, clock)


def drop(opened: MessageStore) -> None:
    """Abandon a store like a killed process: no flush, no snapshot, no unlock."""
    if opened.durability.commit_service is not None:
        # Neither its thread nor the flusher's may commit what is in the pool.
        opened.commit_log.failed = "dropped"
        opened.durability.commit_service.stop()
    opened.durability.flush_service.stopping = True
    opened.commit_log.durable = opened.commit_log.appended
    opened.durability.flush_service.wake.set()
    opened.durability.flush_service.thread.join()
    opened.commit_log.helper.stop()
    opened.store_files.store_lock.close()
    opened.appender.closed = "dropped"


def message_of_size(record_size: int, **fields: object) -> Message:
    """Return a message on topic ``orders`` whose record has exactly *record_size* bytes."""
    return Message(TOPIC, b"x" * (record_size - OVERHEAD), **fields)


def extents(store: Path, begin: int | None = None, *, unclean: bool = False) -> list[str]:
    """Return the result of a walk over the log, one line per extent; consecutive records form one extent."""
    lines: list[str] = []
    runs: list[tuple[str, int, int, int]] = []
    for extent in LogWalk(Segments(store / "commitlog"), unclean=unclean).walk(begin):
        count = len(extent.columns) if extent.columns is not None else 0
        if runs and extent.kind == runs[-1][0] == "records" and runs[-1][2] == extent.begin:
            _, begin, _, before = runs.pop()
            runs.append(("records", begin, extent.end, before + count))
        else:
            runs.append((extent.kind, extent.begin, extent.end, count))
    for kind, begin, end, count in runs:
        lines.append(f"{kind} {begin}..{end}" + (f" count={count}" if kind == "records" else ""))
    return lines


def records(store: Path, *, unclean: bool = False) -> list[Record]:
    """Return the records of a store's log, in its order."""
    found: list[Record] = []
    for extent in LogWalk(Segments(store / "commitlog"), unclean=unclean).walk():
        if extent.columns is not None:
            found += [decode_record(extent.columns.data, at) for at in extent.columns.position.tolist()]
    return found


def log_bytes(store: Path) -> bytes:
    """Return all bytes of a store's segments, concatenated."""
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


def overwrite(store: Path, commit_log_offset: int, data: bytes) -> None:
    """Overwrite the log from *commit_log_offset* on, as a disk error or another program might."""
    segments = Segments(store / "commitlog")
    while data:
        segment = segments.find(commit_log_offset)
        assert segment is not None
        part = data[: segment.begin + segment.size - commit_log_offset]
        with segment.path.open("r+b") as file:
            file.seek(commit_log_offset - segment.begin)
            file.write(part)
        data = data[len(part) :]
        commit_log_offset += len(part)

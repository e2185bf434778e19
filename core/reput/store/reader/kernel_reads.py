"""Gets and queries of a store's writer that the kernel does alone, and what it has to be told for that.

The Python path finds out where a queue begins and ends, and which files the index has. It hands that to the kernel,
with the numbers that it depends on: the view's progress and generation, the start of the log, and the topic's last
deletion. As long as the numbers are the same, the kernel answers without the Python path.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from reput.kernel import Kernel, KernelReads
from reput.store.disk.open_files import OpenFiles
from reput.store.log.segments import Segment
from reput.store.reader.results import GetMessageResult, GetMessageStatus, KernelRecords
from reput.store.record.record import EARLY_BODY_END_MAX, decode_fields
from reput_hooks import Record
from reput_hooks.record import UndecodedRecord

__all__ = ["ReadAppender", "ReadWriter", "ViewWords", "kernel_reads"]


class ReadAppender(Protocol):
    """An appender, as far as reads ask for it.

    Attributes:
        deleted_at: topic → commit-log offset of its last deletion.
    """

    @property
    def deleted_at(self) -> Mapping[str, int]: ...


class ReadWriter(Protocol):
    """A writer, as far as reads ask for it.

    Attributes:
        commit_log_offset_min: where the log begins.
    """

    @property
    def commit_log_offset_min(self) -> int: ...

    @property
    def appender(self) -> ReadAppender: ...


class ViewGroup(Protocol):
    """A group of dispatchers, which replaces *members* as a whole when one joins or leaves."""

    @property
    def members(self) -> Mapping[str, Any]: ...


class ViewWords(NamedTuple):
    """Where progress and generation of a view stand in memory that the group's processes share.

    Attributes:
        members: those of *group* when the places were looked up; they hold for no others.
        cells, progress_at, generation_at: words of the view's dispatcher.
        words, asked_at: the word that says when somebody asked for the progress last.
    """

    group: ViewGroup
    members: Mapping[str, Any]
    cells: Sequence[int]
    progress_at: int
    generation_at: int
    words: Any
    asked_at: int


class FindSegment(Protocol):
    """Finds the segment that holds a byte of the log."""

    def __call__(self, commit_log_offset: int, /) -> Segment | None: ...


def kernel_reads(
    kernel: Kernel, files: OpenFiles, writer: ReadWriter, find: FindSegment, own_from: int, count_max: int
) -> KernelReads:
    """Return the compiled reads of one reader in the process of *writer*.

    Args:
        own_from: of `ReadableStore`.
        count_max: messages that a query returns at most.
    """
    return kernel.KernelReads(
        files.descriptors,
        writer,
        find,
        time.monotonic_ns,
        GetMessageResult,
        GetMessageStatus.FOUND,
        KernelRecords,
        UndecodedRecord,
        Record,
        decode_fields,
        EARLY_BODY_END_MAX,
        own_from,
        count_max,
    )

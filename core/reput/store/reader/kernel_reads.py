"""Gets and queries of a store's writer that the kernel does alone, and what it has to be told for that.

The Python path finds out where a queue begins and ends, and which files the index has. It hands that to the kernel,
with the numbers that it depends on: the view's progress and generation, the start of the log, and the topic's last
deletion. As long as the numbers are the same, the kernel answers without the Python path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from reput.kernel import Kernel, KernelReads
from reput.store.disk.open_files import OpenFiles
from reput.store.log.segments import Segment
from reput.store.reader.results import GetMessageResult, GetMessageStatus, KernelRecords
from reput.store.record.sent_record import record_maker

__all__ = ["MAP_AFTER", "ReadAppender", "ReadWriter", "kernel_reads"]


# A file is mapped after so many reads by system calls. A mapping costs as much as some of them, and so do its pages.
MAP_AFTER = 32


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


class FindSegment(Protocol):
    """Finds the segment that holds a byte of the log."""

    def __call__(self, commit_log_offset: int, /) -> Segment | None: ...


def kernel_reads(
    kernel: Kernel,
    files: OpenFiles,
    writer: ReadWriter,
    find: FindSegment,
    own_from: int,
    count_max: int,
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
        GetMessageResult,
        GetMessageStatus.FOUND,
        KernelRecords,
        record_maker(),
        own_from,
        count_max,
        MAP_AFTER,
    )

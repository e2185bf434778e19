"""ConsumeQueue: where each message of one (topic, queue id) lies in the commit log, as readers see it.

A file is a run of 20-byte units, big-endian, and is named by its first byte's offset in 20 digits. A unit's number in
its queue is the queue offset.

    at  size  field              meaning
     0     8  commit_log_offset  bytes from the start of the log
     8     4  record_size        bytes
    12     8  tags_code          Java hashCode of the tag, 0 without one; below -2147483648: an ext address

A *pre-blank* unit (0, 7FFFFFFF, 0) stands where the log has no record: before the first unit of a queue that does not
begin with 0, and for queue offsets that the log has lost.

A reader may stand beside the builder, in another process, or come upon a store that nobody has open. It never asks a
file how long it is: a unit counts only if its record ends at or before the builder's progress. Units ascend, and behind
the last one there are zeros - or, in a store that a RocketMQ left, old units that point behind the log's end.

Source: RocketMQ store, ConsumeQueue.CQ_STORE_UNIT_SIZE, getIndexBuffer, getMinOffsetInQueue and correctMinOffset.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

from reput.store.file_name import file_name, parse_file_name
from reput.store.open_files import OpenFiles
from reput_hooks import Record
from reput_hooks.dispatch import parse_multi_dispatch

__all__ = ["PRE_BLANK_SIZE", "UNIT", "UNIT_SIZE", "ConsumeQueue", "holds_unit_of"]

UNIT = Struct(">qiq")
UNIT_SIZE = 20
assert UNIT.size == UNIT_SIZE
PRE_BLANK_SIZE = 0x7FFFFFFF
# Units that are looked at when the end of the queue has moved: mostly by a few, else by many.
FORWARD_COUNT = 4
FORWARD_COUNT_MORE = 512

Unit = tuple[int, int, int]


class ConsumeQueue:
    """Reads one queue; keeps where it ended last, because it can only grow until it is truncated."""

    def __init__(self, directory: Path, file_size: int, files: OpenFiles) -> None:
        self.directory = directory
        self.path_prefix = f"{directory}{os.sep}"
        self.file_size = file_size
        self.files = files
        self.known_end = 0
        # The unit before this end has been held against its record.
        self.verified_end = 0
        self.known_progress = 0
        self.known_min = 0
        self.known_log_min = -1

    def units(self, queue_offset: int, count: int) -> list[Unit]:
        """Return up to *count* units (commit_log_offset, record_size, tags_code) of one file, whatever they hold."""
        at = queue_offset * UNIT_SIZE
        begin = at - at % self.file_size
        size = min(count * UNIT_SIZE, begin + self.file_size - at)
        try:
            data = self.files.read(self.path_prefix + file_name(begin), size, at - begin)
        except FileNotFoundError:
            return []
        return list(UNIT.iter_unpack(data[: len(data) - len(data) % UNIT_SIZE]))

    def begins(self) -> list[int]:
        """Return the byte offsets at which the files begin, ascending."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return sorted(begin for name in names if (begin := parse_file_name(name)) is not None)

    def end(self, progress: int) -> int:
        """Return the queue offset behind the last unit whose record ends at or before *progress*; 0 without one."""
        if progress == self.known_progress and self.known_end:
            return self.known_end
        if progress < self.known_progress:
            self.known_end = self.verified_end = 0
        if self.known_end == 0:
            self.known_end = self.search_end(progress)
        else:
            self.known_end = self.forward(self.known_end, progress)
        self.known_progress = progress
        return self.known_end

    def forward(self, end: int, progress: int) -> int:
        """Go on from *end* while units count."""
        count = FORWARD_COUNT
        while True:
            units = self.units(end, count)
            if not units:
                return end
            count = FORWARD_COUNT_MORE
            for offset, size, _ in units:
                if not counts(offset, size, progress):
                    return end
                end += 1

    def search_end(self, progress: int) -> int:
        """Find the end from the files: the newest one with a unit that counts, and in it by bisection."""
        for begin in reversed(self.begins()):
            first = begin // UNIT_SIZE
            low, high = first, first + self.file_size // UNIT_SIZE
            while low < high:
                middle = (low + high) // 2
                unit = self.units(middle, 1)
                if unit and (counts(unit[0][0], unit[0][1], progress) or unit[0][1] == PRE_BLANK_SIZE):
                    low = middle + 1
                else:
                    high = middle
            if low > first and self.units(low - 1, 1)[0][1] != PRE_BLANK_SIZE:
                return low
        return 0

    def min(self, commit_log_offset_min: int, end: int) -> int:
        """Return the queue offset of the first unit whose record is still in the log; *end* if none is."""
        if commit_log_offset_min != self.known_log_min:
            begins = self.begins()
            low, high = (begins[0] // UNIT_SIZE if begins else 0), end
            while low < high:
                middle = (low + high) // 2
                unit = self.units(middle, 1)
                if unit and unit[0][1] != PRE_BLANK_SIZE and unit[0][0] >= commit_log_offset_min:
                    high = middle
                else:
                    low = middle + 1
            self.known_min, self.known_log_min = low, commit_log_offset_min
        return min(self.known_min, end)


def counts(commit_log_offset: int, record_size: int, progress: int) -> bool:
    """Whether a unit says of a record that the builder has come past it."""
    return record_size > 0 and commit_log_offset >= 0 and commit_log_offset + record_size <= progress


def holds_unit_of(record: Record, topic: str, queue_id: int, queue_offset: int) -> bool:
    """Tell whether *record* belongs to this queue at this queue offset, by itself or through multi-dispatch."""
    if (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, queue_offset):
        return True
    names = record.properties.get("INNER_MULTI_DISPATCH")
    if not names:
        return False
    text = f"{names}\x02{record.properties.get('INNER_MULTI_QUEUE_OFFSET', '')}"
    return (topic, queue_offset) in parse_multi_dispatch(text.encode())

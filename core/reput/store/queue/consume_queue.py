"""ConsumeQueue: where each message of one (topic, queue id) lies in the commit log, as readers see it.

A file is a run of 20-byte units, big-endian, and is named by its first byte's offset in 20 digits. A unit's number in
its queue is the queue offset.

    at  size  field              meaning
     0     8  commit_log_offset  bytes from the start of the log
     8     4  record_size        bytes
    12     8  tags_code          Java hashCode of the tag, 0 without one; below -2147483648: an ext address

A *pre-blank* unit (0, 7FFFFFFF, 0) marks a queue offset without a record in the log: before the first unit of a queue
that does not begin with 0, and for queue offsets that the log has lost.

A reader may run beside the builder, in another process, or on a store that no process has open. It never relies on the
length of a file: a unit counts only if its record ends at or before the builder's progress. Units ascend, followed by
zeros - or, in a store that RocketMQ left, by old units that point behind the log's end. So the end lies behind the last
unit that counts and that the log agrees with. An earlier unit that does not is damage, never the end.

Source: RocketMQ store, ConsumeQueue.CQ_STORE_UNIT_SIZE, getIndexBuffer, getMinOffsetInQueue and correctMinOffset.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from struct import Struct

from reput.store.disk.file_name import file_name, parse_file_name
from reput.store.disk.open_files import OpenFiles
from reput_hooks import Record
from reput_hooks.dispatch import parse_multi_dispatch

__all__ = ["PRE_BLANK_SIZE", "UNIT", "UNIT_SIZE", "ConsumeQueue", "Unit", "holds_unit_of", "is_garbage"]

UNIT = Struct(">qiq")
UNIT_SIZE = 20
assert UNIT.size == UNIT_SIZE
PRE_BLANK_SIZE = 0x7FFFFFFF
# Units that are looked at in one go when the end of the queue has moved, mostly by a few.
FORWARD_COUNT = 4
# Units that are read at once where pre-blank ones are passed over.
BLANK_COUNT = 4096
# Units behind a place where the queue seems to end, or before one where it seems to begin, that are looked at for some
# that contradict: a page of a disk holds 204.
LOOK_COUNT = 1024

# No segment of RocketMQ's default size holds more.
RECORD_SIZE_MAX = 1 << 30

# (commit_log_offset, record_size, tags_code)
Unit = tuple[int, int, int]
NO_UNIT: Unit = (0, 0, 0)


class ConsumeQueue:
    """Reads one queue, and remembers its last known end: the queue only grows, until it is truncated or recreated.

    In the methods, *agrees* takes a queue offset and its unit, and tells whether the log has the unit's record.
    """

    def __init__(self, directory: Path, file_size: int, files: OpenFiles) -> None:
        self.directory = directory
        self.prefix = f"{directory}/"
        self.file_size = file_size
        self.files = files
        # The file that was read last, by its first byte's offset: usually the next read needs it, too.
        self.last_begin, self.last_path = 0, self.prefix + file_name(0)
        self.forget()

    def forget(self) -> None:
        """Discard everything read so far: the queue is another one now."""
        self.known_end = 0
        self.known_last: Unit | None = None
        self.known_progress = -1
        self.known_min = 0
        self.known_log_min = -1
        # (queue offset, reason) of a place at or behind the end that holds neither a unit nor zeros.
        self.garbage: tuple[int, str] | None = None
        # (queue offset of the first, bytes) of the units that `end` read when it moved; units before the end are final.
        self.looked_at = (0, b"")

    def counted_unit_bytes(self, queue_offset: int, count: int) -> bytes:
        """Return the result of `unit_bytes` for units that all lie before the latest `end`.

        A reader that follows a queue wants the units that `end` has just read.
        """
        first, looked_at = self.looked_at
        begin = (queue_offset - first) * UNIT_SIZE
        end = begin + count * UNIT_SIZE
        if begin >= 0 and end <= len(looked_at):
            return looked_at[begin:end]
        return self.unit_bytes(queue_offset, count)

    def unit_bytes(self, queue_offset: int, count: int) -> bytes:
        """Return the bytes of up to *count* whole units of one file, whatever they hold."""
        at = queue_offset * UNIT_SIZE
        in_file = at % self.file_size
        size = min(count * UNIT_SIZE, self.file_size - in_file)
        try:
            data = self.files.read(self.path_at(at - in_file), size, in_file)
        except FileNotFoundError:
            return b""
        left_over = len(data) % UNIT_SIZE
        return data[:-left_over] if left_over else data

    def place(self, queue_offset: int, count: int) -> tuple[str, int] | None:
        """Return the file that holds *count* units, and where in it they begin; None: it does not hold them all."""
        at = queue_offset * UNIT_SIZE
        in_file = at % self.file_size
        return (self.path_at(at - in_file), in_file) if in_file + count * UNIT_SIZE <= self.file_size else None

    def path_at(self, begin: int) -> str:
        """Return the path of the file whose first byte has this offset."""
        if begin != self.last_begin:
            self.last_begin, self.last_path = begin, self.prefix + file_name(begin)
        return self.last_path

    def units(self, queue_offset: int, count: int) -> list[Unit]:
        """Return up to *count* units of one file, whatever they hold."""
        return list(UNIT.iter_unpack(self.unit_bytes(queue_offset, count)))

    def unit(self, queue_offset: int) -> Unit | None:
        """Return one unit, None if there is no file for it."""
        units = self.units(queue_offset, 1)
        return units[0] if units else None

    def begins(self) -> list[int]:
        """Return the byte offsets at which the files begin, ascending."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return sorted(begin for name in names if (begin := parse_file_name(name)) is not None)

    # The end.

    def end(
        self,
        progress: int,
        agrees: Callable[[int, Unit], bool],
        goes_on: Callable[[int, int], int] = lambda end, progress: end,
    ) -> int:
        """Return the queue offset behind the last unit whose record ends at or before *progress*; 0 without one.

        *goes_on* takes the end found and the progress, and returns the queue's end according to other sources.
        """
        if progress == self.known_progress:
            return self.known_end
        self.looked_at = (0, b"")
        if progress > self.known_progress and self.known_last is not None:
            data = self.unit_bytes(self.known_end - 1, FORWARD_COUNT)
            units = list(UNIT.iter_unpack(data))
            if units and units[0] == self.known_last:
                self.looked_at = (self.known_end - 1, data)
                end, last = self.forward(self.known_end, units, progress, agrees)
            else:
                # The queue was truncated, and has grown again with other units.
                end, last = self.search_end(progress, agrees)
        else:
            end, last = self.search_end(progress, agrees)
        if last is not None and last is not self.known_last and not agrees(end - 1, last):
            end, last = self.search_end(progress, agrees)
        known_elsewhere = goes_on(end, progress)
        if known_elsewhere > end:
            end, last = known_elsewhere, self.unit(known_elsewhere - 1)
            self.looked_at = (0, b"")
        self.known_end, self.known_last, self.known_progress = end, last, progress
        return end

    def forward(
        self, end: int, units: list[Unit], progress: int, agrees: Callable[[int, Unit], bool]
    ) -> tuple[int, Unit | None]:
        """Advance from *end* while units count; *units* begin with the one before it. Return the end and the last
        unit."""
        last = units[0]
        for number in range(1, len(units)):
            if not counts(units[number], progress):
                if self.is_gap(end, units[number + 1 :], progress):
                    return self.search_end(progress, agrees)
                return end, last
            last = units[number]
            end += 1
        step = FORWARD_COUNT
        # Far behind: double the step each time, then bisect.
        while (further := self.unit(end + step)) is not None and counts(further, progress):
            end += step + 1
            last = further
            step *= 2
        low, high = end, end + step
        while low < high:
            middle = (low + high) // 2
            found = self.unit(middle)
            if found is not None and counts(found, progress):
                low, last = middle + 1, found
            else:
                high = middle
        if self.agreeing_behind(low, progress, agrees) is not None:
            return self.search_end(progress, agrees)
        return low, last

    def is_gap(self, queue_offset: int, following: list[Unit], progress: int) -> bool:
        """Tell whether units continue behind this place, whose own unit does not count; *following* were read with
        it."""
        for unit in following:
            if unit[1] > 0 and counts(unit, progress):
                return True
        if following:
            return False
        # It was the last unit read, in its file or at all.
        further = self.unit(queue_offset + 1)
        return further is not None and counts(further, progress)

    def agreeing_behind(self, queue_offset: int, progress: int, agrees: Callable[[int, Unit], bool]) -> int | None:
        """Return a place from this one on, nearby in the same file, whose unit counts and agrees; None if none does.

        Such a place proves that the queue does not end before it.
        """
        data = self.unit_bytes(queue_offset, LOOK_COUNT)
        # Zeros mostly. Comparing them is 50 times as fast as stripping them.
        if data != bytes(len(data)):
            for place, unit in enumerate(UNIT.iter_unpack(data), queue_offset):
                if counts(unit, progress) and agrees(place, unit):
                    return place
        return None

    def search_end(self, progress: int, agrees: Callable[[int, Unit], bool]) -> tuple[int, Unit | None]:
        """Find the end from the files: the newest one with a unit that counts, and in it by bisection.

        Behind the end RocketMQ may have left units, which point at other records or none. Bytes that never were a unit
        are kept as `garbage`. If a damaged unit leads the bisection astray, the units behind it reveal that.
        """
        self.files.forget(self.prefix)
        self.known_log_min = -1
        self.garbage = None
        self.looked_at = (0, b"")
        for begin in reversed(self.begins()):
            end, last = self.search_file(begin // UNIT_SIZE, progress, agrees)
            if last is not None:
                return end, last
        return 0, None

    def search_file(self, first: int, progress: int, agrees: Callable[[int, Unit], bool]) -> tuple[int, Unit | None]:
        """Return the end according to the units of one file, which begins with *first*, and the last unit before it."""
        limit = first + self.file_size // UNIT_SIZE
        found: int | None = first - 1
        low = first
        while found is not None:
            low, high = found + 1, limit
            while low < high:
                middle = (low + high) // 2
                unit = self.unit(middle)
                if unit is not None and (
                    unit[1] == PRE_BLANK_SIZE or (counts(unit, progress) and agrees(middle, unit))
                ):
                    low = middle + 1
                else:
                    high = middle
                    if unit is None or is_garbage(unit):
                        self.suspect(middle)
            found = self.agreeing_behind(low, progress, agrees) if low < limit else None
        while low > first and (unit := self.unit(low - 1)) is not None:
            if unit[1] != PRE_BLANK_SIZE:
                return low, unit
            low -= 1
        return 0, None

    def garbage_behind(self, end: int) -> tuple[int, str] | None:
        """Return place and description of bytes behind *end* that never were a unit, None if none are known.

        The place is read again: a starting builder zeroes the bytes behind the end.
        """
        if self.garbage is not None:
            place, _ = self.garbage
            self.garbage = None
            if place >= end:
                self.suspect(place)
        return self.garbage

    def suspect(self, queue_offset: int) -> None:
        """Look again at a place that held no unit; a builder may just have been writing there."""
        unit = self.unit(queue_offset)
        if unit is None:
            reason = self.cut_short(queue_offset)
            # A last file whose creation was interrupted is empty, and is created again.
            if reason is not None and self.unit_file_size(queue_offset):
                self.garbage = (queue_offset, reason)
        elif is_garbage(unit):
            self.garbage = (
                queue_offset,
                (f"no unit stands there: commit_log_offset={unit[0]} record_size={unit[1]} tags_code={unit[2]}"),
            )

    def cut_short(self, queue_offset: int) -> str | None:
        """Return a description of the fault if the file for this unit exists but has less than its full size."""
        size = self.unit_file_size(queue_offset)
        if size is None or size >= self.file_size:
            return None
        return f"the file was cut short: path={self.unit_file(queue_offset)} size={size} expected={self.file_size}"

    def unit_file(self, queue_offset: int) -> str:
        """Return the path of the file that has this unit."""
        at = queue_offset * UNIT_SIZE
        return self.prefix + file_name(at - at % self.file_size)

    def unit_file_size(self, queue_offset: int) -> int | None:
        """Return the size in bytes of the file for this unit; None if there is no such file."""
        try:
            return os.stat(self.unit_file(queue_offset)).st_size
        except FileNotFoundError:
            return None

    # The beginning.

    def min(self, commit_log_offset_min: int, end: int) -> int:
        """Return the queue offset of the first unit whose record is still in the log; *end* if none is."""
        if commit_log_offset_min != self.known_log_min:
            begins: list[int] = []
            real = None
            # The builder may remove files during the search, and a missing file looks like the end.
            while real is None and (found := self.begins()) and found != begins:
                begins = found
                real = self.search_min(commit_log_offset_min, begins[0] // UNIT_SIZE, end)
            self.known_min = end if real is None else real
            self.known_log_min = commit_log_offset_min
        return min(self.known_min, end)

    def search_min(self, commit_log_offset_min: int, first: int, end: int) -> int | None:
        """Find the first unit in [*first*, *end*) whose record is still in the log; None if there is none."""
        found: int | None = end
        low = first
        while found is not None:
            low, high = first, found
            while low < high:
                middle = (low + high) // 2
                real = self.first_real(middle, high)
                if real is None or self.points_behind(real, commit_log_offset_min):
                    high = middle
                else:
                    low = real + 1
            found = self.kept_before(low, first, commit_log_offset_min)
        # Pre-blank units lead to the first real one.
        return self.first_real(low, end)

    def kept_before(self, queue_offset: int, first: int, commit_log_offset_min: int) -> int | None:
        """Return a place shortly before this one whose unit's record is still in the log; None if there is none.

        Such a place proves that a damaged unit has led the bisection astray.
        """
        per_file = self.file_size // UNIT_SIZE
        begin = max(first, queue_offset - LOOK_COUNT, (queue_offset - 1) // per_file * per_file)
        for place, unit in enumerate(self.units(begin, queue_offset - begin), begin):
            if 0 < unit[1] < PRE_BLANK_SIZE and unit[0] >= commit_log_offset_min:
                return place
        return None

    def first_real(self, queue_offset: int, end: int) -> int | None:
        """Return the first queue offset below *end*, from *queue_offset* on, of a unit that is no pre-blank."""
        # Few queues have a pre-blank, and those have thousands.
        count = 1
        while queue_offset < end:
            units = self.units(queue_offset, min(count, end - queue_offset))
            if not units:
                if self.cut_short(queue_offset) is None:
                    return None
                # The next file has its units. A read of a unit that this one lacks raises the error that names it.
                queue_offset += 1
                queue_offset += -queue_offset % (self.file_size // UNIT_SIZE)
                continue
            for unit in units:
                if unit[1] != PRE_BLANK_SIZE:
                    return queue_offset
                queue_offset += 1
            count = BLANK_COUNT
        return None

    def points_behind(self, queue_offset: int, commit_log_offset_min: int) -> bool:
        """Tell whether the record of this unit is still in the log. Bytes that are no unit are not skipped as old."""
        unit = self.unit(queue_offset)
        return unit is not None and (unit[0] >= commit_log_offset_min or is_garbage(unit))


def counts(unit: Unit, progress: int) -> bool:
    """Whether a unit says of a record that the builder has come past it."""
    return unit[1] > 0 and unit[0] >= 0 and unit[0] + unit[1] <= progress


def is_garbage(unit: Unit) -> bool:
    """Whether no builder has ever written this unit. Unwritten bytes are zero."""
    if unit == NO_UNIT or unit[1] == PRE_BLANK_SIZE:
        return False
    return unit[0] < 0 or not 0 < unit[1] <= RECORD_SIZE_MAX


def holds_unit_of(record: Record, topic: str, queue_id: int, queue_offset: int) -> bool:
    """Tell whether *record* belongs to this queue at this queue offset, by itself or through multi-dispatch."""
    if (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, queue_offset):
        return True
    names = record.properties.get("INNER_MULTI_DISPATCH")
    if not names:
        return False
    text = f"{names}\x02{record.properties.get('INNER_MULTI_QUEUE_OFFSET', '')}"
    return (topic, queue_offset) in parse_multi_dispatch(text.encode())

"""ConsumeQueueFiles: the files of one (topic, queue id), as their one writer sees them; `consume_queue` draws them.

A file has its full size from its creation on, sparse, and unwritten bytes read as zero. Zeros behind the last unit are
part of the format: a reader takes all units below the builder's progress, so cutting a queue zeroes the cut units.

Source: RocketMQ store, ConsumeQueue.putMessagePositionInfo, fillPreBlank, truncateDirtyLogicFiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from struct import error as StructError

import msgspec

from reput.errors import DamagedStore
from reput.store.disk.file_name import file_name, parse_file_name
from reput.store.disk.file_runs import removal_order
from reput.store.disk.files import Files, WrittenFile
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE

__all__ = ["ConsumeQueueFiles", "QueueEnd", "queue_file_begins", "require_full_size"]

PRE_BLANK_UNIT = UNIT.pack(0, PRE_BLANK_SIZE, 0)


class QueueEnd(msgspec.Struct, frozen=True, array_like=True):
    """How far a queue reaches, as it is kept beside the view's cursor.

    Attributes:
        begin: logic offset of the first file's first byte, that is queue offset times 20.
        end: logic offset behind the last unit.
        last: commit-log offset in the last unit.
        max_physic_offset: commit-log offset behind the last record that has a unit.
    """

    begin: int
    end: int
    last: int
    max_physic_offset: int


class ConsumeQueueFiles:
    """`put` and `put_run` take in units, by RocketMQ's rules for units that exist already. `write` writes them with one
    call per file. Until then `forget` takes them back.

    Attributes:
        begin: logic offset of the first file's first byte.
        end: logic offset behind the last unit taken in; None: the queue has no file yet.
        last: commit-log offset in that unit.
        max_physic_offset: commit-log offset behind its record, -1 before the first.
        dirty: begins of the files that were written since they were last forced.
    """

    __slots__ = (
        "begin",
        "directory",
        "dirty",
        "end",
        "file",
        "file_begin",
        "file_size",
        "files",
        "last",
        "max_physic_offset",
        "pending",
        "written",
    )

    def __init__(self, directory: Path, file_size: int, files: Files, known: QueueEnd | None = None) -> None:
        """*known*: how far the files reach; None: the queue has none."""
        self.directory = directory
        self.file_size = file_size
        self.files = files
        self.file: WrittenFile | None = None
        self.file_begin = -1
        self.begin = known.begin if known else 0
        self.end: int | None = known.end if known else None
        self.last = known.last if known else -1
        self.max_physic_offset = known.max_physic_offset if known else -1
        self.pending: list[bytes] = []
        self.written = (self.end, self.last, self.max_physic_offset)
        self.dirty: set[int] = set()

    def known(self) -> QueueEnd | None:
        """Return how far the written units reach, None if there is none."""
        end, last, max_physic_offset = self.written
        return None if end is None else QueueEnd(self.begin, end, last, max_physic_offset)

    # Taking in.

    def put(self, commit_log_offset: int, record_size: int, tags_code: int, queue_offset: int) -> bool:
        """Take in the unit of one record; return False if the queue has it already.

        Pre-blank units replace lost queue offsets. RocketMQ continues without a gap, and from there on no unit is where
        its queue offset says.

        Source: RocketMQ store, ConsumeQueue.putMessagePositionInfo.
        """
        record_end = commit_log_offset + record_size
        if record_end <= self.max_physic_offset:
            return False
        position = queue_offset * UNIT_SIZE
        end = self.end
        if end is None:
            end = position - position % self.file_size
        elif position < end:
            return False
        if position > end:
            self.pending.append(PRE_BLANK_UNIT * ((position - end) // UNIT_SIZE))
        self.pending.append(UNIT.pack(commit_log_offset, record_size, tags_code))
        self.end = position + UNIT_SIZE
        self.last = commit_log_offset
        self.max_physic_offset = record_end
        return True

    def follows(self, commit_log_offset: int, record_size: int, queue_offset: int) -> bool:
        """Tell whether a record's unit directly follows the last one, so that a run may begin with it."""
        return self.end == queue_offset * UNIT_SIZE and commit_log_offset + record_size > self.max_physic_offset

    def put_run(self, units: bytes, last: int, max_physic_offset: int) -> None:
        """Take in units of consecutive queue offsets of which the first `follows`.

        *last* is the commit-log offset of the last one's record, *max_physic_offset* that record's end.
        """
        assert self.end is not None
        self.pending.append(units)
        self.end += len(units)
        self.last = last
        self.max_physic_offset = max_physic_offset

    def write(self) -> bool:
        """Write the units taken in; return whether this created a file.

        Raises:
            OSError: none of them counts; the written part lies behind the end, and the next write overwrites it.
        """
        end = self.end
        assert end is not None
        data = self.pending[0] if len(self.pending) == 1 else b"".join(self.pending)
        at = end - len(data)
        if self.written[0] is None:
            self.begin = at
        made = False
        while at < end:
            begin = at - at % self.file_size
            size = min(end, begin + self.file_size) - at
            if at == begin:
                self.make_file(begin, data[:size])
                made = True
            else:
                self.open(begin).write(data[:size], at - begin)
            self.dirty.add(begin)
            data = data[size:]
            at += size
        self.pending.clear()
        self.written = (end, self.last, self.max_physic_offset)
        return made

    def forget(self) -> None:
        """Take back what was not written."""
        self.pending.clear()
        self.end, self.last, self.max_physic_offset = self.written

    def make_file(self, begin: int, data: bytes) -> None:
        """Create the file that begins at *begin*, with *data* in it; replace one that a failed write has left."""
        self.files.make_directory(self.directory)
        path = self.directory / file_name(begin)
        if path.exists():
            self.remove(begin)
        self.files.create(path, self.file_size, data)

    # The files.

    def open(self, begin: int) -> WrittenFile:
        """Have the file that begins at *begin* open; one is open at a time."""
        if begin != self.file_begin or self.file is None:
            self.close()
            self.file = self.files.open(self.directory / file_name(begin))
            self.file_begin = begin
        return self.file

    def remove(self, begin: int) -> None:
        """Remove one file."""
        if begin == self.file_begin:
            self.close()
        self.dirty.discard(begin)
        self.files.remove(self.directory / file_name(begin))

    def close(self) -> None:
        """Close the open file; the next use opens it again."""
        if self.file is not None:
            self.file.close()
            self.file = None
            self.file_begin = -1

    # Reading.

    def unit_at(self, position: int) -> tuple[int, int, int]:
        """Return (commit_log_offset, record_size, tags_code) at this logic offset.

        Raises:
            DamagedStore: its file is gone, or was cut short.
        """
        begin = position - position % self.file_size
        try:
            commit_log_offset, record_size, tags_code = UNIT.unpack(self.open(begin).read(UNIT_SIZE, position - begin))
        except (FileNotFoundError, StructError):
            raise DamagedStore(
                f"consume queue lacks a file: directory={self.directory} logic_offset={position}"
            ) from None
        return commit_log_offset, record_size, tags_code

    def restore(self, known: QueueEnd) -> None:
        """Bring the files to *known*: remove those before and behind, and have zeros behind the last unit.

        Raises:
            DamagedStore: the files do not hold what *known* says.
        """
        begins = queue_file_begins(self.directory)
        wanted = range(known.begin, known.end, self.file_size)
        last = (known.last, known.max_physic_offset - known.last)
        if not set(begins).issuperset(wanted) or self.unit_at(known.end - UNIT_SIZE)[:2] != last:
            raise DamagedStore(
                f"consume queue does not match its cursor: directory={self.directory} end={known.end} last={known.last}"
            )
        require_full_size(self.directory, wanted, self.file_size)
        for begin in removal_order(begins, wanted):
            self.remove(begin)
        if self.open(wanted[-1]).zero_behind(known.end - wanted[-1]):
            self.dirty.add(wanted[-1])

    def end_below(self, commit_log_offset: int) -> QueueEnd | None:
        """Return how far the queue reaches without the units of records from *commit_log_offset* on; None: no unit.

        Pre-blank units before the cut stood in for a hole that is gone with it. Changes nothing.

        Source: RocketMQ store, ConsumeQueue.truncateDirtyLogicFiles.
        """
        known = self.known()
        if known is None or known.last < commit_log_offset:
            return known
        low, high = known.begin // UNIT_SIZE, known.end // UNIT_SIZE
        while low < high:
            middle = (low + high) // 2
            if self.points_below(middle, high, commit_log_offset):
                low = middle + 1
            else:
                high = middle
        for position in range((low - 1) * UNIT_SIZE, known.begin - 1, -UNIT_SIZE):
            offset, size, _ = self.unit_at(position)
            if size != PRE_BLANK_SIZE:
                return QueueEnd(known.begin, position + UNIT_SIZE, offset, offset + size)
        return None

    def points_below(self, queue_offset: int, limit: int, commit_log_offset: int) -> bool:
        """Tell whether the unit, or the first one behind it that is no pre-blank, is of a record below this offset."""
        for position in range(queue_offset * UNIT_SIZE, limit * UNIT_SIZE, UNIT_SIZE):
            offset, size, _ = self.unit_at(position)
            if size != PRE_BLANK_SIZE:
                return offset < commit_log_offset
        return False

    def expired_begin(self, commit_log_offset_min: int) -> int:
        """Return where the queue would begin without the files whose records all lie below this offset.

        The last file always stays.

        Source: RocketMQ store, MappedFileQueue.deleteExpiredFileByOffset.
        """
        assert self.end is not None
        begin = self.begin
        while begin + self.file_size < self.end and self.last_record_in(begin) < commit_log_offset_min:
            begin += self.file_size
        return begin

    def last_record_in(self, begin: int) -> int:
        """Return the commit-log offset in the last unit of a full file that is no pre-blank, -1 without such a unit."""
        for position in range(begin + self.file_size - UNIT_SIZE, begin - 1, -UNIT_SIZE):
            offset, size, _ = self.unit_at(position)
            if size != PRE_BLANK_SIZE:
                return offset
        return -1


def require_full_size(directory: Path, begins: Iterable[int], file_size: int) -> None:
    """Refuse files that lack bytes, or have more than they were made with: RocketMQ would not start on them.

    Raises:
        DamagedStore: one does.
    """
    for begin in begins:
        path = directory / file_name(begin)
        size = path.stat().st_size
        if size != file_size:
            raise DamagedStore(
                f"the file differs in size from the queue's other files: path={path} size={size} expected={file_size}"
            )


def queue_file_begins(directory: Path) -> list[int]:
    """Return the logic offsets at which the files of a queue begin, ascending."""
    return sorted(begin for path in directory.iterdir() if (begin := parse_file_name(path.name)) is not None)

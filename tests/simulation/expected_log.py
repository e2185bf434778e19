"""ExpectedLog: every record that was put, in log order, and the expected log and views.

It is a plain list with byte comparisons; it uses none of the store's own readers.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from struct import Struct

import msgspec

from reput.filter.string_hash import string_hash

__all__ = ["ExpectedLog", "ExpectedRecord", "ExtFiles", "Violation"]

UNIT = Struct(">qiq")
INDEX_HEADER = Struct(">qqqqii")
SLOT = Struct(">i")
ENTRY = Struct(">iqii")
EXT_UNIT = Struct(">hqqh")
# A queue's unit holds an ext unit's byte offset plus this number.
ADDRESS_BASE = -(1 << 63)
BLANK = Struct(">iI")
PRE_BLANK = (0, 2**31 - 1, 0)
BLANK_MAGIC = 0xCBD43194


class Violation(Exception):
    """The store broke a promise."""


class ExpectedRecord(msgspec.Struct):
    """One record as it was put; *data* are its bytes in the log at that time.

    Attributes:
        deleted: its topic was deleted later; no queue has it, and its queue offset is reused.
    """

    begin: int
    data: bytes
    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    store_timestamp: int
    keys: list[str]
    deleted: bool = False

    @property
    def end(self) -> int:
        return self.begin + len(self.data)


class ExpectedLog:
    """The expected content.

    Attributes:
        durable: commit-log offset below which nothing may ever be lost.
        offset_min: the log's beginning after older segments were removed.
    """

    def __init__(self, segment_size: int) -> None:
        self.segment_size = segment_size
        self.records: list[ExpectedRecord] = []
        self.durable = 0
        self.offset_min = 0

    @property
    def end(self) -> int:
        """Offset after the last record."""
        return self.records[-1].end if self.records else 0

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        for record in reversed(self.records):
            if record.topic == topic and record.queue_id == queue_id:
                return 0 if record.deleted else record.queue_offset + 1
        return 0

    def delete_topic(self, topic: str) -> bool:
        """Restart the queues of *topic*; return whether they had records.

        Wherever the log ends later, the deletion applies to the remaining records that were put before it.
        """
        found = [record for record in self.records if record.topic == topic and not record.deleted]
        for record in found:
            record.deleted = True
        return bool(found)

    def queues(self) -> dict[tuple[str, int], list[ExpectedRecord]]:
        """Return the records of each queue; their indexes in the list are their queue offsets."""
        queues: dict[tuple[str, int], list[ExpectedRecord]] = {}
        for record in self.records:
            if not record.deleted:
                queues.setdefault((record.topic, record.queue_id), []).append(record)
        return queues

    def lose_behind(self, end: int) -> int:
        """Drop the records lost in a power cut, and return their number."""
        before = len(self.records)
        self.records = [record for record in self.records if record.end <= end]
        return before - len(self.records)

    # Comparisons.

    def check_log(self, store: Path, end: int) -> None:
        """Compare the segments: the records, blanks between them, zeros after *end*."""
        segments = {int(path.name): path.read_bytes() for path in sorted((store / "commitlog").iterdir())}
        at = self.offset_min
        for record in self.records:
            if record.begin < self.offset_min:
                continue
            if record.begin != at:
                self.check_blank(segments, at, record.begin)
            segment = record.begin - record.begin % self.segment_size
            data = segments.get(segment, b"")[record.begin - segment : record.end - segment]
            if data != record.data:
                raise Violation(f"a record is not what was put: commit_log_offset={record.begin}")
            at = record.end
        if at != end:
            self.check_blank(segments, at, end)
        for begin, data in segments.items():
            if data[max(0, end - begin) :].strip(b"\0"):
                raise Violation(f"there are old bytes behind the log's end: segment={begin} end={end}")

    def check_blank(self, segments: dict[int, bytes], at: int, until: int) -> None:
        segment = at - at % self.segment_size
        left = segment + self.segment_size - at
        if segment + self.segment_size != until:
            raise Violation(f"the log has a gap: from={at} until={until}")
        if BLANK.unpack_from(segments[segment], at - segment) != (left, BLANK_MAGIC):
            raise Violation(f"a blank is missing: commit_log_offset={at}")

    def check_queues(self, folder: Path, ext: ExtFiles | None = None) -> None:
        """Compare the consume queues below *folder*, unit by unit, and the ext units to which they refer."""
        queues = self.queues()
        for path in folder.glob("*/*"):
            if path.is_dir() and (path.parent.name, int(path.name)) not in queues and any(path.iterdir()):
                raise Violation(f"a queue has units of no record: queue={path}")
        for (topic, queue_id), records in queues.items():
            files = sorted((folder / topic / str(queue_id)).glob("*"))
            data = b"".join(path.read_bytes() for path in files)
            first = int(files[0].name) // UNIT.size if files else 0
            live = [record.queue_offset for record in records if record.begin >= self.offset_min]
            if live and (not files or first > live[0]):
                raise Violation(f"a queue lacks its first units: topic={topic} queue_id={queue_id} first={first}")
            found = list(UNIT.iter_unpack(data))
            if ext is not None:
                found = [ext.resolve(topic, queue_id, unit) for unit in found]
            wanted = [unit_of(record, ext is not None) for record in records[first:]]
            # A queue that was rebuilt after a trim has no older records, and the ext units of older ones do not exist.
            for number, record in enumerate(records[first : first + len(found)]):
                if record.begin < self.offset_min and (
                    found[number] == PRE_BLANK or (ext is not None and found[number][:2] == wanted[number][:2])
                ):
                    wanted[number] = found[number]
            if files and (found[: len(wanted)] != wanted or any(map(any, found[len(wanted) :]))):
                raise Violation(
                    f"a queue is not what the log says: topic={topic} queue_id={queue_id} first={first} "
                    f"found={[unit for unit in found if any(unit)]} wanted={wanted}"
                )

    def check_index(self, folder: Path, slot_count: int) -> None:
        """Compare the index below *folder*, entry by entry and slot by slot."""
        found: list[tuple[int, int]] = []
        for path in sorted(folder.glob("*")):
            data = path.read_bytes()
            header = INDEX_HEADER.unpack_from(data)
            count = max(header[5], 1)
            entries_at = INDEX_HEADER.size + SLOT.size * slot_count
            newest = [0] * slot_count
            for number in range(1, count):
                key_hash, offset, _, previous = ENTRY.unpack_from(data, entries_at + ENTRY.size * number)
                slot = key_hash % slot_count
                if previous != newest[slot]:
                    raise Violation(f"an entry leads elsewhere: path={path.name} number={number} previous={previous}")
                newest[slot] = number
                found.append((key_hash, offset))
            slots = [slot for (slot,) in SLOT.iter_unpack(data[INDEX_HEADER.size : entries_at])]
            if slots != newest:
                raise Violation(f"slots lead elsewhere: path={path.name} slots={slots} newest={newest}")
            if data[entries_at + ENTRY.size * count :].strip(b"\0"):
                raise Violation(f"there are old entries behind the last: path={path.name} index_count={count}")
            if count > 1 and (header[2], header[3]) != (found[-count + 1][1], found[-1][1]):
                raise Violation(f"a header names other records: path={path.name} header={header}")
        wanted = [(hash_of(f"{record.topic}#{key}"), record.begin) for record in self.records for key in record.keys]
        live = sum(offset >= self.offset_min for _, offset in wanted)
        if len(found) < live or found != wanted[len(wanted) - len(found) :]:
            raise Violation(f"the index is not what the log says: found={found} wanted={wanted}")


def unit_of(record: ExpectedRecord, has_ext: bool) -> tuple[int, ...]:
    """Return the unit of a record, in the form of `ExtFiles.resolve` for units with an ext unit."""
    unit = (record.begin, len(record.data), record.tags_code)
    return (*unit, record.store_timestamp) if has_ext else unit


class ExtFiles:
    """The ext files below *folder*, and the ext units of a queue's units."""

    def __init__(self, folder: Path, file_size: int) -> None:
        self.folder = folder
        self.file_size = file_size

    def resolve(self, topic: str, queue_id: int, unit: tuple[int, int, int]) -> tuple[int, ...]:
        """Return a queue's unit with tags code and store time of its ext unit; one without an ext unit is unchanged."""
        offset = unit[2] - ADDRESS_BASE
        path = self.folder / topic / str(queue_id) / f"{offset - offset % self.file_size:020d}"
        if unit == PRE_BLANK or offset >= 1 << 62 or not path.exists():
            return unit
        size, tags_code, store_timestamp, _ = EXT_UNIT.unpack_from(path.read_bytes(), offset % self.file_size)
        return (*unit[:2], tags_code, store_timestamp) if size == EXT_UNIT.size else unit

    def check(self, queues: Collection[tuple[str, int]]) -> None:
        """Look for ext files of queues that do not exist."""
        for path in self.folder.glob("*/*"):
            if (path.parent.name, int(path.name)) not in queues:
                raise Violation(f"ext files belong to no queue: path={path}")


def hash_of(text: str) -> int:
    """Return the hash as stored in an index."""
    code = string_hash(text)
    return abs(code) if code != -(2**31) else 0

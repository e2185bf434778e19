"""ConsumeQueueBuilder: writes where each message of each queue lies in the commit log.

A file is a run of 20-byte units, big-endian, and is named by its first byte's offset in 20 digits. A unit's number in
its queue is the queue offset, so each unit has one place, and writing it again changes nothing.

    at  size  field              meaning
     0     8  commit_log_offset  bytes from the start of the log
     8     4  record_size        bytes
    12     8  tags_code          Java hashCode of the tag, 0 without one; negative below int: an ext address

Source: RocketMQ store, ConsumeQueue.putMessagePositionInfo and CQ_STORE_UNIT_SIZE.
"""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from reput.store.file_name import file_name, parse_file_name
from reput.store.record import INNER_BATCH_FLAG, TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE
from reput_hooks import DispatchBatch, RebuildNeeded

__all__ = ["UNIT", "UNIT_SIZE", "ConsumeQueueBuilder", "QueueEnds"]

Array = np.ndarray[Any, Any]
UNIT_SIZE = 20
UNIT = np.dtype([("commit_log_offset", ">i8"), ("record_size", ">i4"), ("tags_code", ">i8")])
assert UNIT.itemsize == UNIT_SIZE
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = np.array([(0, PRE_BLANK_SIZE, 0)], UNIT).tobytes()
OPEN_FILES_MAX = 256
LMQ_PREFIX = "%LMQ%"

# Topic → queue id → queue offset behind the last unit.
QueueEnds = dict[str, dict[int, int]]


class ConsumeQueueBuilder:
    """All queues of a store, written with `pwrite`, where a full disk is an error and not a fault."""

    def __init__(self, root: Path, file_size: int, ends: QueueEnds | None = None) -> None:
        """*root* is ``consumequeue/``; *ends* is what is known of the queues there, None: nothing yet."""
        self.root = root
        self.file_size = -(-file_size // UNIT_SIZE) * UNIT_SIZE
        self.ends: QueueEnds = ends if ends is not None else {}
        self.open_files: OrderedDict[Path, int] = OrderedDict()
        self.dirty: set[Path] = set()

    def dispatch(self, batch: DispatchBatch) -> None:
        """Write the units of *batch*: one sort, and one write per queue."""
        rows, queues, _ = batch.columns()
        if not len(rows):
            return
        sys_flag = rows["sys_flag"]
        transaction = sys_flag & TRANSACTION_ROLLBACK_TYPE
        wanted = (transaction != TRANSACTION_PREPARED_TYPE) & (transaction != TRANSACTION_ROLLBACK_TYPE)
        # Queues of type BatchCQ have units of another kind, which are left alone.
        wanted &= (sys_flag & INNER_BATCH_FLAG) == 0
        multi_dispatched = bool((rows["multi_dispatch_size"] >= 0).any())
        if not wanted.all():
            rows = rows[wanted]
        units = np.empty(len(rows), UNIT)
        units["commit_log_offset"] = rows["commit_log_offset"]
        units["record_size"] = rows["record_size"]
        units["tags_code"] = rows["tags_code"]
        queue_index, queue_offsets = rows["queue_index"], rows["queue_offset"]
        order = np.argsort(queue_index, kind="stable")
        queue_index = queue_index[order]
        bounds = [0, *(np.flatnonzero(np.diff(queue_index)) + 1).tolist(), len(rows)]
        for begin, end in pairwise(bounds):
            if begin < end:
                chosen = order[begin:end]
                topic, queue_id = queues[int(queue_index[begin])]
                self.put(topic, queue_id, queue_offsets[chosen], units[chosen])
        if multi_dispatched:
            for request in batch:
                unit = np.array([(request.commit_log_offset, request.record_size, request.tags_code)], UNIT)
                for name, queue_offset in request.multi_dispatch:
                    queue_id = 0 if name.startswith(LMQ_PREFIX) else request.queue_id
                    self.put(name, queue_id, np.array([queue_offset]), unit)

    def put(self, topic: str, queue_id: int, queue_offsets: Array, units: Array) -> None:
        """Write units of one queue, each at its own place."""
        first, count = int(queue_offsets[0]), len(queue_offsets)
        if count == 1 or (np.diff(queue_offsets) == 1).all():
            self.write(topic, queue_id, first, units.tobytes())
        else:
            for queue_offset, unit in zip(queue_offsets.tolist(), units, strict=True):
                self.write(topic, queue_id, queue_offset, unit.tobytes())
        ends = self.ends.setdefault(topic, {})
        end = int(queue_offsets[-1]) + 1
        if end > ends.get(queue_id, 0):
            ends[queue_id] = end

    def write(self, topic: str, queue_id: int, queue_offset: int, data: bytes) -> None:
        """Write whole units from *queue_offset* on, over as many files as that takes."""
        directory = self.root / topic / str(queue_id)
        at = queue_offset * UNIT_SIZE
        view = memoryview(data)
        while view:
            begin = at - at % self.file_size
            part = view[: begin + self.file_size - at]
            path = directory / file_name(begin)
            descriptor = self.file(path, at - begin)
            write_whole(descriptor, part, at - begin)
            self.dirty.add(path)
            view = view[len(part) :]
            at += len(part)

    def file(self, path: Path, first_write: int) -> int:
        """Return the descriptor of *path*, made if it is missing; few files are open at a time.

        Units before the first one of a queue that does not begin with 0 are written as RocketMQ's pre-blank units.
        """
        descriptor = self.open_files.get(path)
        if descriptor is not None:
            self.open_files.move_to_end(path)
            return descriptor
        fresh = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        first_of_queue = fresh and not any(path.parent.iterdir())
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(descriptor).st_size < self.file_size:
            os.ftruncate(descriptor, self.file_size)
        if first_of_queue and first_write:
            write_whole(descriptor, memoryview(PRE_BLANK * (first_write // UNIT_SIZE)), 0)
        self.open_files[path] = descriptor
        if len(self.open_files) > OPEN_FILES_MAX:
            oldest, oldest_descriptor = self.open_files.popitem(last=False)
            if oldest in self.dirty:
                os.fdatasync(oldest_descriptor)
                self.dirty.discard(oldest)
            os.close(oldest_descriptor)
        return descriptor

    def flush(self) -> None:
        """Force every unit that was written to disk."""
        for path in self.dirty:
            os.fdatasync(self.open_files[path])
        self.dirty.clear()

    def close(self) -> None:
        """Close the files."""
        for descriptor in self.open_files.values():
            os.close(descriptor)
        self.open_files.clear()

    # What is there already.

    def queues(self) -> Iterator[tuple[str, int, Path]]:
        """Yield (topic, queue id, directory) of every queue on disk."""
        if self.root.is_dir():
            for topic in sorted(self.root.iterdir()):
                if topic.is_dir():
                    for directory in sorted(topic.iterdir()):
                        if directory.name.isascii() and directory.name.isdigit() and directory.is_dir():
                            yield topic.name, int(directory.name), directory

    def cut_to_ends(self) -> None:
        """Zero every unit behind the known ends: it was written after them, by us or by a RocketMQ, and comes again.

        Raises:
            RebuildNeeded: a unit before an end is not there.
        """
        missing = {(topic, queue_id) for topic, queues in self.ends.items() for queue_id in queues}
        for topic, queue_id, directory in self.queues():
            end = self.ends.get(topic, {}).get(queue_id, 0)
            missing.discard((topic, queue_id))
            if end and not self.has_unit(directory, end - 1):
                raise RebuildNeeded(f"unit is missing: topic={topic} queue_id={queue_id} queue_offset={end - 1}")
            self.zero_from(directory, end)
        if missing:
            topic, queue_id = min(missing)
            raise RebuildNeeded(f"queue is missing: topic={topic} queue_id={queue_id}")

    def has_unit(self, directory: Path, queue_offset: int) -> bool:
        """Tell whether a unit of some size stands there."""
        unit = self.read_unit(directory, queue_offset)
        return unit is not None and int(unit["record_size"]) > 0

    def read_unit(self, directory: Path, queue_offset: int) -> Any:
        """Return one unit, None if its file is not there."""
        at = queue_offset * UNIT_SIZE
        begin = at - at % self.file_size
        try:
            descriptor = os.open(directory / file_name(begin), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            data = os.pread(descriptor, UNIT_SIZE, at - begin)
        finally:
            os.close(descriptor)
        return np.frombuffer(data, UNIT)[0] if len(data) == UNIT_SIZE else None

    def zero_from(self, directory: Path, end: int) -> None:
        """Zero whatever lies behind unit *end*; files that lie wholly behind it are removed."""
        at = end * UNIT_SIZE
        for path in sorted(directory.iterdir()):
            begin = parse_file_name(path.name)
            if begin is None or begin + self.file_size <= at:
                continue
            if begin >= at:
                self.forget(path)
                path.unlink()
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                zero_data(descriptor, at - begin)
            finally:
                os.close(descriptor)
            self.dirty.discard(path)

    def forget(self, path: Path) -> None:
        """Close *path*, if it is open, without forcing it."""
        descriptor = self.open_files.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)
        self.dirty.discard(path)

    def truncate(self, commit_log_offset: int) -> None:
        """Forget all units that point at or behind *commit_log_offset*."""
        for topic, queue_id, directory in self.queues():
            ends = self.ends.setdefault(topic, {})
            end = self.first_unit_from(directory, ends.get(queue_id, 0), commit_log_offset)
            ends[queue_id] = end
            self.zero_from(directory, end)

    def first_unit_from(self, directory: Path, end: int, commit_log_offset: int) -> int:
        """Return the queue offset of the first unit below *end* that points there or behind, *end* if none does."""
        begins = [begin for path in directory.iterdir() if (begin := parse_file_name(path.name)) is not None]
        low, high = min(begins, default=0) // UNIT_SIZE, end
        while low < high:
            middle = (low + high) // 2
            unit = self.read_unit(directory, middle)
            if unit is not None and int(unit["commit_log_offset"]) < commit_log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def expire(self, commit_log_offset_min: int) -> None:
        """Remove files of which every unit points below *commit_log_offset_min*; never the last of a queue.

        Source: RocketMQ store, MappedFileQueue.deleteExpiredFileByOffset.
        """
        for _, _, directory in self.queues():
            paths = sorted(path for path in directory.iterdir() if parse_file_name(path.name) is not None)
            for path in paths[:-1]:
                last = self.read_unit(directory, (int(path.name) + self.file_size) // UNIT_SIZE - 1)
                if last is None or int(last["commit_log_offset"]) >= commit_log_offset_min:
                    break
                self.forget(path)
                path.unlink()

    def delete_topic(self, topic: str) -> None:
        """Remove all queues of *topic*."""
        directory = self.root / topic
        for path in list(self.open_files):
            if path.is_relative_to(directory):
                self.forget(path)
        self.ends.pop(topic, None)
        if directory.is_dir():
            shutil.rmtree(directory)

    def adopt(self, log_end: int) -> int:
        """Take over the queues that a RocketMQ closed cleanly; return where the last unit's record ends, 0 without one.

        Source: RocketMQ store, ConsumeQueue.recover: data ends at the first unit of no size.
        """
        complete_to = 0
        for topic, queue_id, directory in self.queues():
            end, record_end = self.find_end(directory, log_end)
            self.ends.setdefault(topic, {})[queue_id] = end
            self.zero_from(directory, end)
            complete_to = max(complete_to, record_end)
        return complete_to

    def find_end(self, directory: Path, log_end: int) -> tuple[int, int]:
        """Return the queue offset behind the last unit whose record ends in the log, and where it ends."""
        paths = sorted(path for path in directory.iterdir() if parse_file_name(path.name) is not None)
        for path in reversed(paths):
            units = np.frombuffer(path.read_bytes(), UNIT, -1)
            sizes = units["record_size"]
            count = int(np.argmax(sizes <= 0)) if (sizes <= 0).any() else len(units)
            ends = units["commit_log_offset"][:count] + sizes[:count]
            real = np.flatnonzero((ends <= log_end) & (sizes[:count] != PRE_BLANK_SIZE))
            if len(real):
                last = int(real[-1])
                return int(path.name) // UNIT_SIZE + last + 1, int(ends[last])
        return (int(paths[0].name) // UNIT_SIZE if paths else 0), 0


def write_whole(descriptor: int, data: memoryview, at: int) -> None:
    """Write all of *data* at *at*; the system may take it in parts."""
    while data:
        written = os.pwrite(descriptor, data, at)
        data = data[written:]
        at += written


def zero_data(descriptor: int, at: int) -> None:
    """Zero everything from *at* on that is not zero yet, and force that to disk."""
    size = os.fstat(descriptor).st_size
    changed = False
    while at < size:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:
            break
        data = os.pread(descriptor, 1 << 20, at)
        if data.strip(b"\0"):
            write_whole(descriptor, memoryview(bytes(len(data))), at)
            changed = True
        at += len(data)
    if changed:
        os.fdatasync(descriptor)

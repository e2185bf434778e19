"""Checking the consume queues: every record's unit has one place, so each is looked up where it must be.

Records come in the order of the log and are kept until there are enough of them, so that one read serves many units of
a queue. At the end, what the files hold besides is looked at: units of records that the log has no more, pre-blank
units, and what lies behind the queue's end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from reput.store.check_consume_queue_ext import ConsumeQueueExtCheck
from reput.store.check_report import Findings, Ranges, ViewReport, points_into
from reput.store.consume_queue import PRE_BLANK_SIZE, UNIT_SIZE
from reput.store.consume_queue_builder import ConsumeQueueBuilder, further_queues, queue_directories
from reput.store.consume_queue_ext import ADDRESS_MAX
from reput.store.consume_queue_units import UNIT_DTYPE
from reput.store.file_name import parse_file_name
from reput.store.open_files import OpenFiles
from reput.store.record import INNER_BATCH_FLAG, TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE
from reput_hooks import DispatchColumns

__all__ = ["ConsumeQueueCheck"]

Array = np.ndarray[Any, Any]
# Records that are compared at once, and units that are read at once.
PENDING_MAX = 1 << 18
READ_MAX = 1 << 16
# Places that far apart are worth a read of their own.
RUN_GAP = 1 << 10
NO_QUEUE = -1

EXPECTED = np.dtype(
    [
        ("queue", np.int32),
        ("queue_offset", np.int64),
        ("commit_log_offset", np.int64),
        ("record_size", np.int32),
        ("tags_code", np.int64),
        ("store_timestamp", np.int64),
    ]
)


class Queue:
    """One queue: its files, and which of its places the log has records for.

    *gaps* are the ranges of places below *end* for which it has none.
    """

    __slots__ = ("directory", "end", "files", "gaps", "name", "queue_id")

    def __init__(self, name: str, queue_id: int, directory: Path) -> None:
        self.name = name
        self.queue_id = queue_id
        self.directory = directory
        self.end = 0
        self.gaps: Ranges = []
        self.files: list[tuple[int, int, Path]] = []
        if directory.is_dir():
            for path in sorted(directory.iterdir()):
                begin = parse_file_name(path.name)
                if begin is not None:
                    self.files.append((begin // UNIT_SIZE, path.stat().st_size // UNIT_SIZE, path))

    def __str__(self) -> str:
        return f"topic={self.name} queue_id={self.queue_id}"

    def cover(self, places: Array) -> None:
        """Take note that the log has records for these places, which ascend."""
        first = int(places[0])
        if first > self.end:
            self.gaps.append((self.end, first))
        for number in np.flatnonzero(np.diff(places) > 1).tolist():
            self.gaps.append((int(places[number]) + 1, int(places[number + 1])))
        self.end = max(self.end, int(places[-1]) + 1)

    def read(self, open_files: OpenFiles, begin: int, end: int) -> Array:
        """Return the units of places [begin, end); zeros where there is no file."""
        units = np.zeros(end - begin, UNIT_DTYPE)
        for first, count, path in self.files:
            low, high = max(begin, first), min(end, first + count)
            if low < high:
                data = open_files.read(path, (high - low) * UNIT_SIZE, (low - first) * UNIT_SIZE)
                units[low - begin : low - begin + len(data) // UNIT_SIZE] = np.frombuffer(data, UNIT_DTYPE)
        return units

    def used_places(self, begin: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of places from *begin* on that the file system does not know to be zero."""
        for first, count, path in self.files:
            at = max(begin - first, 0) * UNIT_SIZE
            with path.open("rb") as file:
                while at < count * UNIT_SIZE:
                    try:
                        data = os.lseek(file.fileno(), at, os.SEEK_DATA)
                        hole = os.lseek(file.fileno(), data, os.SEEK_HOLE)
                    except OSError:
                        # ENXIO: nothing but a hole up to the end.
                        break
                    low, high = max(data // UNIT_SIZE, at // UNIT_SIZE), min(-(-hole // UNIT_SIZE), count)
                    yield first + low, first + high
                    at = high * UNIT_SIZE


class ConsumeQueueCheck:
    """Compares the queues below ``consumequeue/`` with the log, and has their ext units compared."""

    def __init__(
        self, store_directory: Path, ext: ConsumeQueueExtCheck, log_begin: int, damage: Ranges, *, live: bool
    ) -> None:
        self.root = store_directory / "consumequeue"
        self.ext = ext
        self.log_begin = log_begin
        self.damage = damage
        self.findings = Findings(live=live)
        self.open_files = OpenFiles()
        self.queues: list[Queue] = []
        self.numbers: dict[tuple[str, int], int] = {}
        for topic, queue_id, directory in queue_directories(self.root):
            self.add((topic, queue_id), directory)
        self.absent = not any(queue.files for queue in self.queues)
        self.pending: list[Array] = []
        self.pending_count = 0
        # Topics with queues of another kind, whose records have no unit here.
        self.left_alone: set[str] = set()

    def add(self, name: tuple[str, int], directory: Path) -> int:
        """Make the queue known and return its number."""
        number = self.numbers[name] = len(self.queues)
        self.queues.append(Queue(*name, directory))
        return number

    def number(self, topic: str, queue_id: int) -> int:
        """Return the number of a queue, `NO_QUEUE` if its topic can have no directory."""
        found = self.numbers.get((topic, queue_id))
        if found is not None:
            return found
        if ConsumeQueueBuilder.refusal(topic) is not None:
            return NO_QUEUE
        return self.add((topic, queue_id), self.root / topic / str(queue_id))

    def take(self, rows: Array, columns: DispatchColumns) -> None:
        """Take in records, in log order; *rows* are those of *columns*."""
        if self.absent:
            return
        numbers = np.array([self.number(topic, queue_id) for topic, queue_id in columns.queues], np.int32)
        transaction = rows["sys_flag"] & TRANSACTION_ROLLBACK_TYPE
        wanted = (transaction != TRANSACTION_PREPARED_TYPE) & (transaction != TRANSACTION_ROLLBACK_TYPE)
        batches = (rows["sys_flag"] & INNER_BATCH_FLAG) != 0
        if batches.any():
            self.left_alone |= {columns.queues[index][0] for index in set(rows["queue_index"][batches].tolist())}
            wanted &= ~batches
        queue_numbers = numbers[rows["queue_index"]]
        wanted &= queue_numbers != NO_QUEUE
        expected = np.empty(int(wanted.sum()), EXPECTED)
        expected["queue"] = queue_numbers[wanted]
        for field in ("queue_offset", "commit_log_offset", "record_size", "tags_code", "store_timestamp"):
            expected[field] = rows[field][wanted]
        if (rows["multi_dispatch_size"] >= 0).any():
            expected = np.concatenate((expected, self.multi_dispatched(rows, columns)))
            expected = expected[np.argsort(expected["commit_log_offset"], kind="stable")]
        self.pending.append(expected)
        self.pending_count += len(expected)
        if self.pending_count >= PENDING_MAX:
            self.compare_pending()

    def multi_dispatched(self, rows: Array, columns: DispatchColumns) -> Array:
        """Return what is expected of the further queues that records are dispatched to."""
        expected = []
        begins = np.cumsum(rows["texts_size"]) - rows["texts_size"]
        for number in np.flatnonzero(rows["multi_dispatch_size"] >= 0).tolist():
            row = rows[number]
            at = int(begins[number]) + max(int(row["uniq_key_size"]), 0) + max(int(row["keys_size"]), 0)
            text = columns.texts[at : at + int(row["multi_dispatch_size"])]
            of_record = (row["commit_log_offset"], row["record_size"], row["tags_code"], row["store_timestamp"])
            for queue, queue_offset in further_queues(columns.queues[int(row["queue_index"])], text):
                if (queue_number := self.number(*queue)) >= 0:
                    expected.append((queue_number, queue_offset, *of_record))
        return np.array(expected, EXPECTED)

    def compare_pending(self) -> None:
        """Compare what was taken in so far."""
        if not self.pending:
            return
        expected = np.concatenate(self.pending)
        self.pending, self.pending_count = [], 0
        units = np.zeros(len(expected), UNIT_DTYPE)
        order = np.lexsort((expected["queue_offset"], expected["queue"]))
        bounds = np.flatnonzero(np.diff(expected["queue"][order])) + 1
        for begin, end in pairwise([0, *bounds.tolist(), len(order)]):
            if begin < end:
                chosen = order[begin:end]
                queue = self.queues[int(expected["queue"][chosen[0]])]
                places = expected["queue_offset"][chosen]
                queue.cover(places)
                for low, high in self.runs(places):
                    first = int(places[low])
                    run = queue.read(self.open_files, first, int(places[high - 1]) + 1)
                    units[chosen[low:high]] = run[places[low:high] - first]
        self.compare(expected, units)

    @staticmethod
    def runs(places: Array) -> Iterator[tuple[int, int]]:
        """Split ascending places where they are far apart, and where they are many."""
        bounds = [0, *(np.flatnonzero(np.diff(places) > RUN_GAP) + 1).tolist(), len(places)]
        for begin, end in pairwise(bounds):
            for low in range(begin, end, READ_MAX):
                yield low, min(low + READ_MAX, end)

    def compare(self, expected: Array, units: Array) -> None:
        """Compare units with the records that should have them, in log order."""
        offsets, sizes, codes = (units[name].astype(np.int64) for name in UNIT_DTYPE.names or ())
        present = sizes > 0
        points_there = (offsets == expected["commit_log_offset"]) & (sizes == expected["record_size"])
        with_ext = points_there & (codes <= ADDRESS_MAX) & (codes != expected["tags_code"])
        same_code = (codes == expected["tags_code"]) | with_ext

        def unit_of(number: int) -> str:
            row = expected[number]
            return f"{self.queues[int(row['queue'])]} queue_offset={row['queue_offset']}"

        def missing(number: int) -> str:
            return f"unit is missing: {unit_of(number)} commit_log_offset={expected['commit_log_offset'][number]}"

        def elsewhere(number: int) -> str:
            row = expected[number]
            return (
                f"unit points elsewhere: {unit_of(number)} unit={offsets[number]}+{sizes[number]} "
                f"record={row['commit_log_offset']}+{row['record_size']}"
            )

        def other_code(number: int) -> str:
            return (
                f"unit has another tags code: {unit_of(number)} unit={codes[number]} "
                f"record={expected['tags_code'][number]} commit_log_offset={offsets[number]}"
            )

        self.findings.take(expected["commit_log_offset"], present, missing)
        self.findings.differ_at(np.flatnonzero(present & ~points_there).tolist(), elsewhere)
        self.findings.differ_at(np.flatnonzero(points_there & ~same_code).tolist(), other_code)
        for number in np.flatnonzero(with_ext).tolist():
            row = expected[number]
            queue = self.queues[int(row["queue"])]
            if self.ext.absent:
                self.findings.unverified_count += 1
            else:
                self.ext.take(
                    queue.name,
                    queue.queue_id,
                    int(row["queue_offset"]),
                    int(codes[number]),
                    int(row["tags_code"]),
                    int(row["store_timestamp"]),
                    int(row["commit_log_offset"]),
                )

    def finish(self, log_end: int) -> ViewReport:
        """Look at what the files hold besides, and return the report."""
        if self.absent:
            return ViewReport("absent")
        self.compare_pending()
        for queue in self.queues:
            for begin, end in queue.gaps:
                self.judge_gap(queue, begin, end)
            if not self.findings.live:
                self.judge_behind(queue, log_end)
        self.open_files.close()
        return self.findings.report(log_end)

    def judge_gap(self, queue: Queue, begin: int, end: int) -> None:
        """Judge units for whose places the log has no record, though it has one for a later place."""
        for first, count, _ in queue.files:
            for low in range(max(begin, first), min(end, first + count), READ_MAX):
                high = min(low + READ_MAX, end, first + count)
                units = queue.read(self.open_files, low, high)
                offsets, sizes = units["commit_log_offset"].astype(np.int64), units["record_size"]
                expired = (sizes == PRE_BLANK_SIZE) | ((sizes > 0) & (offsets < self.log_begin))
                in_damage = points_into(offsets, self.damage) & ~expired & (sizes > 0)
                self.findings.expired_count += int(expired.sum())
                self.findings.unverified_count += int(in_damage.sum())

                def describe(number: int, low: int = low, offsets: Array = offsets, sizes: Array = sizes) -> str:
                    where = f"{queue} queue_offset={low + number}"
                    if sizes[number] <= 0:
                        return f"unit is zero before the queue's end, where RocketMQ would stop reading: {where}"
                    return f"unit has no record in the log: {where} unit={offsets[number]}+{sizes[number]}"

                self.findings.differ_at(np.flatnonzero(~expired & ~in_damage).tolist(), describe)

    def judge_behind(self, queue: Queue, log_end: int) -> None:
        """Judge units behind the last place that the log has a record for."""
        end = queue.end
        # Of a queue without records in the log, units of older records come first, and then nothing is expected.
        expects_older = end == 0
        for begin, until in queue.used_places(end):
            for low in range(begin, until, READ_MAX):
                units = queue.read(self.open_files, low, min(low + READ_MAX, until))
                offsets, sizes = units["commit_log_offset"].astype(np.int64), units["record_size"]
                used = np.flatnonzero(sizes > 0)
                if expects_older:
                    older = (sizes[used] == PRE_BLANK_SIZE) | (offsets[used] < self.log_begin)
                    self.findings.expired_count += int(older.sum())
                    used = used[~older]
                    inside = points_into(offsets[used], self.damage)
                    self.findings.unverified_count += int(inside.sum())
                    used = used[~inside]
                    strange = used[offsets[used] < log_end]

                    def describe(number: int, low: int = low, offsets: Array = offsets, sizes: Array = sizes) -> str:
                        return (
                            f"unit has no record in the log: {queue} queue_offset={low + number} "
                            f"unit={offsets[number]}+{sizes[number]}"
                        )

                    self.findings.differ_at(strange.tolist(), describe)
                    used = used[offsets[used] >= log_end]
                else:
                    inside = points_into(offsets[used], self.damage)
                    self.findings.unverified_count += int(inside.sum())
                    used = used[~inside]
                self.findings.stale_count += len(used)

"""Checking the consume queues: every record's unit has one place, so each is looked up where it must be.

Records come in the order of the log and are kept until there are enough of them, so that one read serves many units of
a queue. The rest of the files comes last: units of records that the log has lost, pre-blank units, and
bytes behind the queue's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.store.check.check_consume_queue_ext import ConsumeQueueExtCheck
from reput.store.check.expected_records import ExpectedRecords
from reput.store.disk.open_files import OpenFiles
from reput.store.ext.consume_queue_ext import ADDRESS_MAX
from reput.store.log.segments import Segments
from reput.store.queue.batch_topics import BatchTopics
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, holds_unit_of
from reput.store.queue.consume_queue_builder import ConsumeQueueBuilder, queue_directories
from reput.store.queue.consume_queue_units import UNIT_DTYPE
from reput.store.queue.queue_file_units import READ_MAX, QueueFileUnits
from reput.store.record.layout import INNER_BATCH_FLAG, TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE
from reput.store.record.multi_dispatch import further_queues, has_further_queues
from reput.store.record.record import decode_record
from reput.store.recovery.check_report import Findings, Ranges, ViewReport, points_into
from reput_hooks import DispatchColumns
from reput_hooks.dispatch import parse_multi_dispatch

__all__ = ["ConsumeQueueCheck"]

Array = np.ndarray[Any, Any]
# Records that are compared at once.
PENDING_MAX = 1 << 18
# Places that far apart are worth a read of their own.
RUN_GAP = 1 << 10
NO_QUEUE = -1
NO_RECORD = "unit has no record in the log"

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

    __slots__ = ("end", "gaps", "queue_id", "topic", "units")

    def __init__(self, topic: str, queue_id: int, units: QueueFileUnits) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.units = units
        self.end = 0
        self.gaps: Ranges = []

    def __str__(self) -> str:
        return f"topic={self.topic} queue_id={self.queue_id}"

    def cover(self, places: Array) -> None:
        """Take note that the log has records for these places, which ascend."""
        self.cover_run(int(places[0]), int(places[-1]))
        for number in np.flatnonzero(np.diff(places) > 1).tolist():
            self.gaps.append((int(places[number]) + 1, int(places[number + 1])))

    def cover_run(self, first: int, last: int) -> None:
        """Take note that the log has records for all places from *first* to *last*."""
        if first > self.end:
            self.gaps.append((self.end, first))
        self.end = max(self.end, last + 1)


class ConsumeQueueCheck:
    """Compares the queues below ``consumequeue/`` with the log, and has their ext units compared."""

    def __init__(
        self,
        store_directory: Path,
        ext: ConsumeQueueExtCheck,
        expected_records: ExpectedRecords,
        damage: Ranges,
    ) -> None:
        """*expected_records*: the offset below which a queue needs no unit; old units may be left there."""
        self.expected_records = expected_records
        self.root = store_directory / "consumequeue"
        self.batch_topics = BatchTopics(store_directory)
        # Topic → whether it has queues of another kind, as it was when its first record was met.
        self.is_batch_topic: dict[str, bool] = {}
        self.log_directory = store_directory / "commitlog"
        self.segments: Segments | None = None
        self.ext = ext
        self.damage = damage
        self.findings = Findings(live=expected_records.live)
        self.open_files = OpenFiles()
        self.queues: list[Queue] = []
        self.numbers: dict[tuple[str, int], int] = {}
        for topic, queue_id, directory in queue_directories(self.root):
            self.add((topic, queue_id), directory)
        self.absent = not any(queue.units.files for queue in self.queues)
        self.pending: list[Array] = []
        self.pending_count = 0
        # Topics with queues of another kind, whose records have no unit here.
        self.left_alone: set[str] = set()
        # Further queues that are named by records which wait or are retried.
        self.named_early: set[str] = set()

    def add(self, name: tuple[str, int], directory: Path) -> int:
        """Make the queue known and return its number."""
        number = self.numbers[name] = len(self.queues)
        self.queues.append(Queue(*name, QueueFileUnits(directory, self.open_files)))
        return number

    def number(self, topic: str, queue_id: int) -> int:
        """Return the number of a queue, `NO_QUEUE` if its topic can have no directory."""
        found = self.numbers.get((topic, queue_id))
        if found is not None:
            return found
        if ConsumeQueueBuilder.refusal(topic) is not None:
            return NO_QUEUE
        return self.add((topic, queue_id), self.root / topic / str(queue_id))

    def is_left_alone(self, topic: str) -> bool:
        """Tell whether RocketMQ 5 keeps the units of *topic* in queues of another kind."""
        known = self.is_batch_topic.get(topic)
        if known is None:
            known = ConsumeQueueBuilder.refusal(topic) is None and self.batch_topics.has(topic)
            self.is_batch_topic[topic] = known
        return known

    def take(self, rows: Array, columns: DispatchColumns) -> None:
        """Take in records, in log order; *rows* are those of *columns*."""
        if self.absent:
            return
        expected = self.expected_units(rows, columns)
        self.pending.append(expected)
        self.pending_count += len(expected)
        if self.pending_count >= PENDING_MAX:
            self.compare_pending()

    def take_proved(self, rows: Array, columns: DispatchColumns) -> None:
        """Take in records whose units are there, in log order; *rows* has at least each queue's first and last one."""
        if self.absent:
            return
        self.compare_pending()
        expected = self.expected_units(rows, columns)
        for queue_number in np.unique(expected["queue"]).tolist():
            places = expected["queue_offset"][expected["queue"] == queue_number]
            self.queues[queue_number].cover_run(int(places[0]), int(places[-1]))
        self.findings.take(expected["commit_log_offset"][-1:], np.ones(min(len(expected), 1), bool), str)

    def expected_units(self, rows: Array, columns: DispatchColumns) -> Array:
        """Return the units that these records must have."""
        numbers = np.array([self.number(topic, queue_id) for topic, queue_id in columns.queues], np.int32)
        transaction = rows["sys_flag"] & TRANSACTION_ROLLBACK_TYPE
        wanted = (transaction != TRANSACTION_PREPARED_TYPE) & (transaction != TRANSACTION_ROLLBACK_TYPE)
        batches = (rows["sys_flag"] & INNER_BATCH_FLAG) != 0
        batches |= np.array([self.is_left_alone(topic) for topic, _ in columns.queues], bool)[rows["queue_index"]]
        if batches.any():
            self.left_alone |= {columns.queues[index][0] for index in set(rows["queue_index"][batches].tolist())}
            wanted &= ~batches
        in_queues = wanted.copy()
        begins = self.expected_records.queue_begins(columns.queues)
        wanted &= rows["commit_log_offset"] >= begins[rows["queue_index"]]
        queue_numbers = numbers[rows["queue_index"]]
        wanted &= queue_numbers != NO_QUEUE
        expected = np.empty(int(wanted.sum()), EXPECTED)
        expected["queue"] = queue_numbers[wanted]
        for field in ("queue_offset", "commit_log_offset", "record_size", "tags_code", "store_timestamp"):
            expected[field] = rows[field][wanted]
        further = np.flatnonzero(in_queues & (rows["multi_dispatch_size"] >= 0)).tolist()
        if further:
            expected = np.concatenate((expected, self.multi_dispatched(further, rows, columns)))
            expected = expected[np.argsort(expected["commit_log_offset"], kind="stable")]
        return expected

    def multi_dispatched(self, further: list[int], rows: Array, columns: DispatchColumns) -> Array:
        """Return the units expected in the further queues to which the records with these numbers are dispatched."""
        expected = []
        begins = np.cumsum(rows["texts_size"]) - rows["texts_size"]
        for number in further:
            row = rows[number]
            at = int(begins[number]) + max(int(row["uniq_key_size"]), 0) + max(int(row["keys_size"]), 0)
            text = columns.texts[at : at + int(row["multi_dispatch_size"])]
            own = columns.queues[int(row["queue_index"])]
            if not has_further_queues(own[0]):
                self.named_early.update(name for name, _ in parse_multi_dispatch(text))
                continue
            of_record = (row["commit_log_offset"], row["record_size"], row["tags_code"], row["store_timestamp"])
            for queue, queue_offset in further_queues(own, text):
                if self.expected_records.floor(*queue) > row["commit_log_offset"]:
                    continue
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
                    run = queue.units.read(first, int(places[high - 1]) + 1)
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
        if not points_there.all():
            # The record may be gone by now, or the view has not reached the deletion yet.
            self.expected_records.refresh()
            begins = self.expected_records.queue_begins((queue.topic, queue.queue_id) for queue in self.queues)[
                expected["queue"]
            ]
            kept = expected["commit_log_offset"] >= np.maximum(begins, self.expected_records.begin)
            if not kept.all():
                self.compare(expected[kept], units[kept])
                return
            present &= points_there | (offsets >= begins)
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
                    queue.topic,
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
        for low, high in queue.units.existing(begin, end):
            units = queue.units.read(low, high)
            if not queue.units.has(low):
                # Retention, or the deletion of the topic, has taken the file.
                continue
            self.expected_records.refresh()
            used = units["record_size"] > 0
            # A view that retention has overtaken ends in the middle of a file: it is behind, and has no wrong unit.
            inside = ~used & (np.arange(low, high) < queue.units.used_end(low))
            self.differ_at(
                queue, low, units, inside, "unit is zero before the queue's end, where RocketMQ would stop reading"
            )
            self.differ_at(queue, low, units, self.without_explanation(queue, low, units, used), NO_RECORD)

    def judge_behind(self, queue: Queue, log_end: int) -> None:
        """Judge units behind the last place that the log has a record for."""
        for low, high in queue.units.used(queue.end):
            units = queue.units.read(low, high)
            strange = self.without_explanation(queue, low, units, units["record_size"] > 0)
            if queue.end == 0:
                # The log has no record of this queue, so only older records can have come before.
                inside = strange & (units["commit_log_offset"] < log_end)
                self.differ_at(queue, low, units, inside, NO_RECORD)
                strange &= ~inside
            self.findings.stale_count += int(strange.sum())

    def without_explanation(self, queue: Queue, first: int, units: Array, used: Array) -> Array:
        """Return which *used* units have no reason to be there, and count those that stand for records that are gone or
        point into damage. The units begin at place *first*."""
        offsets = units["commit_log_offset"].astype(np.int64)
        begin = self.expected_records.floor(queue.topic, queue.queue_id)
        expired = used & ((units["record_size"] == PRE_BLANK_SIZE) | (offsets < begin))
        inside = used & ~expired & points_into(offsets, self.damage)
        self.findings.expired_count += int(expired.sum())
        self.findings.unverified_count += int(inside.sum())
        rest: Array = used & ~expired & ~inside
        if queue.topic in self.named_early:
            for number in np.flatnonzero(rest).tolist():
                rest[number] = not self.log_says_so(queue, first + number, units[number])
        return rest

    def log_says_so(self, queue: Queue, queue_offset: int, unit: Any) -> bool:
        """Tell whether the unit's record names this place of a further queue, though it waits or is retried.

        RocketMQ 4 dispatches such records to their further queues, RocketMQ 5 and reput only when they are delivered.
        """
        if self.segments is None:
            self.segments = Segments(self.log_directory)
        try:
            data = self.segments.read(int(unit["commit_log_offset"]), int(unit["record_size"]))
            return holds_unit_of(decode_record(data), queue.topic, queue.queue_id, queue_offset)
        except (DamagedStore, OffsetOutOfRange):
            return False

    def differ_at(self, queue: Queue, first: int, units: Array, chosen: Array, text: str) -> None:
        """Note a difference for each of the *chosen* units, which begin at place *first*."""
        self.findings.differ_at(
            np.flatnonzero(chosen).tolist(),
            lambda number: (
                f"{text}: {queue} queue_offset={first + number} "
                f"unit={units['commit_log_offset'][number]}+{units['record_size'][number]}"
            ),
        )

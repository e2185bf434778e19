"""verify_range: one range of a log, verified and compared with every view, in any process of many.

    ranges ──▶ verify_range, anywhere ──▶ extents with few records ──▶ VerifiedWalk, StoreCheck: in one process

What a range proves is that nothing of it differs, so a few of its records are enough for what spans ranges: where each
queue begins and ends, the last store times, and how far the index has come. A range with anything else proves nothing,
and the process that judges the whole log reads it by itself. So its report is that of a check without such ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from reput.errors import OffsetOutOfRange
from reput.store.check.check_consume_queue import ConsumeQueueCheck
from reput.store.check.check_consume_queue_ext import ConsumeQueueExtCheck
from reput.store.check.check_index import IndexCheck
from reput.store.check.expected_records import ExpectedRecords
from reput.store.index.index_sizes import IndexSizes
from reput.store.log.log_scan import ROW_DTYPE, LogScan
from reput.store.log.segments import Segments
from reput.store.queue.consume_queue_builder import LEFT_OUT
from reput.store.record.layout import INNER_BATCH_FLAG
from reput.store.record.record_columns import RecordColumns
from reput.store.recovery.check_fields import TIMESTAMP_MAX, FieldsCheck
from reput.store.recovery.check_report import Findings
from reput.store.recovery.log_walk import Extent, LogWalk, ProvedRecords
from reput.store.recovery.recreated_queues import RecreatedQueue
from reput.store.state.recorded_settings import read_delay_history

__all__ = ["RangePlan", "verify_range"]

Array = np.ndarray[Any, Any]


class RangePlan(msgspec.Struct, frozen=True):
    """What the processes that verify ranges need to know of the check.

    Attributes:
        recreated, live, unclean: as of `StoreCheck`.
        demand_crc: as of `LogWalk`.
    """

    store: str
    message_delay_level: str
    index_sizes: IndexSizes
    recreated: Sequence[RecreatedQueue]
    live: bool
    unclean: bool
    demand_crc: bool


def verify_range(plan: RangePlan, begin: int, until: int) -> Iterator[Extent]:
    """Verify the records that begin in [begin, until), each as a whole, and yield what they prove, up to the first
    invalid one.

    *begin* is where a record or a blank begins. Reads only, and needs only the store's files. The extents have no
    bodies, and can be pickled.
    """
    walk = LogWalk(Segments(Path(plan.store) / "commitlog"))
    views = ComparedViews(plan)
    at = begin
    try:
        while at < until:
            try:
                found = walk.readable_extent(at, until)
            except OffsetOutOfRange:
                # Retention took it. The walk finds out what that means.
                return
            if isinstance(found, str):
                return
            at = found.end
            if found.columns is None:
                yield found
            elif (extent := views.compared(found.columns, found.begin, found.end)) is not None:
                yield extent
    finally:
        walk.close()


class ComparedViews:
    """The views of a store, compared with one range after the other."""

    def __init__(self, plan: RangePlan) -> None:
        store = Path(plan.store)
        self.plan = plan
        self.scan = LogScan(store, delay_history=read_delay_history(store, plan.message_delay_level))
        self.expected_records = ExpectedRecords(store, plan.recreated, live=plan.live)
        ext = ConsumeQueueExtCheck(store, self.expected_records)
        self.consume_queue = ConsumeQueueCheck(store, ext, self.expected_records, [])
        self.index = IndexCheck(store, plan.index_sizes, self.expected_records, [], unclean=plan.unclean)

    def compared(self, columns: RecordColumns, begin: int, end: int) -> Extent | None:
        """Return what the records of [begin, end) prove, None if anything about them is not as in most logs."""
        telling = telling_records(columns)
        if telling is None or (self.plan.demand_crc and columns.without_crc().any()):
            return None
        fields = FieldsCheck(begin, 0)
        fields.take_texts(columns)
        fields.take_ports(columns)
        requests = self.scan.requests(columns)
        rows = np.frombuffer(requests.rows, ROW_DTYPE)
        if fields.damage or (rows["multi_dispatch_size"] >= 0).any() or self.are_deleted_in_part(rows, requests.queues):
            return None
        self.consume_queue.findings = Findings(live=self.plan.live)
        self.consume_queue.take(rows, requests)
        self.consume_queue.compare_pending()
        index_begin = self.index.seek(begin)
        self.index.findings = Findings(live=self.plan.live)
        self.index.take(rows, requests, end)
        equal = self.consume_queue.findings.are_none and self.index.findings.are_none
        if not equal or self.consume_queue.left_alone or self.index.ahead:
            return None
        index = self.index
        proved = ProvedRecords(len(columns), index_begin, index.place, index.last_offset, index.with_tags)
        return Extent("records", begin, end, columns=columns.chosen(telling).without_bodies(), proved=proved)

    def are_deleted_in_part(self, rows: Array, queues: Sequence[tuple[str, int]]) -> bool:
        """Tell whether a queue was deleted between two of its records."""
        deleted = rows["commit_log_offset"] < self.expected_records.queue_begins(queues)[rows["queue_index"]]
        counts = np.bincount(rows["queue_index"], minlength=len(queues))
        deleted_counts = np.bincount(rows["queue_index"][deleted], minlength=len(queues))
        return bool(((deleted_counts > 0) & (deleted_counts < counts)).any())


def telling_records(columns: RecordColumns) -> Array | None:
    """Return a flag per record: true for those that tell about all of them; None if the records are out of sequence.

    Those are the first two and the last two of all, which have the times next to other ranges, and of each queue the
    first two and the last. Between these, queue offsets follow each other, and no time is before the one before it.
    """
    times = columns.store_timestamp.astype(np.int64)
    sys_flag = columns.header["sys_flag"].astype(np.int64)
    if (np.diff(times) < 0).any() or times[0] <= 0 or times[-1] > TIMESTAMP_MAX or (sys_flag & INNER_BATCH_FLAG).any():
        return None
    _, queue_index = columns.queues()
    in_queues = np.flatnonzero((sys_flag & LEFT_OUT) == 0)
    # Stable: within a queue, the order of the log.
    order = in_queues[np.argsort(queue_index[in_queues], kind="stable")]
    offsets = columns.header["queue_offset"].astype(np.int64)[order]
    begins = np.diff(queue_index[order], prepend=-1) != 0
    if (~begins[1:] & (np.diff(offsets) != 1)).any():
        return None
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    telling = np.zeros(len(columns), bool)
    telling[:2] = telling[-2:] = True
    telling[order[first]] = telling[order[np.minimum(first + 1, last)]] = telling[order[last]] = True
    return telling

"""Bounds of single queues that must be looked up in the log: a queue offset, a time, or the end.

Bounds are commit-log offsets, which mean the same to every reader of the log: a record of the queue is a row if it
begins in [begin, until). None: no bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pyspark_reput.read_options import LATEST, ReadOptions
from reput.errors import ConfigError
from reput.table import LogTable, QueueRange, RowFilter
from reput.table.queue_offsets_in_log import QueueNumbers, find_queue_offsets, require_queue_offsets

__all__ = ["Places", "bounded", "first_of", "joined_places", "queue_places"]

Queue = tuple[str, int]
Places = dict[Queue, tuple[int | None, int | None]]


def queue_places(
    table: LogTable, options: ReadOptions, begin: int, end: int
) -> tuple[Places, dict[Queue, QueueNumbers]]:
    """Return the bounds of the queues for which the options give any, and the numbers of those with queue offsets.

    A queue without a record at or after its starting offset begins at *end*.

    Raises:
        ConfigError: a queue has no record at or after its starting time, and the strategy is ``error``.
        OffsetOutOfRange: retention has deleted the record with a starting offset.
    """
    starting = {queue: offset for queue, offset in options.starting_queues.items() if offset >= 0}
    ending = {queue: offset for queue, offset in options.ending_queues.items() if offset >= 0}
    asked = {queue: {*of_queue(starting, queue), *of_queue(ending, queue)} for queue in {**starting, **ending}}
    numbers = find_queue_offsets(table, asked, begin, end)
    require_queue_offsets(table, starting, numbers)
    begins = starting_places(table, options, begin, end)
    begins |= {queue: (numbers[queue].places.get(offset, end), None) for queue, offset in starting.items()}
    ends: Places = {queue: (None, numbers[queue].places.get(offset)) for queue, offset in ending.items()}
    ends |= {queue: (None, table.offset_of_time(time, begin, end)) for queue, time in options.ending_times.items()}
    return joined_places(begins, ends), numbers


def of_queue(offsets: Mapping[Queue, int], queue: Queue) -> Iterable[int]:
    """Return the queue's offset, if it has one."""
    return (offsets[queue],) if queue in offsets else ()


def starting_places(table: LogTable, options: ReadOptions, begin: int, end: int) -> Places:
    """Return the begin of each queue for which the options give a starting time or its end.

    Raises:
        ConfigError: a queue has no record at or after its time, and the strategy is ``error``.
    """
    latest = [queue for queue, offset in options.starting_queues.items() if offset == LATEST]
    places: Places = dict.fromkeys(latest, (end, None))
    offsets = {time: table.offset_of_time(time, begin, end) for time in set(options.starting_times.values())}
    places |= {queue: (offsets[time], None) for queue, time in options.starting_times.items()}
    if options.latest_if_no_record_is_later or not options.starting_times:
        return places
    missing = dict(options.starting_times)
    for columns in table.searcher().read(min(offsets.values()), end):
        queues, numbers = columns.queues()
        for number, (topic, queue_id) in enumerate(queues):
            queue = topic.decode("utf-8", "replace"), queue_id
            if queue in missing:
                last = int(columns.header["commit_log_offset"][numbers == number].max())
                if last >= offsets[missing[queue]]:
                    del missing[queue]
        if not missing:
            return places
    (lacking, queue_id), time = next(iter(missing.items()))
    raise ConfigError(
        f"the queue has no record of that time or later: topic={lacking} queue_id={queue_id} "
        f"startingOffsetsByTimestamp={time}",
        "Set startingOffsetsByTimestampStrategy to latest to begin at its end then.",
    )


def joined_places(starting: Places, ending: Places) -> Places:
    """Combine both kinds of bounds."""
    nothing = (None, None)
    queues = {**starting, **ending}
    return {queue: (starting.get(queue, nothing)[0], ending.get(queue, nothing)[1]) for queue in queues}


def first_of(places: Places, row_filter: RowFilter, begin: int) -> int:
    """Return the lowest offset from *begin* on that can have a row, if every queue that is read has a begin."""
    begins = {queue: at for queue, (at, _) in places.items() if at is not None}
    if not begins or row_filter.queues is None or not row_filter.queues <= begins.keys():
        return begin
    return max(begin, min(begins.values()))


def bounded(row_filter: RowFilter, places: Places) -> RowFilter:
    """Return *row_filter* with the bounds *places* added."""
    if not places:
        return row_filter
    ranges = dict(row_filter.queue_ranges or {})
    for queue, (begin, until) in places.items():
        known = ranges.get(queue, QueueRange())
        ranges[queue] = msgspec.structs.replace(known, commit_log_offset_min=begin, commit_log_offset_until=until)
    return msgspec.structs.replace(row_filter, queue_ranges=ranges)

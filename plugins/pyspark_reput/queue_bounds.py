"""Bounds of single queues that must be looked up in the log: from a time on, up to a time, or from the end on.

Bounds are commit-log offsets, which mean the same to every reader of the log: a record of the queue is a row if it
begins in [begin, until). None: no bound.
"""

from __future__ import annotations

import msgspec

from pyspark_reput.read_options import ReadOptions
from reput.errors import ConfigError
from reput.table import LogTable, QueueRange, RowFilter

__all__ = ["Places", "bounded", "ending_places", "joined_places", "starting_places"]

Queue = tuple[str, int]
Places = dict[Queue, tuple[int | None, int | None]]


def starting_places(table: LogTable, options: ReadOptions, begin: int, end: int) -> Places:
    """Return the begin of each queue for which the options give a starting time or its end.

    Raises:
        ConfigError: a queue has no record at or after its time, and the strategy is ``error``.
    """
    places: Places = dict.fromkeys(options.latest_queues, (end, None))
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


def ending_places(table: LogTable, options: ReadOptions, begin: int, end: int) -> Places:
    """Return the end of each queue for which the options give an ending time, unless no record is later."""
    return {queue: (None, table.offset_of_time(time, begin, end)) for queue, time in options.ending_times.items()}


def joined_places(starting: Places, ending: Places) -> Places:
    """Combine both kinds of bounds."""
    nothing = (None, None)
    queues = {**starting, **ending}
    return {queue: (starting.get(queue, nothing)[0], ending.get(queue, nothing)[1]) for queue in queues}


def bounded(row_filter: RowFilter, places: Places) -> RowFilter:
    """Return *row_filter* with the bounds *places* added."""
    if not places:
        return row_filter
    ranges = dict(row_filter.queue_ranges or {})
    for queue, (begin, until) in places.items():
        known = ranges.get(queue, QueueRange())
        ranges[queue] = msgspec.structs.replace(known, commit_log_offset_min=begin, commit_log_offset_until=until)
    return msgspec.structs.replace(row_filter, queue_ranges=ranges)

"""Find a time in the commit log: a binary search over records, which contain their own offset and store time."""

from __future__ import annotations

import numpy as np

from reput.store.recovery.log_walk import LogWalk
from reput.table.range_reader import RangeReader

__all__ = ["offset_of_time"]

# Below this size reading every record is cheaper than searching further.
RANGE_SIZE = 1 << 20


def offset_of_time(reader: RangeReader, begin: int, until: int, store_timestamp: int) -> int:
    """Return the commit-log offset of the first record that was stored at *store_timestamp* (ms) or later.

    *until* if there is none; records begin at *begin* and *until*. If the broker's clock was set back, some records
    before the offset may be as late, and some after it earlier.

    Args:
        reader: reads the records around that time, and decides how to treat damage.

    Raises:
        DamagedStore: the records around that time cannot be read, and the reader does not skip them.
    """
    walk = LogWalk(reader.segments)
    low, high = begin, until
    try:
        while high - low > RANGE_SIZE:
            middle = walk.find_record((low + high) // 2)
            if middle is None or middle >= high:
                break
            record = walk.one_record(middle)
            assert record is not None
            if int(record.store_timestamp[0]) < store_timestamp:
                low = middle
            else:
                high = middle
    finally:
        walk.close()
    for columns in reader.read(low, high):
        late = np.flatnonzero(columns.store_timestamp >= store_timestamp)
        if len(late):
            return int(columns.header["commit_log_offset"][late[0]])
    return high

"""The ends of the queue files, which show how far a log once went.

They give the next offset of a queue without records in the log, and the units that point behind the log. Units are read
as they are, 20 bytes each: commit-log offset, record size, tags code. A pre-blank unit, for which the log has no
record, has the size 0x7FFFFFFF and points nowhere.

Source: RocketMQ store, ConsumeQueue.getMaxPhysicOffset and recover.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reput.store.disk.file_name import parse_file_name
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT_SIZE
from reput.store.queue.consume_queue_builder import queue_directories
from reput.store.queue.consume_queue_units import UNIT_DTYPE

__all__ = ["furthest_unit_end", "next_offset_of_files"]

Array = np.ndarray[Any, Any]


def units_from_the_end(directory: Path) -> Iterator[tuple[int, Array]]:
    """Yield (queue offset of the first unit, units) of each file of a queue, the last one first."""
    names = sorted((name for name in os.listdir(directory) if parse_file_name(name) is not None), reverse=True)
    for name in names:
        data = (directory / name).read_bytes()
        yield int(name) // UNIT_SIZE, np.frombuffer(data, UNIT_DTYPE, len(data) // UNIT_SIZE)


def is_real(units: Array) -> Array:
    """Tell which of *units* point at a record."""
    size = units["record_size"]
    real: Array = (size > 0) & (size != PRE_BLANK_SIZE) & (units["commit_log_offset"] >= 0)
    return real


def next_offset_of_files(directory: Path, gone: list[tuple[int, int]]) -> int:
    """Return the queue offset behind the last unit of a queue that points into *gone*; 0 if none does.

    Args:
        gone: ranges of the log, begin and end, that can no longer be read.
    """
    for first, units in units_from_the_end(directory):
        offset = units["commit_log_offset"]
        good = np.zeros(len(units), bool)
        for begin, end in gone:
            good |= (offset >= begin) & (offset < end)
        good &= is_real(units)
        if good.any():
            return first + int(np.flatnonzero(good)[-1]) + 1
    return 0


def furthest_unit_end(store_directory: Path, log_end: int) -> int:
    """Return the end of the last record that a unit of any queue points at; *log_end* if none points behind it.

    For each queue, it reads the last file that begins with a unit below *log_end*, and the later files.
    """
    furthest = log_end
    for _, _, directory in queue_directories(store_directory / "consumequeue"):
        for _, units in units_from_the_end(directory):
            units = units[is_real(units)]
            if len(units):
                furthest = max(furthest, int((units["commit_log_offset"] + units["record_size"]).max()))
                if int(units["commit_log_offset"][0]) < log_end:
                    break
    return furthest

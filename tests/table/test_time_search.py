"""The position of a time in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.store.log.segments import Segments
from reput.table.range_reader import RangeReader
from reput.table.time_search import offset_of_time
from written_log import WrittenLog


@pytest.mark.slow
@pytest.mark.newest_python
def test_every_time_finds_the_first_record_from_it_on(tmp_path: Path):
    """Between two records it is the later one, before the first the first, after the last the end."""
    log = WrittenLog(tmp_path, segment_size=1 << 20)
    for number in range(2000):
        log.append(b"x" * 2000, store_timestamp=10 * (number // 3))
    reader = RangeReader(Segments(log.save() / "commitlog"), rows_wanted=1, window_size_max=1 << 20)
    for number in range(0, 667, 41):
        assert offset_of_time(reader, 0, log.end, 10 * number) == log.offsets[3 * number]
        assert offset_of_time(reader, 0, log.end, 10 * number - 9) == log.offsets[3 * number]
    assert offset_of_time(reader, 0, log.end, 10**9) == log.end

"""Whole records for dispatchers."""

from __future__ import annotations

import pytest

from reput.errors import DamagedStore
from reput.process.dispatcher.commit_log_reader import CommitLogReader
from reput.store.log.log_scan import LogScan
from written_log import WrittenLog


def test_a_body_without_its_crc_is_handed_to_no_dispatcher(tmp_path):
    """Neither alone nor with its neighbours, which can be read."""
    log = WrittenLog(tmp_path)
    for number in range(5):
        log.append(b"%d" % number * 20)
    log.append(b"")
    log.data[log.offsets[2] + 90] ^= 0xFF
    scan = LogScan(log.save())
    requests = list(scan.scan(0, log.end).columns)
    scan.close()
    reader = CommitLogReader(log.store)
    try:
        place = f"from={log.offsets[2]} until={log.offsets[3]}"
        with pytest.raises(DamagedStore, match=f"a CRC does not match: {place} topic=orders") as raised:
            reader.read(requests[2])
        assert f"--accept {log.offsets[2]}..{log.offsets[3]}" in raised.value.advice
        with pytest.raises(DamagedStore, match=place):
            reader.read_many(requests)
        assert [record.body for record in reader.read_many(requests[3:])] == [b"3" * 20, b"4" * 20, b""]
    finally:
        reader.close()

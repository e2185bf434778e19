"""Keeps what is found in a piece of the log: recovery and four dispatchers read the same bytes again and again.

`locate_records` and `LogScan.requests` are functions of these bytes and of their place: each distinct piece is still
taken apart by them once. The simulation has no delayed messages, so the delay levels do not matter here.
"""

from __future__ import annotations

import pytest

from reput.store.log import log_scan
from reput.store.log.log_scan import LogScan
from reput.store.record.record_columns import RecordColumns, ScanStop, locate_records
from reput.store.recovery import log_walk
from reput_hooks import DispatchColumns

__all__ = ["keep_what_is_found"]

# More than one run has.
PIECE_COUNT_MAX = 1000


def keep_what_is_found(patch: pytest.MonkeyPatch) -> None:
    """Take each piece of the log apart once, in the log's readers and in recovery."""
    located: dict[tuple[bytes, int, int], tuple[RecordColumns, ScanStop | None]] = {}
    requests: dict[tuple[bytes, int, int, bool], DispatchColumns] = {}
    make_requests = LogScan.requests

    def locate_once(
        data: bytes | bytearray | memoryview, commit_log_offset: int, remaining: int
    ) -> tuple[RecordColumns, ScanStop | None]:
        key = (bytes(data), commit_log_offset, remaining)
        if key not in located:
            if len(located) == PIECE_COUNT_MAX:
                located.clear()
                requests.clear()
            located[key] = locate_records(*key)
        return located[key]

    def requests_once(scan: LogScan, columns: RecordColumns) -> DispatchColumns:
        if not len(columns):
            return make_requests(scan, columns)
        begin = int(columns.header["commit_log_offset"][0])
        key = (bytes(columns.data), begin, len(columns), scan.needs_properties)
        if key not in requests:
            requests[key] = make_requests(scan, columns)
        return requests[key]

    patch.setattr(log_scan, "locate_records", locate_once)
    patch.setattr(log_walk, "locate_records", locate_once)
    patch.setattr(LogScan, "requests", requests_once)

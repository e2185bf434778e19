"""CommitLogReader: reads whole records, with bodies, for dispatchers that ask for them. It does not load numpy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.store.log.segment_reader import SegmentReader
from reput.store.log.segments import Segments
from reput.store.record.record import body_crc, decode_record
from reput_hooks import DispatchRequest, Record

__all__ = ["CommitLogReader"]

RUN_SIZE_MAX = 1 << 20


class CommitLogReader:
    """Reads single records and runs of them. One segment stays open; use it from one thread at a time."""

    def __init__(self, store_directory: Path) -> None:
        self.directory = store_directory / "commitlog"
        self.reader: SegmentReader | None = None

    def read(self, request: DispatchRequest) -> Record:
        """Return the record of *request*.

        Raises:
            DamagedStore: there is no such record, or its body does not match its CRC.
            OffsetOutOfRange: the log no longer holds it.
        """
        return whole_record(self.read_bytes(request.commit_log_offset, request.record_size), 0)

    def read_many(self, batch: Iterable[DispatchRequest]) -> list[Record]:
        """Return the records of all requests of *batch*, in its order. Adjacent records are read together.

        Raises:
            As `read`.
        """
        records: list[Record] = []
        run: list[DispatchRequest] = []
        end = 0
        for request in batch:
            begin = run[0].commit_log_offset if run else 0
            if run and (request.commit_log_offset != end or end + request.record_size - begin > RUN_SIZE_MAX):
                records += self.read_run(run)
                run = []
            run.append(request)
            end = request.commit_log_offset + request.record_size
        return records + self.read_run(run) if run else records

    def read_run(self, run: list[DispatchRequest]) -> list[Record]:
        """Return the records of requests that are adjacent in one segment."""
        begin = run[0].commit_log_offset
        data = self.read_bytes(begin, run[-1].commit_log_offset + run[-1].record_size - begin)
        return [whole_record(data, request.commit_log_offset - begin) for request in run]

    def read_bytes(self, commit_log_offset: int, size: int) -> bytes:
        """Return *size* bytes of one segment.

        Raises:
            OffsetOutOfRange: the log does not hold them all.
            DamagedStore: the disk cannot read them.
        """
        if self.reader is None:
            self.reader = SegmentReader(Segments(self.directory))
        segment = self.reader.segments.holding(commit_log_offset)
        data = self.reader.pread(segment, commit_log_offset, size)
        if len(data) < size:
            raise OffsetOutOfRange(
                f"the segment ends before the record does: commit_log_offset={commit_log_offset} size={size} "
                f"read={len(data)}"
            )
        return data

    def close(self) -> None:
        """Release the open segment."""
        if self.reader is not None:
            self.reader.close()


def whole_record(data: bytes, at: int) -> Record:
    """Return the record at ``data[at]``.

    Raises:
        DamagedStore: there is none, or its body does not match its CRC.
    """
    record = decode_record(data, at)
    if record.body and body_crc(record.body) != record.body_crc:
        begin = record.commit_log_offset
        raise DamagedStore(
            f"a CRC does not match: from={begin} until={begin + record.record_size} topic={record.topic}",
            f"See `reput check STORE`. Once the range is accepted with `reput repair STORE --accept "
            f"{begin}..{begin + record.record_size}`, dispatchers skip it.",
        )
    return record

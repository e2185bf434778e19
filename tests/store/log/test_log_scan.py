"""Scans: bulk reads of the log as requests for dispatchers."""

from __future__ import annotations

import errno
import os

import pytest

from golden_sets import CLEAN_SETS
from reput.errors import DamagedStore, OffsetOutOfRange
from reput.filter.string_hash import string_hash
from reput.store.log.log_scan import LogScan
from reput.store.record.delay_level import DelayHistory
from small_store import SEGMENT_SIZE, overwrite
from written_log import START_MS, WrittenLog


def scan_all(scan, until, size_max=4 << 20, begin=None):
    """Return all requests up to *until*, and the end of each scan."""
    at = scan.offset_min if begin is None else begin
    requests, ends = [], []
    while at < until:
        found = scan.scan(at, until, size_max)
        assert found.end > at
        requests += found.columns
        at = found.end
        ends.append(at)
    return requests, ends


@pytest.fixture
def log(tmp_path):
    """Eleven records in three segments."""
    written = WrittenLog(tmp_path / "store", SEGMENT_SIZE)
    for number in range(11):
        written.append(b"x" * 900, queue_id=number % 2)
    written.save()
    return written


@pytest.fixture
def scan(log):
    """A scan of that log."""
    opened = LogScan(log.store)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", CLEAN_SETS)
@pytest.mark.parametrize("size_max", [4 << 20, *(pytest.param(size, marks=pytest.mark.slow) for size in (5000, 1))])
def test_a_real_log_gives_the_requests_of_its_listing(golden_read_only, golden_listing, golden_about, name, size_max):
    """However many records are read at a time."""
    scan = LogScan(golden_read_only(name) / "store")
    requests, _ = scan_all(scan, golden_about(name)["maxOffsetOfRealStore"], size_max)
    scan.close()
    listing = golden_listing(name)
    assert len(requests) == len(listing)
    for request, line in zip(requests, listing, strict=True):
        assert (request.topic, request.queue_id, request.queue_offset) == (
            line["topic"],
            line["queueId"],
            line["queueOffset"],
        )
        assert (request.commit_log_offset, request.record_size) == (line["physicalOffset"], line["size"])
        assert (request.store_timestamp, request.sys_flag) == (line["storeTimestamp"], line["sysFlag"])
        assert request.prepared_transaction_offset == line["preparedTransactionOffset"]
        properties = line["properties"] or {}
        assert request.uniq_key == properties.get("UNIQ_KEY")
        if "KEYS" in properties:
            assert request.keys == properties["KEYS"]
        if line["topic"] != "SCHEDULE_TOPIC_XXXX":
            assert request.tags_code == string_hash(line["tags"] or "")


def test_a_scan_stops_at_its_bound(log, scan):
    """Never beyond *until*, even if a record would fit the size."""
    until = log.offsets[5]
    requests, ends = scan_all(scan, until)
    assert [request.commit_log_offset for request in requests] == log.offsets[:5]
    assert ends[-1] == until
    assert scan.scan(until, until).end == until


def test_a_small_scan_takes_one_record_at_least(log, scan):
    """However small the requested size."""
    found = scan.scan(0, log.end, 10)
    assert len(found.columns) == 1
    assert found.store_timestamp == START_MS


def test_blanks_are_passed_over(log, scan):
    """The next offset is that of the next segment."""
    found = scan.scan(log.offsets[3], log.end)
    assert found.end < SEGMENT_SIZE
    found = scan.scan(found.end, log.end)
    assert (len(found.columns), found.end, found.store_timestamp) == (0, SEGMENT_SIZE, 0)


def test_a_scan_may_begin_where_any_record_begins(log, scan):
    """Readers come back with their own offsets."""
    for number, offset in enumerate(log.offsets):
        requests, _ = scan_all(scan, log.end, begin=offset)
        assert [request.commit_log_offset for request in requests] == log.offsets[number:]


def test_an_offset_that_the_log_does_not_have_is_an_error(scan, log):
    """Before its first byte, beyond its last, or in a missing segment."""
    with pytest.raises(OffsetOutOfRange, match="commit_log_offset=1000000"):
        scan.scan(1_000_000, 2_000_000)
    (log.store / "commitlog" / f"{SEGMENT_SIZE:020d}").unlink()
    scan.segments.refresh()
    with pytest.raises(OffsetOutOfRange):
        scan.scan(SEGMENT_SIZE, log.end)
    with pytest.raises(OffsetOutOfRange):
        scan.read(SEGMENT_SIZE, 100)


def test_an_unreadable_byte_is_an_error_that_names_its_offset(log, scan):
    """The records before it are returned first."""
    overwrite(log.store, log.offsets[2] + 4, b"????")
    assert len(scan.scan(0, log.end).columns) == 2
    with pytest.raises(DamagedStore, match=f"commit_log_offset={log.offsets[2]}"):
        scan.scan(log.offsets[2], log.end)


def test_a_body_that_is_not_what_was_written_is_an_error_where_that_is_looked_at(log, scan):
    """Only readers that rebuild a view pay for the check."""
    overwrite(log.store, log.offsets[2] + 88 + 450, b"?")
    assert len(scan.scan(0, log.end).columns) > 2
    verifying = LogScan(log.store, verify=True)
    assert len(verifying.scan(0, log.end).columns) == 2
    with pytest.raises(DamagedStore, match=f"CRC does not match: from={log.offsets[2]} until={log.offsets[3]}"):
        verifying.scan(log.offsets[2], log.end)
    verifying.close()


def test_what_the_disk_cannot_read_is_an_error_that_names_the_place(log, scan, monkeypatch):
    """It also names the file."""

    def failing(descriptor: int, size: int, at: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", failing)
    place = rf"disk cannot read the log: commit_log_offset={SEGMENT_SIZE} .*path=.*/{SEGMENT_SIZE:020d} error=Input"
    with pytest.raises(DamagedStore, match=place):
        scan.scan(SEGMENT_SIZE, log.end)
    with pytest.raises(DamagedStore, match=place):
        scan.read(SEGMENT_SIZE, 100)


def test_a_bound_inside_of_a_record_is_an_error(log, scan):
    """The caller's end of the log is wrong."""
    with pytest.raises(DamagedStore, match="ends inside of a record"):
        scan.scan(log.offsets[1], log.offsets[1] + 500)


def test_damage_that_was_accepted_is_passed_over(log):
    """The scan continues after it."""
    overwrite(log.store, log.offsets[2], bytes(log.offsets[3] - log.offsets[2]))
    scan = LogScan(log.store, passed_over=[(log.offsets[2], log.offsets[3])])
    requests, _ = scan_all(scan, log.end)
    assert [request.commit_log_offset for request in requests] == [*log.offsets[:2], *log.offsets[3:]]
    scan.close()


def test_one_record_is_read_whole(log, scan):
    """Including its body."""
    record = scan.read(log.offsets[4], log.offsets[5] - log.offsets[4])
    assert (record.commit_log_offset, record.body) == (log.offsets[4], b"x" * 900)


@pytest.mark.parametrize(
    ("properties", "keys", "uniq_key", "code"),
    [
        (b"", "", None, 0),
        (b"a\x01b\x02", None, None, 0),
        (b"a\x01b", None, None, 0),
        (b"KEYS\x01k1 k2\x02TAGS\x01tag\x02", "k1 k2", None, string_hash("tag")),
        (b"KEYS\x01k1 k2\x02TAGS\x01tag", "k1 k2", None, string_hash("tag")),
        (b"KEYS\x01\x02TAGS\x01\x02UNIQ_KEY\x01\x02", None, None, 0),
        (b"TAGS\x01a\x02TAGS\x01b\x02", None, None, string_hash("b")),
        (b"TAGS\x01a\x02TAGS\x01\x02", None, None, string_hash("a")),
        (b"x\x01TAGS\x01wrong\x02", None, None, 0),
        (b"xTAGS\x01wrong\x02", None, None, 0),
        (b"TAGSx\x01wrong\x02", None, None, 0),
        (b"TAGS\x02KEYS\x01k\x02", "k", None, 0),
        ("TAGS\x01标签\x02KEYS\x01键 😀\x02UNIQ_KEY\x01U\x02".encode(), "键 😀", "U", string_hash("标签")),
        (b"\x02\x02TAGS\x01t\x02\x02", None, None, string_hash("t")),
        (b"TAGS\x01a\x01b\x02", None, None, string_hash("a\x01b")),
    ],
)
def test_properties_are_picked_out_as_rocketmq_reads_them(tmp_path, properties, keys, uniq_key, code):
    """Even between other properties."""
    log = WrittenLog(tmp_path / "store", SEGMENT_SIZE)
    for text in (b"TAGS\x01before\x02", properties, b"KEYS\x01after\x02"):
        log.append(b"", properties=text)
    scan = LogScan(log.save(), needs_properties=True)
    _, request, _ = scan.scan(0, log.end).columns
    assert (request.keys, request.uniq_key, request.tags_code) == (keys, uniq_key, code)
    assert request.properties == properties
    scan.close()


def test_the_tags_code_of_a_delayed_record_is_its_time(tmp_path):
    """Only in the schedule topic, and only with a level."""
    log = WrittenLog(tmp_path / "store", SEGMENT_SIZE)
    for topic, level in ((b"SCHEDULE_TOPIC_XXXX", b"2"), (b"SCHEDULE_TOPIC_XXXX", b"0"), (b"orders", b"2")):
        log.append(b"", topic=topic, properties=b"TAGS\x01t\x02DELAY\x01" + level + b"\x02", store_timestamp=START_MS)
    scan = LogScan(log.save(), delay_history=DelayHistory([(0, "1s 7s")]))
    codes = [request.tags_code for request in scan.scan(0, log.end).columns]
    assert codes == [START_MS + 7_000, string_hash("t"), string_hash("t")]
    scan.close()


def test_multi_dispatch_travels_with_the_request(tmp_path):
    """Names and offsets, if the record has both."""
    log = WrittenLog(tmp_path / "store", SEGMENT_SIZE)
    log.append(b"", properties=b"INNER_MULTI_DISPATCH\x01a,b\x02INNER_MULTI_QUEUE_OFFSET\x013,4\x02KEYS\x01k\x02")
    log.append(b"", properties=b"INNER_MULTI_DISPATCH\x01a,b\x02")
    log.append(b"", properties=b"INNER_MULTI_DISPATCH\x01a,b\x02INNER_MULTI_QUEUE_OFFSET\x013\x02")
    scan = LogScan(log.save())
    requests = list(scan.scan(0, log.end).columns)
    assert [request.multi_dispatch for request in requests] == [(("a", 3), ("b", 4)), (), ()]
    assert requests[0].keys == "k"
    scan.close()

"""Reads of the log for dispatchers and checks: the kernel gives the same requests and errors as the Python path."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.errors import ReputError
from reput.kernel import VARIABLE, Kernel
from reput.store.log.log_scan import LogScan
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.record import body_crc, crc_property, encode_host, encode_record
from reput.store.record.record_columns import ARRAYS, locate_records
from reput_hooks import DispatchRequest

SEGMENT_SIZE = 65536
HOSTS = [encode_host("10.0.0.7", 4711), encode_host("::1", 4711)]
NAME = st.one_of(st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"TAGSX", b"XTAGS"]), st.binary(max_size=3))
VALUE = st.one_of(
    st.sampled_from([b"TagA", b"3", b"a b", "grün😀".encode(), b"\xff", b"", b"x\x01y"]), st.binary(max_size=5)
)
PROPERTY = st.tuples(NAME, VALUE).map(b"\x01".join)
FURTHER = b"INNER_MULTI_DISPATCH\x01a,b\x02INNER_MULTI_QUEUE_OFFSET\x011,2"
PROPERTIES = st.one_of(
    st.lists(PROPERTY, max_size=4).map(b"\x02".join),
    st.lists(PROPERTY, max_size=2).map(lambda found: b"\x02".join([*found, b""])),
    st.sampled_from([FURTHER, b"__CRC32#\x010123456789\x02", b"n\x010123456789\x02"]),
)
TOPIC = st.sampled_from([b"orders", b"orders", b"b", b"T" * 200, SCHEDULE_TOPIC.encode(), b"\xff", "ü".encode()])
RECORD = st.fixed_dictionaries(
    {
        "topic": TOPIC,
        "queue_id": st.integers(0, 2),
        "body": st.binary(max_size=40),
        "properties": PROPERTIES,
        "queue_offset": st.integers(0, 1 << 40),
        "sys_flag": st.sampled_from([0, 0, 4, 8, 12, 0x80]),
        "born_host": st.sampled_from(HOSTS),
        "store_host": st.sampled_from(HOSTS),
        "store_timestamp": st.integers(0, 1 << 42),
        "prepared_transaction_offset": st.integers(0, 99),
    }
)
RECORDS = st.lists(st.tuples(RECORD, st.booleans()), max_size=90)
DAMAGE = st.lists(st.tuples(st.integers(0, 999_999), st.integers(0, 255)), max_size=2)


def log_of(records: list[Any], damage: list[tuple[int, int]]) -> bytes:
    """Return the log with these records, and damaged bytes; a true flag: the record ends with its own CRC."""
    data = b""
    for fields, with_crc in records:
        fixed = {"flag": 0, "born_timestamp": 5, "commit_log_offset": len(data)}
        record = encode_record(**fields, **fixed)
        if with_crc:
            wanted = fields["properties"].removesuffix(b"\x02") + b"\x02"
            draft = encode_record(**{**fields, "properties": wanted + bytes(20)}, **fixed)
            record = draft[:-20] + crc_property(body_crc(draft[:-20]))
        data += record
    damaged = bytearray(data)
    for place, byte in damage:
        if data:
            damaged[place * len(data) // 1_000_000] = byte
    return bytes(damaged)


def all_requests(directory: Path, mode: str, end: int, size_max: int, options: dict[str, bool]) -> Any:
    """Return all requests up to the end of the log or to an error, and which of them it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, mode)
        scan = LogScan(directory, segment_size=SEGMENT_SIZE, **options)
    requests: list[DispatchRequest] = []
    at = timestamp = 0
    try:
        while at < end:
            found = scan.scan(at, end, size_max)
            assert found.end > at
            requests += found.columns
            at, timestamp = found.end, found.store_timestamp if len(found.columns) else timestamp
    except ReputError as error:
        return requests, at, timestamp, type(error), str(error)
    finally:
        scan.close()
    return requests, at, timestamp


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=30)
@given(RECORDS, DAMAGE, st.booleans(), st.booleans(), st.sampled_from([100, 3000, 1 << 20]))
def test_any_log_gives_the_same_requests_and_errors(
    required_kernel: Kernel, records: list[Any], damage: Any, verify: bool, needs_properties: bool, size_max: int
) -> None:
    """Whatever the records are, wherever a read ends, and whatever bytes are damaged."""
    data = log_of(records, damage)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        (directory / "commitlog").mkdir()
        (directory / "commitlog" / "00000000000000000000").write_bytes(data.ljust(SEGMENT_SIZE, b"\0")[:SEGMENT_SIZE])
        options = {"verify": verify, "needs_properties": needs_properties}
        end = min(len(data), SEGMENT_SIZE)
        found = [all_requests(directory, mode, end, size_max, options) for mode in ("off", "require")]
    assert found[0] == found[1]


def located(data: bytearray, mode: str) -> Any:
    """Return all that `locate_records` finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, mode)
        columns, stop = locate_records(memoryview(data), 0, len(data) + 1000)
    arrays = [(name, getattr(columns, name).tolist()) for name in ARRAYS]
    return arrays, columns.end, stop and (stop.kind, stop.reason, stop.size)


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=100)
@given(RECORDS, DAMAGE, st.integers(0, 1000))
def test_any_records_are_located_alike(
    required_kernel: Kernel, records: list[Any], damage: Any, thousandth: int
) -> None:
    """With the same places and numbers, and the same reason why there are no more; wherever the bytes end."""
    data = bytearray(log_of(records, damage))
    del data[thousandth * len(data) // 1000 :]
    before = required_kernel.counts()["locate"]
    found = [located(data, mode) for mode in ("off", "require")]
    assert found[0] == found[1]
    assert required_kernel.counts()["locate"] - before == len(found[1][0][0][1])


def rows_of(data: bytes, mode: str) -> list[Any]:
    """Return the columns that are made of properties, in two orders, and each record's alone."""
    pytest.importorskip("pyarrow")
    from reput.table.batch_decoder import BatchDecoder
    from reput.table.record_parts import RecordParts
    from reput.table.row_format import RowFormat

    columns, _ = locate_records(memoryview(data), 0, len(data))
    decoder = BatchDecoder(RowFormat(columns=("tags", "keys", "msgId")))
    numbers = np.arange(len(columns))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, mode)
        orders = [numbers, numbers[::-2], *np.split(numbers, len(numbers))]
        return [batch.to_pydict() for order in orders for batch in decoder.decode(RecordParts(columns), order)]


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=100)
@given(st.lists(st.tuples(RECORD, st.booleans()), min_size=1, max_size=20))
def test_any_properties_become_the_same_columns(required_kernel: Kernel, records: list[Any]) -> None:
    """With repeated names, empty values, and bytes that are no text."""
    data = log_of(records, [])
    assert rows_of(data, "off") == rows_of(data, "require")


def test_columns_of_properties_are_made_in_the_kernel(required_kernel: Kernel) -> None:
    """Where each value is text, also beside properties that are none."""
    fields = {"topic": b"orders", "queue_id": 0, "queue_offset": 7, "store_timestamp": 5, "sys_flag": 0}
    hosts = {"born_host": HOSTS[0], "store_host": HOSTS[0], "body": b"body"}
    texts = [b"TAGS\x01gr\xc3\xbcn\x02KEYS\x01\xff", b"", b"TAGS\x01a\x02TAGS\x01b\x02"]
    data = log_of([({**fields, **hosts, "properties": text}, False) for text in texts], [])
    before = required_kernel.counts()["property"]
    found, backwards, *_ = rows_of(data, "require")
    assert (found["tags"], backwards["tags"]) == (["grün", None, "b"], ["b", "grün"])
    assert found["keys"] == ["\N{REPLACEMENT CHARACTER}", None, None]
    assert required_kernel.counts()["property"] > before


def test_every_damaged_byte_of_a_record_is_judged_alike(required_kernel: Kernel) -> None:
    """Whichever size or flag it belongs to."""
    fields = {"topic": b"orders", "queue_id": 0, "queue_offset": 7, "store_timestamp": 5, "sys_flag": 0}
    hosts = {"born_host": HOSTS[0], "store_host": HOSTS[0]}
    good = log_of([({**fields, **hosts, "body": b"body", "properties": b"KEYS\x01k\x02"}, False)] * 2, [])
    for at in range(len(good) // 2):
        for byte in (0, 1, 0x7F, 0x80, 0xFF, good[at] ^ 0x10, good[at] ^ 0x20):
            data = bytearray(good)
            data[at] = byte
            assert located(data, "off") == located(data, "require"), (at, byte)


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=30)
@given(RECORDS, DAMAGE)
def test_any_records_have_the_same_bad_one(required_kernel: Kernel, records: list[Any], damage: Any) -> None:
    """The first record whose CRC, or whose body's, does not fit."""
    data = log_of(records, damage)
    columns, _ = locate_records(data, 0, len(data) + 1000)
    found = []
    for mode in ("off", "require"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, mode)
            found.append(columns.first_bad_record())
    assert found[0] == found[1]


def test_plain_records_go_through_the_kernel(required_kernel: Kernel, tmp_path: Path) -> None:
    """Up to a delayed record, which takes the Python path, as does what lies behind it in the same piece of the log."""
    fields = {
        "topic": b"orders",
        "queue_id": 0,
        "body": b"body",
        "properties": b"TAGS\x01TagA\x02",
        "queue_offset": 7,
        "sys_flag": 0,
        "born_host": HOSTS[0],
        "store_host": HOSTS[0],
        "store_timestamp": 5,
    }
    delayed = {**fields, "topic": SCHEDULE_TOPIC.encode(), "properties": b"DELAY\x013"}
    data = log_of([(fields, False)] * 5 + [(delayed, False)] + [(fields, False)] * 2, [])
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "00000000000000000000").write_bytes(data.ljust(SEGMENT_SIZE, b"\0"))
    before = required_kernel.counts()["scan"]
    requests, *_ = all_requests(tmp_path, "require", len(data), 1 << 20, {})
    assert required_kernel.counts()["scan"] - before == 5
    assert [request.topic for request in requests] == ["orders"] * 5 + [SCHEDULE_TOPIC] + ["orders"] * 2
    assert requests[0].tags == "TagA"


@given(st.binary(max_size=400), st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3))
def test_random_bytes_are_no_records(required_kernel: Kernel, data: bytes, positions: list[int]) -> None:
    """Bytes that no program wrote never crash the process."""
    for verify in (False, True):
        assert required_kernel.log_rows(data, 0, verify, True) is None
    assert required_kernel.locate_records(data, 0) == (b"", b"", 0)
    packed = b"".join(position.to_bytes(8, "little", signed=True) for position in positions)
    assert required_kernel.first_bad_record(data, packed) == (None if positions else -1)

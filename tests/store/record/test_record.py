"""Records: encoding and decoding are inverse, alone and in bulk, and other bytes are not taken for records."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.store.record.layout import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, TOPIC_SIZE_MAX_V1
from reput.store.record.properties import encode_properties
from reput.store.record.record import decode_record, encode_host, encode_record, store_timestamp_of
from reput.store.record.record_columns import locate_records
from reput_hooks import Record

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(0, 2**63 - 1)
HOSTS = st.sampled_from(
    [("127.0.0.1", 10911), ("0.0.0.0", 0), ("255.255.255.255", 65535), ("::1", 1), ("2001:db8::8a2e:370:7334", 10911)]
)
NAMES = st.text("abcXYZ_", min_size=1, max_size=8)
VALUES = st.text(st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), max_size=20)
FIELDS = st.fixed_dictionaries(
    {
        "topic": st.text("abc%-_|", min_size=1, max_size=255),
        "queue_id": INT,
        "body": st.binary(max_size=300),
        "properties": st.dictionaries(NAMES, VALUES, max_size=4),
        "flag": INT,
        "queue_offset": LONG,
        "sys_flag": st.sampled_from([0, 1, 4, 8, 12]),
        "born_timestamp": LONG,
        "store_timestamp": LONG,
        "reconsume_times": INT,
        "prepared_transaction_offset": LONG,
    }
)


def encoded(fields: dict, commit_log_offset: int, born_host: tuple[str, int], store_host: tuple[str, int]) -> bytes:
    """Return the bytes of a record with these fields."""
    return encode_record(
        **{
            **fields,
            "topic": fields["topic"].encode(),
            "properties": encode_properties(fields["properties"]),
            "commit_log_offset": commit_log_offset,
            "born_host": encode_host(*born_host),
            "store_host": encode_host(*store_host),
        }
    )


@pytest.mark.slow
@pytest.mark.newest_python
@given(fields=FIELDS, commit_log_offset=LONG, born_host=HOSTS, store_host=HOSTS, before=st.binary(max_size=9))
def test_what_was_encoded_is_what_is_decoded(fields, commit_log_offset, born_host, store_host, before):
    """Every field, with either kind of host, at any place of a buffer."""
    data = encoded(fields, commit_log_offset, born_host, store_host)
    record = decode_record(before + data, len(before))
    for name in fields.keys() - {"sys_flag"}:
        assert getattr(record, name) == fields[name], name
    assert record.sys_flag & 15 == fields["sys_flag"]
    assert (record.commit_log_offset, record.record_size) == (commit_log_offset, len(data))
    assert store_timestamp_of(data) == record.store_timestamp
    long = len(fields["topic"]) > TOPIC_SIZE_MAX_V1
    assert record.magic_code == (MESSAGE_MAGIC_CODE_V2 if long else MESSAGE_MAGIC_CODE)
    for host, found in ((born_host, record.born_host), (store_host, record.store_host)):
        assert found.rpartition(":")[2] == str(host[1])


def test_a_record_that_was_read_is_like_one_that_was_made():
    """They are equal in any order of access, as text, copied and pickled; they are immutable, with fixed attributes."""
    fields = {
        "topic": "orders",
        "queue_id": 3,
        "body": b"body",
        "properties": {"TAGS": "paid", "KEYS": "a b"},
        "flag": 1,
        "queue_offset": 7,
        "sys_flag": 0,
        "born_timestamp": 5,
        "store_timestamp": 6,
        "reconsume_times": 2,
        "prepared_transaction_offset": 9,
    }
    data = encoded(fields, 4096, ("127.0.0.1", 1), ("::1", 2))
    made = Record(**asdict(decode_record(data)))
    assert made == decode_record(data)
    assert repr(made) == repr(decode_record(data)) != repr(replace(made, flag=2))
    for copied in (copy.copy(decode_record(data)), pickle.loads(pickle.dumps(decode_record(data)))):
        assert copied == made
    assert msgspec.json.decode(msgspec.json.encode(decode_record(data)), type=Record) == made
    record = decode_record(data)
    assert (record.tags, record.keys, record.uniq_key) == ("paid", ["a", "b"], None)
    with pytest.raises(AttributeError):
        record.body = b"other"
    with pytest.raises(AttributeError, match="'size'"):
        _ = record.size


def test_a_record_keeps_its_bytes_when_those_it_was_read_from_change():
    """Later accesses see the original bytes."""
    fields = {"topic": b"orders", "body": b"body", "properties": encode_properties({"TAGS": "paid"})}
    host = encode_host("127.0.0.1", 1)
    numbers = dict.fromkeys(("queue_id", "flag", "queue_offset", "sys_flag", "born_timestamp", "store_timestamp"), 0)
    data = bytearray(encode_record(**fields, **numbers, commit_log_offset=0, born_host=host, store_host=host))
    record = decode_record(memoryview(data))
    data[:] = bytes(len(data))
    assert (record.topic, record.body, record.tags) == ("orders", b"body", "paid")


@pytest.mark.slow
@pytest.mark.newest_python
@given(
    many=st.lists(st.tuples(FIELDS, HOSTS, HOSTS), min_size=1, max_size=5),
    begin=st.integers(0, 2**40),
    cut=st.integers(0, 400),
)
def test_a_run_of_records_is_located_up_to_the_one_that_is_cut(many, begin, cut):
    """With the same fields as one by one; if the bytes end within a record, more are requested."""
    data = b""
    for fields, born_host, store_host in many:
        data += encoded(fields, begin + len(data), born_host, store_host)
    columns, stop = locate_records(data, begin, len(data) + 100)
    assert stop is None
    assert len(columns) == len(many)
    assert columns.first_bad_record() is None
    assert columns.first_torn_text(begin) is None
    for number, at in enumerate(columns.position.tolist()):
        record = decode_record(data, at)
        assert columns.topic(number) == record.topic
        assert columns.properties(number) == record.properties
        assert int(columns.store_timestamp[number]) == record.store_timestamp
    whole = [at for at in columns.position.tolist() if at <= max(0, len(data) - cut)]
    fewer, _ = locate_records(data[: len(data) - cut], begin, len(data) + 100)
    assert fewer.position.tolist() == columns.position.tolist()[: len(fewer)]
    assert len(fewer) >= len(whole) - 1


@pytest.mark.slow
@pytest.mark.newest_python
@given(
    runs=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 3, 5, 70, 140])), min_size=1, max_size=8),
    cut=st.integers(0, 300),
)
def test_records_of_one_size_are_located_together_and_at_the_same_places(runs, cut):
    """However many are consecutive, and whatever size comes next."""
    fields = {"topic": b"orders", "properties": b"", "born_host": encode_host("127.0.0.1", 1)}
    numbers = dict.fromkeys(("queue_id", "flag", "queue_offset", "sys_flag", "born_timestamp", "store_timestamp"), 0)
    data, ends = bytearray(), []
    for size, count in runs:
        for _ in range(count):
            places = {"commit_log_offset": len(data), "store_host": encode_host("127.0.0.1", 1)}
            data += encode_record(**fields, **numbers, **places, body=bytes(size))
            ends.append(len(data))
    left = max(len(data) - cut, 0)
    columns, _ = locate_records(bytes(data[:left]), 0, len(data))
    whole = [end for end in ends if end <= left]
    assert columns.position.tolist() == [0, *whole][: len(whole)]


@pytest.mark.slow
@pytest.mark.newest_python
@given(fields=FIELDS, host=HOSTS, offset=st.integers(0, 2**40), at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_record_with_one_bit_flipped_is_never_decoded_as_longer_or_elsewhere(fields, host, offset, at, bit):
    """Any located record begins at its own offset and ends after its size; a changed body is detected."""
    data = bytearray(encoded(fields, offset, host, host))
    at %= len(data)
    data[at] ^= 1 << bit
    columns, _ = locate_records(bytes(data), offset, len(data) + 100)
    if len(columns):
        assert int(columns.header["commit_log_offset"][0]) == offset
        assert columns.end == len(data)
        body_at = int(columns.body_at[0])
        if body_at <= at < body_at + int(columns.body_size[0]):
            assert columns.first_bad_record() == 0


@pytest.mark.slow
@pytest.mark.newest_python
@given(fields=FIELDS, host=HOSTS, lost=st.integers(1, 200))
def test_zeros_in_topic_or_properties_are_found_though_no_sum_covers_them(fields, host, lost):
    """If a page was lost, sizes and body CRC still match."""
    data = bytearray(encoded({**fields, "properties": {"name": "v" * 200}}, 0, host, host))
    data[len(data) - lost :] = bytes(lost)
    columns, _ = locate_records(bytes(data), 0, len(data) + 100)
    assert len(columns) == 1
    assert columns.first_torn_text(0) == 0
    assert columns.first_torn_text(1) is None

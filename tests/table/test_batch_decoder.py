"""Rows equal the plain decoder's result for the same bytes, for all kinds of records."""

from __future__ import annotations

import json
import zlib
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reput.table
from reput.errors import ConfigError
from reput.store.record.record import decode_record, encode_host
from reput.table import LogTable, table_options
from written_log import WrittenLog, row_of_record

HOSTS = [encode_host(host, port) for host, port in (("10.0.0.1", 1), ("255.1.2.3", 65535), ("::1", 9), ("fe80::2", 0))]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=12)
PROPERTIES = st.one_of(
    st.dictionaries(TEXT, TEXT, max_size=5).map(
        lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
    ),
    st.lists(st.sampled_from(["TAGS", "KEYS", "a", "UNIQ_KEY", "", "\x01", "\x02", "=", "é", "\x00"]), max_size=12).map(
        lambda parts: "".join(parts).encode()
    ),
    st.binary(max_size=40),
)
RECORD = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=60),
        "topic": st.one_of(TEXT.map(str.encode), st.binary(max_size=127), st.just(b"t" * 127), st.just(b"v" * 300)),
        "queue_id": st.integers(-(2**31), 2**31 - 1),
        "properties": PROPERTIES,
        "flag": st.integers(-(2**31), 2**31 - 1),
        "sys_flag": st.integers(-(2**31), 2**31 - 1),
        "queue_offset": st.integers(-(2**63), 2**63 - 1),
        "born_timestamp": st.integers(-(2**63), 2**63 - 1),
        "store_timestamp": st.integers(0, 2**41),
        "born_host": st.sampled_from(HOSTS),
        "store_host": st.sampled_from(HOSTS),
        "reconsume_times": st.integers(-(2**31), 2**31 - 1),
        "prepared_transaction_offset": st.integers(-(2**63), 2**63 - 1),
    }
)


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as plain values, times in microseconds, properties as dicts."""
    for name in ("bornTimestamp", "storeTimestamp"):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
    return [{**row, "properties": dict(row["properties"])} for row in table.to_pylist()]


def expected_rows(log: WrittenLog) -> list[dict[str, Any]]:
    """Return the rows of the plain decoder."""
    return [row_of_record(decode_record(log.data, at - log.begin)) for at in log.offsets]


def read_until(log: WrittenLog, batch_rows: int) -> pa.Table:
    """Return the rows, bodies as stored, up to the end of the written log: times and offsets may be arbitrary."""
    table = LogTable(log.save(), table_options(decompress=False, batch_rows=batch_rows))
    return pa.Table.from_batches(table.batches(0, log.end), table.schema)


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=60, deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=12), st.sampled_from([1, 3, 4096]))
def test_rows_equal_the_plain_decoder(records: list[dict[str, Any]], batch_rows: int):
    """Both magic codes, IPv6 on either side, text that is not UTF-8, any properties string, any number in any field."""
    with TemporaryDirectory() as directory:
        log = WrittenLog(Path(directory))
        for record in records:
            log.append(**record)
        assert rows_of(read_until(log, batch_rows)) == expected_rows(log)


@pytest.mark.parametrize("size", [0, 1, 32_767, 4 << 20])
def test_bodies_and_properties_of_extreme_sizes(tmp_path: Path, size: int):
    """Empty ones, the longest properties, and a body of RocketMQ's default maximum."""
    log = WrittenLog(tmp_path, segment_size=16 << 20)
    log.append(b"x" * size, properties=(b"p\x01" + b"v" * 32_767)[: min(size, 32_767)])
    log.append(b"", properties=b"")
    log.append(b"after")
    table = reput.table.read(log.save(), batch_bytes=100)
    assert rows_of(table) == expected_rows(log)


@pytest.mark.slow
@pytest.mark.newest_python
def test_bodies_that_unpack_to_much_come_in_several_batches(tmp_path: Path):
    """A batch is limited by the decompressed size of its bodies, so that compressed ones do not fill the memory."""
    log = WrittenLog(tmp_path, segment_size=1 << 20)
    bodies = [bytes([number]) * (30 << 20) for number in range(5)]
    for body in bodies:
        log.append(zlib.compress(body, 9), sys_flag=1)
    batches = list(reput.table.scan(log.save(), columns=["body"]))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert [body for batch in batches for body in batch["body"].to_pylist()] == bodies


def test_a_property_without_a_value_is_none_as_in_rocketmq(tmp_path: Path):
    """No column has it, and no filter: tags and keys are null, the message id is the store's."""
    log = WrittenLog(tmp_path)
    log.append(properties=b"TAGS\x01\x02KEYS\x01\x02UNIQ_KEY\x01\x02p\x01\x02q\x01\x01\x02p\x01x\x02p\x01")
    (row,) = reput.table.read(log.save()).to_pylist()
    assert (row["tags"], row["keys"], row["msgId"]) == (None, None, row["offsetMsgId"])
    assert dict(row["properties"]) == {"p": "x", "q": "\x01"}
    (kafka,) = reput.table.read(log.store, schema_mode="kafka", include_headers=True).to_pylist()
    assert kafka["key"] is None
    assert [header["key"] for header in kafka["headers"]] == ["q", "p"]


def test_properties_as_json_and_as_stored(tmp_path: Path):
    """Properties come as a map, as one JSON object, or as the stored string."""
    log = WrittenLog(tmp_path)
    log.append(properties=b"a\x011\x02b\x01\x02a\x012\x02a\x01\x02c\x01=\x01x")
    store = log.save()
    of_format = {name: reput.table.read(store, properties_format=name) for name in ("map", "json", "string")}
    values = {name: table["properties"][0].as_py() for name, table in of_format.items()}
    assert values["map"] == [("a", "2"), ("c", "=\x01x")]
    assert json.loads(values["json"]) == {"a": "2", "c": "=\x01x"}
    assert values["string"] == "a\x011\x02b\x01\x02a\x012\x02a\x01\x02c\x01=\x01x"


def test_rows_of_kafkas_schema(tmp_path: Path):
    """With ``schema_mode="kafka"`` the columns are those of Spark's Kafka source."""
    log = WrittenLog(tmp_path)
    log.append(b"one", queue_id=3, properties=b"KEYS\x01k1 k2\x02x\x01y\x02", store_timestamp=5, born_timestamp=4)
    log.append(b"two", queue_id=3, properties=b"", store_timestamp=7, born_timestamp=6)
    table = reput.table.read(log.save(), schema_mode="kafka", include_headers=True)
    table = table.set_column(5, "timestamp", table["timestamp"].cast(pa.int64()))
    assert table.to_pylist() == [
        {
            "key": b"k1 k2",
            "value": b"one",
            "topic": "orders",
            "partition": 3,
            "offset": 0,
            "timestamp": 5000,
            "timestampType": 1,
            "headers": [{"key": "KEYS", "value": b"k1 k2"}, {"key": "x", "value": b"y"}],
        },
        {
            "key": None,
            "value": b"two",
            "topic": "orders",
            "partition": 3,
            "offset": 1,
            "timestamp": 7000,
            "timestampType": 1,
            "headers": [],
        },
    ]
    born = reput.table.read(log.store, schema_mode="kafka", timestamp_column="born")
    assert born["timestamp"].cast(pa.int64()).to_pylist() == [4000, 6000]
    assert born["timestampType"].to_pylist() == [0, 0]


def test_times_that_python_does_not_have_are_null(tmp_path: Path):
    """A sender whose clock counts microseconds would otherwise make rows that no DataFrame library can show."""
    last = 253_402_300_799_999
    times = [-62_135_596_800_001, -62_135_596_800_000, 1_700_000_000_000_000, last, last + 1, 2**63 - 1, -(2**63)]
    log = WrittenLog(tmp_path)
    for time in times:
        log.append(b"body", born_timestamp=time)
    log.save()
    born = reput.table.read(log.store)["bornTimestamp"].to_pylist()
    assert [time and time.replace(tzinfo=None) for time in born] == [
        None,
        datetime.min,
        None,
        datetime.max.replace(microsecond=999_000),
        None,
        None,
        None,
    ]


def test_columns_are_those_asked_for_in_that_order(tmp_path: Path):
    """A projection keeps the order of its names; an unknown name is refused, with the known ones."""
    log = WrittenLog(tmp_path)
    log.append()
    store = log.save()
    table = reput.table.read(store, columns=["queueOffset", "topic", "brokerName"], broker_name="a")
    assert table.to_pylist() == [{"queueOffset": 0, "topic": "orders", "brokerName": "a"}]
    with pytest.raises(ConfigError, match=r"column=queue_offset .*columns=topic,"):
        reput.table.read(store, columns=["queue_offset"])


def test_an_unknown_option_and_a_wrong_value_are_refused(tmp_path: Path):
    """Options are checked before anything is read; the error names the wrong one."""
    with pytest.raises(ConfigError, match="option=topc options=any_store_timestamp_min,"):
        reput.table.read(tmp_path, topc=["a"])
    with pytest.raises(ConfigError, match="verify_crc"):
        reput.table.read(tmp_path, verify_crc="some")
    with pytest.raises(ConfigError, match="batch_rows=0"):
        reput.table.read(tmp_path, batch_rows=0)

"""RocketMQ's vectors of records: their bytes, and the requests for dispatchers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reput.errors import DamagedStore
from reput.filter.string_hash import string_hash
from reput.store.disk.file_name import file_name, parse_file_name
from reput.store.log.log_scan import LogScan
from reput.store.record.delay_level import DelayLevels
from reput.store.record.layout import BLANK_MAGIC_CODE, MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2
from reput.store.record.properties import decode_properties, encode_properties
from reput.store.record.record import body_crc, decode_record, encode_host, encode_message_id, encode_record
from reput_hooks import DispatchRequest
from rocketmq_vectors import store_vectors

FIELDS_OF_REQUEST = {
    "topic": "topic",
    "queueId": "queue_id",
    "commitLogOffset": "commit_log_offset",
    "msgSize": "record_size",
    "tagsCode": "tags_code",
    "storeTimestamp": "store_timestamp",
    "consumeQueueOffset": "queue_offset",
    "keys": "keys",
    "uniqKey": "uniq_key",
    "sysFlag": "sys_flag",
    "preparedTransactionOffset": "prepared_transaction_offset",
}
# Additional fields of RocketMQ's request: a scan returns only whole records, and properties only on request.
FIELDS_LEFT_OUT = {"success", "propertiesMap"}


def encode(message: dict[str, Any], properties: bytes) -> bytes:
    """Return the record of a vector's input."""
    return encode_record(
        topic=message["topic"].encode(),
        queue_id=message["queueId"],
        body=message["body_utf8"].encode(),
        properties=properties,
        flag=message["flag"],
        queue_offset=message["queueOffset"],
        commit_log_offset=message["physicalOffset"],
        sys_flag=message["sysFlag"],
        born_timestamp=message["bornTimestamp"],
        born_host=encode_host(*message["bornHost"]),
        store_timestamp=message["storeTimestamp"],
        store_host=encode_host(*message["storeHost"]),
        reconsume_times=message["reconsumeTimes"],
        prepared_transaction_offset=message["preparedTransactionOffset"],
    )


def show_host(address: str, port: int) -> str:
    """Return a host in the form of rows and records."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def scan_alone(record: bytes, commit_log_offset: int, store: Path) -> DispatchRequest:
    """Return the request of *record* as the only one of a log that begins with it."""
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / file_name(commit_log_offset)).write_bytes(record.ljust(4096, b"\0"))
    (request,) = LogScan(store).scan(commit_log_offset, commit_log_offset + len(record)).columns
    return request


@store_vectors("commitlog_record")
def test_a_record_is_written_as_rocketmq_writes_it(vector):
    """Every field has RocketMQ's place, width and order."""
    message, expected = vector["input"], vector["expected"]
    properties = encode_properties(message["properties"])
    if not message["propertiesTrailingSeparator"]:
        properties = properties.removesuffix(b"\x02")
    record = encode(message, properties)
    assert record.hex() == expected["hex"]
    assert len(record) == expected["totalSize"]
    assert body_crc(message["body_utf8"].encode()) == expected.get("bodyCRC", int.from_bytes(record[8:12], "big"))


@store_vectors("commitlog_record")
def test_a_record_is_read_as_it_was_written(vector):
    """Every field is decoded from RocketMQ's bytes as it was encoded, including both kinds of hosts."""
    message = vector["input"]
    record = decode_record(bytes.fromhex(vector["expected"]["hex"]))
    assert record.record_size == vector["expected"]["totalSize"]
    assert record.magic_code == {"V1": MESSAGE_MAGIC_CODE, "V2": MESSAGE_MAGIC_CODE_V2}[message["magic"]]
    assert record.queue_id == message["queueId"]
    assert record.flag == message["flag"]
    assert record.queue_offset == message["queueOffset"]
    assert record.commit_log_offset == message["physicalOffset"]
    assert record.sys_flag == message["sysFlag"]
    assert record.born_timestamp == message["bornTimestamp"]
    assert record.born_host == show_host(*message["bornHost"])
    assert record.store_timestamp == message["storeTimestamp"]
    assert record.store_host == show_host(*message["storeHost"])
    assert record.reconsume_times == message["reconsumeTimes"]
    assert record.prepared_transaction_offset == message["preparedTransactionOffset"]
    assert record.body == message["body_utf8"].encode()
    assert record.topic == message["topic"]
    assert record.properties == message["properties"]


@store_vectors("commitlog_record")
def test_a_dispatcher_gets_what_rocketmq_dispatches(vector, tmp_path):
    """The request of a record has RocketMQ's tags code, keys and positions."""
    expected = vector["expected"].get("dispatchRequest", {})
    record = bytes.fromhex(vector["expected"]["hex"])
    request = scan_alone(record, vector["input"]["physicalOffset"], tmp_path / "store")
    assert request.record_size == len(record)
    for name in expected.keys() - FIELDS_LEFT_OUT:
        assert getattr(request, FIELDS_OF_REQUEST[name]) == expected[name], name


@store_vectors("blank_record")
def test_a_blank_is_no_record(vector):
    """The filler of a segment's end has a size and its own magic code, and is never read as a record."""
    begin = bytes.fromhex(vector["expected"]["hex_first_8"])
    assert begin == vector["input"]["maxBlank"].to_bytes(4, "big") + BLANK_MAGIC_CODE.to_bytes(4, "big")
    assert vector["expected"]["wroteBytes"] == vector["input"]["maxBlank"]
    with pytest.raises(DamagedStore, match="CBD43194"):
        decode_record(begin.ljust(vector["input"]["maxBlank"], b"\0"))


@store_vectors("decode_properties")
def test_properties_are_read_as_rocketmq_reads_them(vector):
    """Missing last separators, nameless parts and duplicate names are treated as by RocketMQ.

    reput keeps properties with an empty value, which RocketMQ's map omits.
    """
    properties = decode_properties(vector["input"]["string"].encode())
    assert {name: value for name, value in properties.items() if value} == vector["expected"]["map"]


@store_vectors("body_crc")
def test_the_crc_of_a_body_lacks_its_highest_bit(vector):
    """RocketMQ stores 31 bits of the CRC-32."""
    crc = body_crc(bytes.fromhex(vector["input"]["body_hex"]))
    assert crc == vector["expected"]["bodyCRC"] == vector["expected"]["crc32"] & 0x7FFFFFFF


@store_vectors("msg_id")
def test_a_message_id_is_the_store_host_and_the_offset(vector):
    """Ids of IPv4 stores have 32 digits, those of IPv6 stores 56."""
    message = vector["input"]
    host = encode_host(message["storeHostIp"], message["port"])
    assert encode_message_id(host, message["commitLogOffset"]) == vector["expected"]["msgId"]


@store_vectors("java_string_hash")
def test_strings_hash_as_in_java(vector):
    """Over UTF-16 units, as a signed 32-bit number."""
    assert string_hash(vector["input"]["string"]) == vector["expected"]["hash"]


@store_vectors("tags_code")
def test_the_tags_code_is_the_hash_of_the_tag_or_the_time_of_delivery(vector, tmp_path):
    """Only a record of the schedule topic has the due time instead of its tag's hash."""
    message, expected = vector["input"], vector["expected"]
    store_timestamp = message.get("storeTimestamp", 1_700_000_000_000)
    properties = {
        name: value for name, value in (("TAGS", message["tags"]), ("DELAY", message.get("DELAY"))) if value is not None
    }
    record = encode_record(
        topic=message["topic"].encode(),
        queue_id=expected.get("queueId", 0),
        body=b"body",
        properties=encode_properties(properties),
        flag=0,
        queue_offset=0,
        commit_log_offset=0,
        sys_flag=0,
        born_timestamp=store_timestamp,
        born_host=encode_host("127.0.0.1", 10911),
        store_timestamp=store_timestamp,
        store_host=encode_host("127.0.0.1", 10911),
    )
    assert scan_alone(record, 0, tmp_path / "store").tags_code == expected["tagsCode"]
    if "effectiveLevel" in expected:
        levels = DelayLevels(message["messageDelayLevel"])
        assert min(int(message["DELAY"]), levels.level_max) == expected["effectiveLevel"]
        assert levels.deliver_timestamp(message["DELAY"], store_timestamp) == expected["tagsCode"]
    if "int64_be_hex" in expected:
        assert expected["tagsCode"].to_bytes(8, "big", signed=True).hex() == expected["int64_be_hex"]


@store_vectors("offset_file_name")
def test_a_file_is_named_by_its_first_offset(vector):
    """Twenty digits, and back."""
    name = file_name(vector["input"]["offset"])
    assert name == vector["expected"]["name"]
    assert parse_file_name(name) == vector["input"]["offset"]

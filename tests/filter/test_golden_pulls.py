"""The golden set ``ext-4.9``: the messages that a real broker returned to SQL92 consumers, and its bit maps."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from golden_sets import read_lines
from reput.filter import BloomFilter, ConsumerFilter, ExpressionMessageFilter, FilterBitMap, parse

TOPIC = "Quartz_sql-11"


@pytest.fixture
def folder(golden_read_only) -> Path:
    """The set."""
    return golden_read_only("ext-4.9")


@pytest.fixture
def bloom_filter(folder) -> BloomFilter:
    """The sizes that the broker used."""
    settings = json.loads((folder / "about.json").read_text("utf-8"))["brokerSettings"]
    return BloomFilter(settings.get("maxErrorRateOfBloomFilter", 20), settings["expectConsumerNumUseFilter"])


@pytest.fixture
def consumer_filters(folder, bloom_filter) -> list[ConsumerFilter]:
    """The filters that were registered before the messages were sent."""
    stored = json.loads((folder / "store/config/consumerFilter.json").read_text("utf-8"))["filterDataByTopic"][TOPIC]
    return [
        ConsumerFilter(
            consumer_group=group,
            topic=TOPIC,
            sql_filter=parse(data["expression"]),
            bloom_filter_data=bloom_filter.calculate_for(group, TOPIC),
            born_time=data["bornTime"],
        )
        for group, data in stored["groupFilterData"].items()
    ]


def test_a_pull_gives_the_messages_that_the_expression_matches(folder):
    """Between the requested offset and the next one, exactly those."""
    listing = [record for record in read_lines(folder / "listing.jsonl") if record["topic"] == TOPIC]
    pulls = read_lines(folder / "pulls.jsonl")
    for pull in pulls:
        wanted = parse(pull["sql"])
        matching = [
            record["physicalOffset"]
            for record in listing
            if record["queueId"] == pull["queueId"]
            and pull["offset"] <= record["queueOffset"] < pull["nextBeginOffset"]
            and wanted.matches(record["properties"])
        ]
        assert matching == (pull["offsets"] or [])
    assert sum(len(pull["offsets"] or []) for pull in pulls) > 500


def test_each_group_has_the_bits_that_the_broker_stored(folder, bloom_filter):
    """They follow from the names of group and topic."""
    stored = json.loads((folder / "store/config/consumerFilter.json").read_text("utf-8"))["filterDataByTopic"]
    for group, data in stored[TOPIC]["groupFilterData"].items():
        bits = bloom_filter.calculate_for(group, TOPIC)
        assert {"bitNum": bits.bit_count, "bitPos": list(bits.bit_positions)} == data["bloomFilterData"]


def test_bit_maps_are_those_that_the_broker_wrote(folder, bloom_filter, consumer_filters):
    """Byte for byte, and they agree with each group's expression, except for collisions."""
    calculation = FilterBitMap(bloom_filter, consumer_filters)
    properties = {
        record["physicalOffset"]: record["properties"]
        for record in read_lines(folder / "listing.jsonl")
        if record["topic"] == TOPIC
    }
    message_filters = [(group.sql_filter, ExpressionMessageFilter(group, bloom_filter)) for group in consumer_filters]
    spared = 0
    units = ext_units(folder / "store")
    assert len(units) == len(properties)
    for commit_log_offset, (tags_code, store_timestamp, bit_map) in units.items():
        assert bit_map == calculation.calculate(properties[commit_log_offset])
        for sql_filter, message_filter in message_filters:
            may_be_wanted = message_filter.is_matched_by_consume_queue(tags_code, store_timestamp, bit_map)
            assert may_be_wanted or not sql_filter.matches(properties[commit_log_offset])
            spared += not may_be_wanted
    assert spared > len(units)


def ext_units(store: Path) -> dict[int, tuple[int, int, bytes]]:
    """Return tags code, store timestamp and bit map of each message of the topic, by commit-log offset."""
    units = {}
    for queue in (store / "consumequeue" / TOPIC).iterdir():
        ext_files = {
            int(file.name): file.read_bytes() for file in (store / "consumequeue_ext" / TOPIC / queue.name).iterdir()
        }
        for file in queue.iterdir():
            for commit_log_offset, record_size, address in struct.iter_unpack(">qiq", file.read_bytes()):
                if record_size == 0:
                    break
                ext_offset = address + 2**63
                start = max(start for start in ext_files if start <= ext_offset)
                ext_file, at = ext_files[start], ext_offset - start
                _, tags_code, store_timestamp, map_size = struct.unpack_from(">hqqh", ext_file, at)
                units[commit_log_offset] = (tags_code, store_timestamp, ext_file[at + 20 : at + 20 + map_size])
    return units

"""RocketMQ's Bloom filter, bit by bit."""

from __future__ import annotations

import json

import pytest

from reput.filter import BloomFilter, BloomFilterData
from reput.filter.murmur3 import murmur3_hash64
from rocketmq_vectors import DATA, store_vectors

BLOOM_VECTORS = json.loads((DATA / "bloom-vectors.json").read_text("utf-8"))["bloom"]
GOOD = [pytest.param(vector, id=vector["id"]) for vector in BLOOM_VECTORS if "error" not in vector]
BAD = [pytest.param(vector, id=vector["id"]) for vector in BLOOM_VECTORS if "error" in vector]


def bit_map(bloom_filter: BloomFilter, bits: int) -> str:
    """Return the bit map in which *bits* are set, in hex."""
    return bits.to_bytes(bloom_filter.bit_count // 8, "little").hex()


@pytest.mark.parametrize("vector", GOOD)
def test_sizes_and_bits_are_those_of_rocketmq(vector):
    """From the error rate and the expected number of filters to the bytes of the map."""
    bloom_filter = BloomFilter(vector["f"], vector["n"])
    assert bloom_filter.hash_count == vector["k"]
    assert bloom_filter.bit_count == vector["m"]
    union = 0
    for string in vector.get("strings", []):
        data = bloom_filter.calculate(string["s"])
        assert list(data.bit_positions) == string["pos"]
        assert bit_map(bloom_filter, data.mask) == string["bits"]
        assert bloom_filter.is_valid(data)
        union |= data.mask
    assert bit_map(bloom_filter, union) == vector.get("union", bit_map(bloom_filter, 0))


@pytest.mark.parametrize("vector", BAD)
def test_sizes_that_rocketmq_refuses_are_refused(vector):
    """An error rate outside of 1 to 99 percent, or no filters."""
    with pytest.raises(ValueError, match=r"error_rate_percent=|expected_count="):
        BloomFilter(vector["f"], vector["n"])


@store_vectors("bloom_params")
def test_sizes_of_the_store_vectors(vector):
    """The same, from the vectors of the store's format."""
    bloom_filter = BloomFilter(vector["input"]["f"], vector["input"]["n"])
    assert bloom_filter.hash_count == vector["expected"]["k"]
    assert bloom_filter.bit_count == vector["expected"]["m"]
    assert bloom_filter.bit_count == vector["expected"]["bitmapBytes"] * 8


@store_vectors("bloom_positions")
def test_bits_of_the_store_vectors(vector):
    """From the group and the topic through the hash to the bytes of the map."""
    text = vector["input"]["string"]
    bloom_filter = BloomFilter(vector["input"]["f"], vector["input"]["n"])
    data = bloom_filter.calculate_for(*text.split("#"))
    assert murmur3_hash64(text.encode()) == vector["expected"]["hash64_signed"]
    assert list(data.bit_positions) == vector["expected"]["bitPos"]
    assert data.bit_count == vector["expected"]["bitNum"]
    assert bit_map(bloom_filter, data.mask) == vector["expected"]["bitmap_hex"]


def test_bits_of_other_sizes_are_not_valid():
    """They were read from a file, and the settings have changed since."""
    bloom_filter = BloomFilter(20, 32)
    positions = bloom_filter.calculate("group#topic").bit_positions
    assert bloom_filter.is_valid(BloomFilterData(positions, 112))
    assert not bloom_filter.is_valid(BloomFilterData(positions, 120))
    assert not bloom_filter.is_valid(BloomFilterData(positions[1:], 112))
    assert not bloom_filter.is_valid(BloomFilterData((112, 0, 1), 112))
    assert not bloom_filter.is_valid(BloomFilterData((-1, 0, 1), 112))

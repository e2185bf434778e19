"""Bit maps filled from the filters of a topic's consumers."""

from __future__ import annotations

import pytest

from reput.filter import BloomFilter, ConsumerFilter, FilterBitMap, parse

BLOOM_FILTER = BloomFilter(20, 32)


def consumer_filter(group: str, expression: str | None) -> ConsumerFilter:
    """Return the filter of *group* on the topic ``orders``."""
    return ConsumerFilter(
        consumer_group=group,
        topic="orders",
        sql_filter=None if expression is None else parse(expression),
        bloom_filter_data=BLOOM_FILTER.calculate_for(group, "orders"),
        born_time=0,
    )


def test_a_bit_map_holds_the_bits_of_the_filters_that_match():
    """An expression that is false, unknown or fails sets nothing."""
    filters = [
        consumer_filter("true", "a = 1"),
        consumer_filter("false", "a = 2"),
        consumer_filter("unknown", "b = 1"),
        consumer_filter("failing", "c > 1"),
        consumer_filter("also true", "c = 'x'"),
    ]
    bit_map = FilterBitMap(BLOOM_FILTER, filters).calculate({"a": "1", "c": "x"})
    expected = BLOOM_FILTER.calculate("true#orders").mask | BLOOM_FILTER.calculate("also true#orders").mask
    assert bit_map == expected.to_bytes(14, "little")


def test_a_topic_without_filters_has_no_bit_map():
    """That differs from a map without bits."""
    assert FilterBitMap(BLOOM_FILTER, []).calculate({"a": "1"}) is None
    assert FilterBitMap(BLOOM_FILTER, [consumer_filter("g", "a = 2")]).calculate({"a": "1"}) == bytes(14)


def test_a_filter_without_expression_or_bits_sets_nothing():
    """It still counts as a filter of the topic."""
    without_bits = ConsumerFilter(
        consumer_group="g", topic="orders", sql_filter=parse("TRUE"), bloom_filter_data=None, born_time=0
    )
    filters = [consumer_filter("h", None), without_bits]
    assert FilterBitMap(BLOOM_FILTER, filters).calculate(None) == bytes(14)


def test_bits_of_other_sizes_are_refused():
    """A map of 112 bits says nothing about a filter of 32."""
    with pytest.raises(ValueError, match="consumer_group='g' topic='orders' bit_count=112 bit_count_here=32"):
        FilterBitMap(BloomFilter(20, 8), [consumer_filter("g", "TRUE")])

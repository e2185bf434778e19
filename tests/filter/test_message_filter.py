"""The decisions about each message for a reader of a queue."""

from __future__ import annotations

import pytest

from reput.filter import (
    BloomFilter,
    BloomFilterData,
    ConsumerFilter,
    ExpressionMessageFilter,
    FilterBitMap,
    MessageFilter,
    RetryMessageFilter,
    TagMessageFilter,
    parse,
    parse_tags,
)
from reput.filter.string_hash import string_hash

BLOOM_FILTER = BloomFilter(20, 32)
BORN_TIME = 1_000
CONSUMER_FILTER = ConsumerFilter(
    consumer_group="group",
    topic="orders",
    sql_filter=parse("a = 1"),
    bloom_filter_data=BLOOM_FILTER.calculate_for("group", "orders"),
    born_time=BORN_TIME,
)
WITH_BITS = FilterBitMap(BLOOM_FILTER, [CONSUMER_FILTER]).calculate({"a": "1"})
NO_BITS = bytes(14)


def replaced(**fields: object) -> ConsumerFilter:
    """Return the filter above with other *fields*."""
    kept = {name: getattr(CONSUMER_FILTER, name) for name in ConsumerFilter.__slots__}
    return ConsumerFilter(**{**kept, **fields})


def test_tags_are_judged_by_their_hash_alone():
    """The second check lets all pass, because the consumer compares the tags themselves."""
    wanted: MessageFilter = TagMessageFilter(parse_tags("TagA"))
    assert wanted.is_matched_by_consume_queue(string_hash("TagA"))
    assert not wanted.is_matched_by_consume_queue(string_hash("TagB"))
    assert not wanted.is_matched_by_consume_queue(string_hash("TagB"), BORN_TIME + 1, WITH_BITS)
    assert wanted.is_matched_by_consume_queue(None)
    assert wanted.is_matched_by_commit_log(None)
    assert wanted.is_matched_by_commit_log({"TAGS": "TagB"})


def test_a_bit_map_decides_for_messages_that_are_younger_than_the_filter():
    """All of the filter's bits must be set."""
    wanted: MessageFilter = ExpressionMessageFilter(CONSUMER_FILTER, BLOOM_FILTER)
    assert wanted.is_matched_by_consume_queue(0, BORN_TIME + 1, WITH_BITS)
    assert wanted.is_matched_by_consume_queue(0, BORN_TIME + 1, b"\xff" * 14)
    assert not wanted.is_matched_by_consume_queue(0, BORN_TIME + 1, NO_BITS)
    for position in CONSUMER_FILTER.bloom_filter_data.bit_positions:
        bits = int.from_bytes(WITH_BITS, "little") & ~(1 << position)
        assert not wanted.is_matched_by_consume_queue(0, BORN_TIME + 1, bits.to_bytes(14, "little"))


@pytest.mark.parametrize(
    ("ext_store_timestamp", "filter_bit_map"),
    [(None, None), (BORN_TIME + 1, None), (BORN_TIME, NO_BITS), (BORN_TIME - 1, NO_BITS), (BORN_TIME + 1, bytes(13))],
    ids=["no ext unit", "no bit map", "stored as it was born", "stored before", "other size"],
)
def test_without_a_bit_map_that_can_tell_every_message_may_be_wanted(ext_store_timestamp, filter_bit_map):
    """The record is checked next."""
    wanted = ExpressionMessageFilter(CONSUMER_FILTER, BLOOM_FILTER)
    assert wanted.is_matched_by_consume_queue(0, ext_store_timestamp, filter_bit_map)


@pytest.mark.parametrize(
    "consumer_filter",
    [
        None,
        replaced(sql_filter=None),
        replaced(bloom_filter_data=None),
        replaced(bloom_filter_data=BloomFilterData((1, 2), 112)),
        replaced(bloom_filter_data=BloomFilterData((1, 2, 3), 120)),
        replaced(bloom_filter_data=BloomFilterData((1, 2, 112), 112)),
    ],
    ids=["no filter", "no expression", "no bits", "too few bits", "bits of another size", "a bit outside"],
)
def test_a_filter_whose_bits_are_not_known_asks_the_record(consumer_filter):
    """Wrong bits must not hide messages."""
    wanted = ExpressionMessageFilter(consumer_filter, BLOOM_FILTER)
    assert wanted.is_matched_by_consume_queue(0, BORN_TIME + 1, NO_BITS)


def test_the_record_is_judged_by_the_expression():
    """Only true is a match."""
    wanted = ExpressionMessageFilter(CONSUMER_FILTER, BLOOM_FILTER)
    assert wanted.is_matched_by_commit_log({"a": "1"})
    assert not wanted.is_matched_by_commit_log({"a": "2"})
    assert not wanted.is_matched_by_commit_log({"a": "x"})
    assert not wanted.is_matched_by_commit_log(None)


@pytest.mark.parametrize("consumer_filter", [None, replaced(sql_filter=None)], ids=["no filter", "no expression"])
def test_without_a_compiled_expression_every_message_passes(consumer_filter):
    """Like at RocketMQ's broker; a caller that wants an error must check the expression first."""
    assert ExpressionMessageFilter(consumer_filter, BLOOM_FILTER).is_matched_by_commit_log({"a": "2"})


@pytest.mark.parametrize(
    "message_filter",
    [TagMessageFilter(parse_tags("*")), ExpressionMessageFilter(None, BLOOM_FILTER)],
    ids=["by tags", "by expression"],
)
def test_a_retried_message_is_judged_by_the_filter_of_its_first_topic(message_filter):
    """Regardless of the subscription to the retry topic."""
    wanted: MessageFilter = RetryMessageFilter(message_filter, {"orders": CONSUMER_FILTER.sql_filter}.get)
    assert wanted.is_matched_by_consume_queue(0)
    assert wanted.is_matched_by_commit_log({"RETRY_TOPIC": "orders", "a": "1"})
    assert not wanted.is_matched_by_commit_log({"RETRY_TOPIC": "orders", "a": "2"})
    assert wanted.is_matched_by_commit_log({"RETRY_TOPIC": "other", "a": "2"})
    assert wanted.is_matched_by_commit_log({"a": "2"})
    assert wanted.is_matched_by_commit_log(None)


def test_a_retried_message_is_asked_for_in_the_queue_by_the_retry_topics_own_filter():
    """Only the second check knows the original topic."""
    wanted = RetryMessageFilter(TagMessageFilter(parse_tags("TagA")), lambda _: None)
    assert not wanted.is_matched_by_consume_queue(string_hash("TagB"))

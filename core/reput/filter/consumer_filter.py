"""ConsumerFilter, one consumer group's expression on one topic; FilterBitMap, the results of all groups' expressions.

A message's bit map records, for each filter registered when it was dispatched, whether the filter matched. It saves a
reader from reading most records. It errs in one direction only: a set bit may belong to another group.

Source: RocketMQ broker, ConsumerFilterData and CommitLogDispatcherCalcBitMap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reput.filter.bloom_filter import BloomFilter, BloomFilterData
from reput.filter.sql_filter import SqlFilter

__all__ = ["ConsumerFilter", "FilterBitMap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFilter:
    """The expression of a consumer group on a topic.

    Attributes:
        consumer_group: its name.
        topic: the subscribed topic.
        sql_filter: the compiled expression; None if it could not be compiled.
        bloom_filter_data: its bits in a message's bit map; None if it has none.
        born_time: milliseconds since 1970. The bit maps of messages stored at this time or before say nothing about it.
    """

    consumer_group: str
    topic: str
    sql_filter: SqlFilter | None
    bloom_filter_data: BloomFilterData | None
    born_time: int


class FilterBitMap:
    """Calculates the bit maps of one topic's messages, for a fixed set of filters."""

    def __init__(self, bloom_filter: BloomFilter, consumer_filters: Iterable[ConsumerFilter]) -> None:
        """Take the registered filters of the topic; those without an expression or bits set no bits.

        Raises:
            ValueError: the bits of a filter were calculated with other sizes than those of *bloom_filter*.
        """
        self._byte_count = bloom_filter.bit_count // 8
        self._masks: list[tuple[SqlFilter, int]] = []
        self._filter_count = 0
        for consumer_filter in consumer_filters:
            self._filter_count += 1
            sql_filter, data = consumer_filter.sql_filter, consumer_filter.bloom_filter_data
            if sql_filter is None or data is None:
                continue
            if not bloom_filter.is_valid(data):
                raise ValueError(
                    "the bits of a filter belong to other sizes: "
                    f"consumer_group={consumer_filter.consumer_group!r} topic={consumer_filter.topic!r} "
                    f"bit_count={data.bit_count} bit_count_here={bloom_filter.bit_count}"
                )
            self._masks.append((sql_filter, data.mask))

    def calculate(self, properties: Mapping[str, str] | None) -> bytes | None:
        """Return the bit map of a message with *properties*; None: the topic has no filters."""
        if not self._filter_count:
            return None
        bits = 0
        for sql_filter, mask in self._masks:
            if sql_filter.matches(properties):
                bits |= mask
        return bits.to_bytes(self._byte_count, "little")

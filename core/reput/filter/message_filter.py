"""The two checks that a reader of a consume queue makes on each message, for either kind of subscription.

The first check uses only the queue's unit, and says yes in doubt. The second uses the record, and applies to messages
that passed the first.

    filter                     by the consume queue's unit    by the record's properties
    TagMessageFilter           hash of the tag                yes
    ExpressionMessageFilter    bit map of the ext unit        the expression
    RetryMessageFilter         the retry topic's own          the expression on the topic before the retry

An unknown subscription, or one in RocketMQ's obsolete class-filter mode, has no filter: every message passes.

Source: RocketMQ store, DefaultMessageFilter; broker, ExpressionMessageFilter and ExpressionForRetryMessageFilter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from reput.filter.bloom_filter import BloomFilter
from reput.filter.consumer_filter import ConsumerFilter
from reput.filter.sql_filter import SqlFilter
from reput.filter.tags import SUBSCRIBE_ALL, TagFilter

__all__ = ["ExpressionMessageFilter", "MessageFilter", "RetryMessageFilter", "TagMessageFilter"]


class MessageFilter(Protocol):
    """The checks that a reader of a consume queue makes."""

    def is_matched_by_consume_queue(
        self, tags_code: int | None, ext_store_timestamp: int | None = None, filter_bit_map: bytes | None = None
    ) -> bool:
        """Return whether the message of a unit may match.

        Args:
            tags_code: of the unit or, if it has one, of its ext unit; None if that is missing.
            ext_store_timestamp: of the ext unit, milliseconds since 1970; None without an ext unit.
            filter_bit_map: of the ext unit; None if that has none.
        """

    def is_matched_by_commit_log(self, properties: Mapping[str, str] | None) -> bool:
        """Return whether a record matches; *properties* None: it has none."""


class TagMessageFilter:
    """A subscription by tags. The server compares hashes only; the consumer compares the tags themselves."""

    def __init__(self, tag_filter: TagFilter) -> None:
        self._tag_filter = tag_filter

    @property
    def codes(self) -> frozenset[int] | None:
        """The matching hashes, signed 32-bit; None: all."""
        return None if self._tag_filter.expression == SUBSCRIBE_ALL else self._tag_filter.codes

    def is_matched_by_consume_queue(
        self, tags_code: int | None, ext_store_timestamp: int | None = None, filter_bit_map: bytes | None = None
    ) -> bool:
        """Return whether the tag's hash is one of the subscription's."""
        return self._tag_filter.matches_tags_code(tags_code)

    def is_matched_by_commit_log(self, properties: Mapping[str, str] | None) -> bool:
        """Return True: the consumer itself sorts out hash collisions."""
        return True


class ExpressionMessageFilter:
    """A subscription by expression. Without a compiled expression, every message matches."""

    def __init__(self, consumer_filter: ConsumerFilter | None, bloom_filter: BloomFilter) -> None:
        """Take the group's filter on the topic that it reads, None if there is none, and the present bit map sizes."""
        self._sql_filter = None if consumer_filter is None else consumer_filter.sql_filter
        self._map_size: int | None = None
        self._mask = 0
        self._born_time = 0
        if consumer_filter is None or consumer_filter.sql_filter is None:
            return
        data = consumer_filter.bloom_filter_data
        if data is not None and bloom_filter.is_valid(data):
            self._map_size = data.bit_count // 8
            self._mask = data.mask
            self._born_time = consumer_filter.born_time

    def is_matched_by_consume_queue(
        self, tags_code: int | None, ext_store_timestamp: int | None = None, filter_bit_map: bytes | None = None
    ) -> bool:
        """Return False only if the ext unit's bit map was made with this filter and lacks one of its bits."""
        if ext_store_timestamp is None or filter_bit_map is None or len(filter_bit_map) != self._map_size:
            return True
        if ext_store_timestamp <= self._born_time:
            return True
        return int.from_bytes(filter_bit_map, "little") & self._mask == self._mask

    def is_matched_by_commit_log(self, properties: Mapping[str, str] | None) -> bool:
        """Return whether the expression is true."""
        return self._sql_filter is None or self._sql_filter.matches(properties)


class RetryMessageFilter:
    """A subscription to a retry topic: the group's expression on the original topic decides about a record.

    RocketMQ's ``filterSupportRetry``, off by default. It applies to subscriptions by tags as well, because a group
    subscribes to its retry topic by the tag ``*``, regardless of its filter on the original topic.
    """

    def __init__(
        self, message_filter: MessageFilter, filter_on_topic: Callable[[str | None], SqlFilter | None]
    ) -> None:
        """Take the retry topic's own filter, and a function that finds the group's expression on another topic.

        Args:
            filter_on_topic: called with the record's property ``RETRY_TOPIC``, None if it has none.
        """
        self._message_filter = message_filter
        self._filter_on_topic = filter_on_topic

    def is_matched_by_consume_queue(
        self, tags_code: int | None, ext_store_timestamp: int | None = None, filter_bit_map: bytes | None = None
    ) -> bool:
        """Return the answer of the retry topic's own filter."""
        return self._message_filter.is_matched_by_consume_queue(tags_code, ext_store_timestamp, filter_bit_map)

    def is_matched_by_commit_log(self, properties: Mapping[str, str] | None) -> bool:
        """Return whether the expression on the original topic is true; without one, True."""
        sql_filter = self._filter_on_topic(None if properties is None else properties.get("RETRY_TOPIC"))
        return sql_filter is None or sql_filter.matches(properties)

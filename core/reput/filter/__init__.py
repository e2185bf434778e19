"""Which messages a consumer wants: by tags, by SQL92 expressions, and by the bit maps that remember the answers.

    subscription           compiled           asked in the consume queue    asked with the record at hand
    "TagA || TagB"  ──▶  TagFilter  ────────▶  hash of the tag             ▶  the tag itself
    "a > 5 AND …"   ──▶  SqlFilter  ──┬─────▶  bit map of the ext unit     ▶  the properties
                                      │              ▲
                         BloomFilter ─┴▶ FilterBitMap ┘  calculated when the message is dispatched

    >>> wanted = parse("price BETWEEN 10 AND 20 AND color IN ('red', 'blue')")
    >>> wanted.evaluate({"price": "12", "color": "red"})
    True

`MessageFilter` puts both questions to either kind of subscription, which is all that a reader of a queue needs to
know. Nothing here knows of stores, rings or sockets. Every rule is RocketMQ's, its surprises included: an expression
must not mean another thing here than at the broker it was written for.
"""

from __future__ import annotations

from reput.filter.bloom_filter import BloomFilter, BloomFilterData
from reput.filter.consumer_filter import ConsumerFilter, FilterBitMap
from reput.filter.errors import FilterEvaluationError, FilterSyntaxError
from reput.filter.message_filter import (
    ExpressionMessageFilter,
    MessageFilter,
    RetryMessageFilter,
    TagMessageFilter,
)
from reput.filter.sql_filter import SqlFilter, parse
from reput.filter.tags import SUBSCRIBE_ALL, TagFilter, parse_tags

__all__ = [
    "SUBSCRIBE_ALL",
    "BloomFilter",
    "BloomFilterData",
    "ConsumerFilter",
    "ExpressionMessageFilter",
    "FilterBitMap",
    "FilterEvaluationError",
    "FilterSyntaxError",
    "MessageFilter",
    "RetryMessageFilter",
    "SqlFilter",
    "TagFilter",
    "TagMessageFilter",
    "parse",
    "parse_tags",
]

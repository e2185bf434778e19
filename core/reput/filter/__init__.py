"""Which messages a consumer wants: by tags, by SQL92 expressions, and by the bit maps that remember the answers.

    subscription          compiled           asked with the queue's unit    asked with the record
    "TagA || TagB"  ───▶  TagFilter  ─────▶  the tag's hash                 the tag itself
    "a > 5 AND …"   ───▶  SqlFilter  ──┬──▶  bit map of the ext unit        its properties
                                       ▼         ▲
                  BloomFilter ───▶ FilterBitMap ─┘ at dispatch

    >>> wanted = parse("price BETWEEN 10 AND 20 AND color IN ('red', 'blue')")
    >>> wanted.evaluate({"price": "12", "color": "red"})
    True

`MessageFilter` puts both questions to either kind of subscription, which is all that a reader of a queue needs to
know. Nothing here knows of stores, rings or sockets. Every rule is RocketMQ's, its surprises included: an expression
must not mean another thing here than at the broker it was written for.

Names are imported when they are first used: the store needs a hash of this package and never the parser.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput.filter.bloom_filter import BloomFilter, BloomFilterData
    from reput.filter.consumer_filter import ConsumerFilter, FilterBitMap
    from reput.filter.errors import FilterEvaluationError, FilterSyntaxError
    from reput.filter.message_filter import ExpressionMessageFilter, MessageFilter, RetryMessageFilter, TagMessageFilter
    from reput.filter.sql_filter import SqlFilter, parse
    from reput.filter.tags import SUBSCRIBE_ALL, TagFilter, parse_plain_tags, parse_tags

# Where each public name lives.
HOMES = {
    "SUBSCRIBE_ALL": "reput.filter.tags",
    "BloomFilter": "reput.filter.bloom_filter",
    "BloomFilterData": "reput.filter.bloom_filter",
    "ConsumerFilter": "reput.filter.consumer_filter",
    "ExpressionMessageFilter": "reput.filter.message_filter",
    "FilterBitMap": "reput.filter.consumer_filter",
    "FilterEvaluationError": "reput.filter.errors",
    "FilterSyntaxError": "reput.filter.errors",
    "MessageFilter": "reput.filter.message_filter",
    "RetryMessageFilter": "reput.filter.message_filter",
    "SqlFilter": "reput.filter.sql_filter",
    "TagFilter": "reput.filter.tags",
    "TagMessageFilter": "reput.filter.message_filter",
    "parse": "reput.filter.sql_filter",
    "parse_plain_tags": "reput.filter.tags",
    "parse_tags": "reput.filter.tags",
}

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
    "parse_plain_tags",
    "parse_tags",
]


def __getattr__(name: str) -> Any:
    home = HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'reput.filter' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})

"""Message filters: tags, SQL92 expressions, and the bit maps that store an expression's results.

    subscription          compiled           checked on the queue's unit    checked on the record
    "TagA || TagB"  ───▶  TagFilter  ─────▶  the tag's hash                 the tag itself
    "a > 5 AND …"   ───▶  SqlFilter  ──┬──▶  bit map of the ext unit        its properties
                                       ▼         ▲
                  BloomFilter ───▶ FilterBitMap ─┘ at dispatch

    >>> wanted = parse("price BETWEEN 10 AND 20 AND color IN ('red', 'blue')")
    >>> wanted.evaluate({"price": "12", "color": "red"})
    True

`MessageFilter` makes both checks for either kind of subscription; a reader of a queue needs nothing else. This package
knows no stores, rings or sockets. Every rule is RocketMQ's, including the surprising ones: an expression must mean the
same here as at the broker it was written for.

Names are imported on first use: the store needs a hash from here, but never the parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from reput.filter.bloom_filter import BloomFilter as BloomFilter
    from reput.filter.bloom_filter import BloomFilterData as BloomFilterData
    from reput.filter.consumer_filter import ConsumerFilter as ConsumerFilter
    from reput.filter.consumer_filter import FilterBitMap as FilterBitMap
    from reput.filter.errors import FilterEvaluationError as FilterEvaluationError
    from reput.filter.errors import FilterSyntaxError as FilterSyntaxError
    from reput.filter.message_filter import ExpressionMessageFilter as ExpressionMessageFilter
    from reput.filter.message_filter import MessageFilter as MessageFilter
    from reput.filter.message_filter import RetryMessageFilter as RetryMessageFilter
    from reput.filter.message_filter import TagMessageFilter as TagMessageFilter
    from reput.filter.sql_filter import SqlFilter as SqlFilter
    from reput.filter.sql_filter import parse as parse
    from reput.filter.tags import SUBSCRIBE_ALL as SUBSCRIBE_ALL
    from reput.filter.tags import TagFilter as TagFilter
    from reput.filter.tags import parse_plain_tags as parse_plain_tags
    from reput.filter.tags import parse_tags as parse_tags
else:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)

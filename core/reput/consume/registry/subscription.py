"""Subscription: a consumer group's filter on one topic, compiled once.

Source: RocketMQ common, SubscriptionData, FilterAPI.build and ExpressionType.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from reput.errors import ConfigError
from reput.filter import SUBSCRIBE_ALL, SqlFilter, TagFilter, parse, parse_plain_tags, parse_tags
from reput.filter.errors import FilterSyntaxError

__all__ = ["SQL92", "TAG", "Filter", "Subscription", "checked_filter", "checked_topics", "subscribe"]

TAG = "TAG"
SQL92 = "SQL92"

# Tags as text, ``a || b``, or either kind of compiled filter; None takes everything.
Filter: TypeAlias = str | TagFilter | SqlFilter | None


@dataclass(frozen=True, slots=True)
class Subscription:
    """One group's filter on one topic. Make it with `subscribe`.

    Attributes:
        sub_version: ms since 1970 at which the client made it; the highest wins.
        compiled: of tags, or of an expression.
    """

    topic: str
    expression: str
    expression_type: str
    sub_version: int
    compiled: TagFilter | SqlFilter

    @property
    def is_sql(self) -> bool:
        """Whether the filter needs a message's properties."""
        return isinstance(self.compiled, SqlFilter)


def checked_topics(topics: str | Iterable[str]) -> tuple[str, ...]:
    """Return the topics that a program gives to a consumer.

    Raises:
        ConfigError: they are neither a name nor an iterable.
    """
    if not isinstance(topics, str) and not isinstance(topics, Iterable):
        raise ConfigError(f"no topics are given: topics={topics!r}", "Give a topic's name, or several.")
    return (topics,) if isinstance(topics, str) else tuple(topics)


def checked_filter(wanted: Filter) -> Filter:
    """Return the filter that a program gives to a consumer; text that looks like an expression would select nothing.

    Raises:
        ConfigError: it is no filter.
        FilterSyntaxError: the text is no list of tags.
    """
    if not isinstance(wanted, Filter):
        raise ConfigError(
            f"the filter is not valid: filter={wanted!r}",
            "Give tags like 'a || b', or what `reput.filter.parse` returns.",
        )
    return parse_plain_tags(wanted) if isinstance(wanted, str) else wanted


def subscribe(
    topic: str, wanted: Filter = None, *, expression_type: str | None = TAG, sub_version: int = 0
) -> Subscription:
    """Return the subscription to *topic* with a filter.

    Args:
        wanted: a filter, or its text, which is then of *expression_type*.

    Raises:
        FilterSyntaxError: the text does not parse, or its type is neither TAG nor SQL92.
    """
    if isinstance(wanted, SqlFilter):
        return Subscription(topic, wanted.expression, SQL92, sub_version, wanted)
    if isinstance(wanted, TagFilter):
        return Subscription(topic, wanted.expression, TAG, sub_version, wanted)
    if expression_type == SQL92:
        compiled = parse(wanted or "")
        return Subscription(topic, compiled.expression, SQL92, sub_version, compiled)
    if expression_type not in (None, "", TAG):
        raise FilterSyntaxError("a subscription is of type TAG or SQL92", 0, f"expression_type={expression_type!r}")
    tags = parse_tags(wanted or SUBSCRIBE_ALL)
    return Subscription(topic, tags.expression, TAG, sub_version, tags)

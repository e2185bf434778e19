"""Subscription: a consumer group's filter on one topic, compiled once.

Source: RocketMQ common, SubscriptionData, FilterAPI.build and ExpressionType.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from reput.filter import SUBSCRIBE_ALL, SqlFilter, TagFilter, parse, parse_tags
from reput.filter.errors import FilterSyntaxError

__all__ = ["SQL92", "TAG", "Filter", "Subscription", "subscribe"]

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

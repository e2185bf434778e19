"""Tags: a filter that compares hashes in the consume queue; the consumer compares the tags of the records.

    text                    tags       matches
    *, empty                -          everything
    a || b                  a, b       records whose TAGS is a or b
    blanks, or || around    -          nothing in the consume queue

Source: RocketMQ FilterAPI.buildSubscriptionData and DefaultMessageFilter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from reput.filter.errors import FilterSyntaxError, quoted
from reput.filter.string_hash import string_hash

__all__ = ["SUBSCRIBE_ALL", "TagFilter", "can_be_selected", "parse_plain_tags", "parse_tags"]

SUBSCRIBE_ALL = "*"
_SEPARATOR = "||"
# Java's trim: every character up to and including the space.
_BLANKS = "".join(map(chr, range(0x21)))
# Signs of an expression that hardly any tag has: a blank inside, an operator, a bracket or a quote.
_OF_EXPRESSIONS = re.compile(r"(?<=[^|\s])\s+(?=[^|\s])|[<>=(),'\"&]|(?<!\|)\|(?!\|)")


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A subscription by tags. Make it with `parse_tags`.

    Attributes:
        expression: the text, ``*`` for all.
        tags: the tags it names; empty for all.
        codes: their hashes, signed 32-bit.
    """

    expression: str
    tags: frozenset[str]
    codes: frozenset[int]

    def matches_tags_code(self, tags_code: int | None) -> bool:
        """Return whether a consume-queue unit with *tags_code* may hold a message of these tags.

        True may be a hash collision; see `matches_tag`. None, an unknown tags code, always matches.
        """
        if tags_code is None or self.expression == SUBSCRIBE_ALL:
            return True
        return (tags_code + 0x8000_0000 & 0xFFFF_FFFF) - 0x8000_0000 in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """Return whether a message with *tag*, its property ``TAGS``, belongs to the subscription, without hashes.

        As with RocketMQ's consumers, a subscription that names no tag matches every message.
        """
        return not self.tags or tag in self.tags


def parse_tags(expression: str) -> TagFilter:
    """Return the filter for a subscription such as ``TagA || TagB``.

    Raises:
        FilterSyntaxError: *expression* consists of separators only.
    """
    if expression in ("", SUBSCRIBE_ALL):
        return TagFilter(SUBSCRIBE_ALL, frozenset(), frozenset())
    pieces = expression.split(_SEPARATOR)
    if not any(pieces):
        raise FilterSyntaxError("a subscription consists of separators alone", 0, f"expression={quoted(expression)}")
    tags = frozenset(tag for piece in pieces if (tag := piece.strip(_BLANKS)))
    return TagFilter(expression, tags, frozenset(map(string_hash, tags)))


def parse_plain_tags(expression: str) -> TagFilter:
    """Return the filter for tags that a person wrote; refuse a text that looks like no list of tags.

    `parse_tags` accepts everything that RocketMQ accepts, even ``price > 5`` as a tag.

    Raises:
        FilterSyntaxError: *expression* looks like SQL92, or lists tags with another separator.
    """
    strange = _OF_EXPRESSIONS.search(expression)
    if strange is not None:
        raise FilterSyntaxError(
            "this is no list of tags like 'a || b'; compile SQL92 with reput.filter.parse, or give it as --sql, and "
            "tags that are spelled so with reput.filter.parse_tags",
            strange.start(),
            f"filter={quoted(expression)}",
        )
    return parse_tags(expression)


def can_be_selected(tag: str) -> bool:
    """Return whether a subscription can name *tag*: subscriptions are split at ``||`` and trimmed."""
    return _SEPARATOR not in tag and tag == tag.strip(_BLANKS)

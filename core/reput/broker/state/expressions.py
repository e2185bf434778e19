"""Expressions: the SQL92 expressions of clients, compiled in the broker's loop.

    text ──┬─ compiled before ─────────────────────▶ its filter
           └─ new ── allowance of the connection ──▶ compiled, or refused as if it did not compile

Compiling takes about ten microseconds for each byte, in which the loop serves no other client. Therefore a connection
may bring only so many bytes of new expressions at once, and each text is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable

from reput.consume.registry.subscription import SQL92, Subscription, subscribe
from reput.filter import SqlFilter, parse
from reput.filter.errors import FilterSyntaxError
from reput.remoting.connection import Connection

__all__ = ["EXPRESSION_SIZE_MAX", "Expressions"]

# Characters of one expression.
EXPRESSION_SIZE_MAX = 16 << 10
# Characters of the new expressions that a connection may bring at once, and how many more with each second.
ALLOWANCE = 2 * EXPRESSION_SIZE_MAX
ALLOWANCE_OF_SECOND = 1024.0
# Characters of all expressions whose filters are kept. A filter takes about a hundred times as much.
KEPT_SIZE_MAX = 512 << 10
USED = "expressions_used"


class Expressions:
    """Used in the thread of the broker's loop only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """*clock* returns seconds."""
        self.clock = clock
        # The filter that was used last comes last.
        self.filters: dict[str, SqlFilter] = {}
        self.kept_size = 0

    def subscribe(
        self, connection: Connection, topic: str, wanted: str | None, expression_type: str | None, sub_version: int
    ) -> Subscription:
        """Return the subscription of a client, as `subscription.subscribe`.

        Raises:
            FilterSyntaxError: the expression does not compile, or the connection has brought too many new ones.
        """
        if expression_type != SQL92:
            return subscribe(topic, wanted, expression_type=expression_type, sub_version=sub_version)
        return subscribe(topic, self.compiled(connection, wanted or ""), sub_version=sub_version)

    def compiled(self, connection: Connection, expression: str) -> SqlFilter:
        """Return the filter of an expression.

        Raises:
            FilterSyntaxError: as `subscribe`.
        """
        found = self.filters.pop(expression, None)
        if found is None:
            self.charge(connection, len(expression))
            found = parse(expression)
            self.kept_size += len(expression)
        self.filters[expression] = found
        while self.kept_size > KEPT_SIZE_MAX:
            oldest = next(iter(self.filters))
            del self.filters[oldest]
            self.kept_size -= len(oldest)
        return found

    def charge(self, connection: Connection, size: int) -> None:
        """Count a new expression of *size* characters against the allowance of its connection.

        Raises:
            FilterSyntaxError: the allowance is used up.
        """
        now = self.clock()
        before = connection.attachments.get(USED, (0.0, now))
        assert isinstance(before, tuple)
        used, at = before
        used = max(used - (now - at) * ALLOWANCE_OF_SECOND, 0.0)
        if used + size > ALLOWANCE:
            raise FilterSyntaxError(
                "the connection has brought too many new expressions, which are compiled later",
                0,
                f"expression_size={size} allowance={ALLOWANCE}",
            )
        connection.attachments[USED] = used + size, now

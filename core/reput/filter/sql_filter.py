"""A compiled SQL92 expression."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from reput.filter.errors import FilterEvaluationError, quoted
from reput.filter.expression import Evaluate
from reput.filter.parser import parse_condition

__all__ = ["SqlFilter", "parse"]

_logger = logging.getLogger(__name__)
_NO_PROPERTIES: Mapping[str, str] = {}


class SqlFilter:
    """An SQL92 filter on a message's properties. Make it with `parse`; any number of threads may use it.

    Attributes:
        expression: its text.
    """

    __slots__ = ("_evaluate", "_failure_reported", "expression")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._evaluate: Evaluate = parse_condition(expression).evaluate
        self._failure_reported = False

    def evaluate(self, properties: Mapping[str, str] | None) -> bool | None:
        """Return True, False, or None, which is SQL's unknown.

        Args:
            properties: of one message, the system's (``TAGS``, ``KEYS``, …) as well as the user's; None: it has none.

        Raises:
            FilterEvaluationError: there is no result, e.g. because a property compared with a number is not one.
        """
        try:
            result = self._evaluate(_NO_PROPERTIES if properties is None else properties)
        except RecursionError as error:
            # The depth of the expression is bounded, so the caller had used up the stack.
            raise FilterEvaluationError(
                f"the expression is nested too deeply: expression={quoted(self.expression)}"
            ) from error
        assert result is None or isinstance(result, bool)
        return result

    def matches(self, properties: Mapping[str, str] | None) -> bool:
        """Return whether a message with *properties* matches: only if the result is true.

        A failed evaluation counts as no match, as in RocketMQ. The first failure is logged as a warning, later ones at
        debug level.
        """
        try:
            return self.evaluate(properties) is True
        except FilterEvaluationError as error:
            level = logging.DEBUG if self._failure_reported else logging.WARNING
            self._failure_reported = True
            _logger.log(
                level,
                "filter expression fails, the message is skipped: %s expression=%s",
                error,
                quoted(self.expression),
            )
            return False

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"


def parse(expression: str) -> SqlFilter:
    """Return the filter that the SQL92 *expression* describes, as RocketMQ 5.3.3 understands it.

    Raises:
        FilterSyntaxError: RocketMQ refuses the expression, or its operators are nested too deeply.
    """
    return SqlFilter(expression)

"""Errors of filters: an expression that does not parse, and one that cannot be evaluated."""

from __future__ import annotations

from reput.errors import ReputError

__all__ = ["FilterEvaluationError", "FilterSyntaxError", "quoted"]

_QUOTED_SIZE_MAX = 100


class FilterSyntaxError(ReputError, ValueError):
    """RocketMQ would refuse this expression. Correct it at `position`.

    Attributes:
        reason: what is wrong there.
        position: characters from the start of the expression.
        detail: the text found or allowed there, as ``name=value``; may be empty.
    """

    advice = "Correct the expression at that position."

    def __init__(self, reason: str, position: int, detail: str = "") -> None:
        super().__init__(reason)
        # All are arguments of the exception, so that it can be pickled between processes.
        self.args = (reason, position, detail)
        self.reason = reason
        self.position = position
        self.detail = detail

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.reason}:", self.detail, f"position={self.position}"]))


class FilterEvaluationError(Exception):
    """The expression has no result for these properties: not even unknown. Such a message does not match.

    Most often a property compared with a number cannot be read as such, as in ``a > 1`` where a is ``1.5``.
    """


def quoted(text: str) -> str:
    """Return *text* shortened for an error: a property may be 32 KiB long, a log line should not."""
    return repr(text if len(text) <= _QUOTED_SIZE_MAX else text[: _QUOTED_SIZE_MAX - 1] + "…")

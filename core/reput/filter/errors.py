"""What a filter refuses to read, and what it fails to evaluate."""

from __future__ import annotations

__all__ = ["FilterEvaluationError", "FilterSyntaxError", "quoted"]

_QUOTED_SIZE_MAX = 100


class FilterSyntaxError(ValueError):
    """RocketMQ would refuse this expression. Correct it at `position`.

    Attributes:
        reason: what is wrong there.
        position: characters from the start of the expression.
        detail: what was found there or is allowed there, as ``name=value``; may be empty.
    """

    def __init__(self, reason: str, position: int, detail: str = "") -> None:
        # All are arguments of the exception, or it could not be pickled from process to process.
        super().__init__(reason, position, detail)
        self.reason = reason
        self.position = position
        self.detail = detail

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.reason}:", self.detail, f"position={self.position}"]))


class FilterEvaluationError(Exception):
    """The expression has no result for these properties: not even unknown. Such a message does not match.

    Most often a property that is compared with a number is not one, as ``a > 1`` where a is ``1.5``.
    """


def quoted(text: str) -> str:
    """Return *text* as an error shows it: a property may be 32 KiB long, a line of a log should not."""
    return repr(text if len(text) <= _QUOTED_SIZE_MAX else text[: _QUOTED_SIZE_MAX - 1] + "…")

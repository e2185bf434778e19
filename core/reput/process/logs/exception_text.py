"""The text of an exception for an operator, from a traceback. The group's log has the whole traceback."""

from __future__ import annotations

__all__ = ["exception_line", "exception_message"]

FRAME = "  "


def exception_line(text: str) -> str:
    """Return the line of a traceback that names the exception; for any other text, its last line.

    The line follows the last frame. Notes, such as the advice of our errors, come after it.
    """
    lines = text.strip().splitlines() or [""]
    last_frame = max((number for number, line in enumerate(lines) if line.startswith(FRAME)), default=None)
    if last_frame is None or last_frame + 1 == len(lines):
        return lines[-1]
    return lines[last_frame + 1]


def exception_message(error: str | None) -> str:
    """Return the message of the exception in *error*, a traceback from a cell; our own errors without the class."""
    last = exception_line(error or "unknown")
    kind, separator, text = last.partition(": ")
    return text if separator and kind.startswith("reput.") else last

"""The text of an exception for an operator, without its traceback. The group's log has the whole traceback."""

from __future__ import annotations

import traceback

__all__ = ["exception_line", "exception_message", "exception_text", "without_frames"]

FRAME = "  "
BEGINNINGS = (FRAME, "Traceback (")


def exception_text(error: BaseException) -> str:
    """Return class and message of an exception, with its notes, such as the advice of our errors."""
    return "".join(traceback.format_exception_only(error)).strip("\n")


def without_frames(text: str) -> str:
    """Return the same for the exception of a traceback; any other text is returned as it is."""
    text = text.strip("\n")
    if not text.startswith(BEGINNINGS):
        return text
    lines = text.splitlines()
    last_frame = max((number for number, line in enumerate(lines) if line.startswith(FRAME)), default=0)
    # The exception follows the last frame.
    return "\n".join(lines[last_frame + 1 :] or lines[-1:])


def exception_line(text: str) -> str:
    """Return the line of a traceback that names the exception; for any other text, its first line."""
    return without_frames(text).partition("\n")[0]


def exception_message(error: str | None) -> str:
    """Return the message of the exception in *error*, the text of a cell; our own errors without the class."""
    last = exception_line(error or "unknown")
    kind, separator, text = last.partition(": ")
    return text if separator and kind.startswith("reput.") else last

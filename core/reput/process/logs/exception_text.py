"""What an operator has to read of a traceback: the line that says the exception. The group's log has all of it."""

from __future__ import annotations

__all__ = ["exception_line", "last_words"]

FRAME = "  "


def exception_line(text: str) -> str:
    """Return the line of a traceback that says the exception; of a text that is none, the last one.

    It follows the last frame. Behind it stand notes, as the advice of our errors.
    """
    lines = text.strip().splitlines() or [""]
    last_frame = max((number for number, line in enumerate(lines) if line.startswith(FRAME)), default=None)
    if last_frame is None or last_frame + 1 == len(lines):
        return lines[-1]
    return lines[last_frame + 1]


def last_words(error: str | None) -> str:
    """Return what an exception said, by the traceback that a cell keeps; of ours without the name of its module."""
    last = exception_line(error or "unknown")
    kind, separator, text = last.partition(": ")
    return text if separator and kind.startswith("reput.") else last

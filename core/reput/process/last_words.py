"""What an operator has to read of a traceback: its last line. The group's log has all of it."""

from __future__ import annotations

__all__ = ["last_words"]


def last_words(error: str | None) -> str:
    """Return what an exception said, by the traceback that a cell keeps; of ours without the name of its module."""
    lines = (error or "unknown").strip().splitlines()
    last = lines[-1]
    kind, separator, text = last.partition(": ")
    return text if separator and kind.startswith("reput.") else last

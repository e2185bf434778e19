"""BadRange: bytes of the log that hold no records, and why."""

from __future__ import annotations

import msgspec

__all__ = ["BadRange"]


class BadRange(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "until"}):
    """Bytes [begin, end) of the log that hold no records, and why."""

    begin: int
    end: int
    reason: str

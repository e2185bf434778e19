"""File names: the offset of a file's first byte in 20 decimal digits.

Source: RocketMQ common, UtilAll.offset2FileName.
"""

from __future__ import annotations

__all__ = ["file_name", "parse_file_name"]

DIGITS = 20
# The largest first offset of a file of any size whose every byte still has an offset that fits a Java long.
OFFSET_MAX = 2**63 - 2**31


def file_name(offset: int) -> str:
    """Return the name of the file whose first byte has this offset."""
    return f"{offset:0{DIGITS}d}"


def parse_file_name(name: str) -> int | None:
    """Return the offset that *name* stands for, None if it is not a file name of this form."""
    if len(name) != DIGITS or not name.isascii() or not name.isdigit():
        return None
    offset = int(name)
    return offset if offset <= OFFSET_MAX else None

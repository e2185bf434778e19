"""Java's ``String.hashCode``, by which RocketMQ identifies tags and keys.

``h = 0; for each UTF-16 code unit c: h = 31 * h + c`` in wrapping 32-bit arithmetic, as a signed number. A character
outside the basic plane counts as the two units of its surrogate pair.

Source: java.lang.String.hashCode; used by RocketMQ for tagsCode and for the hash slots of the index.
"""

from __future__ import annotations

import sys

__all__ = ["string_hash"]

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000
_SHORT_UNIT_COUNT = 128
_NATIVE_UTF_16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def string_hash(text: str) -> int:
    """Return the hash of *text* as Java computes it: -2**31 to 2**31 - 1, and 0 for the empty text."""
    units: bytes | memoryview
    if text.isascii():
        units = text.encode("ascii")
    else:
        units = memoryview(text.encode(_NATIVE_UTF_16, "surrogatepass")).cast("H")
    value = 0
    if len(units) <= _SHORT_UNIT_COUNT:
        # One mask at the end: Python's wide integers hold the whole sum of a text as short as a tag or a key.
        for unit in units:
            value = 31 * value + unit
        value &= _MASK
    else:
        # A mask per unit keeps a long text's cost linear.
        for unit in units:
            value = 31 * value + unit & _MASK
    return value - ((value & _SIGN) << 1)

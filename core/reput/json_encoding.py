"""encode_json: msgspec's JSON for data of any size.

Where msgspec's `encode` finds no memory for a large result, it ends the process by a segmentation fault. Its
`encode_into` raises MemoryError.
"""

from __future__ import annotations

import msgspec

__all__ = ["encode_json"]

encode_into = msgspec.json.Encoder().encode_into


def encode_json(value: object) -> bytes:
    """Return *value*, anything that msgspec encodes, as JSON.

    Raises:
        MemoryError: there is no memory for it.
    """
    encoded = bytearray()
    encode_into(value, encoded)
    return bytes(encoded)

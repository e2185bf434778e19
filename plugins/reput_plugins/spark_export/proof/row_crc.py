"""The checksum of a row. Watermarks hold sums of it; it is small enough that sums of many rows do not overflow.

    ((bodyCRC & 2147483647) + 1) * (commitLogOffset % 2147483647 + 1) + storeSize, modulo 2147483647

The product and the sum of up to 2**32 rows stay below 2**63, so SQL engines can compute them with BIGINT, in any order
of the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["row_crc"]

Array = np.ndarray[Any, Any]

MODULUS = 2**31 - 1


def row_crc(commit_log_offset: Array, store_size: Array, body_crc: Array) -> Array:
    """Return the checksum of each row."""
    product = ((body_crc.astype(np.int64) & MODULUS) + 1) * (commit_log_offset.astype(np.int64) % MODULUS + 1)
    found: Array = (product + store_size.astype(np.int64)) % MODULUS
    return found

"""SegmentReader: where the bytes of a log that are not zero end."""

from __future__ import annotations

import pytest

from reput.store.log.segment_reader import ZEROS, used_size


@pytest.mark.parametrize("zeros", [0, 1, len(ZEROS) - 1, len(ZEROS), len(ZEROS) + 1, 3 * len(ZEROS)])
@pytest.mark.parametrize("data", [b"", b"\0x", b"x" * len(ZEROS), b"x" + ZEROS + b"x"])
def test_the_zero_bytes_at_the_end_are_not_used(data: bytes, zeros: int):
    """Whatever their number, and wherever the blocks end in which they are compared."""
    assert used_size(data + bytes(zeros)) == len(data)

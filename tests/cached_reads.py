"""Whether a test's file system can read without waiting, which the kernel's reads need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["require_cached_reads"]


def require_cached_reads(directory: Path) -> None:
    """Skip the test where the file system cannot say whether a read would wait; tmpfs cannot, but never waits."""
    with open(next((directory / "commitlog").iterdir()), "rb") as file:
        file.read(64)
        try:
            os.preadv(file.fileno(), [bytearray(8)], 0, os.RWF_NOWAIT)
        except OSError as error:
            if not directory.is_relative_to("/dev/shm"):
                pytest.skip(f"the file system refuses reads that must not wait: error={error}")

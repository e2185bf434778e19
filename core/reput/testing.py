"""Fixtures for tests of programs that use reput. pytest finds them where reput is installed.

def test_an_order_is_kept(reput_store):
    stored = reput_store.put(reput.Message("orders", b"one"))
    reput_store.wait_for("consume_queue", stored.next_commit_log_offset, timeout=5)
    assert [record.body for record in reput_store.get("orders", 0, 0).records] == [b"one"]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import reput

__all__ = ["reput_store", "reput_store_options"]


@pytest.fixture
def reput_store_options() -> dict[str, Any]:
    """Arguments of `reput.open` for the fixture `reput_store`. Override it in a test module or ``conftest.py``.

    Segments have one MiB, so that a small test crosses their boundaries.
    """
    return {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 10_000, "max_index_num": 40_000}


@pytest.fixture
def reput_store(tmp_path: Path, reput_store_options: dict[str, Any]) -> Iterator[reput.Store]:
    """An open, empty store in its own directory, with running dispatchers; it is removed afterwards."""
    # Imported here: tests of other things pay nothing for this plugin.
    import shutil

    import reput

    directory = tmp_path / "reput_store"
    try:
        with reput.open(directory, **reput_store_options) as store:
            yield store
    finally:
        shutil.rmtree(directory, ignore_errors=True)

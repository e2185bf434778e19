"""FiltersInUse: which version of the consumers' filters the bit maps of the consume queue ext are made with.

The dispatcher `consume_queue_ext` writes it to its folder. A process that registers filters waits for it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.store.disk.sealed_file import read_sealed

__all__ = ["FILTERS_IN_USE", "FiltersInUse", "filters_in_use_path", "read_filters_in_use"]

FILTERS_IN_USE = "filters"


class FiltersInUse(msgspec.Struct, frozen=True):
    """Which filters are in the bit maps.

    Attributes:
        digest: SHA-256 of the content of ``consumerFilter.json``, "" without such a file.
        store_timestamp: of the last record that was dispatched without them, ms. A filter that this version brought
            may have no birth before it.
    """

    digest: str
    store_timestamp: int


def filters_in_use_path(store_directory: Path) -> Path:
    """Return where the dispatcher of a store says it."""
    return store_directory / "reput" / "views" / "consume_queue_ext" / FILTERS_IN_USE


def read_filters_in_use(store_directory: Path) -> FiltersInUse | None:
    """Return what the dispatcher of a store said last; None if it never did.

    Raises:
        DamagedStore: the file is not what was written.
    """
    return read_sealed(filters_in_use_path(store_directory), FiltersInUse)

"""Small stores for tests of `reput.open`."""

from __future__ import annotations

from pathlib import Path

import reput

TINY = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 16,
    "max_index_num": 20,
}


VIEWS = ("consume_queue", "index")


TIMEOUT = 60.0


def open_tiny(path: Path, **settings: object) -> reput.Store:
    store = reput.open(path, **{**TINY, **settings})
    assert isinstance(store, reput.Store)
    return store


def catch_up(store: reput.Store) -> None:
    for view in VIEWS:
        store.wait_for(view, store.appended, timeout=TIMEOUT)


def message(number: int) -> reput.Message:
    return reput.Message("orders", f"body {number}".encode(), tags=f"t{number % 3}", keys=[f"k{number}"])

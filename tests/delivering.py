"""For tests of delayed delivery: small stores whose dispatchers run on a thread, and waiting for a service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import reput
from reput.embedded.store import Store
from reput.store.disk.sealed_file import seal
from reput.store.record.message import PutMessageResult
from reput.store.recovery.damage_list import DamagedRange, DamageList
from reput_hooks import Record

__all__ = ["LIMIT_S", "SMALL", "accept", "all_records", "open_inline", "wait_until"]

LIMIT_S = 60.0
SMALL = {
    "mapped_file_size_commit_log": 64 << 10,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 64,
    "max_index_num": 1000,
}


def wait_until(reached: Callable[[], bool]) -> None:
    """Return when *reached* returns True; it is polled often, because no thread of this program can notify."""
    deadline = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not reached():
        assert time.monotonic() < deadline, "it did not come to that in time"
        pause.wait(0.005)


def open_inline(path: Path, **settings: object) -> Store:
    return reput.open(path, mode="inline", dispatchers=["consume_queue"], **{**SMALL, **settings})


def all_records(store: Store, begin: int = 0) -> list[Record]:
    """Return all records from an offset of the log on, in every flush mode."""
    store.flush()
    return list(store.records(begin))


def accept(store: Store, result: PutMessageResult) -> None:
    """Record an operator's decision that a record is lost, like `reput repair --accept`."""
    damaged = DamagedRange(result.commit_log_offset, result.next_commit_log_offset, "no record", accepted=True)
    (store.directory / "reput" / "damage").write_bytes(seal(DamageList([damaged])))

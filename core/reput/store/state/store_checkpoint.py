"""StoreCheckpoint: up to which store times RocketMQ may trust the log and its views after a crash.

    at  size  field
     0     8  physic_msg_timestamp   the log is on disk up to a record of this store time, ms
     8     8  logics_msg_timestamp   the consume queues are
    16     8  index_msg_timestamp    the index is, in files that are full
    24     8  master_flushed_offset  5.x, kept as found
    32     8  confirm_phy_offset     5.x, kept as found
    40     8  logics_physical_offset 5.5, the consume queues are on disk up to the record at this offset; 0: the second
                                     number says so, as for all versions before
                                     4096 bytes in all, the rest zero

Source: RocketMQ store, StoreCheckpoint.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct

import msgspec

from reput.store.disk.files import Files
from reput.store.index.index_layout import read_headers

__all__ = [
    "CHECKPOINT_SIZE",
    "StoreCheckpoint",
    "ahead_of_clock",
    "decode_checkpoint",
    "encode_checkpoint",
    "read_checkpoint",
    "write_checkpoint",
]

CHECKPOINT_SIZE = 4096
# Clocks of two machines, or of one before and after it was set right, differ by as much without its mattering.
CLOCK_DIFFERENCE_MAX_MS = 60_000
FIELDS = Struct(">qqqqqq")


class StoreCheckpoint(msgspec.Struct, frozen=True):
    """The six numbers."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0


def ahead_of_clock(store_timestamp: int, now_ms: int) -> str | None:
    """Return what follows from a last store time that lies ahead of this machine's clock, None if it does not by much.

    Store times never go back within a log, so a clock that once ran ahead has them stand still until it is there again.
    """
    if store_timestamp <= now_ms + CLOCK_DIFFERENCE_MAX_MS:
        return None
    return (
        "the log's last store time lies ahead of this machine's clock, and every message gets it until the clock has "
        f"come there; delays count from it: store_timestamp={store_timestamp} ahead_ms={store_timestamp - now_ms}"
    )


def encode_checkpoint(checkpoint: StoreCheckpoint) -> bytes:
    """Return the file's bytes."""
    return FIELDS.pack(*msgspec.structs.astuple(checkpoint)).ljust(CHECKPOINT_SIZE, b"\0")


def decode_checkpoint(data: bytes) -> StoreCheckpoint:
    """Decode a checkpoint file; fields beyond the end of a short file are 0."""
    return StoreCheckpoint(*FIELDS.unpack_from(data.ljust(FIELDS.size, b"\0")))


def read_checkpoint(store_directory: Path) -> StoreCheckpoint:
    """Return the checkpoint of a store, zeros where it has none."""
    try:
        return decode_checkpoint((store_directory / "checkpoint").read_bytes())
    except FileNotFoundError:
        return StoreCheckpoint()


def write_checkpoint(
    store_directory: Path, log_timestamp: int, queue_timestamp: int, files: Files, *, index_durable: int | None = None
) -> None:
    """Write the checkpoint: up to which store times the log and the consume queues are on disk.

    After a crash RocketMQ drops every index file that ends behind ``index_msg_timestamp``, and dispatches again only
    from ``logics_msg_timestamp`` on. So the latter never passes the begin of the first file that the former leaves out.
    If RocketMQ will dispatch everything again, all files are left out: a kept file hides the keys of all records before
    it.

    Args:
        index_durable: commit-log offset up to which the index is on disk; None: the whole index is.
    """
    found = read_checkpoint(store_directory)
    headers = [header for header in read_headers(store_directory / "index") if header.index_count > 1]
    # The last file is not full, and is written on.
    covered = max(len(headers) - 1, 0) if queue_timestamp else 0
    while covered and index_durable is not None and headers[covered - 1].end_offset >= index_durable:
        covered -= 1
    # RocketMQ tells files apart by their times alone.
    while covered and headers[covered - 1].end_timestamp >= headers[covered].end_timestamp:
        covered -= 1
    if covered < len(headers):
        queue_timestamp = min(queue_timestamp, headers[covered].begin_timestamp)
    checkpoint = msgspec.structs.replace(
        found,
        physic_msg_timestamp=log_timestamp,
        logics_msg_timestamp=queue_timestamp,
        index_msg_timestamp=headers[covered - 1].end_timestamp if covered else 0,
        # With the value that RocketMQ 5.5 left here, it would skip records that the times say to dispatch again.
        logics_physical_offset=0,
    )
    if checkpoint != found or not (store_directory / "checkpoint").exists():
        files.replace(store_directory / "checkpoint", encode_checkpoint(checkpoint))

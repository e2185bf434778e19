"""StoreCheckpoint: up to which store times RocketMQ may trust the log and its views after a crash.

    at  size  field
     0     8  physic_msg_timestamp   the log is on disk up to a record of this store time, ms
     8     8  logics_msg_timestamp   the consume queues are
    16     8  index_msg_timestamp    the index is, in files that are full
    24     8  master_flushed_offset  5.x, kept as found
    32     8  confirm_phy_offset     5.x, kept as found
                                     4096 bytes in all, the rest zero

Source: RocketMQ store, StoreCheckpoint.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct

import msgspec

__all__ = ["CHECKPOINT_SIZE", "StoreCheckpoint", "decode_checkpoint", "encode_checkpoint", "read_checkpoint"]

CHECKPOINT_SIZE = 4096
FIELDS = Struct(">qqqqq")


class StoreCheckpoint(msgspec.Struct, frozen=True):
    """The five numbers."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0


def encode_checkpoint(checkpoint: StoreCheckpoint) -> bytes:
    """Return the file's bytes."""
    return FIELDS.pack(*msgspec.structs.astuple(checkpoint)).ljust(CHECKPOINT_SIZE, b"\0")


def decode_checkpoint(data: bytes) -> StoreCheckpoint:
    """Return what a file says; what a short one does not say is 0."""
    return StoreCheckpoint(*FIELDS.unpack_from(data.ljust(FIELDS.size, b"\0")))


def read_checkpoint(store_directory: Path) -> StoreCheckpoint:
    """Return the checkpoint of a store, zeros where it has none."""
    try:
        return decode_checkpoint((store_directory / "checkpoint").read_bytes())
    except FileNotFoundError:
        return StoreCheckpoint()

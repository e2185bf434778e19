"""ConsumeQueueExt: data that does not fit into a queue's unit - store time, and which filters the message passes.

    at  size  field
     0     2  size              20 + bytes of the bit map
     2     8  tags_code         Java hashCode of the tag
    10     8  store_timestamp   ms
    18     2  bit_map_size
    20     …  filter_bit_map    bit b in byte b // 8, least significant first

The consume queue holds a unit's address in place of the tags code: its byte offset plus the smallest long, so that it
is below every hash and every time. A file ends with a size of −1 where the next unit did not fit.

Source: RocketMQ store, ConsumeQueueExt and ConsumeQueueExt.CqExtUnit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import msgspec

from reput.store.disk.file_name import file_name, parse_file_name
from reput.store.disk.open_files import OpenFiles

__all__ = [
    "ADDRESS_MAX",
    "END_BLANK_SIZE",
    "OFFSET_MAX",
    "UNIT_SIZE_MAX",
    "UNIT_SIZE_MIN",
    "ConsumeQueueExt",
    "ExtUnit",
    "decode_unit",
    "encode_unit",
    "is_address",
    "offset_of",
    "to_address",
]

HEAD = Struct(">hqqh")
UNIT_SIZE_MIN = 20
UNIT_SIZE_MAX = 32767
END_BLANK_SIZE = 4
assert HEAD.size == UNIT_SIZE_MIN
ADDRESS_MAX = -(1 << 31) - 1
ADDRESS_BASE = -(1 << 63)
OFFSET_MAX = ADDRESS_MAX - ADDRESS_BASE


class ExtUnit(msgspec.Struct, frozen=True):
    """One unit. *filter_bit_map* is None where there is none."""

    tags_code: int
    store_timestamp: int
    filter_bit_map: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of the unit."""
        return UNIT_SIZE_MIN + len(self.filter_bit_map or b"")


def is_address(tags_code: int) -> bool:
    """Whether the third field of a queue's unit is an address and no tags code."""
    return tags_code <= ADDRESS_MAX


def to_address(offset: int) -> int:
    """Return the address of the unit at byte *offset*; an address is returned unchanged."""
    return offset if is_address(offset) else offset + ADDRESS_BASE


def offset_of(address: int) -> int:
    """Return the byte offset that *address* stands for; another number is returned unchanged."""
    return address - ADDRESS_BASE if is_address(address) else address


def encode_unit(unit: ExtUnit) -> bytes:
    """Return the bytes of a unit."""
    bit_map = unit.filter_bit_map or b""
    return HEAD.pack(unit.size, unit.tags_code, unit.store_timestamp, len(bit_map)) + bit_map


def decode_unit(data: bytes, at: int = 0) -> ExtUnit | None:
    """Return the unit at ``data[at]``, None if there is none or it is cut off."""
    if len(data) - at < UNIT_SIZE_MIN:
        return None
    size, tags_code, store_timestamp, bit_map_size = HEAD.unpack_from(data, at)
    if size < UNIT_SIZE_MIN or at + size > len(data):
        return None
    bit_map = data[at + UNIT_SIZE_MIN : at + UNIT_SIZE_MIN + bit_map_size] if bit_map_size > 0 else None
    return ExtUnit(tags_code, store_timestamp, bit_map)


class ConsumeQueueExt:
    """The ext files of one queue, to read."""

    def __init__(self, directory: Path, file_size: int, files: OpenFiles) -> None:
        self.directory = directory
        self.file_size = file_size
        self.files = files

    def get(self, address: int) -> ExtUnit | None:
        """Return the unit at *address*, None if it is gone: the message then has an unknown tags code."""
        if not is_address(address):
            return None
        offset = offset_of(address)
        begin = offset - offset % self.file_size
        try:
            data = self.files.read(self.directory / file_name(begin), UNIT_SIZE_MAX, offset - begin)
        except FileNotFoundError:
            return None
        return decode_unit(data)

    def units(self) -> Iterator[tuple[int, ExtUnit]]:
        """Yield (address, unit) of all units, in order."""
        try:
            names = sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return
        for name in names:
            begin = parse_file_name(name)
            if begin is None:
                continue
            try:
                data = (self.directory / name).read_bytes()
            except FileNotFoundError:
                # Retention took it, or the deletion of the topic.
                continue
            at = 0
            while (unit := decode_unit(data, at)) is not None:
                yield to_address(begin + at), unit
                at += unit.size

"""The bytes of an index file: which records have which key.

A file is a header, slots and entries, big-endian. Entry 0 is never used. The file's name is the local time of its
creation.

    at                  size  field
     0                     8  begin_timestamp    store time of the first entry's record, ms
     8                     8  end_timestamp      of the last one's
    16                     8  begin_offset       commit-log offset of the first entry's record
    24                     8  end_offset         of the last one's
    32                     4  hash_slot_count    slots in use
    36                     4  index_count        number of the next entry; 0 before the first, which is 1
    40 + 4*s               4  slot s             newest entry whose key_hash mod slots is s, 0: none
    40 + 4*slots + 20*e   20  entry e
                     0     4  key_hash           |Java hashCode of topic#key, or of topic#T#tags|
                     4     8  commit_log_offset
                    12     4  seconds            between begin_timestamp and the record's store time
                    16     4  previous           entry of the same slot before this one, 0: none

The index holds only the hash of a key, so a reader compares the keys of the records that it names. From 5.4.0 on
RocketMQ also enters the tags of each record, as one text.

Source: RocketMQ store, IndexHeader and IndexFile.putKey.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

import msgspec

__all__ = ["ENTRY", "HEADER", "SLOT", "IndexHeader", "index_paths", "read_header", "read_headers"]

HEADER = Struct(">qqqqii")
SLOT = Struct(">i")
ENTRY = Struct(">iqii")
assert HEADER.size == 40
assert ENTRY.size == 20


class IndexHeader(msgspec.Struct):
    """The header's fields. In a file without entries *index_count* is 1: the number of the first entry."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1


def index_paths(directory: Path) -> list[Path]:
    """Return the files in the order of their names, which is the order of their creation."""
    try:
        with os.scandir(directory) as entries:
            # Opening a named pipe would block until another process opened its other end.
            files = [entry.name for entry in entries if entry.is_file()]
    except FileNotFoundError:
        return []
    return [directory / name for name in sorted(files) if name.isascii() and name.isdigit()]


def read_header(path: Path) -> IndexHeader:
    """Return the header of one file."""
    with path.open("rb") as file:
        header = IndexHeader(*HEADER.unpack(file.read(HEADER.size).ljust(HEADER.size, b"\0")))
    header.index_count = max(header.index_count, 1)
    return header


def read_headers(directory: Path) -> list[IndexHeader]:
    """Return the headers of all files, oldest first."""
    return [read_header(path) for path in index_paths(directory)]

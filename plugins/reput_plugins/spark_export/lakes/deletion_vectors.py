"""Deletion vectors of a Delta table: the rows of a data file that are deleted, although the file still has them.

A file of vectors, ``_dv/deletion_vector_UUID.bin``, has a byte with its version, 1, and then for each vector:

    at  size  field
     0     4  n, size of the bitmap (big-endian)
     4     n  bitmap: 1681511377 (4 bytes), number of its parts (8), and each part: upper half of its row numbers (4),
              and the lower halves as a Roaring bitmap in its portable form (numbers little-endian)
   4+n     4  CRC-32 of the bitmap (big-endian)

The table's log names the file by its UUID in Z85, behind the name of its folder. The vacuum of the Delta library also
removes vectors that are in use, but does not look into folders with an underscore. Here reput removes the unused ones.

Source: PROTOCOL.md of Delta Lake, "Deletion Vectors".
"""

from __future__ import annotations

import struct
import uuid
import zlib
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from reput.store.disk.files import Files

if TYPE_CHECKING:
    from pyroaring import BitMap

    from reput_plugins.spark_export.lake_location import LakeLocation

__all__ = ["FOLDER", "DeletionVector", "as_bitmap", "read_bitmap", "read_rows", "write_bitmaps"]

FOLDER = "_dv"
VERSION = b"\x01"
MAGIC = 1681511377
SIZE, HEAD, PART = struct.Struct(">I"), struct.Struct("<IQ"), struct.Struct("<I")
IN_FILE = "u"
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
UUID_LETTERS = 20


class DeletionVector(msgspec.Struct, frozen=True, rename="camel"):
    """A deletion vector as the table's log describes it.

    Attributes:
        storage_type: "u": in a file that is named by a UUID.
        path_or_inline_dv: the file's folder and UUID.
        size_in_bytes: size of the bitmap.
        cardinality: number of deleted rows.
    """

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None

    @property
    def path(self) -> str | None:
        """The file, relative to the table; None: the vector lies elsewhere."""
        if self.storage_type != IN_FILE:
            return None
        folder, name = self.path_or_inline_dv[:-UUID_LETTERS], self.path_or_inline_dv[-UUID_LETTERS:]
        return "/".join([*([folder] if folder else []), file_name(uuid.UUID(bytes=z85_decode(name)))])


def read_bitmap(location: LakeLocation, vector: DeletionVector) -> BitMap:
    """Return the numbers of the deleted rows.

    Raises:
        OSError: the vector cannot be read, or is damaged.
    """
    from pyroaring import BitMap

    path = vector.path
    if path is None:
        raise OSError(f"a deletion vector lies elsewhere: storage={vector.storage_type}")
    with location.filesystem().open_input_file(path) as stream:
        stream.seek(vector.offset or 0)
        data = stream.read(SIZE.size + vector.size_in_bytes + SIZE.size)
    bitmap = data[SIZE.size : -SIZE.size]
    whole = len(data) == vector.size_in_bytes + 2 * SIZE.size and SIZE.unpack_from(data)[0] == len(bitmap)
    if not whole or SIZE.unpack_from(data, len(data) - SIZE.size)[0] != zlib.crc32(bitmap):
        raise OSError(f"a deletion vector is damaged: path={path} offset={vector.offset}")
    magic, parts = HEAD.unpack_from(bitmap)
    at = HEAD.size
    # No file has 2 ** 32 rows.
    if magic != MAGIC or parts > 1 or (parts and PART.unpack_from(bitmap, at)[0]):
        raise OSError(f"a deletion vector has an unknown form: path={path} offset={vector.offset} parts={parts}")
    return BitMap.deserialize(bitmap[at + PART.size :]) if parts else BitMap()


def read_rows(location: LakeLocation, vector: DeletionVector | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the numbers of the deleted rows, ascending; none without a vector.

    Raises:
        OSError: the vector cannot be read, or is damaged.
    """
    found = array("I") if vector is None else read_bitmap(location, vector).to_array()
    return np.frombuffer(found, np.uint32).astype(np.int64)


def as_bitmap(rows: np.ndarray[Any, Any]) -> BitMap:
    """Return row numbers as a bitmap."""
    from pyroaring import BitMap

    return BitMap(array("I", rows.astype(np.uint32).tobytes()))


def write_bitmaps(location: LakeLocation, bitmaps: Sequence[BitMap]) -> list[DeletionVector]:
    """Write a vector of each bitmap, all into one file, and force it to disk.

    Raises:
        OSError: the file cannot be written. What was written of it is removed.
    """
    if not bitmaps:
        return []
    assert location.folder is not None
    name = uuid.uuid4()
    data, vectors = bytearray(VERSION), []
    for bitmap in bitmaps:
        part = HEAD.pack(MAGIC, 1) + PART.pack(0) + bitmap.serialize()
        vectors.append(DeletionVector(IN_FILE, FOLDER + z85_encode(name.bytes), len(part), len(bitmap), len(data)))
        data += SIZE.pack(len(part)) + part + SIZE.pack(zlib.crc32(part))
    path = location.folder / FOLDER / file_name(name)
    path.parent.mkdir(exist_ok=True)
    try:
        path.write_bytes(data)
        Files().force_together([path], [path.parent, location.folder])
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return vectors


def file_name(name: uuid.UUID) -> str:
    """Return the name of a file of vectors."""
    return f"deletion_vector_{name}.bin"


def z85_encode(data: bytes) -> str:
    """Return bytes, whose number is a multiple of four, in Z85."""
    letters = []
    for (number,) in struct.iter_unpack(">I", data):
        letters += [Z85[number // 85**power % 85] for power in range(4, -1, -1)]
    return "".join(letters)


def z85_decode(text: str) -> bytes:
    """Return the bytes of a text in Z85."""
    found = b""
    for at in range(0, len(text), 5):
        number = 0
        for letter in text[at : at + 5]:
            number = number * 85 + Z85.index(letter)
        found += number.to_bytes(4, "big")
    return found

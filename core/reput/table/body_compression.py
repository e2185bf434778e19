"""Unpack bodies with the compression that the record's sys flag names.

Source: RocketMQ common, MessageSysFlag and CompressionType: 0 and 3 zlib, 1 LZ4 (frame format), 2 zstd.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

__all__ = ["BODY_SIZE_MAX", "COMPRESSED_FLAG", "unpack_body"]

COMPRESSED_FLAG = 0x1
COMPRESSION_TYPE_SHIFT = 8
COMPRESSION_TYPE_MASK = 0x7
ZLIB_TYPES = (0, 3)
ARROW_CODECS = {1: "lz4", 2: "zstd"}
# Far more than a client may send before packing; a few packed MiB must not fill the memory.
BODY_SIZE_MAX = 64 << 20


def unpack_body(body: bytes, sys_flag: int) -> bytes | None:
    """Return the unpacked *body* of a record with `COMPRESSED_FLAG`, None if it does not unpack as its flag says.

    A body that unpacks to more than `BODY_SIZE_MAX` bytes also gives None.
    """
    kind = sys_flag >> COMPRESSION_TYPE_SHIFT & COMPRESSION_TYPE_MASK
    if kind in ZLIB_TYPES:
        unpacker = zlib.decompressobj()
        try:
            unpacked = unpacker.decompress(body, BODY_SIZE_MAX)
        except zlib.error:
            return None
        return unpacked if unpacker.eof else None
    codec = ARROW_CODECS.get(kind)
    if codec is None:
        return None
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            unpacked = bytes(stream.read(BODY_SIZE_MAX))
            return None if stream.read(1) else unpacked
    except OSError:
        return None

"""Unpack bodies with the compression that the record's sys flag names.

    sys flag bit 0      the body is compressed
             bits 8-10  0 and 3: zlib, 1: LZ4 in its frame format, 2: zstd

pyarrow unpacks LZ4 and zstd. It is loaded when the first such body comes, and need not be installed.

Source: RocketMQ common, MessageSysFlag and CompressionType.
"""

from __future__ import annotations

import zlib

__all__ = ["BODY_SIZE_MAX", "COMPRESSED_FLAG", "COMPRESSION_MASK", "unpack_body"]

COMPRESSED_FLAG = 0x1
COMPRESSION_TYPE_SHIFT = 8
COMPRESSION_TYPE_MASK = 0x7
COMPRESSION_MASK = COMPRESSED_FLAG | COMPRESSION_TYPE_MASK << COMPRESSION_TYPE_SHIFT
ZLIB_TYPES = (0, 3)
ARROW_CODECS = {1: "lz4", 2: "zstd"}
# Far more than a client may send before packing; a few packed MiB must not fill the memory.
BODY_SIZE_MAX = 64 << 20


def unpack_body(body: bytes, sys_flag: int, size_max: int = BODY_SIZE_MAX) -> bytes | None:
    """Return the unpacked *body* of a record with `COMPRESSED_FLAG`, None if it does not unpack as its flag says.

    A body that unpacks to more than *size_max* bytes also gives None, and so does LZ4 or zstd without pyarrow.
    """
    kind = sys_flag >> COMPRESSION_TYPE_SHIFT & COMPRESSION_TYPE_MASK
    if kind in ZLIB_TYPES:
        unpacker = zlib.decompressobj()
        try:
            unpacked = unpacker.decompress(body, size_max)
        except zlib.error:
            return None
        return unpacked if unpacker.eof else None
    codec = ARROW_CODECS.get(kind)
    return None if codec is None else unpack_by_arrow(body, codec, size_max)


def unpack_by_arrow(body: bytes, codec: str, size_max: int) -> bytes | None:
    """Return *body* unpacked by a codec of pyarrow's; None: pyarrow is missing, or the body does not unpack."""
    try:
        import pyarrow as pa
    except ImportError:
        return None
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            unpacked = bytes(stream.read(size_max))
            return None if stream.read(1) else unpacked
    except OSError:
        return None

"""zstd on the way between reputs: each frame by itself, at the level that costs least.

Where the library is missing, a master sends the bytes as they are; a follower that asks for compression needs it.
"""

from __future__ import annotations

from collections.abc import Callable

from reput.errors import BrokerError, ConfigError

__all__ = ["NO_COMPRESSION", "ZSTD", "Compress", "Decompress", "compressor", "decompressor"]

Compress = Callable[[bytes], bytes]
# Takes the size of the result.
Decompress = Callable[[bytes, int], bytes]

ZSTD, NO_COMPRESSION = "zstd", "none"
LEVEL = 1


def compressor() -> Compress | None:
    """Return what compresses the body of a frame; None: the library is missing."""
    try:
        import zstandard
    except ImportError:
        return None
    compress: Compress = zstandard.ZstdCompressor(level=LEVEL).compress
    return compress


def decompressor() -> Decompress:
    """Return what restores the body of a frame, of a known size.

    Raises:
        ConfigError: the library is missing.
    """
    try:
        import zstandard
    except ImportError:
        raise ConfigError(
            "compression needs zstandard, which is not installed: ha_compression=zstd",
            "Run `pip install 'reput[zstd]'`, or leave ha_compression out.",
        ) from None
    context = zstandard.ZstdDecompressor()

    def decompress(data: bytes, size: int) -> bytes:
        # The size that the data claims is checked first: it must not make this process take more memory.
        try:
            if zstandard.frame_content_size(data) == size:
                restored: bytes = context.decompress(data)
                return restored
        except zstandard.ZstdError as error:
            raise BrokerError(f"a frame has changed on the way, and cannot be decompressed: reason={error}") from None
        raise BrokerError(f"a frame has changed on the way: its compressed body has another size: size={size}")

    return decompress

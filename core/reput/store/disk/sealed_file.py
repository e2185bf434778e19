"""Sealed files: reput's own small files. One line with the CRC-32C of the rest, then JSON.

    crc32c=1A2B3C4D
    {"…": …}

A sealed file is replaced as a whole and durably, so a torn one is a sign of damage and never of a crash.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from reput.errors import DamagedStore
from reput.json_encoding import encode_json

__all__ = ["read_sealed", "seal", "unseal"]

T = TypeVar("T")
HEAD = b"crc32c="
HEAD_SIZE = len(HEAD) + 8 + 1


def seal(value: object) -> bytes:
    """Return the file's bytes for *value*, a msgspec struct or anything else that msgspec encodes."""
    payload = encode_json(value) + b"\n"
    return HEAD + f"{crc32c()(payload):08X}".encode() + b"\n" + payload


def read_sealed(path: Path, type: type[T]) -> T | None:
    """Return what *path* holds, None if there is no such file.

    Raises:
        DamagedStore: its bytes are not what was written.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return unseal(data, type, str(path))


def unseal(data: bytes, type: type[T], place: str) -> T:
    """Return what the bytes of a sealed file hold; *place* names it in errors.

    Raises:
        DamagedStore: the bytes are not what was written.
    """
    payload = data[HEAD_SIZE:]
    if data[:HEAD_SIZE] != HEAD + f"{crc32c()(payload):08X}".encode() + b"\n":
        raise DamagedStore(
            f"file has a wrong checksum: path={place} size={len(data)}",
            "Move it away; its content is then restored from the log.",
        )
    try:
        return msgspec.json.decode(payload, type=type)
    except msgspec.MsgspecError as error:
        raise DamagedStore(f"file has an unexpected structure: path={place} error={error}") from None


@cache
def crc32c():  # type: ignore[no-untyped-def]
    """Return crcmod's CRC-32C function, imported when the first small file is met."""
    from crcmod.predefined import mkPredefinedCrcFun

    return mkPredefinedCrcFun("crc-32c")

"""Reading a target: its manifests, the pieces they name, and small files, all compared with their checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
from isal.isal_zlib import crc32

from reput.backup.layout import (
    BACKUPS,
    IDENTITY,
    BackupManifest,
    Piece,
    StoredFile,
    damaged_backup,
    decode_manifest,
    manifest_name,
    number_of,
)
from reput.backup.target import BackupTarget, Bytes
from reput.errors import NotAStore, StoreError

__all__ = [
    "backup_numbers",
    "find_manifest",
    "newest_manifest",
    "piece_chunks",
    "pieces_of",
    "read_file",
    "read_manifest",
    "require_backups",
]


def backup_numbers(target: BackupTarget) -> list[int]:
    """Return the numbers of the backups in a target, ascending."""
    return [number for name in target.names(BACKUPS) if (number := number_of(name)) is not None]


def require_backups(target: BackupTarget) -> list[int]:
    """Return the numbers of the backups in a target, ascending; at least one.

    Raises:
        NotAStore: there is none.
    """
    numbers = backup_numbers(target)
    if not numbers:
        what = "no finished backup" if target.read(IDENTITY) is not None else "no backups"
        raise NotAStore(f"{what} here: target={target.address}", "Name the target that `reput backup` was given.")
    return numbers


def find_manifest(target: BackupTarget, number: int) -> BackupManifest | None:
    """Return the manifest of a backup, None if there is none, or none any more.

    Raises:
        DamagedStore: its checksum does not fit.
        StoreError: a newer reput made it.
    """
    name = manifest_name(number)
    data = target.read(name)
    return None if data is None else decode_manifest(data, f"{target.address}/{name}")


def read_manifest(target: BackupTarget, number: int) -> BackupManifest:
    """Return the manifest of a backup.

    Raises:
        DamagedStore: its checksum does not fit.
        StoreError: there is no such backup, or a newer reput made it.
    """
    found = find_manifest(target, number)
    if found is None:
        raise StoreError(
            f"there is no such backup: backup={number} target={target.address}",
            "`reput restore TARGET --list` shows which there are.",
        )
    return found


def newest_manifest(target: BackupTarget) -> BackupManifest | None:
    """Return the manifest of the last backup, None if there is none."""
    last = 0
    while numbers := backup_numbers(target):
        # A backup that follows the store has removed the one that was the last a moment ago, and has made another.
        found = find_manifest(target, numbers[-1]) if numbers[-1] > last else read_manifest(target, numbers[-1])
        if found is not None:
            return found
        last = numbers[-1]
    return None


def read_file(target: BackupTarget, stored: StoredFile) -> bytes:
    """Return the content of a small file.

    Raises:
        DamagedStore: it is absent, or not what was written.
    """
    data = target.read(stored.name)
    place = f"{target.address}/{stored.name}"
    if data is None:
        raise damaged_backup(place, "reason='it is absent'")
    if len(data) != stored.size or hashlib.sha256(data).hexdigest() != stored.sha256:
        raise damaged_backup(place, f"reason='its SHA-256 does not match' size={len(data)}")
    return data


def pieces_of(target: BackupTarget, full_segments: StoredFile | None) -> list[Piece]:
    """Return the pieces of full segments that a manifest names by a file."""
    return [] if full_segments is None else msgspec.json.decode(read_file(target, full_segments), type=list[Piece])


def piece_chunks(target: BackupTarget, piece: Piece) -> Iterator[Bytes]:
    """Yield the bytes of a piece.

    Raises:
        DamagedStore: it is absent, or, at the end, not what was written.
    """
    place = f"{target.address}/{piece.name}"
    chunks = target.chunks(piece.name)
    if chunks is None:
        raise damaged_backup(place, f"reason='it is absent' commit_log_offset={piece.begin} size={piece.size}")
    size = crc = 0
    for chunk in chunks:
        size += len(chunk)
        if size > piece.size:
            break
        crc = crc32(chunk, crc)
        yield chunk
    if (size, crc) != (piece.size, piece.crc):
        raise damaged_backup(
            place,
            f"reason='its CRC-32 does not match' commit_log_offset={piece.begin} size={size} size_written={piece.size}",
        )

"""What lies in a backup target, and the manifest that makes one backup of it.

    TARGET/
    ├─ reput-backup.json             whose history it is: the store's id, sealed
    ├─ log/BEGIN-NUMBER-RUN          a piece: bytes of one segment of the log from BEGIN on, never changed
    ├─ files/SHA256                  a small file under the hash of its content, never changed
    └─ backups/NUMBER.json           a manifest, sealed; written last, so that a backup is whole or not there

A manifest names the pieces and files that it needs; backups share them. Pieces of full segments are listed in a file of
their own, so that the manifest of a backup every second stays small. A segment's unused end has no bytes in a piece.

Pieces have a CRC-32, files are named by their SHA-256, manifests are sealed with a CRC-32C.
"""

from __future__ import annotations

import msgspec

from reput.errors import DamagedStore, StoreError
from reput.store.disk.sealed_file import seal, unseal
from reput.store.recovery.damage_list import DamagedRange
from reput.store.state.epochs import Epoch, Mark

__all__ = [
    "BACKUPS",
    "FILES",
    "FORMAT_VERSION",
    "IDENTITY",
    "LOG",
    "BackupManifest",
    "Piece",
    "StoredFile",
    "TargetIdentity",
    "damaged_backup",
    "decode_manifest",
    "manifest_name",
    "number_of",
]

FORMAT_VERSION = 1
IDENTITY = "reput-backup.json"
LOG = "log"
FILES = "files"
BACKUPS = "backups"
NUMBER_DIGITS = 10
SUFFIX = ".json"


class TargetIdentity(msgspec.Struct, frozen=True):
    """``reput-backup.json``: the store whose history a target holds."""

    format_version: int
    store_id: str


class Piece(msgspec.Struct, frozen=True):
    """Bytes [begin, begin + size) of the log, which lie in one segment.

    Attributes:
        name: the object that holds them.
        crc: their CRC-32.
        records: whole records among them.
        store_timestamp: of the last of these records, ms; 0 without one.
    """

    name: str
    begin: int
    size: int
    crc: int
    records: int
    store_timestamp: int

    @property
    def end(self) -> int:
        """Commit-log offset behind the last byte."""
        return self.begin + self.size


class StoredFile(msgspec.Struct, frozen=True):
    """A small file, whose object is named by *sha256*, the hash of its content in hexadecimal digits."""

    sha256: str
    size: int

    @property
    def name(self) -> str:
        """Name of the object."""
        return f"{FILES}/{self.sha256}"


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One backup: the store when its log was [log_begin, log_end).

    Attributes:
        number: counts the backups of a target, from 1 on.
        layout_version: of the store.
        reput_version: of the program that made the backup.
        timestamp: when it was made, ms; every record stored before is in it.
        history: the epochs of the log; the last one is the present.
        segment_size: of the log.
        mark: of the bytes before *log_end*, by which a later backup sees that the log continues them.
        records: how many there are.
        store_timestamp: of the last record, ms; 0 without one.
        damage: ranges that are no records; their bytes are as they were found, as far as they could be read.
        notes: what else was found wrong.
        full_segments: the pieces of all segments before the last one, as a file; None: there is one segment.
        pieces: of the last segment.
        files: configuration, offsets and reput's own files, by their path in the store.
        copied: bytes that this backup added to the target.
    """

    format_version: int = FORMAT_VERSION
    number: int
    store_id: str
    layout_version: int
    reput_version: str
    timestamp: int
    history: list[Epoch]
    segment_size: int
    log_begin: int
    log_end: int
    mark: Mark
    records: int
    store_timestamp: int
    damage: list[DamagedRange]
    notes: list[str] = []
    full_segments: StoredFile | None
    pieces: list[Piece]
    files: dict[str, StoredFile]
    copied: int

    def seal(self) -> bytes:
        """Return the bytes of the manifest."""
        return seal(self)


class FormatOnly(msgspec.Struct, frozen=True):
    """The one field that every version of a manifest has."""

    format_version: int


def decode_manifest(data: bytes, place: str) -> BackupManifest:
    """Return the manifest that *data* holds; *place* names it in errors.

    Raises:
        DamagedStore: its checksum does not fit.
        StoreError: a newer reput wrote it.
    """
    version = unseal(data, FormatOnly, place).format_version
    if version > FORMAT_VERSION:
        raise StoreError(
            f"a newer reput made this backup: format_version={version} known={FORMAT_VERSION} backup={place}",
            "Use that version or a later one.",
        )
    return unseal(data, BackupManifest, place)


def manifest_name(number: int) -> str:
    """Return the name of the manifest of a backup."""
    return f"{BACKUPS}/{number:0{NUMBER_DIGITS}d}{SUFFIX}"


def number_of(name: str) -> int | None:
    """Return the number of the backup that a manifest's name says; None: it is no manifest."""
    digits = name.removeprefix(f"{BACKUPS}/").removesuffix(SUFFIX)
    if len(digits) != NUMBER_DIGITS or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits) if manifest_name(int(digits)) == name else None


def damaged_backup(place: str, reason: str) -> DamagedStore:
    """Return the error for an object of a target that is not what was written."""
    return DamagedStore(
        f"the backup is damaged: object={place} {reason}",
        "Restore an earlier backup with --backup; make a new one from the store, into another target.",
    )

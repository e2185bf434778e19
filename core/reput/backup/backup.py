"""backup_store: one backup of a store, open or closed, into a target that may hold earlier ones.

    configuration ──▶ end of the log ──▶ reput's own files ──▶ pieces ──▶ manifest
    before it, so that no offset lies beyond it       after it                 last

The log's end is forced to disk, so that no power cut takes back what the backup has. Of the earlier backups, the last
one tells which pieces are there: those below the place where the log has diverged from it since, by its epochs.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import msgspec

import reput
from reput.backup.layout import (
    FORMAT_VERSION,
    IDENTITY,
    BackupManifest,
    Piece,
    StoredFile,
    TargetIdentity,
    manifest_name,
)
from reput.backup.log_copy import LogCopy
from reput.backup.retention import Keep, Removals
from reput.backup.source import BackupSource
from reput.backup.stored import newest_manifest, pieces_of
from reput.backup.target import BackupTarget
from reput.errors import ConfigError, DamagedStore, StoreError
from reput.settings import Settings
from reput.store.check.check import configuration_notes
from reput.store.disk.files import Clock
from reput.store.disk.sealed_file import seal, unseal
from reput.store.log.segments import Segments
from reput.store.recovery.damage_list import DamagedRange
from reput.store.state.epochs import Epoch, Epochs, make_mark, mark_holds
from reput.store.state.identity import LAYOUT_VERSION

__all__ = ["BackupReport", "Backups", "backup_store", "require_outside"]

# A piece joins the ones before it while they are not larger, so that a log that is shipped every second does not become
# a piece a second. Above this size, a piece stays as it is: that bounds what is copied twice.
JOINED_SIZE_MAX = 16 << 20
SEGMENT_PIECES = 16


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one backup did.

    Attributes:
        copied: bytes that the target got.
        removed: older backups that were removed.
    """

    backup: int
    target: str
    store: str
    store_id: str
    epoch: int
    log_begin: int
    log_end: int
    records: int
    store_timestamp: int
    copied: int
    seconds: float
    mb_per_s: float
    files: int
    removed: int
    damage: list[DamagedRange]
    notes: list[str]


def backup_store(
    store_directory: Path,
    target: BackupTarget,
    settings: Settings,
    *,
    keep: Keep | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> BackupReport:
    """Make a backup, as `Backups.make` does, and remove those that *keep* does not keep.

    Raises:
        NotAStore: the directory holds no commit log.
        ConfigError: the target lies in the store.
        StoreError: the target belongs to another store or history, another backup works on it, or it cannot be used.
    """
    require_outside(target, store_directory)
    with target.lock():
        backups = Backups(store_directory, target, settings, on_progress)
        removals = Removals(target, keep)
        removals.remove_leftovers()
        report = backups.make()
        return msgspec.structs.replace(report, removed=removals.remove_old(Clock().now_ms()))


def require_outside(target: BackupTarget, store_directory: Path) -> None:
    """Raise ConfigError if *target* lies in the store."""
    if target.lies_in(store_directory):
        raise ConfigError(
            f"the target lies in the store: target={target.address} store={store_directory}",
            "Name a place outside, on another disk: what destroys the store must not destroy its backups.",
        )


class Backups:
    """Backups of one store into one target, one after another; the caller holds the target's lock."""

    def __init__(
        self,
        store_directory: Path,
        target: BackupTarget,
        settings: Settings,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Arguments and errors as of `backup_store`."""
        self.source = BackupSource(store_directory)
        self.target = target
        self.settings = settings
        self.on_progress = on_progress or (lambda done, total: None)
        self.before: BackupManifest | None = None
        self.full_before: list[Piece] = []
        # Pieces that begin before it stay as they are: the store has lost bytes of them.
        self.joins_from = 0
        self.claim_target()
        self.before = newest_manifest(target)
        if self.before is not None:
            self.full_before = pieces_of(target, self.before.full_segments)

    def claim_target(self) -> None:
        """Give an empty target the store's name, or see that it has it.

        Raises:
            StoreError: it is no target of backups, or one of another store.
        """
        store_id = self.source.epochs().store_id
        data = self.target.read(IDENTITY)
        if data is None:
            if not self.target.is_empty():
                raise StoreError(
                    f"the target is not empty and holds no backups: target={self.target.address}",
                    "Name an empty or new folder.",
                )
            self.target.create(IDENTITY, seal(TargetIdentity(FORMAT_VERSION, store_id)))
            data = self.target.read(IDENTITY) or b""
        identity = unseal(data, TargetIdentity, f"{self.target.address}/{IDENTITY}")
        if identity.store_id != store_id:
            raise StoreError(
                f"the target holds backups of another store: target={self.target.address} "
                f"target_store_id={identity.store_id} store_id={store_id} store={self.source.directory}",
                "Name another target; each store has its own.",
            )

    def make(self) -> BackupReport:
        """Make one backup.

        Raises:
            StoreError: the log is not the continuation of the one in the target, or the target cannot be used.
        """
        report = self.make_if(lambda *_: True)
        assert report is not None
        return report

    def make_if_changed(self) -> BackupReport | None:
        """Make one backup as `make` does; None: the store is as the last one has it."""
        return self.make_if(self.has_changed)

    def make_if(self, wanted: Callable[[dict[str, StoredFile], int, LogCopy], bool]) -> BackupReport | None:
        """Make a backup of what was copied if it is *wanted*."""
        begun_at = time.monotonic()
        while True:
            epochs = self.source.epochs()
            segments = Segments(self.source.directory / "commitlog")
            parted_at = self.parted_at(epochs, segments)
            files, copied = self.source.put_files(self.target, ("config",))
            known_end = self.before.log_end if self.before is not None and parted_at is None else None
            # Before the log's end is fixed: what is stored from this time on, this backup may not have.
            timestamp = Clock().now_ms()
            end, is_open = self.source.durable_end(segments, known_end)
            own, copied_own = self.source.put_files(self.target, ("reput",))
            # A store that was opened or cut meanwhile has begun another epoch, and perhaps another log.
            if self.source.epochs().history == epochs.history:
                break
        kept, begin, copy = self.copy_log(segments, parted_at, end, is_open)
        before = self.before
        if copy.trimmed_to is not None:
            kept = []
        log_begin = segments.offset_min if copy.trimmed_to is None else copy.trimmed_to
        pieces = [*kept, *copy.pieces]
        files |= own
        known_damage = before.damage if before is not None else []
        damage = [*(found for found in known_damage if log_begin <= found.begin and found.end <= begin), *copy.damage]
        if not wanted(files, log_begin, copy):
            return None
        last_begin = segments.list[-1].begin if not pieces else segment_begin(pieces[-1].begin, segments)
        full = [piece for piece in pieces if piece.begin < last_begin]
        stored_full = before.full_segments if before is not None and full == self.full_before else None
        if full and stored_full is None:
            data = msgspec.json.encode(full)
            stored_full = StoredFile(hashlib.sha256(data).hexdigest(), len(data))
            copied += len(data) * self.target.create(stored_full.name, data)
        manifest = BackupManifest(
            number=self.next_number,
            store_id=epochs.store_id,
            layout_version=LAYOUT_VERSION,
            reput_version=reput.__version__,
            timestamp=timestamp,
            history=epochs.history,
            segment_size=segments.segment_size,
            log_begin=log_begin,
            log_end=copy.log_end,
            mark=make_mark(segments, copy.log_end),
            records=sum(piece.records for piece in pieces),
            store_timestamp=max((piece.store_timestamp for piece in pieces), default=0),
            damage=damage,
            notes=self.notes(files),
            full_segments=stored_full if full else None,
            pieces=pieces[len(full) :],
            files=files,
            copied=copied + copied_own + copy.copied,
        )
        if not self.target.create(manifest_name(manifest.number), manifest.seal()):
            raise StoreError(
                f"another backup was made at the same time: target={self.target.address} backup={manifest.number}",
                "Let only one program at a time make backups into a target; then run the command again.",
            )
        self.before, self.full_before = manifest, full
        return report_of(manifest, self.target, self.source.directory, time.monotonic() - begun_at)

    def copy_log(
        self, segments: Segments, parted_at: int | None, end: int, is_open: bool
    ) -> tuple[list[Piece], int, LogCopy]:
        """Copy the log from the last backup's end on; return what is kept of that, where the copy begins, and the copy.

        Raises:
            DamagedStore: the log of an open store ends before its writer's end.
        """
        unjoined, unjoined_begin = self.kept_pieces(segments, parted_at)
        kept = list(unjoined)
        begin = self.join_small(kept, unjoined_begin, end, segments)
        if begin < unjoined_begin:
            copy = self.new_copy(segments, kept, begin, end)
            try:
                copy.copy(end if is_open else None)
                is_whole = copy.log_end >= unjoined_begin
            except DamagedStore:
                is_whole = False
            if is_whole and not any(found.begin < unjoined_begin for found in copy.damage):
                return kept, begin, copy
            # The store has lost what the target has whole: the earlier pieces stay, and are not read again.
            for piece in copy.pieces:
                self.target.remove(piece.name)
            self.joins_from = unjoined_begin
        copy = self.new_copy(segments, unjoined, unjoined_begin, end)
        copy.copy(end if is_open else None)
        return unjoined, unjoined_begin, copy

    def new_copy(self, segments: Segments, kept: list[Piece], begin: int, end: int) -> LogCopy:
        """Return a copying of the log from *begin* on, behind the pieces that are *kept*."""
        return LogCopy(
            self.source.directory,
            segments,
            self.target,
            f"{self.next_number}-{os.urandom(4).hex()}",
            begin,
            store_timestamp=max((piece.store_timestamp for piece in kept), default=0),
            demand_crc=self.settings.force_verify_prop_crc,
            on_progress=lambda done: self.on_progress(done, max(end - begin, 1)),
        )

    @property
    def next_number(self) -> int:
        """The number of the next backup."""
        return 1 if self.before is None else self.before.number + 1

    def has_changed(self, files: dict[str, StoredFile], log_begin: int, copy: LogCopy) -> bool:
        """Tell whether the store differs from the last backup."""
        before = self.before
        return (
            before is None
            or bool(copy.pieces or copy.damage)
            or (files, log_begin, copy.log_end) != (before.files, before.log_begin, before.log_end)
        )

    def parted_at(self, epochs: Epochs, segments: Segments) -> int | None:
        """Return where the log has diverged from the last backup's, None if it continues from its end.

        Raises:
            StoreError: the store's history does not go on from that of the last backup.
        """
        before = self.before
        if before is None:
            return None
        known = len(before.history)
        if epochs.history[:known] != before.history:
            raise other_history(before, epochs.history, self.target, "its epochs are not those of the last backup")
        since = epochs.history[known:]
        if any(not epoch.located for epoch in since):
            # RocketMQ wrote, and nothing tells since when.
            return segments.offset_min
        parted_at = min((epoch.start_offset for epoch in since), default=before.log_end)
        if parted_at < before.log_end:
            return parted_at
        if before.log_end > segments.offset_end or (
            segments.offset_min <= before.log_end - before.mark.size and not mark_holds(segments, before.mark)
        ):
            raise other_history(before, epochs.history, self.target, "its bytes before the last backup's end differ")
        return None

    def kept_pieces(self, segments: Segments, parted_at: int | None) -> tuple[list[Piece], int]:
        """Return the pieces of the last backup that the next one has as well, and from where on it copies the log."""
        if self.before is None:
            return [], segments.offset_min
        limit = self.before.log_end if parted_at is None else parted_at
        known = [piece for piece in (*self.full_before, *self.before.pieces) if piece.begin >= segments.offset_min]
        kept = list(takewhile(lambda piece: piece.end <= limit, known))
        # A piece begins where a record, a blank or damage does; it may end inside of a blank.
        begin = known[len(kept)].begin if len(kept) < len(known) else limit
        return kept, max(begin, segments.offset_min)

    def join_small(self, kept: list[Piece], begin: int, end: int, segments: Segments) -> int:
        """Take small last pieces out of *kept*, and return from where on the log is copied then."""
        size_max = max(JOINED_SIZE_MAX, segments.segment_size // SEGMENT_PIECES)
        joined = min(end, segment_begin(begin, segments) + segments.segment_size) - begin
        damage = self.before.damage if self.before is not None else []
        while joined > 0 and kept and kept[-1].end == begin and kept[-1].size <= joined:
            piece = kept[-1]
            if piece.begin < self.joins_from:
                break
            if joined + piece.size > size_max or segment_begin(piece.begin, segments) != segment_begin(begin, segments):
                break
            # Damage is not judged again: it could look like something else by now.
            if any(found.begin < begin and found.end > piece.begin for found in damage):
                break
            joined += piece.size
            begin = piece.begin
            kept.pop()
        return begin

    def notes(self, files: dict[str, StoredFile]) -> list[str]:
        """Return what is wrong with the stored configuration; it is read again if its files have changed."""
        before = self.before
        if before is not None and configuration_in(before.files) == configuration_in(files):
            return before.notes
        return configuration_notes(self.source.directory, self.settings)


def configuration_in(files: dict[str, StoredFile]) -> dict[str, StoredFile]:
    """Return the files of RocketMQ's configuration."""
    return {path: stored for path, stored in files.items() if path.startswith("config/")}


def segment_begin(commit_log_offset: int, segments: Segments) -> int:
    """Return where the segment begins that holds a byte."""
    return commit_log_offset - commit_log_offset % segments.segment_size


def other_history(before: BackupManifest, history: list[Epoch], target: BackupTarget, reason: str) -> StoreError:
    """Return the error for a store that does not go on from the last backup in a target."""
    return StoreError(
        f"the target holds another history of this store: reason={reason!r} target={target.address} "
        f"backup={before.number} backup_epoch={before.history[-1].number} backup_log_end={before.log_end} "
        f"epoch={history[-1].number}",
        "An older copy of the store was put back, or two copies of it were written. Name another target for this one.",
    )


def report_of(manifest: BackupManifest, target: BackupTarget, store: Path, seconds: float) -> BackupReport:
    """Return the report on a backup that was made."""
    return BackupReport(
        backup=manifest.number,
        target=target.address,
        store=str(store),
        store_id=manifest.store_id,
        epoch=manifest.history[-1].number,
        log_begin=manifest.log_begin,
        log_end=manifest.log_end,
        records=manifest.records,
        store_timestamp=manifest.store_timestamp,
        copied=manifest.copied,
        seconds=round(seconds, 3),
        mb_per_s=round(manifest.copied / max(seconds, 1e-9) / 1e6, 1),
        files=len(manifest.files),
        removed=0,
        damage=manifest.damage,
        notes=manifest.notes,
    )

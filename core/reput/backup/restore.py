"""restore_store: a store as it was at a backup, or at a time or an offset before one.

    STORE/restoring/store      the store in the making: log, configuration, reput's own files, views
    STORE/restoring/views      views in the making
    STORE/restoring/ready      written when all is there; then everything moves up, the log last

A kill before ``ready`` leaves a directory that is no store, and that the next restore begins anew; a kill behind it one
that the next restore finishes. No program can open the store in between.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from reput.backup.layout import BackupManifest
from reput.backup.restored_log import cut_log_at, find_cut, lay_out, pieces_until, verify_log
from reput.backup.restored_state import deletions_and_recreations, fit_to_log, lower_offsets, write_files
from reput.backup.stored import (
    find_manifest,
    newest_manifest,
    pieces_of,
    read_manifest,
    require_backups,
)
from reput.backup.target import BackupTarget
from reput.errors import ConfigError, StoreError
from reput.process.owner.offline_rebuild import rebuild
from reput.settings import Settings
from reput.store.disk.files import Clock, Files
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.log.segments import Segments
from reput.store.queue.queue_offsets import QueueOffsets
from reput.store.recovery.damage_list import DamagedRange, accepted_damage
from reput.store.state.dispatcher_cursors import read_dispatcher_cursors
from reput.store.state.identity import read_identity
from reput.store.state.recorded_settings import load_store_settings

__all__ = ["RestoreReport", "RestoreRequest", "list_backups", "restore_store"]

RESTORING = "restoring"
READY = "ready"
LOG = "commitlog"
OWN = "reput"
# The views in the store's own formats. Others, such as a lake, go on from where they are when the store is opened.
OWN_VIEWS = ("consume_queue", "consume_queue_ext", "index")


class RestoreRequest(msgspec.Struct, frozen=True):
    """What to restore.

    Attributes:
        target: address of the backups.
        backup: number of one; None: the newest, or the first that has what is asked for.
        at: the records stored until this time, ms; None: all.
        offset: the log up to this commit-log offset; None: all.
    """

    target: str
    backup: int | None = None
    at: int | None = None
    offset: int | None = None


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was restored, and what was not.

    Attributes:
        log_end: commit-log offset where the restored log ends.
        store_timestamp: of its last record, ms; 0 without one.
        records_left_out: records that the backup has behind it.
        later_from: from this commit-log offset on, later backups have what was not restored; None: they have no more.
        newest_backup: number of the newest backup.
        newest_log_end: where its log ends.
        newest_timestamp: when that was made, ms.
        offsets_lowered: offsets of groups that lay behind the end of their queue.
        views: those that were built.
        damage: ranges of the restored log that are no records, as in the store that was backed up.
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
    records_left_out: int
    later_from: int | None
    newest_backup: int
    newest_log_end: int
    newest_timestamp: int
    offsets_lowered: int
    views: list[str]
    damage: list[DamagedRange]


class RestoreReady(msgspec.Struct, frozen=True):
    """``restoring/ready``."""

    request: RestoreRequest
    report: RestoreReport


def list_backups(target: BackupTarget) -> Iterator[BackupManifest]:
    """Yield the backups of a target, by number.

    Raises:
        NotAStore: there is none.
    """
    with target.reading():
        found = None
        for number in require_backups(target):
            # A backup that follows the store may have removed it meanwhile, and made another.
            if (found := find_manifest(target, number)) is not None:
                yield found
        if found is None and (newest := newest_manifest(target)) is not None:
            yield newest


def restore_store(
    target: BackupTarget,
    store_directory: Path,
    request: RestoreRequest,
    *,
    config: Path | None = None,
    assignments: Sequence[str] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> RestoreReport:
    """Restore a store into a directory that is empty, or not there.

    Args:
        config, assignments: settings of the store, as every verb takes them.
        on_progress: called now and then with the done and total bytes.

    Raises:
        NotAStore: there are no backups.
        StoreError: the directory is not empty, or another restore works on it.
        ConfigError: no backup has that time or offset, or the offset is inside of a record.
        DamagedStore: the backup is damaged.
    """
    with restoring(store_directory, request) as finished, target.reading():
        if finished is not None:
            finish(store_directory)
            return finished
        restore = Restore(target, store_directory / RESTORING, request, on_progress or (lambda done, total: None))
        report = restore.run(store_directory, config, assignments)
        Files().replace(store_directory / RESTORING / READY, seal(RestoreReady(request, report)))
        finish(store_directory)
        return report


@contextlib.contextmanager
def restoring(store_directory: Path, request: RestoreRequest) -> Iterator[RestoreReport | None]:
    """Keep other restores out of the directory; yield the report of an earlier one that only has to be finished.

    Raises:
        StoreError: the directory is not empty, or another restore works on it.
    """
    try:
        store_directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise not_empty(store_directory, "it is a file") from None
    descriptor = os.open(store_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"another restore works on this directory: store={store_directory}", "Let it end."
            ) from None
        names = sorted(os.listdir(store_directory))
        ready = read_sealed(store_directory / RESTORING / READY, RestoreReady) if RESTORING in names else None
        if ready is not None and ready.request != request:
            raise not_empty(
                store_directory, f"an earlier restore was killed when it was done: log_end={ready.report.log_end}"
            )
        if ready is None:
            others = [name for name in names if name != RESTORING]
            if others:
                raise not_empty(store_directory, f"it holds {', '.join(others[:5])}")
            if names:
                shutil.rmtree(store_directory / RESTORING)
        yield None if ready is None else ready.report
    finally:
        os.close(descriptor)


def not_empty(store_directory: Path, reason: str) -> StoreError:
    """Return the error for a directory that holds something."""
    return StoreError(
        f"the store directory is not empty: store={store_directory} reason={reason!r}",
        "Name an empty or new directory; a restore never replaces anything.",
    )


def finish(store_directory: Path) -> None:
    """Move the finished store up, the log last: without it the directory is no store that can be opened."""
    draft = store_directory / RESTORING / "store"
    files = Files()
    names = os.listdir(draft) if draft.exists() else []
    last = [name for name in (OWN, LOG) if name in names]
    for name in [*sorted(set(names) - set(last)), *last]:
        files.move(draft / name, store_directory / name)
    for name in ("store", "views"):
        shutil.rmtree(store_directory / RESTORING / name, ignore_errors=True)
    files.force_directory(store_directory)
    # Last: it says that nothing of the store is missing.
    (store_directory / RESTORING / READY).unlink()
    (store_directory / RESTORING).rmdir()


class Restore:
    """One restore into the folder *room*."""

    def __init__(
        self, target: BackupTarget, room: Path, request: RestoreRequest, on_progress: Callable[[int, int], None]
    ) -> None:
        self.target = target
        self.draft = room / "store"
        self.views = room / "views"
        self.request = request
        self.on_progress = on_progress
        self.numbers = require_backups(target)
        newest = newest_manifest(target)
        assert newest is not None
        self.newest = newest
        self.manifest = self.choose()

    def choose(self) -> BackupManifest:
        """Return the backup to restore from.

        Raises:
            ConfigError: none has the time or offset that is asked for.
        """
        request = self.request
        if request.backup is not None:
            chosen = read_manifest(self.target, request.backup)
            if request.offset is not None and not chosen.log_begin <= request.offset <= chosen.log_end:
                raise ConfigError(
                    f"the backup does not have that offset: offset={request.offset} backup={chosen.number} "
                    f"log_begin={chosen.log_begin} log_end={chosen.log_end}"
                )
            return chosen
        if request.at is None and request.offset is None:
            return self.newest
        for manifest in self.candidates():
            # Of the millisecond of its timestamp itself, a backup may not have every record.
            if request.at is not None and manifest.timestamp > request.at:
                return manifest
            if request.offset is not None and manifest.log_begin <= request.offset <= manifest.log_end:
                later = self.newest.history[len(manifest.history) :]
                # Not of a history that the log has left since, unless that is asked for by its number.
                if all(request.offset <= epoch.start_offset for epoch in later):
                    return manifest
        if request.at is not None:
            return self.newest
        first = next(self.candidates())
        raise ConfigError(
            f"no backup has that offset: offset={request.offset} log_begin={first.log_begin} "
            f"log_end={self.newest.log_end} target={self.target.address}",
            "`reput restore TARGET --list` shows what there is.",
        )

    def candidates(self) -> Iterator[BackupManifest]:
        """Yield the backups that are still there, by number."""
        found = (find_manifest(self.target, number) for number in self.numbers if number < self.newest.number)
        yield from filter(None, found)
        yield self.newest

    def run(self, store_directory: Path, config: Path | None, assignments: Sequence[str]) -> RestoreReport:
        """Build the store, and return the report."""
        manifest, request = self.manifest, self.request
        pieces = pieces_until(
            [*pieces_of(self.target, manifest.full_segments), *manifest.pieces], request.at, request.offset
        )
        # Read, verified, and read once more by the views.
        size = sum(piece.size for piece in pieces)
        done = 0

        def count(size_read: int) -> None:
            nonlocal done
            done += size_read
            self.on_progress(done, 3 * size)

        lay_out(self.target, manifest, pieces, self.draft / LOG, count)
        segments = Segments(self.draft / LOG, manifest.segment_size)
        log_end = manifest.log_end if request.offset is None else request.offset
        if pieces:
            log_end = find_cut(segments, pieces[-1], manifest.log_end, request.at, request.offset)
        if request.at is not None and log_end <= manifest.log_begin:
            raise ConfigError(
                f"the backup has no record stored until that time: at={request.at} backup={manifest.number} "
                f"log_begin={manifest.log_begin}",
                "Name a later time; `reput restore TARGET --list` shows what there is.",
            )
        cut_log_at(segments, log_end)
        segments.refresh()
        write_files(self.target, manifest, self.draft)
        parts = deletions_and_recreations(self.draft, log_end)
        settings = load_store_settings(self.draft, config, assignments).settings
        is_named = read_identity(self.draft) is not None
        verified = verify_log(
            segments,
            log_end,
            manifest,
            parts,
            settings.force_verify_prop_crc,
            lambda read: self.on_progress(size + read, 3 * size),
            # Of the topics that RocketMQ deleted, only the log tells where their queues began anew.
            finds_restarts=not is_named,
        )
        # A store that only RocketMQ wrote has no files of ours, and gets them when reput opens it.
        if is_named:
            lowered = fit_to_log(self.draft, segments, manifest, self.newest, log_end, verified, Clock().now_ms())
        else:
            lowered = lower_offsets(self.draft, QueueOffsets(verified.queues))
        accepted = accepted_damage(self.draft)
        views: list[str] = []
        if all((found.begin, found.end) in accepted for found in verified.unreadable):
            noted = read_dispatcher_cursors(self.draft) or settings.dispatchers
            views = [name for name in OWN_VIEWS if name in noted]
            self.build(views, settings, lambda read: self.on_progress(2 * size + read, 3 * size))
        return RestoreReport(
            backup=manifest.number,
            target=self.target.address,
            store=str(store_directory),
            store_id=manifest.store_id,
            epoch=self.newest.history[-1].number + 1,
            log_begin=segments.offset_min,
            log_end=log_end,
            records=verified.records,
            store_timestamp=verified.store_timestamp,
            records_left_out=manifest.records - verified.records,
            later_from=self.later_from(),
            newest_backup=self.newest.number,
            newest_log_end=self.newest.log_end,
            newest_timestamp=self.newest.timestamp,
            offsets_lowered=lowered,
            views=views,
            damage=verified.damage,
        )

    def later_from(self) -> int | None:
        """Return from where on later backups have what the chosen one has not; None: they have no more."""
        chosen, newest = self.manifest, self.newest
        later = newest.history[len(chosen.history) :]
        begin = min([chosen.log_end, *(epoch.start_offset for epoch in later)])
        return begin if begin < newest.log_end else None

    def build(self, views: list[str], settings: Settings, on_bytes: Callable[[int], None]) -> None:
        """Build *views* from the restored log, beside it, and move them into the store."""
        if not views:
            return
        files = Files()
        done = dict.fromkeys(views, 0)

        def tell(view: str, read: int, total: int) -> None:
            done[view] = read
            on_bytes(sum(done.values()) // len(done))

        for _ in rebuild(self.draft, views, self.views, settings, on_progress=tell):
            pass
        for path in sorted(self.views.iterdir()):
            if path.name != OWN:
                files.move(path, self.draft / path.name)
        files.move(self.views / OWN / "views", self.draft / OWN / "views")

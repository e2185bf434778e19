"""For tests of backups: small stores that are written, backed up, restored without views, and compared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reput.backup.backup import BackupReport, backup_store
from reput.backup.directory_target import DirectoryTarget
from reput.backup.restore import RestoreReport, RestoreRequest, restore_store
from reput.backup.retention import Keep
from reput.store.message_store import MessageStore
from small_store import ManualClock, message_of_size, open_store, records, small_settings

__all__ = ["NO_VIEWS", "assert_restored", "make_backup", "make_restore", "put", "writing"]

NO_VIEWS = ["dispatchers="]


def make_backup(store: Path, target: Path, keep: Keep | None = None) -> BackupReport:
    return backup_store(store, DirectoryTarget(target), small_settings(), keep=keep)


def make_restore(target: Path, store: Path, **request: int) -> RestoreReport:
    return restore_store(DirectoryTarget(target), store, RestoreRequest(str(target), **request), assignments=NO_VIEWS)


def put(writer: MessageStore, count: int, size: int = 500) -> list[int]:
    """Put *count* messages and return where each begins."""
    return [writer.put(message_of_size(size)).commit_log_offset for _ in range(count)]


@contextmanager
def writing(store: Path, clock: ManualClock | None = None) -> Iterator[MessageStore]:
    """Open *store* for writing, and close it."""
    writer = open_store(store, clock=clock)
    try:
        yield writer
    finally:
        writer.close(views_complete=True)


def assert_restored(target: Path, tmp_path: Path, store: Path, end: int, **request: int) -> RestoreReport:
    """Restore and compare with the records of *store* below *end*."""
    restored = tmp_path / "restored"
    shutil.rmtree(restored, ignore_errors=True)
    report = make_restore(target, restored, **request)
    assert report.log_end == end
    assert records(restored) == [record for record in records(store) if record.commit_log_offset < end]
    return report

"""A backup that follows a store for long, and those who read its target meanwhile."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from backing_up import NO_VIEWS, put, writing
from reput.backup import follow
from reput.backup.backup import BackupReport
from reput.backup.directory_target import DirectoryTarget
from reput.backup.follow import HOUR_MS, follow_store
from reput.backup.layout import BACKUPS
from reput.backup.restore import RestoreRequest, list_backups, restore_store
from reput.backup.retention import parse_keep
from reput.backup.target import Bytes
from reput.store.message_store import MessageStore
from small_store import START_MS, records, small_settings


class BusyTarget(DirectoryTarget):
    """A target into which another program makes a backup before each read of a manifest or a piece."""

    def __init__(self, directory: Path, writer: MessageStore) -> None:
        super().__init__(directory)
        self.writer = writer
        self.following = follow_store(writer.directory, DirectoryTarget(directory), small_settings(), lambda: True)

    def go_on(self) -> BackupReport:
        """Put messages and ship them."""
        put(self.writer, 2)
        return next(self.following)

    def chunks(self, name: str) -> Iterator[Bytes] | None:
        self.go_on()
        return super().chunks(name)

    def read(self, name: str) -> bytes | None:
        if name.startswith(BACKUPS):
            self.go_on()
        return super().read(name)


class UnlockedTarget(BusyTarget):
    """One into which a backup is made before every second read, like an object store, which has no lock."""

    reads = 0

    def read(self, name: str) -> bytes | None:
        self.reads += 1
        return super().read(name) if self.reads % 2 else DirectoryTarget.read(self, name)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@pytest.fixture(autouse=True)
def cleans_always(monkeypatch):
    """What no backup needs any more goes at each look."""
    monkeypatch.setattr(follow, "CLEAN_INTERVAL_S", 0.0)


def test_a_restore_has_its_backup_to_the_end_while_another_program_follows_the_store(tmp_path):
    """What no later backup needs goes once the restore has ended, and not while it reads."""
    store, directory = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        target = BusyTarget(directory, writer)
        for _ in range(3):
            target.go_on()
        report = restore_store(target, tmp_path / "restored", RestoreRequest(str(directory)), assignments=NO_VIEWS)
        assert records(tmp_path / "restored") == [
            record for record in records(store) if record.commit_log_offset < report.log_end
        ]
        pieces = len([*(directory / "log").iterdir()])
        last = [target.go_on() for _ in range(2)][-1]
        assert [manifest.number for manifest in list_backups(DirectoryTarget(directory))] == [1, last.backup]
        assert len([*(directory / "log").iterdir()]) < pieces
        target.following.close()


def test_readers_without_a_lock_pass_over_a_backup_that_has_just_gone(tmp_path):
    """The backup that a reader has seen by name is gone; its successor is there."""
    with writing(tmp_path / "store") as writer:
        target = UnlockedTarget(tmp_path / "target", writer)
        for _ in range(3):
            target.go_on()
        first, *others = [manifest.number for manifest in list_backups(target)]
        assert first == 1
        assert others
        target.following.close()


def test_a_long_following_reads_each_of_its_backups_once(tmp_path, monkeypatch):
    """To remove what is not needed any more, the backups of months are not read again each minute."""
    hours, looks = iter(range(1000)), iter(range(100))
    monkeypatch.setattr(follow.Clock, "now_ms", lambda self: START_MS + next(hours) * HOUR_MS)
    reads: Counter[str] = Counter()

    class CountedTarget(DirectoryTarget):
        def read(self, name: str) -> bytes | None:
            reads[name] += name.startswith(BACKUPS)
            return super().read(name)

    with writing(tmp_path / "store") as writer:

        def wait() -> bool:
            put(writer, 1)
            return next(looks) < 80

        target = CountedTarget(tmp_path / "target")
        keep = parse_keep("48h")
        reports = list(follow_store(writer.directory, target, small_settings(), wait, keep=keep))
    kept = [manifest.number for manifest in list_backups(DirectoryTarget(tmp_path / "target"))]
    assert kept == list(range(kept[0], reports[-1].backup + 1))
    assert 1 < kept[0] < reports[-1].backup
    # As the last one, when it is counted, and when it goes.
    assert max(reads.values()) <= 4

"""What an operator does to a copy, killed in each call that changes a file, and done again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from faulty_files import Killed, KilledFiles
from replication.fake_master import FakeMaster
from reput.replication import copy_preparation
from reput.replication.copy_preparation import MasterAddress, prepare_copy
from reput.replication.promotion import promote
from reput.settings import Settings
from reput.store import message_store
from reput.store.following_store import FollowingMessageStore
from reput.store.log.segments import Segments
from reput.store.message_store import MessageStore
from reput.store.recovery import repair
from reput.store.recovery.log_walk import LogWalk
from reput.store.state.followed_master import read_followed_master
from written_log import WrittenLog

SEGMENT = 4096


@pytest.fixture
def old(tmp_path) -> WrittenLog:
    """The log of an old master: forty records, and forty that no other log has, over several segments."""
    log = WrittenLog(tmp_path / "old", SEGMENT)
    for number in range(80):
        log.append(b"%d " % number * 50)
    log.save()
    return log


@pytest.fixture
def new(fake_master, tmp_path, old) -> FakeMaster:
    """The new master, with the forty and another."""
    log = WrittenLog(tmp_path / "new", SEGMENT)
    for number in range(40):
        log.append(b"%d " % number * 50)
    log.append(b"another")
    fake_master.log = bytes(log.data)
    return fake_master


def attempts(store: Path) -> Iterator[tuple[Path, KilledFiles]]:
    """Yield a copy of *store*, and files that kill in the first call, then in the second, until they do not kill."""
    calls, is_killed = 0, True
    while is_killed:
        directory = store.with_name(f"{store.name}-{calls}")
        if store.exists():
            shutil.copytree(store, directory)
        files = KilledFiles(calls)
        yield directory, files
        is_killed = files.killed
        calls += 1
    assert calls > 5


@contextmanager
def killed_by(files: KilledFiles, patch: pytest.MonkeyPatch, *modules: ModuleType) -> Iterator[None]:
    """Let *modules* use *files* inside the block, which the kill ends."""
    with patch.context() as patched, contextlib.suppress(Killed):
        for module in modules:
            patched.setattr(module, "Files", lambda: files)
        yield


def log_of(store: Path) -> bytes:
    """Return the bytes of a log up to its end."""
    segments = Segments(store / "commitlog")
    walk = LogWalk(segments, unclean=True)
    for _ in walk.walk():
        pass
    data = b"".join(segment.path.read_bytes() for segment in segments.list)
    return data[: walk.log_end - segments.offset_min]


def test_a_discard_that_is_killed_anywhere_is_done_again_and_keeps_every_byte(old, new, tmp_path, monkeypatch):
    """What both logs have stays, and what only the old one has lies in reput/cut/ in the end."""
    parting = old.offsets[40]
    whole = bytes(old.data)

    def discard(directory: Path) -> None:
        prepare_copy(directory, MasterAddress(new.address), discard=True)

    for directory, files in attempts(old.store):
        with killed_by(files, monkeypatch, copy_preparation, repair):
            discard(directory)
        # A write of zeros that was torn leaves records behind it, which were kept before.
        assert log_of(directory).startswith(whole[:parting])
        discard(directory)
        assert log_of(directory) == whole[:parting]
        at = parting
        while at < len(whole):
            end = min(at - at % SEGMENT + SEGMENT, len(whole))
            kept = (directory / "reput" / "cut").glob(f"{at:020d}*")
            assert any(path.read_bytes().ljust(SEGMENT, b"\0").startswith(whole[at:end]) for path in kept)
            at = end
        assert read_followed_master(directory) is not None


def test_a_promotion_that_is_killed_anywhere_is_done_again_or_was_done(old, tmp_path, monkeypatch):
    """The store is a copy until it is a master in a new epoch, and has every record."""
    with FakeMaster(bytes(old.data)) as master:
        prepare_copy(old.store, MasterAddress(master.address))
    for directory, files in attempts(old.store):
        with killed_by(files, monkeypatch, message_store):
            promote(directory)
        if read_followed_master(directory) is not None:
            promote(directory)
        store = MessageStore(directory, Settings(mapped_file_size_commit_log=SEGMENT))
        assert store.epochs.epoch >= 2
        assert store.appended == old.end
        store.close(views_complete=False)
        assert log_of(directory) == bytes(old.data)


def test_a_copy_whose_begin_is_killed_anywhere_is_begun_again(new, tmp_path, monkeypatch):
    """What is there then is a copy that follows, never a store that takes messages."""
    for directory, files in attempts(tmp_path / "copy"):
        with killed_by(files, monkeypatch, copy_preparation):
            prepare_copy(directory, MasterAddress(new.address))
        if (directory / "commitlog").exists() and any((directory / "commitlog").iterdir()):
            assert read_followed_master(directory) is not None
        prepared = prepare_copy(directory, MasterAddress(new.address))
        assert prepared.master == read_followed_master(directory)
        FollowingMessageStore(directory, Settings(**prepared.given), prepared.master).give_back()
        assert [path.stat().st_size for path in (directory / "commitlog").iterdir()] == [SEGMENT]

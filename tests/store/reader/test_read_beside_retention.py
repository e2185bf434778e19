"""Reading a log whose first segments are removed meanwhile, before any file is opened: the rest is read."""

from __future__ import annotations

import io
import itertools
import os
import shutil
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

import reput
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.check.dump import dump_log
from reput.store.check.dump_view import ViewDamageRow, dump_view
from reput.store.check.verified_range import verify_range
from reput.store.disk.disk_space import DiskSpace
from reput.store.log.segments import Segments
from reput.store.retention.offline_retention import plan_cleaning
from reput.store.state.store_lock import StoreLock
from reput_hooks import Record

SEGMENT_SIZE = 4096
SETTINGS = {
    "mapped_file_size_commit_log": SEGMENT_SIZE,
    "mapped_file_size_consume_queue": 200,
    "mapped_file_size_consume_queue_ext": 400,
    "enable_consume_queue_ext": True,
    "max_hash_slot_num": 16,
    "max_index_num": 20,
}
VIEWS = ("consume_queue_ext", "consume_queue", "index")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A closed store of six segments, with its views."""
    path = tmp_path_factory.mktemp("written") / "store"
    with reput.open(path, mode="inline", dispatchers=VIEWS, **SETTINGS) as store:
        for number in range(100):
            store.put(reput.Message("orders", b"x" * 130, keys=[f"k{number}"]))
        assert store.appended > 5 * SEGMENT_SIZE
    return path


class Remover:
    """Removes the first files of a folder before the *before*-th opening of a file or listing of a folder."""

    def __init__(self, monkeypatch, folder: Path, kept: int, before: int) -> None:
        self.folder, self.kept, self.left = folder, kept, before
        for module, name in ((os, "open"), (io, "open"), (os, "scandir"), (os, "listdir"), (os, "stat")):
            monkeypatch.setattr(module, name, self.counting(getattr(module, name)))

    def counting(self, call):
        def counted(path=".", *arguments, **named):
            if str(path).startswith(str(self.folder)):
                self.left -= 1
                if self.left == 0:
                    for gone in sorted(os.walk(self.folder)):
                        for name in sorted(name for name in gone[2] if name.isdigit())[: -self.kept]:
                            os.unlink(os.path.join(gone[0], name))
            return call(path, *arguments, **named)

        return counted


def at_every_step(written, tmp_path, monkeypatch, folder, read, *, kept=2, live=False):
    """Yield the results of *read* on copies of the store whose first files are removed before step 1, step 2, ..."""
    for before in itertools.count(1):
        copy = tmp_path / "copy"
        shutil.copytree(written, copy)
        with closing(StoreLock(copy)) if live else nullcontext(), monkeypatch.context() as patch:
            remover = Remover(patch, copy / folder, kept, before)
            found = read(copy)
        yield found
        shutil.rmtree(copy)
        if remover.left > 0:
            assert before > 3
            return


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("kept", [1, 4])
@pytest.mark.parametrize("elsewhere", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_check_finds_nothing_wrong(written, tmp_path, monkeypatch, live, kept, elsewhere):
    """In the log, and in views that still have all entries, as until the next opening or for a moment; also if others
    read the log."""
    settings = Settings(**SETTINGS)

    def check(copy):
        return check_store(copy, settings, verifier=verify_range if elsewhere else None)

    for report in at_every_step(written, tmp_path, monkeypatch, "commitlog", check, kept=kept, live=live):
        assert report.damage == report.stale == []
        assert [view.differences for view in report.views.values()] == [[], [], []]
        assert report.ok
        assert 0 < report.records <= 100


def test_messages_of_a_queue_come_without_a_hole(written, tmp_path, monkeypatch):
    """All requested ones, or none and the offset to continue from: never the first and the last of them."""
    with reput.open(written, read_only=True) as store:
        last_of_first = max(r.queue_offset for r in store.records() if r.commit_log_offset < SEGMENT_SIZE)

    def get(copy):
        with reput.open(copy, read_only=True) as store:
            return store.get("orders", 0, 0, count_max=100)

    for found in at_every_step(written, tmp_path, monkeypatch, "commitlog", get, kept=3):
        places = [record.queue_offset for record in found.records]
        assert places == list(range(100))[100 - len(places) :] or places[:1] == [0]
        assert places == list(range(places[0], places[0] + len(places))) if places else found.next_queue_offset > 0
        assert len(places) in (0, 100) or places[0] > last_of_first


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("begin", [None, SEGMENT_SIZE + 7])
def test_a_dump_has_what_is_left(written, tmp_path, monkeypatch, live, begin):
    """Without rows for removed records and without duplicates."""
    whole = [row.commit_log_offset for row in dump_log(written) if isinstance(row, Record)]
    for rows in at_every_step(
        written, tmp_path, monkeypatch, "commitlog", lambda copy: list(dump_log(copy, begin=begin)), live=live
    ):
        assert [row for row in rows if not isinstance(row, Record) and row.kind != "blank"] == []
        offsets = [row.commit_log_offset for row in rows if isinstance(row, Record)]
        assert offsets == sorted(set(offsets))
        left = [offset for offset in whole if offset >= 4 * SEGMENT_SIZE]
        assert offsets[-len(left) :] == left


@pytest.mark.parametrize("live", [False, True])
def test_a_plan_of_retention_has_what_is_left(written, tmp_path, monkeypatch, live):
    """Up to the last segment, in which the log ends."""
    last = Segments(written / "commitlog").begins[-1]

    def plan(copy):
        return plan_cleaning(copy, Settings(mapped_file_size_commit_log=SEGMENT_SIZE), disk_space=DiskSpace())

    for fates in at_every_step(written, tmp_path, monkeypatch, "commitlog", plan, live=live):
        assert [fate.segment.begin for fate in fates if fate.reason == "the log ends in it"] == [last]


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("view", VIEWS)
def test_a_dump_of_a_view_has_what_is_left(written, tmp_path, monkeypatch, view):
    """Removed files are omitted."""
    settings = Settings(max_hash_slot_num=16, max_index_num=20)
    whole = list(dump_view(written, view, settings))
    for rows in at_every_step(
        written, tmp_path, monkeypatch, view.replace("_", "", 1), lambda copy: list(dump_view(copy, view, settings))
    ):
        assert not any(isinstance(row, ViewDamageRow) for row in rows)
        assert rows[-1] == whole[-1]

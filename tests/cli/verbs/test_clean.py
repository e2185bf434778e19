"""`reput clean` of a store directory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import reput
from command_line import run_reput
from golden_sets import tree_digest
from reput.store.disk.files import Files
from reput.store.state.dispatcher_cursors import keep_dispatcher_cursors

HOUR_S = 3600
SETTINGS = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 200}


@pytest.fixture
def store(memory_directory) -> Path:
    """A closed store of several segments, all of them 100 hours old; in memory, because the disk may be rather full."""
    path = memory_directory / "store"
    with reput.open(path, mode="inline", dispatchers=["consume_queue"], **SETTINGS) as opened:
        for number in range(60):
            opened.put(reput.Message("orders", b"x" * 200, keys=[f"k{number}"]))
    age(path)
    return path


def age(path: Path) -> None:
    for segment in (path / "commitlog").iterdir():
        os.utime(segment, (0, time.time() - 100 * HOUR_S))


def test_a_dry_run_says_what_would_go_and_why_and_changes_nothing(store):
    """One row per segment; the one in which the log ends stays."""
    before = tree_digest(store)
    ended = run_reput("clean", store, "--dry-run", "--format", "json")
    assert ended.code == 0, ended.stderr
    rows = ended.rows()
    assert [row["goes"] for row in rows] == [True] * (len(rows) - 1) + [False]
    assert len(rows) > 3
    assert (rows[0]["segment"], rows[0]["from"], rows[0]["until"]) == ("0" * 20, 0, 4096)
    assert rows[0]["reason"].startswith("it has had its time: age_hours=100.0 file_reserved_time=72")
    assert rows[-1]["reason"] == "the log ends in it"
    assert rows[-1]["due"] is None
    assert tree_digest(store) == before


def test_segments_go_and_the_views_follow(store):
    """The result is an ordinary store: it can be checked, read and continued."""
    ended = run_reput("clean", store)
    assert ended.code == 0, ended.stderr
    last_line = ended.stdout.splitlines()[-1]
    assert last_line.startswith("removed ")
    assert len(list((store / "commitlog").iterdir())) == 1
    assert run_reput("check", store).code == 0
    with reput.open(store, mode="inline", dispatchers=["consume_queue"], **SETTINGS) as opened:
        opened.wait_for("consume_queue", opened.appended, 60.0)
        low, high = opened.queue_range("orders")
        assert (low > 0, high) == (True, 60)
        assert opened.put(reput.Message("orders", b"next")).queue_offset == 60
        assert opened.status().dispatchers[0].gap_bytes == 0
    assert run_reput("check", store).code == 0
    again = run_reput("clean", store)
    assert again.stdout.splitlines()[-1].startswith("removed 0 of 1 segments")


def test_young_segments_stay(store):
    """They have not expired; the retention time can be set."""
    ended = run_reput("clean", store, "--set", "fileReservedTime=101")
    assert ended.stdout.splitlines()[-1].startswith("removed 0 of ")
    assert "it has not had its time" in ended.stdout


def test_what_a_dispatcher_does_not_have_stays(store):
    """An enabled dispatcher without a recorded position is waited for, up to its time limit."""
    keep_dispatcher_cursors(store, {"index": 0}, Files())
    rows = run_reput("clean", store, "--dry-run", "--format", "json").rows()
    assert not any(row["goes"] for row in rows)
    assert rows[0]["missed_by"] == ["index"]
    assert run_reput("clean", store, "--set", "dispatcher_reserved_time=0").code == 0
    assert len(list((store / "commitlog").iterdir())) == 1


@pytest.mark.processes
def test_a_store_that_is_open_is_cleaned_by_its_own_process(store):
    """By its own settings; the segments are gone when the command ends, and the store continues."""
    with reput.open(store, dispatchers=["consume_queue"], **SETTINGS) as opened:
        opened.wait_for("consume_queue", opened.appended, 60.0)
        ended = run_reput("clean", store, "--set", "fileReservedTime=1000", "--format", "json")
        assert ended.code == 0, ended.stderr
        rows = ended.rows()
        # The segment in which the log ends stays, and so does one created in advance.
        assert [row["goes"] for row in rows] == [True] * (len(rows) - 2) + [False, False]
        assert len(rows) > 3
        assert not any((store / "commitlog" / row["segment"]).exists() for row in rows[:-2])
        assert opened.put(reput.Message("orders", b"next")).queue_offset == 60
        again = run_reput("clean", store)
        assert again.stdout.splitlines()[-1].startswith("removed 0 of ")
    assert run_reput("check", store).code == 0


def test_a_store_that_is_open_without_processes_is_refused_and_the_holder_named(store):
    """A dry run works beside it."""
    with reput.open(store, mode="inline", dispatchers=["consume_queue"], **SETTINGS):
        refused = run_reput("clean", store)
        assert refused.code == 3
        assert f"pid={os.getpid()}" in refused.stderr
        assert run_reput("clean", store, "--dry-run").code == 0


def test_what_is_no_store_is_refused(tmp_path):
    """Nothing is created in it."""
    assert run_reput("clean", tmp_path).code == 3
    assert list(tmp_path.iterdir()) == []
    assert run_reput("clean", tmp_path / "absent", "--dry-run").code == 3


def test_a_store_of_rocketmq_is_cleaned_by_rocketmq_s_rules(golden):
    """No dispatcher of reput was ever attached to it, so none is waited for."""
    store = golden("basic-5.3") / "store"
    age(store)
    rows = run_reput("clean", store, "--dry-run", "--format", "json").rows()
    assert [row["goes"] for row in rows] == [True] * (len(rows) - 1) + [False]

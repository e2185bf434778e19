"""What a plugin does to its own process costs nobody else anything; afterwards every view is what the log says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import msgspec
import pytest

import reput
from process.villain_plugin import VILLAIN
from reput.settings import Settings
from reput.store.check import check_store

TIMEOUT = 60.0
VIEWS = ("consume_queue", "index")
# Files that can be copied in no time.
SIZES = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 100, "max_index_num": 10_000}

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("runtime_directory")]


@pytest.fixture
def path(tmp_path):
    """Where the store is."""
    return tmp_path / "store"


def put(store, count=20):
    """Put a few messages and return where the log ends."""
    messages = [
        reput.Message("orders", b"body", keys=[f"key-{number}"], queue_id=number % 3) for number in range(count)
    ]
    return store.put_batch(messages)[-1].next_commit_log_offset


def row(store, name):
    return next(row for row in store.status().dispatchers if row.name == name)


def wait_until(holds, store):
    """Look every few milliseconds whether a condition holds."""
    pause = threading.Event()
    for _ in range(int(TIMEOUT / 0.005)):
        if holds():
            return
        pause.wait(0.005)
    raise AssertionError(store.status())


def assert_views_are_right(path):
    """Consume queue and index of a closed store have every record of the log, and nothing else."""
    report = check_store(path, Settings(**SIZES))
    assert report.ok, report
    assert {report.views[view].state for view in VIEWS} == {"equal"}


# What the plugin does, and what is to be read in its error.
MISDEEDS = {
    "exit": "exit_status=9",
    "fault": "signal=SIGSEGV",
    "exhaust": "MemoryError",
    "shout": "shouted",
    "leave": "bye",
    "interrupt": "KeyboardInterrupt",
    "die_of_a_signal": "signal=SIGABRT",
    "close_descriptors": "closed them",
    "write_into_ring": "signal=SIGSEGV",
    "write_into_cells": "signal=SIGSEGV",
}


@pytest.mark.parametrize("how", MISDEEDS)
def test_a_plugin_that_misbehaves_harms_itself_alone(how, plugins, path, tmp_path):
    """The others take in all that is put, its error is shown, and once it is mended it catches up."""
    stolen, healed = tmp_path / "stolen", tmp_path / "healed"
    plugins.add("villain", source=VILLAIN.replace("STOLEN", repr(str(stolen))))
    options = SIZES | {"dispatchers.villain.how": how, "dispatchers.villain.healed": str(healed)}
    options |= {"dispatcher_restart_count_max": 50, "dispatcher_backoff_max": 200}
    with reput.open(path, dispatchers=[*VIEWS, "villain"], **options) as store:
        before = {view: row(store, view).pid for view in VIEWS}
        put(store)
        wait_until(lambda: row(store, "villain").restart_count >= 2, store)
        end = put(store)
        for view in VIEWS:
            store.wait_for(view, end, TIMEOUT)
        wait_until(lambda: MISDEEDS[how] in (row(store, "villain").error or ""), store)
        assert not stolen.exists()
        healed.touch()
        store.wait_for("villain", end, TIMEOUT)
        assert {view: row(store, view).restart_count for view in VIEWS} == dict.fromkeys(VIEWS, 0)
        assert before == {view: row(store, view).pid for view in VIEWS}
        offsets = [record.commit_log_offset for record in store.records()]
    saved = json.loads((path / "reput/views/villain/saved.json").read_bytes())
    assert saved["offsets"] == offsets
    assert_views_are_right(path)


@pytest.mark.parametrize("how", ["stop", "be_slow"])
def test_a_plugin_that_stands_still_or_is_slow_holds_up_nobody(how, plugins, path, tmp_path):
    """Its lag is shown, the others are at the end of the log, and it catches up from the log."""
    healed = tmp_path / "healed"
    plugins.add("villain", source=VILLAIN.replace("STOLEN", "''"))
    options = SIZES | {"dispatchers.villain.how": how, "dispatchers.villain.healed": str(healed)}
    with reput.open(path, dispatchers=[*VIEWS, "villain"], ring_size=1 << 16, **options) as store:
        put(store)
        wait_until(lambda: row(store, "villain").pid is not None, store)
        for _ in range(50):
            end = put(store, 100)
        for view in VIEWS:
            store.wait_for(view, end, TIMEOUT)
        behind = row(store, "villain")
        assert behind.lag_bytes > 0
        assert behind.lag_seconds > 0
        healed.touch()
        os.kill(behind.pid, signal.SIGCONT)
        store.wait_for("villain", end, TIMEOUT)
        assert row(store, "villain").lag_bytes == 0
        offsets = [record.commit_log_offset for record in store.records()]
    assert json.loads((path / "reput/views/villain/saved.json").read_bytes())["offsets"] == offsets
    assert_views_are_right(path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
@pytest.mark.parametrize("view", VIEWS)
def test_a_built_in_dispatcher_that_is_killed_or_stopped_comes_back(number, view, path):
    """Its readers have what lies below its progress, never an error; then everything."""
    # It may be stopped in any phase.
    limits = {f"dispatcher_{phase}_time_max": 10_000 for phase in ("start", "flush", "expire")}
    with reput.open(path, dispatcher_dispatch_time_max=1000, **limits, **SIZES) as store:
        end = put(store)
        for name in VIEWS:
            store.wait_for(name, end, TIMEOUT)
        for _ in range(2):
            victim = row(store, view).pid
            os.kill(victim, number)
            end = put(store)
            assert len(store.get("orders", 0, 0, 7)) == 7
            assert len(store.query("orders", "key-1")) >= 1
            # One that is stopped gives no sign of life, and is killed for it.
            store.wait_for(view, end, TIMEOUT)
            wait_until(lambda victim=victim: row(store, view).pid not in (None, victim), store)
        # On a busy machine one that was not stopped may be late, too.
        assert row(store, view).restart_count >= 2
    assert_views_are_right(path)


def test_a_frame_of_rubbish_ends_its_reader_and_nothing_is_lost(log, plugins, context, processes, saved):
    """The ring is the fast path, the log is the truth."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(5), TIMEOUT)
    running.writer.publish(b"\xc1 this is no frame", log.end, log.ordinal)
    running.wait_until(lambda: running.row("probe").restart_count == 1)
    running.group.wait_for("probe", log.put(5), TIMEOUT)
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def copy_of(path):
    """Return a copy of a store, as a backup makes one."""
    backup = path.with_name("backup")
    shutil.copytree(path, backup)
    return backup


@pytest.mark.parametrize("cursor_too", [True, False])
@pytest.mark.parametrize(("view", "folder"), [("consume_queue", "consumequeue"), ("index", "index")])
def test_a_view_that_was_replaced_by_an_older_copy_is_made_right(view, folder, cursor_too, path):
    """With its cursor it goes on from there, without it the view is built again."""
    with reput.open(path, **SIZES) as store:
        put(store)
    backup = copy_of(path)
    with reput.open(path, **SIZES) as store:
        put(store, 50)
    places = [folder, f"reput/views/{view}"] if cursor_too else [folder]
    for place in places:
        shutil.rmtree(path / place)
        shutil.copytree(backup / place, path / place)
    with reput.open(path, **SIZES) as store:
        end = put(store)
        store.wait_for(view, end, TIMEOUT)
    assert_views_are_right(path)


@pytest.mark.parametrize("place", ["consumequeue", "index", "reput/views/consume_queue", "reput/views/index"])
def test_a_view_that_was_deleted_is_built_again(place, path):
    """Whichever half of it: the files, or the cursor."""
    with reput.open(path, **SIZES) as store:
        put(store, 50)
    shutil.rmtree(path / place)
    with reput.open(path, **SIZES) as store:
        end = put(store)
        for view in VIEWS:
            store.wait_for(view, end, TIMEOUT)
    assert_views_are_right(path)


def test_a_writer_whose_process_id_was_given_to_somebody_else_holds_nothing(path):
    """The lock says who holds the store, not a number in a file."""
    with reput.open(path, **SIZES) as store:
        put(store)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        file = path / "reput" / "writer.json"
        written = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
        file.write_bytes(msgspec.json.encode(written | {"pid": stranger.pid}))
        with reput.open(path, read_only=True) as store:
            assert store.status().writer.state == "STOPPED"
        with reput.open(path, **SIZES) as store:
            put(store)
    finally:
        stranger.stdin.close()
        stranger.wait()
    assert_views_are_right(path)

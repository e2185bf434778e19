"""The plugin as tested by its author: installed beside reput, enabled, run, killed, caught up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import reput

DISPATCHERS = ["consume_queue", "topic_count"]
TIMEOUT = 60.0


@pytest.fixture(params=["processes", "inline"])
def mode(request: pytest.FixtureRequest) -> str:
    """Both ways of running dispatchers."""
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path for a new store."""
    return tmp_path / "store"


def counts(path: Path) -> dict[str, int]:
    """Return the view's data on disk."""
    saved = json.loads((path / "reput" / "views" / "topic_count" / "topic_count.json").read_bytes())
    return dict(saved["count"])


def put(store: reput.Store, topic: str, count: int) -> int:
    """Put *count* messages and return the commit-log offset after the last."""
    for number in range(count):
        result = store.put(reput.Message(topic, b"message %d" % number))
    return result.next_commit_log_offset


def pid_of(store: reput.Store) -> int:
    """Return the process of our dispatcher."""
    (row,) = [row for row in store.status().dispatchers if row.name == "topic_count"]
    assert row.pid is not None
    return row.pid


def test_it_is_found_with_its_distribution(path):
    """`reput plugin list` names the dispatcher's distribution and version."""
    command = [str(Path(sys.executable).with_name("reput")), "plugin", "list", "--format", "json"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = {row["name"]: row for row in map(json.loads, listed.stdout.splitlines())}
    assert rows["topic_count"]["distribution"] == "reput-topic-count"
    assert rows["topic_count"]["version"] == "1.0.0"
    assert rows["consume_queue"]["distribution"] == "reput"


def test_it_runs_only_where_it_is_enabled(path):
    """Installing it runs nothing."""
    with reput.open(path) as store:
        put(store, "orders", 1)
    assert not (path / "reput" / "views" / "topic_count").exists()


def test_it_counts(path, mode):
    """Every message is counted once, and the file has the counts when the store is closed."""
    with reput.open(path, dispatchers=DISPATCHERS, mode=mode) as store:
        put(store, "orders", 30)
        end = put(store, "payments", 12)
        store.wait_for("topic_count", end, timeout=TIMEOUT)
    assert counts(path) == {"orders": 30, "payments": 12}


PROGRAM = """
import sys, reput
with reput.open(sys.argv[1], dispatchers=["consume_queue", "topic_count"]) as store:
    result = store.put(reput.Message("orders", b"one"))
    store.wait_for("topic_count", result.next_commit_log_offset, timeout=30.0)
assert "reput_topic_count" not in sys.modules
"""


def test_it_is_imported_only_in_a_process_of_its_own(path):
    """Side effects of a plugin do not affect the program that opened the store."""
    subprocess.run([sys.executable, "-c", PROGRAM, path], check=True)
    assert counts(path) == {"orders": 1}


def test_it_takes_in_what_was_put_before_it_was_enabled(path, mode):
    """A dispatcher that is enabled later reads the log from its beginning."""
    with reput.open(path, mode=mode) as store:
        put(store, "orders", 100)
    with reput.open(path, dispatchers=DISPATCHERS, mode=mode) as store:
        store.wait_for("topic_count", put(store, "orders", 1), timeout=TIMEOUT)
    assert counts(path) == {"orders": 101}


def test_it_goes_on_where_it_stopped(path, mode):
    """Nothing is counted again after a reopening."""
    for _ in range(3):
        with reput.open(path, dispatchers=DISPATCHERS, mode=mode) as store:
            store.wait_for("topic_count", put(store, "orders", 10), timeout=TIMEOUT)
    assert counts(path) == {"orders": 30}


def test_it_catches_up_after_a_kill(path):
    """Killed repeatedly between puts, it restarts by itself and counts nothing twice."""
    with reput.open(path, dispatchers=DISPATCHERS) as store:
        for _ in range(3):
            store.wait_for("topic_count", put(store, "orders", 200), timeout=TIMEOUT)
            victim = pid_of(store)
            os.kill(victim, signal.SIGKILL)
            store.wait_for("topic_count", put(store, "orders", 200), timeout=TIMEOUT)
            assert pid_of(store) != victim
    assert counts(path) == {"orders": 1200}

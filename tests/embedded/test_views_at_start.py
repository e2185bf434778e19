"""What a store says of its messages before the dispatchers of their views have started, or if they cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import reput
from reput.errors import DispatcherError
from reput.store.disk.files import Files
from reput.store.state.dispatcher_cursors import keep_dispatcher_cursors, noted_progress

pytestmark = pytest.mark.processes
WAIT_S = 60.0
WRITER = "import sys, reput\nwith reput.open(sys.argv[1]):\n    sys.stdin.read()"


def fill(path: Path) -> None:
    """Put ten messages, and let the views have them."""
    with reput.open(path) as store:
        for number in range(10):
            end = store.put(reput.Message("orders", b"%d" % number, queue_id=0, keys=[f"k{number}"]))
        for view in ("consume_queue", "index"):
            store.wait_for(view, end.next_commit_log_offset, WAIT_S)


def found_in(store: reput.Store | reput.ReadOnlyStore) -> tuple[int, int]:
    """Return how many messages a get and a query find."""
    return len(store.get("orders", 0, 0)), len(store.query("orders", key="k7"))


def keep_from_starting(path: Path) -> None:
    """Let `start` of both dispatchers fail: a folder lies where each would write its dead letters."""
    for view in ("consume_queue", "index"):
        (path / f"reput/dead_letters/{view}.jsonl").mkdir(parents=True)


def test_readers_beside_a_writer_that_opens_the_store_find_what_is_there(tmp_path):
    """Whenever they ask; "there is nothing" would be a wrong answer."""
    fill(tmp_path)
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdin=subprocess.PIPE)
        try:
            # From before it opens the store until its dispatchers run.
            while True:
                with reput.open(tmp_path, read_only=True) as reader:
                    assert found_in(reader) == (10, 1)
                    rows = reader.status().dispatchers
                    if rows and all(row.state == "RUNNING" and row.progress for row in rows):
                        break
        finally:
            writer.communicate()


def test_views_whose_dispatchers_cannot_start_reach_as_far_as_was_noted(tmp_path):
    """In the writer's process and beside it, without a wait for what does not come."""
    fill(tmp_path)
    keep_from_starting(tmp_path)
    store = reput.open(tmp_path)
    try:
        assert found_in(store) == (10, 1)
        with reput.open(tmp_path, read_only=True) as reader:
            assert found_in(reader) == (10, 1)
    finally:
        store.close(timeout=0)


def test_a_view_that_nobody_has_noted_is_not_said_to_be_empty(tmp_path, monkeypatch):
    """The error names the dispatcher."""
    fill(tmp_path)
    keep_from_starting(tmp_path)
    (tmp_path / "reput/dispatcher_cursors").unlink()
    store = reput.open(tmp_path)
    try:
        with pytest.raises(DispatcherError, match="how far its view reaches: dispatcher=consume_queue"):
            store.get("orders", 0, 0)
        with (
            reput.open(tmp_path, read_only=True) as reader,
            pytest.raises(DispatcherError, match="how far its view reaches: dispatcher=index"),
        ):
            reader.query("orders", key="k7")
    finally:
        store.close(timeout=0)


def test_what_was_noted_is_never_beyond_the_log(tmp_path):
    """A log that was cut is shorter."""
    (tmp_path / "reput").mkdir()
    keep_dispatcher_cursors(tmp_path, {"index": 10}, Files())
    assert noted_progress(tmp_path, "index", 7) == 7
    assert noted_progress(tmp_path, "index", 12) == 10

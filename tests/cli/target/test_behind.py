"""A closed store with a lagging view: queries of it print a note."""

from __future__ import annotations

import json
import shutil

import pytest

import reput
from reput.cli import main
from reput.store.disk.files import Files
from reput.store.state.dispatcher_cursors import keep_dispatcher_cursors, read_dispatcher_cursors

SMALL = {"mapped_file_size_commit_log": 65536, "max_hash_slot_num": 16, "max_index_num": 64}


@pytest.fixture
def store(tmp_path):
    """A store of ten messages with a key, closed."""
    path = tmp_path / "store"
    with reput.open(path, mode="inline", **SMALL) as opened:
        for number in range(10):
            opened.put(reput.Message("orders", b"%d" % number, keys=("same",)))
    return path


@pytest.fixture
def without_index(store):
    """The same, with an index that never got anything, for example for lack of space."""
    shutil.rmtree(store / "index")
    keep_dispatcher_cursors(store, read_dispatcher_cursors(store) | {"index": 0}, Files())
    return store


def test_a_query_that_finds_nothing_says_that_the_index_is_behind(without_index, capsys):
    """An empty result would be a wrong answer."""
    assert main(["query", str(without_index), "orders", "same"]) == 1
    err = capsys.readouterr().err
    assert "behind the log" in err
    assert "view=index progress=0 log_end=" in err


def test_a_query_of_an_index_that_has_caught_up_says_nothing(store, capsys):
    """If it finds nothing, there is nothing."""
    assert main(["query", str(store), "orders", "absent"]) == 1
    assert capsys.readouterr().err == ""


def test_a_stopped_store_shows_how_far_a_view_is_behind(without_index, capsys):
    """The lag is that of the data on disk."""
    assert main(["status", str(without_index), "--format", "json"]) == 0
    status = json.loads(capsys.readouterr().out)
    lag = {row["name"]: row["lag_bytes"] for row in status["dispatchers"]}
    assert lag == {"consume_queue": 0, "index": status["writer"]["appended"]}


def test_a_check_says_that_an_enabled_view_is_not_there(without_index, capsys):
    """It is not a difference, because the view had confirmed nothing; but it is reported."""
    assert main(["check", str(without_index)]) == 0
    assert "view=index durable_cursor=0" in capsys.readouterr().out


def test_a_view_that_lost_what_was_on_disk_is_different(store, capsys):
    """A correct prefix is not enough if its dispatcher had recorded a later position."""
    for file in (store / "index").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    assert main(["check", str(store)]) == 1
    out = capsys.readouterr().out
    assert "index: different" in out
    assert "view has lost what was on disk: first_missing=0 durable_cursor=" in out

"""The last positions of the views, for when no dispatcher runs."""

from __future__ import annotations

import pytest

from reput.errors import DamagedStore
from reput.store.disk.files import Files
from reput.store.state.dispatcher_cursors import keep_dispatcher_cursors, read_dispatcher_cursors


@pytest.fixture
def store(tmp_path):
    (tmp_path / "reput").mkdir()
    return tmp_path


def test_a_store_without_a_note_names_nobody(store):
    """No dispatcher of reput was ever attached to it."""
    assert read_dispatcher_cursors(store) == {}


def test_cursors_are_found_again(store):
    """By dispatcher name."""
    keep_dispatcher_cursors(store, {"consume_queue": 100, "index": 90}, Files())
    assert read_dispatcher_cursors(store) == {"consume_queue": 100, "index": 90}


def test_one_that_has_not_said_where_it_is_stays_where_it_was(store):
    """At a start the names are known before the cursors; a new dispatcher's position is unknown."""
    keep_dispatcher_cursors(store, {"consume_queue": 100, "index": 90}, Files())
    keep_dispatcher_cursors(store, {"consume_queue": None, "new": None}, Files())
    assert read_dispatcher_cursors(store) == {"consume_queue": 100, "new": None}


def test_a_damaged_note_is_refused(store):
    """Retention does not rely on possibly wrong numbers."""
    keep_dispatcher_cursors(store, {"index": 90}, Files())
    path = store / "reput" / "dispatcher_cursors"
    path.write_bytes(path.read_bytes().replace(b"90", b"99"))
    with pytest.raises(DamagedStore, match="dispatcher_cursors"):
        read_dispatcher_cursors(store)

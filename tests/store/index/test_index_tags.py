"""Stores whose index has tags, recognised by the index's bytes."""

from __future__ import annotations

import shutil

import pytest

from golden_sets import CLEAN_SETS
from reput.settings import Settings
from reput.store.index.index_tags import shown_index_tags

SETTINGS = Settings()
SIZES = SETTINGS.max_hash_slot_num, SETTINGS.max_index_num


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_the_index_shows_whether_it_has_tags(golden_read_only, name):
    """RocketMQ 5.5.0 enters them, older versions do not; without tagged messages, it cannot be recognised."""
    store = golden_read_only(name) / "store"
    shown = shown_index_tags(store, *SIZES)
    assert shown is True if name.endswith("5.5") else not shown


def test_only_newer_records_count(golden_read_only):
    """Entries of an earlier version say nothing about the current one."""
    store = golden_read_only("basic-5.5") / "store"
    assert shown_index_tags(store, *SIZES, begin=1 << 40) is None


def test_a_store_without_tagged_messages_shows_it_by_a_folder(golden):
    """RocketMQ creates rocksdbstore/ since the version that enters tags."""
    store = golden("basic-5.5") / "store"
    shutil.rmtree(store / "index")
    assert shown_index_tags(store, *SIZES) is True
    shutil.rmtree(store / "rocksdbstore")
    assert shown_index_tags(store, *SIZES) is None


def test_a_directory_without_a_log_shows_nothing(tmp_path):
    """Neither does an absent one."""
    assert shown_index_tags(tmp_path / "absent", *SIZES) is None

"""A store that an earlier version wrote and closed: this version reads it, goes on with it, and leaves its layout."""

from __future__ import annotations

from pathlib import Path

import pytest

import reput
from archives import unpack_tar
from command_line import run_reput
from reput import Message
from reput.store.disk.sealed_file import seal
from reput.store.state.identity import LAYOUT_VERSION, StoreIdentity, read_identity
from small_store import records

DATA = Path(__file__).parent / "data"
# In the order of the versions; `data/README.md` says how each was made.
FROZEN = sorted(path.name.removesuffix(".tar.gz") for path in DATA.glob("*.tar.gz"))


@pytest.fixture(params=FROZEN)
def frozen(request, tmp_path):
    """A fresh copy of a frozen store."""
    unpack_tar(DATA / f"{request.param}.tar.gz", tmp_path)
    return tmp_path / "store"


def test_an_older_store_is_read_and_continued(frozen):
    """All messages, offsets and epochs of an older version are there, and new messages follow them."""
    before = records(frozen)
    assert len(before) == 40
    store_id = read_identity(frozen).store_id
    assert run_reput("check", frozen).code == 0
    with reput.open(frozen, mode="inline") as store:
        (progress,) = store.administration.group_progress("billing")
        assert (progress.topic, progress.consumer_offset, progress.broker_offset) == ("orders", 5, 20)
        result = store.put(Message("orders", b"new", keys="fresh"))
        assert result.queue_offset == 20
        store.wait_for("index", store.appended, timeout=60)
        assert [record.body for record in store.query("orders", "k3")] == [before[3].body]
        assert [record.body for record in store.query("orders", "fresh")] == [b"new"]
    identity = read_identity(frozen)
    assert (identity.store_id, identity.layout_version) == (store_id, LAYOUT_VERSION)
    assert records(frozen)[:40] == before
    assert run_reput("check", frozen).code == 0


def test_a_layout_of_a_later_version_is_refused_before_a_byte_changes(frozen):
    """An older reput refuses a newer layout with both numbers, reading and writing, and changes nothing."""
    identity = read_identity(frozen)
    later = StoreIdentity(LAYOUT_VERSION + 1, identity.store_id, identity.file_sizes, None, identity.settings)
    (frozen / "reput" / "store.json").write_bytes(seal(later))
    before = {path: path.stat().st_mtime_ns for path in frozen.rglob("*")}
    for arguments in ({}, {"read_only": True}):
        with pytest.raises(reput.StoreError, match=f"layout_version={LAYOUT_VERSION + 1} known={LAYOUT_VERSION}"):
            reput.open(frozen, mode="inline", **arguments)
    assert {path: path.stat().st_mtime_ns for path in frozen.rglob("*")} == before


def test_the_layout_has_the_files_that_its_version_stands_for(frozen):
    """What an older version can read of this one's files is decided by the layout's version: it rises with a change."""
    assert LAYOUT_VERSION == 1
    assert set(StoreIdentity.__struct_fields__) == {
        "layout_version",
        "store_id",
        "file_sizes",
        "adopted_clean",
        "settings",
    }

"""Damage found by readers of an open store is in its status, also after closing, until it is repaired."""

from __future__ import annotations

import time

import pytest

import reput
from command_line import run_reput
from reput.errors import DamagedStore
from reput.process.owner.stopped_status import stopped_status
from reput.settings import load_settings
from reput.store.recovery.repair import accept
from small_store import overwrite

SMALL = {"mapped_file_size_commit_log": 1 << 14, "mapped_file_size_consume_queue": 200, "max_hash_slot_num": 100}
WAIT_S = 60.0
COUNT = 20
KINDS = {"body": 90, "head": 4}


def damaged_store(store, at):
    """Damage a record of a closed store at this byte; return it and its original bytes."""
    with reput.open(store, mode="inline", **SMALL) as opened:
        # More than the bytes at the log's end that an opening compares.
        results = [opened.put(reput.Message("orders", bytes(400), keys=[f"k{number}"])) for number in range(COUNT)]
        opened.wait_for("index", opened.appended, WAIT_S)
    place = results[4]
    segment = store / "commitlog" / f"{0:020d}"
    whole = segment.read_bytes()[place.commit_log_offset : place.next_commit_log_offset]
    overwrite(store, place.commit_log_offset + at, b"\xff")
    return place, whole


def rows(status):
    """Return the damage rows of a status."""
    return [(row.begin, row.end, row.accepted) for row in status.damage]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["get", "query", "records"])
def test_what_a_reader_met_is_in_the_status_until_it_is_whole_again(tmp_path, kind, how):
    """While the store is open and when it is closed, once per place; restoring a copy ends it."""
    store = tmp_path / "store"
    place, whole = damaged_store(store, KINDS[kind])
    begin, end = place.commit_log_offset, place.next_commit_log_offset
    settings = load_settings(**SMALL).settings
    reads = {
        "get": lambda opened: opened.get("orders", 0, 4),
        "query": lambda opened: opened.query("orders", "k4"),
        "records": lambda opened: list(opened.records()),
    }
    with reput.open(store, mode="inline", **SMALL) as opened:
        assert rows(opened.status()) == []
        for _ in range(2):
            with pytest.raises(DamagedStore, match=f"{begin}"):
                reads[how](opened)
        (row,) = opened.status().damage
        assert (row.begin, row.accepted) == (begin, False)
        assert row.end in (end, None)
        assert row.met is not None
    assert rows(stopped_status(store, settings)) == [(begin, row.end, False)]
    overwrite(store, begin, whole)
    assert rows(stopped_status(store, settings)) == []


@pytest.mark.slow
@pytest.mark.newest_python
def test_damage_that_was_accepted_is_in_the_status_as_that(tmp_path):
    """The store does not count as unhealthy for it, unlike for damage that was not accepted."""
    store = tmp_path / "store"
    place, _ = damaged_store(store, KINDS["body"])
    begin, end = place.commit_log_offset, place.next_commit_log_offset
    with reput.open(store, mode="inline", **SMALL) as opened, pytest.raises(DamagedStore):
        opened.get("orders")
    found = run_reput("status", store, "--format", "json").report()
    assert [(row["from"], row["until"], row["accepted"]) for row in found["damage"]] == [(begin, end, False)]
    shown = run_reput("status", store)
    assert shown.code == 1
    assert "CRC" in shown.stdout
    accept(store, begin, end)
    found = run_reput("status", store, "--format", "json").report()
    assert [(row["from"], row["until"], row["accepted"], row["met"]) for row in found["damage"]] == [
        (begin, end, True, None)
    ]
    with reput.open(store, mode="inline", **SMALL) as opened:
        assert len(opened.get("orders").records) == COUNT - 1
        assert opened.query("orders", "k4") == []


def test_a_reader_beside_the_writer_writes_nothing_down(tmp_path):
    """A read-only store changes no byte on disk."""
    store = tmp_path / "store"
    damaged_store(store, KINDS["head"])
    with reput.open(store, read_only=True, **SMALL) as opened:
        with pytest.raises(DamagedStore):
            opened.get("orders", 0, 4)
        assert opened.status().damage == []
    assert not (store / "reput" / "met_damage.jsonl").exists()


def test_a_stopped_view_that_ends_before_damage_says_so(tmp_path):
    """The dispatcher stopped there before the store was closed."""
    store = tmp_path / "store"
    place, _ = damaged_store(store, KINDS["head"])
    (store / "reput" / "views" / "index" / "cursor").unlink()
    settings = load_settings(**SMALL).settings
    with reput.open(store, mode="inline", **SMALL) as opened:
        deadline = time.monotonic() + WAIT_S
        while (error := next(row.error for row in opened.status().dispatchers if row.name == "index")) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert str(place.commit_log_offset) in error
    (row,) = (row for row in stopped_status(store, settings).dispatchers if row.name == "index")
    assert row.error == f"the log is damaged where the view ends: commit_log_offset={place.commit_log_offset}"

"""Damage in stores that RocketMQ wrote is reported, shown at its place, and never skipped silently."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from command_line import run_reput


def garble(store: Path, record: dict[str, Any]) -> None:
    """Flip one bit in the middle of a record's body."""
    segments = sorted((store / "commitlog").iterdir())
    segment = [path for path in segments if int(path.name) <= record["physicalOffset"]][-1]
    at = record["physicalOffset"] - int(segment.name) + 90
    with segment.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@pytest.fixture
def garbled(golden, golden_listing) -> tuple[Path, dict[str, Any]]:
    """A store with one wrong bit in one body, and the damaged record."""
    store = golden("basic-5.3") / "store"
    listing = golden_listing("basic-5.3")
    record = next(line for line in listing[len(listing) // 2 :] if line["size"] > 200 and len(line["body"]) > 40)
    garble(store, record)
    return store, record


@pytest.fixture
def cut(golden) -> tuple[Path, int, int]:
    """A store whose fourth segment lost its second half, and the begin and end of the lost bytes in the log."""
    store = golden("basic-5.3") / "store"
    segment, following = sorted((store / "commitlog").iterdir())[3:5]
    size = segment.stat().st_size // 2
    os.truncate(segment, size)
    return store, int(segment.name) + size, int(following.name)


def test_check_names_the_record_with_a_garbled_byte(garbled):
    """The range is that record, and the exit code is 1."""
    store, record = garbled
    checked = run_reput("check", store, "--format", "json")
    assert checked.code == 1
    report = checked.report()
    assert report["ok"] is False
    end = record["physicalOffset"] + record["size"]
    assert [(damage["from"], damage["until"]) for damage in report["damage"]] == [(record["physicalOffset"], end)]
    assert report["damage"][0]["reason"]


def test_check_says_it_in_text_too(garbled):
    """The text output has the offset."""
    store, record = garbled
    checked = run_reput("check", store)
    assert checked.code == 1
    assert str(record["physicalOffset"]) in checked.stdout


def test_dump_shows_the_garbled_record_as_a_row_and_goes_on(garbled, golden_listing):
    """Every other record is printed; the exit code reports the damage."""
    store, record = garbled
    dumped = run_reput("dump", store, "--format", "json")
    assert dumped.code == 1
    rows = dumped.rows()
    (damage,) = [row for row in rows if row["kind"] == "damage"]
    assert damage["commit_log_offset"] == record["physicalOffset"]
    assert damage["until"] == record["physicalOffset"] + record["size"]
    expected = [line["physicalOffset"] for line in golden_listing("basic-5.3")]
    expected.remove(record["physicalOffset"])
    assert [row["commit_log_offset"] for row in rows if row["kind"] == "record"] == expected


def test_check_names_the_range_that_a_cut_segment_lost(cut):
    """From the last whole record in the rest of it, to the next segment."""
    store, lost_from, lost_until = cut
    checked = run_reput("check", store, "--format", "json")
    assert checked.code == 1
    (damage,) = checked.report()["damage"]
    assert damage["from"] <= lost_from
    assert damage["until"] == lost_until


def test_dump_goes_on_behind_a_cut_segment(cut, golden_listing):
    """The records before and after the hole are printed, with a row for the hole."""
    store, lost_from, lost_until = cut
    dumped = run_reput("dump", store, "--format", "json", "--body", "none")
    assert dumped.code == 1
    rows = dumped.rows()
    (damage,) = [row for row in rows if row["kind"] == "damage"]
    expected = [
        line["physicalOffset"]
        for line in golden_listing("basic-5.3")
        if line["physicalOffset"] + line["size"] <= lost_from or line["physicalOffset"] >= lost_until
    ]
    assert [row["commit_log_offset"] for row in rows if row["kind"] == "record"] == expected
    assert rows.index(damage) == sum(
        row["commit_log_offset"] < lost_from for row in rows if row["kind"] in ("record", "blank")
    )


def test_an_end_behind_which_there_is_nothing_is_no_damage(golden_read_only):
    """The zeros that a broker reserved after its last record are not reported."""
    checked = run_reput("check", golden_read_only("direct-5.3") / "store", "--format", "json")
    assert checked.report()["damage"] == []

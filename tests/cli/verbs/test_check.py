"""`reput check`: the text report, and its exit code. The tests of the engine cover its findings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reput.cli import main
from reput.cli.verbs import check
from reput.cli.verbs.check import check_text
from reput.store.check.check import check_store


def view(state: str = "equal", **more: Any) -> dict[str, Any]:
    """Return the report of one view."""
    counts = ("behind_bytes", "difference_count", "expired_count", "stale_count", "unverified_count")
    return {"state": state, "differences": [], **dict.fromkeys(counts, 0), **more}


def report(**more: Any) -> dict[str, Any]:
    """Return a report without problems, except for *more*."""
    views = {"consume_queue": view(), "index": view()}
    log = {"segments": 2, "records": 5, "bytes": 900, "clean_shutdown": True}
    return {"ok": True, "store": "/s", **log, "damage": [], "stale": [], "views": views, "notes": [], **more}


def test_people_see_log_views_and_verdict():
    """One line each."""
    assert check_text(report()) == (
        "log: 5 records in 900 bytes of 2 segments, closed cleanly\nconsume_queue: equal\nindex: equal\nok"
    )


def test_people_see_what_is_wrong_and_where():
    """Ranges, differences, counts; the last line summarises them."""
    damage = [{"from": 100, "until": 400, "reason": "a CRC does not match"}]
    stale = [{"from": 900, "until": 950, "reason": "left of an older history"}]
    views = {
        "consume_queue": view("different", difference_count=12, differences=["unit 3 of t/0", "unit 4 of t/0"]),
        "consume_queue_ext": view("absent"),
        "index": view("behind", behind_bytes=77, expired_count=3, unverified_count=1),
    }
    text = check_text(
        report(ok=False, clean_shutdown=False, damage=damage, stale=stale, views=views, notes=["another writes"])
    )
    assert text == (
        "log: 5 records in 900 bytes of 2 segments, not closed cleanly\n"
        "damage: from 100 until 400 (300 bytes): a CRC does not match\n"
        "stale: from 900 until 950 (50 bytes): left of an older history\n"
        "consume_queue: different\n"
        "    unit 3 of t/0\n"
        "    unit 4 of t/0\n"
        "    and 10 more\n"
        "consume_queue_ext: absent\n"
        "index: behind by 77 bytes of the log (3 expired, 1 without data to compare with)\n"
        "note: another writes\n"
        "NOT OK: damage, consume_queue"
    )


@pytest.mark.slow
def test_the_answer_is_the_exit_code(golden_read_only, capsys):
    """0 for an undamaged store, 1 for a damaged one; JSON is one object."""
    assert main(["check", str(golden_read_only("batch-4.9") / "store"), "--format", "json"]) == 0
    good = json.loads(capsys.readouterr().out)
    assert good["ok"] is True
    assert good["damage"] == []
    damaged = golden_read_only("damaged-4.9") / "clean-before" / "store"
    assert main(["check", str(damaged), "--format", "json"]) == 1
    bad = json.loads(capsys.readouterr().out)
    assert bad["ok"] is False
    assert set(bad["damage"][0]) == {"from", "until", "reason"}


def test_another_engine_is_found_by_its_name(golden_read_only, monkeypatch, capsys):
    """Its report has the same form; an unknown one is refused."""
    asked = []

    class Engine:
        @staticmethod
        def check_store(store, settings, on_progress):
            asked.append(store)
            return check_store(store, settings, on_progress)

    store = golden_read_only("batch-4.9") / "store"
    monkeypatch.setattr(check, "find_engine", lambda name: Engine)
    assert main(["check", str(store), "--engine", "other"]) == 0
    assert asked == [store]
    monkeypatch.undo()
    capsys.readouterr()
    assert main(["check", str(store), "--engine", "other"]) == 2
    assert "engine=other installed=local,spark" in capsys.readouterr().err

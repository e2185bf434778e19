"""Retention's plan for each segment, and its text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from reput.settings import Settings
from reput.store.disk.disk_space import DiskLevel
from reput.store.log.segments import Segments
from reput.store.retention.retention_plan import (
    KeptSegment,
    SegmentFate,
    Situation,
    kept_segments,
    next_time,
    plan_retention,
)

HOUR_MS = 3_600_000
SIZE = 4096


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    """The hours of the day are in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(hour: int, minute: int = 0) -> int:
    """Return a time on 10 January 2026, ms since 1970."""
    midnight = 1_768_003_200_000
    return midnight + hour * HOUR_MS + minute * 60_000


def segments(*last_modified: int) -> list[KeptSegment]:
    """Return segments of 4 KiB that were last written at these times."""
    return [
        KeptSegment(Path(f"{number * SIZE:020d}"), number * SIZE, (number + 1) * SIZE, SIZE, modified)
        for number, modified in enumerate(last_modified)
    ]


def plan(kept: list[KeptSegment], now: int, *, level=DiskLevel.FINE, asked=False, cursors=None, **settings):
    used = {DiskLevel.FINE: 20, DiskLevel.SHORT: 80, DiskLevel.FORCIBLE: 87, DiskLevel.WARNING: 95}[level]
    # The log ends in the last segment.
    situation = Situation(now, kept[-1].begin + 100, level, used, cursors or {}, asked)
    return list(plan_retention(kept, Settings(**settings), situation))


def goes(fates: list[SegmentFate]) -> list[bool]:
    return [fate.goes for fate in fates]


OLD = at(0) - 100 * HOUR_MS
YOUNG = at(0) - 10 * HOUR_MS


def test_segments_that_have_had_their_time_go_at_the_hour():
    """72 hours after the last write, at 4 in the morning; younger ones stay."""
    fates = plan(segments(OLD, OLD, YOUNG, YOUNG), at(4, 30))
    assert goes(fates) == [True, True, False, False]
    assert fates[0].due == at(4, 30)
    assert fates[0].reason == "it has had its time: age_hours=104.5 file_reserved_time=72 delete_when=04"
    assert fates[2].reason == "it has not had its time: age_hours=14.5 file_reserved_time=72"


def test_at_other_hours_they_wait():
    """The plan has the time."""
    fates = plan(segments(OLD, YOUNG, YOUNG), at(5, 30))
    assert goes(fates) == [False, False, False]
    assert fates[0].due == at(24 + 4)
    assert fates[0].reason == "it has had its time, and waits for the hour: delete_when=04"
    assert fates[1].due == at(24 * 3 + 4)


def test_several_hours_may_be_named():
    """Separated by semicolons, like in RocketMQ."""
    assert goes(plan(segments(OLD, YOUNG), at(13), delete_when="4;13;")) == [True, False]
    assert plan(segments(OLD, YOUNG), at(12), delete_when="4;13")[0].due == at(13)


def test_the_segment_that_the_log_ends_in_never_goes():
    """However old it is, and however full the disk; neither does one created in advance after it."""
    kept = segments(OLD, OLD, OLD)
    fates = plan(kept, at(4), level=DiskLevel.WARNING)
    assert goes(fates) == [True, True, False]
    assert fates[2].reason == "the log ends in it"
    assert fates[2].due is None
    situation = Situation(at(4), kept[1].begin + 5, DiskLevel.WARNING, 95, {})
    assert goes(list(plan_retention(kept, Settings(), situation))) == [True, False, False]


def test_a_segment_just_filled_stays_until_the_log_goes_on_behind_it():
    """Its last records are the log's last records."""
    kept = segments(OLD, OLD)
    situation = Situation(at(4), kept[1].begin, DiskLevel.WARNING, 95, {})
    assert goes(list(plan_retention(kept, Settings(), situation))) == [False, False]


def test_a_disk_that_is_short_of_room_makes_it_any_hour():
    """But only for expired segments."""
    fates = plan(segments(OLD, YOUNG, YOUNG), at(17), level=DiskLevel.SHORT)
    assert goes(fates) == [True, False, False]
    assert fates[0].reason.endswith(" disk_used_percent=80")
    assert fates[0].due == at(17)


@pytest.mark.parametrize("level", [DiskLevel.FORCIBLE, DiskLevel.WARNING])
def test_a_disk_that_is_nearly_full_takes_segments_of_any_age(level):
    """Unless that was switched off."""
    fates = plan(segments(YOUNG, YOUNG, YOUNG), at(17), level=level)
    assert goes(fates) == [True, True, False]
    assert fates[0].reason.startswith("room is needed: disk_used_percent=")
    kept = plan(segments(OLD, YOUNG, YOUNG), at(17), level=level, clean_file_forcibly_enable=False)
    assert goes(kept) == [True, False, False]


def test_whoever_asks_need_not_wait_for_the_hour():
    """The age still counts."""
    fates = plan(segments(OLD, YOUNG, YOUNG), at(17), asked=True)
    assert goes(fates) == [True, False, False]
    assert fates[0].reason.endswith(" asked=now")
    assert fates[0].due == at(24 + 4)


def test_nothing_goes_before_what_is_older():
    """The log has one beginning. A clock that was wrong for a while leaves young segments before old ones."""
    fates = plan(segments(YOUNG, OLD, OLD), at(4))
    assert goes(fates) == [False, False, False]
    assert fates[1].reason == "an older segment is kept"


def test_dispatchers_that_do_not_have_a_segment_are_waited_for():
    """Every enabled one, including one whose position is unknown."""
    for cursors in ({"index": SIZE - 1, "consume_queue": 5 * SIZE}, {"index": None}):
        fates = plan(segments(OLD, OLD, YOUNG), at(4), cursors=cursors)
        assert goes(fates) == [False, False, False]
        assert fates[0].missed_by == ("index",)
        assert "dispatchers or followers do not have it yet" in fates[0].reason
    assert goes(plan(segments(OLD, OLD, YOUNG), at(4), cursors={"index": SIZE})) == [True, False, False]


def test_dispatchers_are_not_waited_for_for_ever():
    """After the configured additional hours the segment is removed, and the plan names the dispatchers that miss it."""
    fates = plan(segments(OLD, YOUNG), at(4), cursors={"index": 7}, dispatcher_reserved_time=32)
    assert goes(fates) == [True, False]
    assert "durable_cursors=index:7 dispatcher_reserved_time=32" in fates[0].reason
    fates = plan(segments(OLD, YOUNG), at(4), cursors={"index": 7}, dispatcher_reserved_time=33)
    assert goes(fates) == [False, False]
    assert fates[0].due == at(24 + 4)


def test_a_disk_above_the_warning_level_waits_for_nobody():
    """Below it, segments that all dispatchers have make space."""
    cursors = {"index": SIZE}
    assert goes(plan(segments(YOUNG, YOUNG, YOUNG), at(9), level=DiskLevel.FORCIBLE, cursors=cursors)) == [
        True,
        False,
        False,
    ]
    assert goes(plan(segments(YOUNG, YOUNG, YOUNG), at(9), level=DiskLevel.WARNING, cursors=cursors)) == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns", "Australia/Lord_Howe"])
def test_hours_are_local(monkeypatch, zone):
    """Also in zones with an offset of half hours."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    hours = frozenset({4})
    now = at(0, 17) + 123
    for _ in range(60):
        due = next_time(hours, now)
        assert time.localtime(due / 1000).tm_hour == 4
        assert due >= now
        assert due == now or time.localtime((due - 1) / 1000).tm_hour != 4
        assert due - now <= 25 * HOUR_MS
        now += 7 * HOUR_MS // 2


def test_a_segment_that_went_since_they_were_listed_is_left_out(tmp_path):
    """A plan made during retention sees segments disappear."""
    for number in range(3):
        (tmp_path / f"{number * SIZE:020d}").write_bytes(bytes(SIZE))
    listed = Segments(tmp_path).list
    listed[0].path.unlink()
    assert [segment.begin for segment in kept_segments(listed)] == [SIZE, 2 * SIZE]

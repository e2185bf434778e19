"""Retention's plan for each segment of a log, with time and reason. Pure: its only input is its arguments.

A segment goes if all of these hold for it and for every older one:

    the log has gone on behind it      the segment that the log ends in never goes
    it has expired                     ``file_reserved_time`` since it was written last; a disk above the forcible level
                                       takes segments of any age
    it is time to delete               an hour of ``delete_when``, a disk that is short of room, or a request
    all enabled dispatchers have it    durably; they are waited for up to ``dispatcher_reserved_time`` more, and not at
                                       all above the disk's warning level. A dispatcher that is late finds a gap

Source: RocketMQ store, DefaultMessageStore.CleanCommitLogService and MappedFileQueue.deleteExpiredFileByTime; the
dispatchers are reput's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from reput.settings import Settings
from reput.store.disk.disk_space import DiskLevel
from reput.store.log.segments import Segment

__all__ = ["KeptSegment", "SegmentFate", "Situation", "kept_segments", "next_time", "plan_retention"]

HOUR_MS = 3_600_000
# The trigger that a running store does not pull by itself.
ASKED = "asked=now"


class KeptSegment(msgspec.Struct, frozen=True):
    """A segment of the log: its bytes [begin, end).

    Attributes:
        size: bytes that it takes on disk.
        last_modified: ms since 1970 UTC.
    """

    path: Path
    begin: int
    end: int
    size: int
    last_modified: int


class Situation(msgspec.Struct, frozen=True):
    """The inputs of a plan besides the segments and the settings.

    Attributes:
        now: ms since 1970 UTC.
        log_end: up to where the log is durable.
        level, used_percent: of the disk.
        cursors: commit-log offset up to which the view of each enabled dispatcher is durable, and up to which each
            follower has the log; None: not known.
        asked: an operator wants it done now, whatever the hour.
    """

    now: int
    log_end: int
    level: DiskLevel
    used_percent: int
    cursors: Mapping[str, int | None]
    asked: bool = False


class SegmentFate(msgspec.Struct, frozen=True):
    """What retention does with one segment, and why.

    Attributes:
        goes: the segment may be removed now.
        due: when a running store would remove it by itself, ms since 1970; None: unknown.
        reason: why it goes, or what keeps it.
        missed_by: enabled dispatchers that do not have it durably.
    """

    segment: KeptSegment
    goes: bool
    due: int | None
    reason: str
    missed_by: tuple[str, ...] = ()


def kept_segments(segments: Sequence[Segment]) -> list[KeptSegment]:
    """Return what the file system says of *segments*, without those that went since they were listed."""
    kept = []
    for segment in segments:
        try:
            status = segment.path.stat()
        except FileNotFoundError:
            continue
        taken = status.st_blocks * 512
        modified = status.st_mtime_ns // 1_000_000
        kept.append(KeptSegment(segment.path, segment.begin, segment.end, taken, modified))
    return kept


def plan_retention(segments: Sequence[KeptSegment], settings: Settings, situation: Situation) -> Iterator[SegmentFate]:
    """Yield what becomes of each of *segments*, which ascend and are all that the log has."""
    rules = RetentionRules(settings, situation)
    blocked = False
    for segment in segments:
        fate = rules.judge(segment)
        if blocked and fate.goes:
            fate = SegmentFate(segment, False, fate.due, "an older segment is kept")
        blocked = blocked or not fate.goes
        yield fate


class RetentionRules:
    """The rules for one segment, apart from its place among the others."""

    def __init__(self, settings: Settings, situation: Situation) -> None:
        self.settings = settings
        self.situation = situation
        self.hours = frozenset(int(hour) for hour in settings.delete_when.split(";") if hour)
        self.forcible = settings.clean_file_forcibly_enable and situation.level >= DiskLevel.FORCIBLE

    def judge(self, segment: KeptSegment) -> SegmentFate:
        """Say what becomes of *segment* if every older one is gone."""
        settings, situation = self.settings, self.situation
        if segment.begin > situation.log_end:
            return SegmentFate(segment, False, None, "the log does not reach it yet")
        if segment.end >= situation.log_end:
            return SegmentFate(segment, False, None, "the log ends in it")
        aged_at = segment.last_modified + settings.file_reserved_time * HOUR_MS
        released_at = aged_at + settings.dispatcher_reserved_time * HOUR_MS
        aged = aged_at <= situation.now
        missed_by = tuple(
            sorted(name for name, cursor in situation.cursors.items() if cursor is None or cursor < segment.end)
        )
        waits = bool(missed_by) and released_at > situation.now and situation.level < DiskLevel.WARNING
        due = next_time(self.hours, max(released_at if waits else aged_at, situation.now))
        trigger = self.trigger()
        if not aged and not self.forcible:
            return SegmentFate(segment, False, due, f"it has not had its time: {self.age(segment)}", missed_by)
        if waits:
            reason = f"dispatchers or followers do not have it yet: {self.missing(missed_by)}"
            return SegmentFate(segment, False, due, reason, missed_by)
        if trigger is None:
            reason = f"it has had its time, and waits for the hour: delete_when={settings.delete_when}"
            return SegmentFate(segment, False, due, reason, missed_by)
        reason = f"it has had its time: {self.age(segment)}" if aged else "room is needed:"
        if missed_by:
            reason += f" {self.missing(missed_by)}"
        return SegmentFate(segment, True, due if trigger == ASKED else situation.now, f"{reason} {trigger}", missed_by)

    def trigger(self) -> str | None:
        """Return why this is the time to delete, None if it is not."""
        if self.situation.level > DiskLevel.FINE:
            return f"disk_used_percent={self.situation.used_percent}"
        if time.localtime(self.situation.now / 1000).tm_hour in self.hours:
            return f"delete_when={self.settings.delete_when}"
        return ASKED if self.situation.asked else None

    def age(self, segment: KeptSegment) -> str:
        """Return how old a segment is, and how old it has to be."""
        age = max(self.situation.now - segment.last_modified, 0) / HOUR_MS
        return f"age_hours={age:.1f} file_reserved_time={self.settings.file_reserved_time}"

    def missing(self, names: Sequence[str]) -> str:
        """Return where those dispatchers stand, and how much longer than others they may take."""
        cursors = self.situation.cursors
        stand = ",".join(f"{name}:{'unknown' if cursors[name] is None else cursors[name]}" for name in names)
        return f"durable_cursors={stand} dispatcher_reserved_time={self.settings.dispatcher_reserved_time}"


def next_time(hours: frozenset[int], now: int) -> int:
    """Return the first moment from *now* on, ms since 1970, at which the local hour is one of *hours*."""
    while (local := time.localtime(now / 1000)).tm_hour not in hours:
        now += HOUR_MS - (local.tm_min * 60_000 + local.tm_sec * 1000 + now % 1000)
    return now

"""Retention: removes old segments of the log, a few at a time, and stops the puts while the disk is too full.

An agent on a thread of its own. Every ``clean_resource_interval`` it looks how full the disk is and whether anything
may go; then up to ``delete_file_batch_max`` segments go, ``delete_commit_log_files_interval`` apart. Each look lists
the log once. Before each removal, retention looks at the disk, the clock and the dispatchers again, so that it
stops once there is room; of the log, only the oldest segment and the next one are looked at.

First the readers in the writer's process learn the log's new begin, then the file goes, durably, and then the views are
told. A crash in between leaves a log that begins later than its views, which views can handle.

Source: RocketMQ store, DefaultMessageStore.CleanCommitLogService.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Protocol

from reput.errors import ReputError
from reput.settings import Settings
from reput.store.disk.disk_space import DiskLevel, DiskLevels, DiskSpace
from reput.store.log.log_clock import LogClock
from reput.store.log.segments import Segment, Segments
from reput.store.retention.retention_plan import KeptSegment, SegmentFate, Situation, kept_segments, plan_retention
from reput.store.service.service_thread import ServiceThread
from reput.store.service.threads import Threads, thread_death

__all__ = ["RetainedLog", "Retention"]

# RocketMQ waits as long after a start, which has enough to do.
FIRST_LOOK_S = 60.0

logger = logging.getLogger("reput.store")


class RetainedLog(Protocol):
    """The part of the writer that retention uses."""

    @property
    def durable(self) -> int:
        """Commit-log offset up to which the log is forced to disk."""

    def trim(self, path: Path, commit_log_offset_min: int) -> None:
        """Remove the oldest segment, and publish where the log begins now."""

    def set_disk_full(self, reason: str | None) -> None:
        """Refuse puts, and say why; None: take them again."""


class Retention(ServiceThread):
    """Watches over one store's log. Until `watch`, nothing happens by itself."""

    def __init__(
        self,
        store_directory: Path,
        settings: Settings,
        log: RetainedLog,
        log_clock: LogClock,
        disk_space: DiskSpace,
        threads: Threads,
    ) -> None:
        super().__init__("reput-retention", threads)
        self.directory = store_directory
        self.settings = settings
        self.log = log
        self.log_clock = log_clock
        self.clock = clock = log_clock.clock
        self.disk_space = disk_space
        self.levels = DiskLevels.of(settings)
        self.cursors: Callable[[], Mapping[str, int | None]] = dict
        self.on_trim: Callable[[], None] = lambda: None
        self.level = DiskLevel.FINE
        # How many requests to remove segments there were, and how many of them are done.
        self.requests = self.requests_met = 0
        self.look_at = clock.monotonic() + FIRST_LOOK_S
        self.delete_at = clock.monotonic()
        self.left = 0
        # The log as the last look found it, without what has gone since.
        self.listed: deque[Segment] = deque()
        self.complaint = ""

    # The thread.

    def watch(self, cursors: Callable[[], Mapping[str, int | None]], on_trim: Callable[[], None]) -> None:
        """Begin to watch.

        Args:
            cursors: returns up to where the view of each enabled dispatcher is durable, None: not known; and up to
                where each follower has the log.
            on_trim: called after each removal of a segment.
        """
        self.cursors = cursors
        self.on_trim = on_trim
        self.start()

    def run(self) -> None:
        """Work until stopped."""
        while not self.stopping:
            if not self.do_work():
                self.wait_for_running(self.seconds_to_next())

    def clean(self) -> list[SegmentFate]:
        """Request removal of every removable segment now, whatever the hour; return the fate of every segment.

        Raises:
            StoreError: the thread that removes segments has died.
        """
        if self.service_name in self.threads.deaths:
            raise thread_death(self.threads.deaths[self.service_name])
        fates = self.plan(asked=True)
        self.requests += 1
        self.look_at = self.clock.monotonic()
        self.wakeup()
        return fates

    # The agent.

    def do_work(self) -> int:
        """Remove the segments that are due, and return how many were removed."""
        now = self.clock.monotonic()
        try:
            if now >= self.look_at:
                self.look_at = now + self.settings.clean_resource_interval / 1000
                self.left = self.settings.delete_file_batch_max
                self.listed.clear()
                self.look()
            if not self.left or now < self.delete_at:
                return 0
            return self.delete_one(now)
        except (OSError, ReputError) as error:
            # The next look tries again; one complaint of a kind is enough.
            self.left = 0
            if str(error) != self.complaint:
                self.complaint = str(error)
                logger.error("retention failed: store=%s error=%s", self.directory, error)
            return 0

    def seconds_to_next(self) -> float:
        """Return the seconds until there is something to do."""
        now = self.clock.monotonic()
        return max(0.0, (min(self.delete_at, self.look_at) if self.left else self.look_at) - now)

    def look(self) -> None:
        """Check how full the disk is, and stop or allow puts."""
        used = self.used_percent()
        level = self.levels.level(used)
        if level is DiskLevel.WARNING:
            reason = f"the disk is too full: used_percent={used} disk_space_warning_level_ratio={self.levels.warning}"
            self.log.set_disk_full(reason)
        elif self.level is DiskLevel.WARNING:
            self.log.set_disk_full(None)
        self.level = level

    def used_percent(self) -> int:
        """Return how full the disks of the log and of the queues are."""
        return self.disk_space.used_percent([self.directory / "commitlog", self.directory / "consumequeue"])

    def delete_one(self, now: float) -> int:
        """Remove the oldest segment if it may go; return how many went."""
        # A request that arrives during the plan is not part of it.
        requests = self.requests
        situation = self.situation(asked=requests > self.requests_met)
        # The last segment never goes. Where the log has a hole, it begins behind it.
        first, following = self.first_two()
        oldest = next(plan_retention([first], self.settings, situation))
        if following is None or not oldest.goes:
            self.left = 0
            self.requests_met = requests
            return 0
        logger.log(
            logging.WARNING if oldest.missed_by else logging.INFO,
            "segment is removed: path=%s reason=%s",
            first.path,
            oldest.reason,
        )
        self.log.trim(first.path, following.begin)
        self.listed.popleft()
        self.on_trim()
        self.complaint = ""
        self.left -= 1
        self.delete_at = now + self.settings.delete_commit_log_files_interval / 1000
        return 1

    def first_two(self) -> tuple[KeptSegment, KeptSegment | None]:
        """Return the oldest segment and the next one, if any, as the file system shows them now."""
        if len(kept := kept_segments(list(islice(self.listed, 2)))) < 2:
            # The listed ones are used up, or another program has removed one.
            self.listed = deque(Segments(self.directory / "commitlog").list)
            kept = kept_segments(list(islice(self.listed, 2)))
        return kept[0], kept[1] if len(kept) > 1 else None

    def plan(self, *, asked: bool) -> list[SegmentFate]:
        """Return what becomes of each segment as things stand."""
        situation = self.situation(asked=asked)
        segments = kept_segments(Segments(self.directory / "commitlog").list)
        return list(plan_retention(segments, self.settings, situation))

    def situation(self, *, asked: bool) -> Situation:
        """Return the inputs of a plan besides the segments."""
        used = self.used_percent()
        # A request goes by the system clock.
        now = self.clock.now_ms() if asked else self.log_clock.now_ms()
        return Situation(now, self.log.durable, self.levels.level(used), used, self.cursors(), asked)

"""Old segments are removed, a few at a time; puts stop while the disk is too full, and continue when there is space."""

from __future__ import annotations

import errno
import logging
import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from reput.errors import OffsetOutOfRange, StoreFull
from reput.store.disk.files import Files
from reput.store.log.log_clock import LogClock
from reput.store.log.segments import Segments
from reput.store.message_store import MessageStore
from reput.store.retention import retention
from reput.store.retention.retention_plan import SegmentFate, kept_segments
from reput.store.writer.publisher import Publisher
from small_store import SEGMENT_SIZE, START_MS, ManualClock, message_of_size, records, small_settings

HOUR_MS = 3_600_000
TIMEOUT = 60.0
EVERY_HOUR = ";".join(map(str, range(24)))
# Three of them fill a segment except for its blank.
RECORD_SIZE = 1300


class RetentionClock(ManualClock):
    """A clock whose two times are both set manually."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def go_on(self, seconds: float) -> None:
        self.seconds += seconds
        self.ms += int(seconds * 1000)


class GivenDisk:
    """A disk with the usage that a test sets, minus one percent for each removed segment."""

    def __init__(self, used: int = 20) -> None:
        self.used = used
        self.error: OSError | None = None
        self.directory: Path | None = None
        self.begin = 0

    def used_percent(self, paths: list[Path]) -> int:
        if self.error is not None:
            raise self.error
        if self.directory is None:
            return self.used
        # Meanwhile the next segment may be created in advance.
        return self.used - (self.log_begin(self.directory) - self.begin) // SEGMENT_SIZE

    def shrinks_with(self, store: MessageStore) -> None:
        self.directory = store.directory / "commitlog"
        self.begin = self.log_begin(self.directory)

    @staticmethod
    def log_begin(directory: Path) -> int:
        return Segments(directory).begins[0]


class Told(Publisher):
    """A publisher that records the log's beginning and the writer's state."""

    def __init__(self) -> None:
        self.minimums: list[int] = []
        self.reasons: list[str | None] = []

    def read_only(self, reason):
        self.reasons.append(reason)

    def expire(self, commit_log_offset_min, appended, ordinal):
        self.minimums.append(commit_log_offset_min)


class Scene:
    """A store of many segments, with a clock and a disk that a test controls."""

    def __init__(self, directory: Path, files: Files | None = None, **settings: object) -> None:
        self.clock = RetentionClock()
        self.disk = GivenDisk()
        self.told = Told()
        settings = {"delete_when": EVERY_HOUR, **settings}
        self.store = MessageStore(
            directory, small_settings(**settings), files=files, clock=self.clock, disk_space=self.disk
        )
        self.store.attach(self.told, needs_properties=False)
        self.retention = self.store.retention

    def fill(self, segment_count: int) -> None:
        """Put until the log ends in the segment of that number, and make all others 100 hours old."""
        while self.store.appended < (segment_count - 1) * SEGMENT_SIZE + 1:
            self.store.put(message_of_size(RECORD_SIZE))
        self.store.flush()
        self.age(100)

    def age(self, hours: int) -> None:
        for path in (self.store.directory / "commitlog").iterdir():
            os.utime(path, (0, (self.clock.ms - hours * HOUR_MS) / 1000))

    def set_clock(self, ms: int) -> None:
        """Set the time, as if the store had been opened at that time."""
        self.clock.ms = ms
        self.retention.log_clock = self.store.log_clock = LogClock(self.clock, 0)

    def names(self) -> list[int]:
        return Segments(self.store.directory / "commitlog").begins

    def run(self, seconds: float) -> int:
        """Let this time pass, with all work that becomes due; return the number of removed segments."""
        count = 0
        end = self.clock.seconds + seconds
        while True:
            while work := self.retention.do_work():
                count += work
            left = end - self.clock.seconds
            if left <= 0:
                return count
            # One millisecond more than needed, so that rounding does not cause a second run.
            self.clock.go_on(min(left, self.retention.seconds_to_next() + 0.001))


@pytest.fixture
def scenes(tmp_path):
    """Creates stores, and closes them afterwards."""
    made: list[Scene] = []

    def make(files: Files | None = None, **settings: object) -> Scene:
        made.append(Scene(tmp_path / f"store{len(made)}", files, **settings))
        return made[-1]

    yield make
    for scene in made:
        if scene.store.state != "STOPPED":
            scene.store.close(views_complete=True)


def test_segments_that_have_had_their_time_go(scenes):
    """All but the one in which the log ends; each time listeners are told where the log begins."""
    scene = scenes()
    scene.fill(5)
    assert scene.run(70) == 4
    assert scene.names()[0] == 4 * SEGMENT_SIZE
    assert scene.store.commit_log_offset_min == 4 * SEGMENT_SIZE
    assert scene.told.minimums == [SEGMENT_SIZE * number for number in range(1, 5)]
    assert [record.commit_log_offset for record in records(scene.store.directory)] == [4 * SEGMENT_SIZE]


def test_what_a_removal_looks_at_does_not_depend_on_how_many_segments_there_are(scenes, monkeypatch):
    """The log is listed once for many removals, and each reads the removed segment and the next one."""
    scene = scenes(delete_file_batch_max=100)
    scene.fill(13)
    listings, looked_at = [], []

    def listed(directory):
        listings.append(directory)
        return Segments(directory)

    def kept(segments):
        looked_at.append(len(segments))
        return kept_segments(segments)

    monkeypatch.setattr(retention, "Segments", listed)
    monkeypatch.setattr(retention, "kept_segments", kept)
    assert scene.run(65) == 12
    # A second time only if no next segment was created in advance.
    assert len(listings) <= 2
    assert max(looked_at) <= 2
    assert len(looked_at) <= 12 + 3


def test_a_segment_that_somebody_else_took_stops_nothing(scenes):
    """Between two removals: the log is listed again."""
    scene = scenes()
    scene.fill(6)
    scene.clock.go_on(60)
    assert scene.retention.do_work() == 1
    taken = scene.retention.listed[1].path
    taken.unlink()
    assert scene.run(10) == 3
    assert scene.told.minimums == [SEGMENT_SIZE * number for number in (1, 3, 4, 5)]


def test_nothing_goes_in_the_first_minute(scenes):
    """A store has enough to do right after its opening."""
    scene = scenes()
    scene.fill(3)
    assert scene.run(59) == 0
    assert scene.run(2) == 2


def test_young_segments_stay(scenes):
    """Until they are 72 hours old."""
    scene = scenes()
    scene.fill(3)
    scene.age(71)
    assert scene.run(70) == 0
    scene.clock.go_on(3600)
    assert scene.run(20) == 2


@pytest.mark.parametrize("puts", [False, True])
def test_a_clock_that_runs_ahead_for_a_moment_removes_nothing(scenes, caplog, puts):
    """Not in the hour of deleteWhen, whatever is put meanwhile: the log is as old as its records show."""
    scene = scenes(clean_resource_interval=1000)
    scene.fill(4)
    scene.age(0)
    assert scene.run(70) == 0
    scene.clock.ms += 100 * HOUR_MS
    if puts:
        scene.store.put(message_of_size(RECORD_SIZE))
    assert scene.run(6) == 0
    assert "clock disagrees" in (scene.store.notice or "")
    scene.clock.ms -= 100 * HOUR_MS
    assert scene.run(70) == 0
    assert caplog.text.count("the clock was set") == 1
    assert "clock disagrees" not in (scene.store.notice or "")


def test_a_clock_that_keeps_what_it_was_set_to_is_believed(scenes):
    """A machine that slept for days continues with the current time."""
    scene = scenes()
    scene.fill(3)
    scene.age(0)
    assert scene.run(70) == 0
    scene.clock.ms += 100 * HOUR_MS
    assert scene.run(590) == 0
    assert scene.run(30) == 2


def test_a_store_that_was_opened_while_the_clock_ran_ahead_is_as_old_as_its_newest_record(scenes):
    """The clock is trusted once it has shown the time for ten minutes."""
    scene = scenes()
    scene.fill(4)
    scene.age(0)
    directory = scene.store.directory
    scene.store.close(views_complete=True)
    clock = RetentionClock()
    clock.ms += 100 * HOUR_MS
    store = MessageStore(directory, small_settings(delete_when=EVERY_HOUR), clock=clock, disk_space=scene.disk)
    try:
        assert not any(fate.goes for fate in store.retention.plan(asked=False))
        assert next(fate.goes for fate in store.retention.plan(asked=True))
        clock.go_on(601)
        assert store.retention.plan(asked=False)[0].goes
    finally:
        store.close(views_complete=True)


def test_segments_go_one_after_the_other_in_batches(scenes):
    """To leave the disk time for puts: 100 ms between two, 10 per run, a run every 10 seconds."""
    scene = scenes()
    scene.fill(26)
    went_at: list[float] = []
    while len(went_at) < 25:
        if scene.run(0):
            went_at.append(scene.clock.seconds)
        scene.clock.go_on(scene.retention.seconds_to_next() + 0.001)
    pauses = [later - sooner for sooner, later in pairwise(went_at)]
    assert min(pauses) >= 0.1
    assert [number for number, pause in enumerate(pauses, 1) if pause > 5] == [10, 20]


def test_a_disk_that_gets_room_keeps_the_rest(scenes):
    """The disk's usage is checked before each segment."""
    scene = scenes()
    scene.fill(8)
    scene.age(1)
    scene.disk.used = 88
    scene.disk.shrinks_with(scene.store)
    # The usage is 88 percent, and above 85 segments of any age are removed.
    assert scene.run(200) == 3
    assert scene.names()[0] == 3 * SEGMENT_SIZE


def test_segments_wait_for_dispatchers(scenes):
    """Until all of them have a segment durably."""
    scene = scenes()
    scene.fill(5)
    cursors: dict[str, int | None] = {"consume_queue": 2 * SEGMENT_SIZE, "index": None}
    scene.retention.cursors = lambda: cursors
    assert scene.run(100) == 0
    cursors["index"] = 5 * SEGMENT_SIZE
    assert scene.run(20) == 2
    cursors["consume_queue"] = 5 * SEGMENT_SIZE
    assert scene.run(20) == 2


def test_what_a_dispatcher_loses_is_a_warning(scenes, caplog):
    """It names the dispatchers that did not have the segment."""
    scene = scenes(dispatcher_reserved_time=0)
    scene.fill(2)
    scene.retention.cursors = lambda: {"index": 17}
    with caplog.at_level(logging.INFO, "reput.store"):
        assert scene.run(70) == 1
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "durable_cursors=index:17" in line.getMessage()


def test_puts_are_refused_while_the_disk_is_too_full_and_taken_again_by_itself(scenes):
    """Nothing is stored meanwhile, the error has the usage, and listeners are told once each way."""
    scene = scenes(clean_file_forcibly_enable=False)
    scene.fill(2)
    scene.disk.used = 91
    scene.run(61)
    before = scene.store.appended
    with pytest.raises(StoreFull, match=r"used_percent=91 disk_space_warning_level_ratio=90"):
        scene.store.put(message_of_size(100))
    with pytest.raises(StoreFull):
        scene.store.put_batch([message_of_size(100)])
    assert scene.store.appended == before
    assert scene.store.state == "READ_ONLY"
    assert "used_percent=91" in (scene.store.reason or "")
    scene.run(60)
    scene.disk.used = 90
    scene.run(10)
    assert scene.store.state == "RUNNING"
    assert scene.store.put(message_of_size(100)).commit_log_offset == before
    assert len(scene.told.reasons) == 2
    assert scene.told.reasons[1] is None


def test_segments_go_until_puts_are_taken_again(scenes):
    """Above the warning level, segments of any age are removed, even those that dispatchers still need."""
    scene = scenes()
    scene.fill(9)
    scene.age(1)
    scene.retention.cursors = lambda: {"index": 3 * SEGMENT_SIZE}
    scene.disk.used = 92
    scene.disk.shrinks_with(scene.store)
    scene.run(61)
    assert scene.store.state == "READ_ONLY"
    scene.run(20)
    # At 92 and 91 percent: any segment; at 90 to 86: segments that the index also has; it has one more.
    assert scene.names()[0] == 3 * SEGMENT_SIZE
    assert scene.store.state == "RUNNING"


def test_whoever_asks_gets_the_plan_and_need_not_wait_for_the_hour(scenes):
    """The rest is done as always: in batches."""
    scene = scenes(delete_when="0", delete_file_batch_max=2)
    scene.set_clock(START_MS - START_MS % (24 * HOUR_MS) + 37 * HOUR_MS)
    scene.fill(6)
    assert scene.run(70) == 0
    fates = scene.retention.clean()
    assert [fate.segment.begin for fate in fates if fate.goes] == [SEGMENT_SIZE * number for number in range(5)]
    assert scene.run(5) == 2
    assert scene.run(30) == 3
    scene.fill(8)
    assert scene.run(100) == 0


def test_whoever_asks_while_nothing_is_found_to_go_is_not_forgotten(scenes):
    """Also while another check runs, outside the hour."""
    scene = scenes(delete_when="0")
    scene.set_clock(START_MS - START_MS % (24 * HOUR_MS) + 37 * HOUR_MS)
    scene.fill(4)
    asked: list[SegmentFate] = []

    def ask_meanwhile() -> dict[str, int | None]:
        if not asked:
            scene.retention.cursors = dict
            asked.extend(scene.retention.clean())
        return {}

    scene.retention.cursors = ask_meanwhile
    assert scene.run(70) == sum(fate.goes for fate in asked) == 3


def test_what_is_not_durable_stays(scenes):
    """A segment that the disk may not have is not old, whatever its time."""
    scene = scenes(flush_interval_commit_log=10_000_000)
    scene.fill(2)
    durable = scene.store.durable
    while scene.store.appended < 4 * SEGMENT_SIZE:
        scene.store.put(message_of_size(RECORD_SIZE))
    scene.age(100)
    assert scene.store.durable == durable
    assert scene.run(70) == 1
    assert scene.names()[0] == SEGMENT_SIZE


class StubbornFiles(Files):
    """Files that cannot be removed for a while."""

    def __init__(self) -> None:
        self.stubborn = True

    def remove(self, path: Path) -> None:
        if self.stubborn and path.parent.name == "commitlog":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        super().remove(path)


def test_what_cannot_be_removed_is_said_once_and_tried_again(scenes, caplog):
    """No listener is told a wrong beginning of the log."""
    files = StubbornFiles()
    scene = scenes(files)
    scene.fill(3)
    with caplog.at_level(logging.ERROR, "reput.store"):
        assert scene.run(200) == 0
    assert [line.levelname for line in caplog.records] == ["ERROR"]
    assert "Permission denied" in caplog.text
    assert scene.told.minimums == []
    assert scene.store.commit_log_offset_min == 0
    files.stubborn = False
    assert scene.run(20) == 2


def test_a_disk_that_does_not_answer_changes_nothing(scenes, caplog):
    """No segment is removed without a reason in the plan."""
    scene = scenes()
    scene.fill(3)
    scene.disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    with caplog.at_level(logging.ERROR, "reput.store"):
        assert scene.run(100) == 0
    assert len(caplog.records) == 1
    assert scene.store.state == "RUNNING"
    scene.disk.error = None
    assert scene.run(20) == 2


def test_a_hole_in_the_log_is_no_obstacle(scenes):
    """After a missing segment, the log begins with the next existing one."""
    scene = scenes()
    scene.fill(5)
    (scene.store.directory / "commitlog" / f"{SEGMENT_SIZE:020d}").unlink()
    assert scene.run(70) == 3
    assert scene.told.minimums == [2 * SEGMENT_SIZE, 3 * SEGMENT_SIZE, 4 * SEGMENT_SIZE]


def test_a_trimmed_store_goes_on_after_the_next_opening(scenes, tmp_path):
    """Queue offsets continue; trimmed offsets are out of range."""
    scene = scenes()
    scene.fill(5)
    put = len(records(scene.store.directory))
    scene.run(70)
    directory = scene.store.directory
    scene.store.close(views_complete=True)
    with pytest.raises(OffsetOutOfRange):
        Segments(directory / "commitlog").read(0, 100)
    again = MessageStore(directory, small_settings(), clock=ManualClock())
    try:
        assert again.commit_log_offset_min == 4 * SEGMENT_SIZE
        assert again.put(message_of_size(100)).queue_offset == put
        assert again.epochs.epoch == 1
    finally:
        again.close(views_complete=True)


def test_the_thread_works_and_ends(scenes):
    """It is started with the cursors, woken by requests, and ended when the store is closed."""
    scene = scenes(delete_when="0")
    scene.set_clock(START_MS - START_MS % (24 * HOUR_MS) + 37 * HOUR_MS)
    scene.fill(2)
    trimmed = threading.Event()
    scene.retention.watch(lambda: {"index": 10 * SEGMENT_SIZE}, trimmed.set)
    scene.retention.clean()
    assert trimmed.wait(TIMEOUT)
    assert scene.told.minimums == [SEGMENT_SIZE]
    scene.store.close(views_complete=True)
    assert not scene.retention.thread.is_alive()

"""ConsumeQueue: a queue's begin and end are determined by its units, whatever lies after them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from faulty_files import Killed
from reput.store.disk.file_name import file_name
from reput.store.disk.files import Files
from reput.store.disk.open_files import OpenFiles
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, ConsumeQueue, counts
from reput.store.queue.consume_queue_builder import queue_directories, shown_queue_file_size
from reput.store.queue.consume_queue_files import ConsumeQueueFiles

UNITS_PER_FILE = 8
FILE_SIZE = UNITS_PER_FILE * UNIT_SIZE
RECORD_SIZE = 100


class Queue:
    """A queue written by hand; *stale*: places whose record in the log is a different one."""

    def __init__(self, directory):
        self.directory = directory
        self.directory.mkdir()
        self.files = OpenFiles()
        self.queue = ConsumeQueue(directory, FILE_SIZE, self.files)
        self.stale = set()
        self.asked = 0

    def write(self, begin, units, size=FILE_SIZE):
        data = b"".join(UNIT.pack(*unit) for unit in units).ljust(size, b"\0")[:size]
        (self.directory / file_name(begin * UNIT_SIZE)).write_bytes(data)

    def agrees(self, queue_offset, unit):
        self.asked += 1
        return queue_offset not in self.stale

    def end(self, progress):
        return self.queue.end(progress, self.agrees)


def unit(number):
    """Return the unit of the record with this number."""
    return (number * RECORD_SIZE, RECORD_SIZE, 7)


@pytest.fixture
def queue(tmp_path):
    """Return an empty queue."""
    queue = Queue(tmp_path / "0")
    yield queue
    queue.files.close()


def test_a_queue_without_files_is_empty(tmp_path):
    """Also if its directory is absent."""
    queue = ConsumeQueue(tmp_path / "absent", FILE_SIZE, OpenFiles())
    assert queue.end(1000, lambda *_: True) == 0
    assert queue.min(0, 0) == 0
    assert queue.units(0, 5) == []
    assert queue.unit(0) is None


@pytest.mark.parametrize("count", range(2 * UNITS_PER_FILE + 1))
def test_the_end_lies_behind_the_last_unit_below_the_progress(queue, count):
    """In whichever file it is."""
    for begin in (0, UNITS_PER_FILE):
        queue.write(begin, [unit(number) for number in range(begin, begin + UNITS_PER_FILE)])
    assert queue.end(count * RECORD_SIZE) == count
    assert queue.end(count * RECORD_SIZE + RECORD_SIZE - 1) == count


@pytest.mark.parametrize("step", [1, 2, 5, 9, 31, 40])
def test_a_growing_end_is_followed_across_files(queue, step):
    """By the progress alone, however far it jumps."""
    for begin in range(0, 40, UNITS_PER_FILE):
        queue.write(begin, [unit(number) for number in range(begin, begin + UNITS_PER_FILE)])
    for count in [*range(1, 41, step), 40]:
        assert queue.end(count * RECORD_SIZE) == count


def test_the_same_progress_is_not_looked_up_again(queue):
    """Polling costs nothing."""
    queue.write(0, [unit(0), unit(1)])
    queue.end(2 * RECORD_SIZE)
    asked = queue.asked
    queue.write(0, [])
    assert queue.end(2 * RECORD_SIZE) == 2
    assert queue.asked == asked


def test_stale_units_behind_the_end_do_not_count(queue):
    """RocketMQ cuts without zeroing; the log has other records there."""
    queue.write(0, [unit(number) for number in range(6)])
    queue.stale = {3, 4, 5}
    assert queue.end(6 * RECORD_SIZE) == 3
    assert queue.queue.garbage_behind(3) is None


def test_a_queue_that_was_truncated_and_grew_to_something_else_is_searched_again(queue):
    """Its last known unit has changed."""
    queue.write(0, [unit(number) for number in range(6)])
    assert queue.end(6 * RECORD_SIZE) == 6
    queue.write(0, [unit(0), unit(1), (700, 50, 0), (750, 50, 0)])
    assert queue.end(1000) == 4


def test_pre_blank_units_lead_to_the_first_real_one(queue):
    """If a queue does not begin with 0, or the log lost records."""
    blank = (0, PRE_BLANK_SIZE, 0)
    queue.write(0, [blank, blank, unit(2), blank, unit(4)])
    assert queue.end(5 * RECORD_SIZE) == 5
    assert queue.queue.min(0, 5) == 2
    assert queue.queue.min(3 * RECORD_SIZE, 5) == 4


@pytest.mark.parametrize("first", range(2 * UNITS_PER_FILE))
def test_the_beginning_is_the_first_unit_whose_record_the_log_still_has(queue, first):
    """The log is trimmed by segments, the queue by files."""
    for begin in (0, UNITS_PER_FILE):
        queue.write(begin, [unit(number) for number in range(begin, begin + UNITS_PER_FILE)])
    assert queue.queue.min(first * RECORD_SIZE, 16) == first
    assert queue.queue.min(first * RECORD_SIZE - 1 if first else 0, 16) == first


def test_a_queue_whose_records_are_all_gone_begins_at_its_end(queue):
    """There is nothing to read, and the next message goes there."""
    queue.write(0, [unit(0), unit(1)])
    assert queue.queue.min(10_000, 2) == 2


@pytest.mark.parametrize("kept", [1, 2])
def test_files_that_go_while_the_beginning_is_searched_hide_none_that_stay(queue, monkeypatch, kept):
    """The builder removes them as soon as the log is trimmed, which is when readers search for the new begin."""
    files = 4
    for begin in range(0, files * UNITS_PER_FILE, UNITS_PER_FILE):
        queue.write(begin, [unit(number) for number in range(begin, begin + UNITS_PER_FILE)])
    low, end = (files - kept) * UNITS_PER_FILE, files * UNITS_PER_FILE
    listed = queue.queue.begins

    def begins():
        found = listed()
        for begin in found[:-kept]:
            (queue.directory / file_name(begin)).unlink()
        return found

    monkeypatch.setattr(queue.queue, "begins", begins)
    assert queue.queue.min(low * RECORD_SIZE, end) == low


def test_a_queue_that_goes_while_its_beginning_is_searched_has_nothing_left(queue, monkeypatch):
    """Its topic is deleted; a read at that moment raises no error."""
    queue.write(0, [unit(0), unit(1)])
    listed = queue.queue.begins

    def begins():
        found = listed()
        for begin in found:
            (queue.directory / file_name(begin)).unlink()
        return found

    monkeypatch.setattr(queue.queue, "begins", begins)
    assert queue.queue.min(RECORD_SIZE, 2) == 2


def test_a_queue_may_begin_with_a_later_file(queue):
    """The earlier files were removed with the log."""
    queue.write(UNITS_PER_FILE, [unit(number) for number in range(8, 12)])
    assert queue.end(12 * RECORD_SIZE) == 12
    assert queue.queue.min(0, 12) == 8


@pytest.mark.parametrize("garbage", [(-5, 100, 0), (300, -1, 0), (300, 0, 0), (0, 0, 9), (300, 0x61616161, 0)])
def test_what_never_was_a_unit_is_known_as_garbage(queue, garbage):
    """Neither zeros, nor a unit of an older history."""
    queue.write(0, [unit(0), unit(1), garbage, garbage])
    assert queue.end(9 * RECORD_SIZE) == 2
    place, text = queue.queue.garbage_behind(2)
    assert place >= 2
    assert f"commit_log_offset={garbage[0]} record_size={garbage[1]} tags_code={garbage[2]}" in text


def test_garbage_that_a_builder_has_zeroed_is_forgotten(queue):
    """The place is read again before garbage is reported."""
    queue.write(0, [unit(0), (-1, -1, -1), (-1, -1, -1), (-1, -1, -1)])
    assert queue.end(9 * RECORD_SIZE) == 1
    queue.write(0, [unit(0)])
    assert queue.queue.garbage_behind(1) is None


def test_a_file_that_was_cut_short_is_known(queue):
    """A queue file has its full size from its creation on; an empty one is just being created."""
    queue.write(0, [unit(0), unit(1)], size=2 * UNIT_SIZE)
    assert queue.end(9 * RECORD_SIZE) == 2
    _, text = queue.queue.garbage_behind(2)
    assert f"the file was cut short: path={queue.directory}/{file_name(0)} size=40 expected={FILE_SIZE}" == text
    queue.write(0, [], size=0)
    assert queue.queue.end(8 * RECORD_SIZE, queue.agrees) == 0
    assert queue.queue.garbage_behind(0) is None


def test_units_of_one_file_come_at_once(queue):
    """Never beyond its end, and without the torn unit of a file that was cut."""
    for begin in (0, UNITS_PER_FILE):
        queue.write(begin, [unit(number) for number in range(begin, begin + UNITS_PER_FILE)])
    assert queue.queue.units(5, 10) == [unit(5), unit(6), unit(7)]
    assert queue.queue.units(8, 2) == [unit(8), unit(9)]
    queue.write(16, [unit(16)], size=UNIT_SIZE + 7)
    assert queue.queue.units(16, 8) == [unit(16)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [((0, 100, 0), True), ((1, 100, 0), False), ((0, 0, 0), False), ((-100, 100, 0), False), ((0, -1, 0), False)],
)
def test_a_unit_counts_if_its_record_ends_at_or_before_the_progress(found, expected):
    """The progress is 100."""
    assert counts(found, 100) is expected


def test_units_by_which_the_end_was_found_are_not_read_again(queue, monkeypatch):
    """A reader that follows a queue reads each new unit once, unless the view changed or was replaced."""
    units = [unit(number) for number in range(6)]
    queue.write(0, units)
    queue.end(2 * RECORD_SIZE)
    queue.end(3 * RECORD_SIZE)
    newest = UNIT.pack(*units[2])
    with monkeypatch.context() as patched:
        patched.delattr(OpenFiles, "read")
        assert queue.queue.counted_unit_bytes(2, 1) == newest
        queue.end(3 * RECORD_SIZE)
        assert queue.queue.counted_unit_bytes(2, 1) == newest
    assert queue.queue.counted_unit_bytes(0, 3) == b"".join(UNIT.pack(*found) for found in units[:3])
    queue.queue.forget()
    with monkeypatch.context() as patched:
        patched.delattr(OpenFiles, "read")
        with pytest.raises(AttributeError):
            queue.queue.counted_unit_bytes(2, 1)


def test_a_queue_file_has_its_first_unit_when_it_gets_its_name(tmp_path):
    """A builder that is killed leaves no file of zeros: RocketMQ treats the first zeros as a unit of the queue."""

    class KilledAtSecondFile(Files):
        def create(self, path: Path, size: int, data: bytes = b"") -> None:
            super().create(path, size, data)
            if not path.name.endswith("0" * 20):
                raise Killed

    queue = ConsumeQueueFiles(tmp_path, 2 * UNIT_SIZE, KilledAtSecondFile())
    for number in range(4):
        queue.put(100 * number, 100, 7, number)
    with pytest.raises(Killed):
        queue.write()
    queue.close()
    assert [path.read_bytes()[:UNIT_SIZE] for path in sorted(tmp_path.iterdir())] == [
        UNIT.pack(0, 100, 7),
        UNIT.pack(200, 100, 7),
    ]


def test_files_that_go_while_they_are_looked_at_show_no_size(tmp_path, monkeypatch):
    """Retention and topic deletions do not wait for readers."""
    for topic, names in (("orders", ("0", "1")), ("bills", ("0",))):
        for name in names:
            (tmp_path / topic / name).mkdir(parents=True)
            (tmp_path / topic / name / file_name(0)).write_bytes(bytes(FILE_SIZE))
    # It is listed but can no longer be found, without a race.
    (tmp_path / "orders" / "0" / file_name(0)).unlink()
    (tmp_path / "orders" / "0" / file_name(0)).symlink_to("gone")
    listdir = os.listdir

    def list_without_bills(path):
        if Path(path) == tmp_path / "bills":
            shutil.rmtree(path, ignore_errors=True)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", list_without_bills)
    assert shown_queue_file_size(tmp_path) == FILE_SIZE
    assert [(topic, queue_id) for topic, queue_id, _ in queue_directories(tmp_path)] == [("orders", 0), ("orders", 1)]


@pytest.mark.parametrize("size", [0, 1, 3 * UNIT_SIZE + 1])
def test_a_first_file_that_was_cut_short_does_not_hide_the_next(queue, size):
    """The missing part is named; the units after it are found."""
    queue.write(0, [unit(number) for number in range(UNITS_PER_FILE)], size=size)
    queue.write(UNITS_PER_FILE, [unit(number) for number in range(UNITS_PER_FILE, 12)])
    end = queue.end(12 * RECORD_SIZE)
    assert end == 12
    assert queue.queue.min(0, end) == (0 if size >= UNIT_SIZE else UNITS_PER_FILE)
    lacked = size // UNIT_SIZE
    assert queue.queue.cut_short(lacked) == (
        f"the file was cut short: path={queue.directory}/{file_name(0)} size={size} expected={FILE_SIZE}"
    )
    assert queue.queue.cut_short(UNITS_PER_FILE) is None
    assert queue.queue.cut_short(5 * UNITS_PER_FILE) is None


@pytest.mark.parametrize("count", [6, 8, 13, 16])
@pytest.mark.parametrize("damaged", [(2,), (3,), (4,), (5,), (2, 3, 4), (7,), (8,), (11, 12), (14,)])
def test_a_damaged_unit_before_the_end_is_not_the_end(queue, count, damaged):
    """The units after it still count, in the same file or in the next."""
    damaged = tuple(place for place in damaged if place < count - 1)
    for begin in range(0, count, UNITS_PER_FILE):
        places = range(begin, min(begin + UNITS_PER_FILE, count))
        queue.write(begin, [(1 << 62, RECORD_SIZE, 7) if place in damaged else unit(place) for place in places])
    assert queue.end(count * RECORD_SIZE) == count


@pytest.mark.parametrize("damaged", range(1, 15))
def test_a_reader_that_follows_a_queue_is_not_stopped_by_a_damaged_unit(queue, damaged):
    """Whether it reads the unit or skips it."""
    for step in (1, 15):
        queue.queue.forget()
        for begin in (0, UNITS_PER_FILE):
            places = range(begin, begin + UNITS_PER_FILE)
            queue.write(begin, [(0, 0, 0) if place == damaged else unit(place) for place in places])
        for count in range(1, 17, step):
            assert queue.end(count * RECORD_SIZE) == (damaged if count == damaged + 1 else count)


@pytest.mark.parametrize("damaged", range(UNITS_PER_FILE))
@pytest.mark.parametrize("offset", [0, -1, 1 << 62])
def test_a_damaged_unit_does_not_hide_where_a_queue_begins(queue, damaged, offset):
    """If a queue's first records are gone, no existing message counts as gone."""
    units = [unit(number) for number in range(UNITS_PER_FILE)]
    units[damaged] = (offset, RECORD_SIZE, 7)
    queue.write(0, units)
    for first in range(UNITS_PER_FILE):
        assert queue.queue.min(first * RECORD_SIZE, UNITS_PER_FILE) <= (first + 1 if first == damaged else first)


def test_an_end_that_others_know_holds(queue):
    """Reading these units reports the damage."""
    queue.write(0, [unit(0), unit(1)])
    assert queue.queue.end(1000, queue.agrees, lambda end, progress: end + 2) == 4
    queue.write(0, [unit(0), unit(1), unit(2), unit(3), unit(4)])
    assert queue.queue.end(1100, queue.agrees, lambda end, progress: end) == 5

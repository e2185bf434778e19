"""Single puts are published together; and the release of held records when a dispatcher is idle."""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from itertools import pairwise

import pytest

from process.frames.test_frame import columns_of
from reput.process.frames import holding_publisher
from reput.process.frames.frame import decode_frame
from reput.process.frames.held_records import HOLD_ON_MIN, HOLD_ON_MS, held_records
from reput.process.frames.holding_publisher import HELD_MAX, LOOK_EVERY, HoldingPublisher
from reput.process.frames.release_service import ReleaseService
from reput.ring import RingMemory, RingReader, RingWriter, ring_writer
from reput.ring.layout import CELL_WORDS, HELD, PARKED
from reput.store.service.threads import Threads
from reput.store.writer.publisher import AppendedRecords
from reput_hooks import DispatchColumns
from reput_hooks.dispatch import ROW, ROW_SIZE
from small_store import UnforcedFiles, message_of_size, open_store

SLOT = 1
LIMIT_S = 60.0
NOW = 1_700_000_000_000


class Log:
    """Notifies a publisher of records of 100 bytes, and reads the frames from the ring."""

    def __init__(self):
        self.memory = RingMemory.create(1 << 18, 4)
        cell = self.memory.open_cell(SLOT)
        self.writer = RingWriter(self.memory, appended=0, durable=0, commit_log_offset_min=0, epoch=1, ordinal=0)
        self.reader = RingReader(self.memory, cell)
        self.watched = []
        self.publisher = HoldingPublisher(
            self.writer, 1, lambda reason: None, lambda: self.watched.append(None), 1 << 30
        )
        self.put_lock = threading.Lock()
        self.count = 0

    def put(self, count=1, *, queue=("topic", 0), store_timestamp=NOW):
        """Put *count* records, one by one, with equal requests."""
        for _ in range(count):
            one = columns_of(1)
            begin, self.count = self.count * 100, self.count + 1
            with self.put_lock:
                texts = b"%03d" % (self.count % 1000)
                self.publisher.publish(
                    AppendedRecords(begin, begin + 100, store_timestamp, self.count, [queue], one.rows, texts)
                )

    def read(self):
        """Return the received frames as (begin, end, ordinal, queue of each row, texts)."""
        frames = [decode_frame(data) for data in self.reader.read()]
        return [
            (
                frame.begin,
                frame.end,
                frame.ordinal,
                [frame.columns.queues[number_at(frame.columns, row)] for row in range(len(frame.columns))],
                frame.columns.texts,
            )
            for frame in frames
        ]


def number_at(columns: DispatchColumns, row: int) -> int:
    """Return the number of a row's queue."""
    return int.from_bytes(columns.rows[row * ROW_SIZE + 44 : row * ROW_SIZE + 48], "little")


@pytest.fixture
def log():
    """An empty log, and a reader of the ring that does not sleep."""
    log = Log()
    yield log
    log.memory.close()


def test_what_is_put_in_a_row_becomes_one_frame(log):
    """The first one of a millisecond is published alone; the others once there are many, or the time advances."""
    log.put(3)
    assert [frame[:3] for frame in log.read()] == [(0, 100, 0)]
    assert log.memory.header.appended == 100
    log.put(1, store_timestamp=NOW + 1)
    assert log.read() == [
        (100, 300, 1, [("topic", 0)] * 2, b"002003"),
        (300, 400, 3, [("topic", 0)], b"004"),
    ]
    assert log.memory.header.appended == 400


def test_many_in_a_millisecond_are_held_beyond_it(log):
    """A put in hundreds publishes, until the first one that is held is as old as a dispatcher may wait for it."""
    log.put(1 + HOLD_ON_MIN)
    for later in range(1, HOLD_ON_MS):
        log.put(store_timestamp=NOW + later)
    assert [frame[:2] for frame in log.read()] == [(0, 100)]
    log.put(store_timestamp=NOW + HOLD_ON_MS)
    end = 100 * (HOLD_ON_MIN + HOLD_ON_MS)
    assert [frame[:2] for frame in log.read()] == [(100, end), (end, end + 100)]


def test_a_frame_of_several_milliseconds_has_the_time_of_its_last_record(log):
    """It becomes the time of the view's cursor."""
    log.put(1 + HOLD_ON_MIN)
    log.put(store_timestamp=NOW + 1)
    with log.put_lock:
        log.publisher.release()
    assert [decode_frame(data).end_store_timestamp for data in log.reader.read()] == [NOW, NOW + 1]


def test_no_more_than_so_many_are_held(log):
    """Then they are published as a frame at once."""
    log.put(1 + 2 * HELD_MAX + 5)
    bounds = [(begin, end) for begin, end, *_ in log.read()]
    whole = HELD_MAX * 100
    assert bounds == [(0, 100), (100, 100 + whole), (100 + whole, 100 + 2 * whole)]


def test_records_of_several_queues_are_held_together(log):
    """Each row has its own queue."""
    log.put()
    for number in (3, 1, 3, 2):
        log.put(queue=("topic", number))
    log.put(store_timestamp=NOW + 1)
    _, (begin, end, _, queues, _), _ = log.read()
    assert (begin, end) == (100, 500)
    assert [queue_id for _, queue_id in queues] == [3, 1, 3, 2]


def test_a_batch_comes_behind_what_is_held(log):
    """It is a separate frame."""
    log.put(2)
    columns = columns_of(5)
    log.publisher.publish(AppendedRecords(200, 700, NOW, 7, columns.queues, columns.rows, columns.texts))
    assert [frame[:3] for frame in log.read()] == [(0, 100, 0), (100, 200, 1), (200, 700, 2)]


def test_a_record_that_was_left_out_stays_a_hole(log):
    """For example of a put that Ctrl-C ended between storing and publishing: the log has the record."""
    log.put(2)
    log.count += 1
    log.put(2)
    log.put(store_timestamp=NOW + 1)
    assert [frame[:2] for frame in log.read()] == [(0, 100), (100, 200), (300, 400), (400, 500), (500, 600)]


@pytest.mark.slow
@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_segment_ends_only_before_what_is_told_at_once(log, tmp_path, flush_disk_type):
    """For all mixtures of single and batch puts, forced together, and held, within one millisecond."""
    chance = random.Random(1)
    store = open_store(tmp_path, files=UnforcedFiles(), flush_disk_type=flush_disk_type)
    log.publisher.held = held_records(log.writer, store.segment_size, HELD_MAX, LOOK_EVERY)
    store.attach(log.publisher, needs_properties=False)
    at, ordinal = 0, 0
    for _ in range(600):
        for _ in range(chance.randrange(1, 4)):
            sizes = [chance.randrange(120, 700) for _ in range(chance.choice([1, 1, 1, 1, 2, 4]))]
            messages = [message_of_size(size, queue_id=chance.randrange(3)) for size in sizes]
            if len(messages) == 1:
                store.appender.append(messages[0])
            else:
                store.appender.append_batch(messages)
        store.flush()
        if chance.randrange(3):
            continue
        with store.appender.put_lock:
            log.publisher.release()
        for frame in map(decode_frame, log.reader.read()):
            assert (frame.begin, frame.ordinal) == (at, ordinal)
            rows = list(ROW.iter_unpack(frame.columns.rows))
            for row, following in pairwise(rows):
                assert row[0] + row[5] == following[0]
            assert rows[0][0] in (at, at - at % store.segment_size + store.segment_size)
            at, ordinal = frame.end, frame.end_ordinal
        assert (at, ordinal) == (store.appended, store.ordinal)
    assert at > 50 * store.segment_size
    store.close(views_complete=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda publisher: publisher.truncate(2, 200, NOW, 2),
        lambda publisher: publisher.expire(0, 200, 2),
        lambda publisher: publisher.delete_topic("topic", 200, 2),
    ],
)
def test_changes_of_the_log_come_behind_what_is_held(log, change):
    """They are published in the order in which they were made."""
    log.put(2)
    change(log.publisher)
    assert [frame[1] for frame in log.read()[:2]] == [100, 200]
    assert not log.publisher.held


def test_nothing_is_held_while_somebody_is_parked(log):
    """The put itself wakes the dispatcher."""
    log.put()
    log.read()
    parked = threading.Thread(target=log.reader.park, args=(LIMIT_S,))
    parked.start()
    while not log.memory.cell_words[SLOT * CELL_WORDS + PARKED] & 1:
        time.sleep(0.001)
    log.put()
    parked.join(LIMIT_S)
    assert not parked.is_alive()
    assert [frame[:2] for frame in log.read()] == [(100, 200)]


def test_who_parks_later_asks_for_what_is_held(log):
    """It asks the owner, and is woken by the publication."""
    service = ReleaseService(log.publisher, log.put_lock, log.memory.release_descriptor, Threads())
    log.put(4)
    log.read()
    while log.memory.header.appended < 400:
        log.reader.park(LIMIT_S)
    assert [frame[:2] for frame in log.read()] == [(100, 400)]
    service.stop()


def test_what_nobody_asks_for_is_published_soon(log):
    """Paused dispatchers do not ask, and read-only processes look at the published end."""
    descriptor = log.memory.release_descriptor
    log.publisher.watch = lambda: os.eventfd_write(descriptor, 1)
    service = ReleaseService(log.publisher, log.put_lock, descriptor, Threads())
    for _ in range(3):
        log.put(4)
        end = time.monotonic() + LIMIT_S
        while log.memory.header.appended < log.count * 100 or log.publisher.held.is_watched:
            assert time.monotonic() < end
            time.sleep(0.001)
    service.stop()


class CtrlC:
    """Raises KeyboardInterrupt before step *after* in the two modules that hold and publish."""

    def __init__(self, after):
        self.left = after
        self.before = sys.gettrace()

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, kind, error, traceback):
        sys.settrace(self.before)
        return kind is KeyboardInterrupt

    def trace(self, frame, event, argument):
        if frame.f_code.co_filename not in (holding_publisher.__file__, ring_writer.__file__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.trace


@pytest.mark.parametrize("store_timestamp", [NOW, NOW + 1])
@pytest.mark.parametrize("held_count", [0, 2, HELD_MAX - 1])
@pytest.mark.parametrize("is_looked_after", [False, True])
def test_ctrl_c_takes_nothing_from_puts_that_have_returned(log, is_looked_after, held_count, store_timestamp):
    """Wherever it interrupts a put: held records are published by the next put or the service, and can be asked for."""
    read = 0
    for after in itertools.count(1):
        log.put(1 + held_count, store_timestamp=NOW + 2 * after)
        returned = log.count * 100
        ctrl_c = CtrlC(after)
        with ctrl_c:
            log.put(store_timestamp=store_timestamp + 2 * after)
        if is_looked_after:
            log.publisher.release()
            assert log.memory.header.appended >= returned, after
        log.put(2, store_timestamp=store_timestamp + 2 * after)
        assert log.memory.words[HELD] == bool(log.publisher.held), after
        log.publisher.release()
        assert log.memory.header.appended == log.count * 100
        for begin, end, *_ in log.read():
            # Only the interrupted put may be missing.
            assert begin <= read or (read, begin) == (returned, returned + 100), after
            read = max(read, end)
        assert read == log.count * 100, after
        if ctrl_c.left > 0:
            return


def test_a_service_that_is_closed_leaves_nothing_behind(log):
    """Held records are published."""
    service = ReleaseService(log.publisher, log.put_lock, log.memory.release_descriptor, Threads())
    log.put(4)
    service.stop()
    assert log.memory.header.appended == 400
    assert not service.thread.is_alive()

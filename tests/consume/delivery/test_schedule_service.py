"""Delayed messages are delivered when they are due, exactly once, through crashes and restarts."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import reput
from delivering import LIMIT_S, SMALL, accept, all_records, open_inline, wait_until
from reput.consume.delivery import schedule_service
from reput.consume.delivery.delivery_search import is_copy_of
from reput.consume.delivery.schedule_service import PAUSE_MS
from reput.embedded.store import Store
from reput.errors import StoreFull
from reput.filter.string_hash import string_hash
from reput.store.check.check import check_store
from reput.store.config.delay_offset_manager import DelayOffsetManager
from reput.store.disk.files import Clock
from reput.store.disk.sealed_file import seal
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.message import MessageExtBrokerInner
from reput.store.state.identity import read_identity
from reput_hooks import Record
from small_store import ManualClock, SetClock, records, set_clock

# Position of the field in a unit of a consume queue.
TAGS_CODE_AT = 12


def wait_delivered(store: Store) -> None:
    assert store._engine.schedule is not None
    schedule = store._engine.schedule
    wait_until(lambda: not schedule.has_waiting)


@pytest.fixture(autouse=True)
def _patient_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery postponed until its queue is built would wait for a clock that does not move."""
    monkeypatch.setattr(schedule_service, "WAIT_S", LIMIT_S)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with a manual clock, whose first level has no delay and whose second has one of an hour."""
    with open_inline(tmp_path / "store", message_delay_level="0s 1h 2s") as opened:
        set_clock(opened._engine.writer, ManualClock())
        yield opened


def advance(store: Store, ms: int) -> None:
    """Advance the clock, and wait until the service has noticed."""
    assert isinstance(store._engine.writer.clock, ManualClock)
    assert store._engine.schedule is not None
    store._engine.writer.clock.ms += ms
    with store._engine.schedule.changed:
        store._engine.schedule.changed.notify_all()


def is_postponed(store: Store) -> bool:
    """Whether the first level was tried without success, and will be retried."""
    due = store._engine.schedule.levels[1].due
    return due is not None and due > store._engine.writer.clock.ms


def delivered(store: Store) -> list[Record]:
    """Return the delivered messages, in log order."""
    found = all_records(store)
    return [record for record in found if record.topic != SCHEDULE_TOPIC and "DELAY" in record.properties]


def test_a_delayed_message_is_delivered_at_its_time_and_not_before(store):
    """One millisecond before the hour has passed, nothing is delivered."""
    result = store.put(reput.Message("orders", b"late", tags="paid", keys=["k1"], flag=7, queue_id=3, delay_level=2))
    advance(store, 3_599_999)
    store.put(reput.Message("orders", b"at once", delay_level=1))
    wait_until(lambda: len(delivered(store)) == 1)
    assert [record.body for record in delivered(store)] == [b"at once"]
    advance(store, 1)
    wait_delivered(store)
    _, late = delivered(store)
    store.wait_for("consume_queue", store.appended, LIMIT_S)
    assert store.get("orders", 3, 0)[0] == late
    assert (late.body, late.flag, late.tags, late.keys) == (b"late", 7, "paid", ["k1"])
    assert late.born_timestamp == result.store_timestamp
    assert late.store_timestamp == result.store_timestamp + 3_600_000
    # The properties as RocketMQ writes them.
    assert late.properties == {
        "KEYS": "k1",
        "TAGS": "paid",
        "DELAY": "2",
        "REAL_TOPIC": "orders",
        "REAL_QID": "3",
    }


def test_a_message_that_its_property_delays_is_delivered_at_its_time(store):
    """A message put again with the properties of its delivered copy waits again, as with RocketMQ."""
    for given in ({"DELAY": "2"}, None):
        store.put(reput.Message("orders", b"late", properties=given or delivered(store)[0].properties, queue_id=3))
        before = len(delivered(store))
        advance(store, 3_600_000)
        wait_until(lambda before=before: len(delivered(store)) == before + 1)
    assert [(record.topic, record.queue_id) for record in delivered(store)] == [("orders", 3)] * 2


def test_a_level_delivers_in_the_order_of_its_queue(store):
    """Hundreds that are due at the same time come in the order of their puts."""
    store.put_batch([reput.Message("orders", str(number).encode(), delay_level=2) for number in range(300)])
    advance(store, 3_600_000)
    wait_delivered(store)
    assert [record.body for record in delivered(store)] == [str(number).encode() for number in range(300)]


def test_what_was_delivered_is_kept_at_close_and_waits_at_the_next_opening(tmp_path):
    """No message is delivered twice, and waiting messages continue to wait."""
    path = tmp_path / "store"
    with open_inline(path, message_delay_level="0s 1h") as store:
        store.put(reput.Message("orders", b"first", delay_level=1))
        wait_delivered_of(store, 1)
        store.put(reput.Message("orders", b"second", delay_level=2))
    manager = DelayOffsetManager(path)
    manager.load()
    assert manager.offset_table == {1: 1}
    with open_inline(path, message_delay_level="0s 1h") as store:
        set_clock(store._engine.writer, ManualClock(Clock().now_ms() + 3_600_000))
        advance(store, 0)
        wait_delivered(store)
        assert [record.body for record in delivered(store)] == [b"first", b"second"]


def test_a_unit_that_has_the_hash_of_a_tag_makes_no_message_due_before_its_time(tmp_path):
    """RocketMQ 4.9 writes such units if it dispatches during recovery; the record has the due time."""
    path = tmp_path / "store"
    with open_inline(path, message_delay_level="0s 1h") as store:
        put_at = store.put(reput.Message("orders", b"late", tags="paid", delay_level=2)).store_timestamp
    with (path / "consumequeue" / SCHEDULE_TOPIC / "1" / ("0" * 20)).open("r+b") as queue:
        queue.seek(TAGS_CODE_AT)
        queue.write(string_hash("paid").to_bytes(8, "big"))
    with open_inline(path, message_delay_level="0s 1h") as store:
        set_clock(store._engine.writer, ManualClock(put_at + 3_599_999))
        advance(store, 0)
        store.put(reput.Message("orders", b"at once", delay_level=1))
        wait_until(lambda: [row.deliver_timestamp for row in store.delays()] == [None, put_at + 3_600_000])
        assert [record.body for record in delivered(store)] == [b"at once"]
        advance(store, 1)
        wait_delivered(store)
        assert [record.body for record in delivered(store)] == [b"at once", b"late"]


def wait_delivered_of(store: Store, level: int) -> None:
    assert store._engine.schedule is not None
    schedule = store._engine.schedule
    wait_until(lambda: schedule.levels[level].queue_offset == schedule.end_of(level))


@pytest.mark.parametrize("has_looked", [False, True], ids=["at once", "looked at before"])
def test_a_clock_that_was_far_ahead_delays_nothing_by_that(store, has_looked):
    """The message was stored with a time that is days ahead; it is due at once, as in RocketMQ."""
    store.put(reput.Message("orders", b"x", delay_level=2))
    if has_looked:
        # It begins by checking all waiting messages.
        wait_until(lambda: store._engine.schedule.begun and store._engine.schedule.levels[2].due)
    advance(store, -1_000_000_000)
    wait_delivered(store)
    assert len(delivered(store)) == 1


def test_another_table_of_levels_makes_none_wait_longer_than_it_says(tmp_path):
    """A message that would be due later than its level's delay from now on is due at once, as in RocketMQ, because a
    store without a recorded table may have had a different one."""
    path = tmp_path / "store"
    with open_inline(path, message_delay_level="90m 1h") as store:
        for level in (1, 2):
            store.put(reput.Message("orders", b"%d" % level, delay_level=level))
    identity = read_identity(path)
    assert identity is not None
    (path / "reput" / "store.json").write_bytes(seal(msgspec.structs.replace(identity, settings={})))
    with open_inline(path, message_delay_level="1h 1h") as store:
        wait_until(lambda: len(delivered(store)) == 1)
        assert delivered(store)[0].body == b"1"
        wait_until(lambda: [row.waiting for row in store.delays()] == [0, 1])


def test_what_waits_keeps_its_time_when_the_levels_are_changed(tmp_path):
    """The change applies to later messages."""
    path = tmp_path / "store"
    with open_inline(path, message_delay_level="2h 1h") as store:
        store.put(reput.Message("orders", b"in two hours", delay_level=1))
    with open_inline(path, message_delay_level="1h 0s", change_settings=["message_delay_level"]) as store:
        store.put(reput.Message("orders", b"in an hour", delay_level=1))
        store.put(reput.Message("orders", b"at once", delay_level=2))
        wait_until(lambda: [record.body for record in delivered(store)] == [b"at once"])
        wait_until(lambda: [row.waiting for row in store.delays()] == [2, 0])
        due = store.delays()[0].deliver_timestamp
        assert due is not None
        assert due > Clock().now_ms() + 3_600_000


def test_a_clock_that_is_set_back_a_little_shifts_deliveries_by_as_much(store):
    """A message delayed by an hour is not delivered at once because the clock went back a second."""
    store.put(reput.Message("orders", b"x", delay_level=2))
    advance(store, -1000)
    store.put(reput.Message("orders", b"at once", delay_level=1))
    wait_until(
        lambda: store._engine.schedule.levels[1].queue_offset == 1 or store._engine.schedule.levels[1].due is not None
    )
    assert store._engine.schedule.levels[2].queue_offset == 0
    advance(store, 3_601_000)
    wait_delivered(store)


@pytest.mark.parametrize(("level", "delay"), [(3, 2_000), (2, 3_600_000)], ids=["short", "long"])
def test_what_is_put_behind_a_clock_that_was_set_back_waits_for_its_delay(store, level, delay):
    """A consumer's retries would otherwise follow at once, and end among the dead letters."""
    clock = SetClock()
    set_clock(store._engine.writer, clock)
    store.put(reput.Message("orders", b"before"))
    for body in (b"first", b"second"):
        clock.ms -= 7_200_000
        store.put(reput.Message("orders", body, delay_level=level))
    for step in (delay - 1, 0):
        clock.elapse(step)
        store.put(reput.Message("orders", b"at once", delay_level=1))
        wait_until(lambda: not store.delays()[0].waiting)
    assert {record.body for record in delivered(store)} == {b"at once"}
    clock.elapse(1)
    advance(store, 0)
    wait_delivered(store)
    assert [record.body for record in delivered(store)][-2:] == [b"first", b"second"]


def test_a_clock_that_catches_up_with_the_log_delays_nothing_further(store):
    """What was put behind it is due by the clock at the latest, and what comes later at its own time."""
    clock = SetClock()
    set_clock(store._engine.writer, clock)
    store.put(reput.Message("orders", b"before"))
    clock.ms -= 7_200_000
    store.put(reput.Message("orders", b"behind", delay_level=2))
    clock.ms += 7_200_000 + 3_600_000
    advance(store, 0)
    wait_delivered(store)
    store.put(reput.Message("orders", b"later", delay_level=2))
    clock.elapse(3_600_000)
    advance(store, 0)
    wait_delivered(store)
    assert [record.body for record in delivered(store)] == [b"behind", b"later"]


def test_a_message_that_names_no_real_queue_keeps_nobody_waiting(store, caplog):
    """It is reported and left in the log; later messages are delivered."""
    for properties in (
        {"DELAY": "1"},
        {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "x"},
        {"DELAY": "1", "REAL_TOPIC": "../orders", "REAL_QID": "0"},
        {"DELAY": "1", "REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
    ):
        store.put(MessageExtBrokerInner(SCHEDULE_TOPIC, b"odd", properties=properties))
    store.put(reput.Message("orders", b"x", delay_level=1))
    wait_delivered(store)
    assert [record.body for record in delivered(store) if record.topic == "orders"] == [b"x"]
    assert store._engine.schedule.refused_count == 4
    assert sum("cannot be delivered" in record.message for record in caplog.records) == 4


def test_a_full_disk_delays_and_doubles_nothing(tmp_path):
    """It accepts some of the due messages and refuses the rest, which follow when there is space."""
    with open_inline(tmp_path / "store", message_delay_level="1h", mapped_file_size_commit_log=4096) as store:
        set_clock(store._engine.writer, ManualClock())
        bodies = [str(number).encode() * 50 for number in range(40)]
        store.put_batch([reput.Message("orders", body, delay_level=1) for body in bodies])
        room = store._engine.writer.commit_log.room
        end = store.appended + 4096

        def bounded_room(record_size: int) -> int:
            if store.appended + record_size > end:
                raise StoreFull("no room")
            return room(record_size)

        store._engine.writer.commit_log.room = bounded_room
        advance(store, 3_600_000)
        wait_until(lambda: is_postponed(store))
        assert 0 < len(delivered(store)) < 40
        store._engine.writer.commit_log.room = room
        advance(store, PAUSE_MS)
        wait_delivered(store)
        assert [record.body for record in delivered(store)] == bodies


def test_a_record_that_is_damaged_holds_up_its_level_alone(tmp_path, caplog):
    """Messages before it are delivered, other levels continue, and it is reported once, until it is accepted."""
    with open_inline(tmp_path / "store", message_delay_level="1h 2h 1h") as store:
        set_clock(store._engine.writer, ManualClock())
        levels = [1, 1, 1, 2, 3]
        results = store.put_batch([reput.Message("orders", b"%d" % at, delay_level=n) for at, n in enumerate(levels)])
        store.flush()
        # The queue's builder may still read the log.
        store.wait_for("consume_queue", store.appended, LIMIT_S)
        with (store.directory / "commitlog" / f"{0:020}").open("r+b") as segment:
            segment.seek(results[1].commit_log_offset + 4)
            segment.write(b"\0\0\0\0")
        for _ in range(2):
            advance(store, 3_600_000)
        wait_until(lambda: {record.body for record in store.get("orders")} == {b"0", b"3", b"4"})
        for _ in range(2):
            advance(store, PAUSE_MS)
            wait_until(lambda: is_postponed(store))
        assert sum("level=1" in record.message for record in caplog.records) == 1
        accept(store, results[1])
        advance(store, PAUSE_MS)
        wait_delivered(store)
        assert {record.body for record in delivered(store)} == {b"0", b"2", b"3", b"4"}


def test_each_record_has_a_crc_of_its_own(tmp_path):
    """With CRCs of whole records, a delivered message does not copy the CRC of its scheduled record."""
    path = tmp_path / "store"
    with open_inline(path, message_delay_level="0s", enabled_append_prop_crc=True) as store:
        store.put(reput.Message("orders", b"x", properties={"a": "1", "empty": ""}, delay_level=1))
        wait_delivered(store)
        scheduled, copy = all_records(store)
    assert list(copy.properties) == ["a", "DELAY", "REAL_TOPIC", "REAL_QID", "__CRC32#"]
    assert copy.properties["__CRC32#"] != scheduled.properties["__CRC32#"]
    # The state after a kill: the search recognises the copy.
    assert is_copy_of(copy, scheduled)
    assert check_store(path, store.settings).ok


def test_delays_tell_what_waits(store):
    """Per level: how many messages wait, and when the next one is due."""
    result = store.put(reput.Message("orders", b"", delay_level=2))
    store.put(reput.Message("orders", b"", delay_level=2))
    (row,) = store.delays()
    assert (row.level, row.next_queue_offset, row.waiting) == (2, 0, 2)
    wait_until(lambda: store.delays()[0].deliver_timestamp == result.store_timestamp + 3_600_000)


def test_without_a_consume_queue_nothing_is_delivered(tmp_path):
    """There are no rows either."""
    with reput.open(tmp_path / "store", mode="inline", dispatchers=[], message_delay_level="0s", **SMALL) as store:
        store.put(reput.Message("orders", b"", delay_level=1))
        assert store.delays() == []


def test_a_store_of_rocketmq_is_carried_on(golden):
    """Its waiting messages are delivered once, byte for byte as by RocketMQ; earlier deliveries are not repeated."""
    path = golden("delay-retry-5.3") / "store"
    before = records(path)
    # The offset before the opening, because due messages are delivered at once.
    end = before[-1].commit_log_offset + before[-1].record_size
    with reput.open(path, mode="inline") as store:
        wait_delivered(store)
        found = list(store.records(end))
    waiting = [record for record in before if record.topic == SCHEDULE_TOPIC and record.queue_id in (16, 17)]
    assert len(found) == len(waiting) == 13
    for scheduled in waiting:
        (copy,) = [record for record in found if record.uniq_key == scheduled.uniq_key]
        assert copy.topic == scheduled.properties["REAL_TOPIC"]
        assert copy.queue_id == int(scheduled.properties["REAL_QID"])
        for name in ("body", "body_crc", "flag", "sys_flag", "born_timestamp", "born_host", "store_host"):
            assert getattr(copy, name) == getattr(scheduled, name)
        assert list(copy.properties.items()) == list(scheduled.properties.items())
    manager = DelayOffsetManager(path)
    manager.load()
    assert manager.offset_table == {1: 22, 2: 5, 3: 1, 17: 4, 18: 9}
    with reput.open(path, mode="inline") as store:
        assert not store._engine.schedule.has_waiting


def test_deliveries_of_a_rocketmq_that_was_killed_are_found_in_the_log(golden):
    """Its file lacks all of them; the log has them, and no message comes twice."""
    path = golden("delay-retry-5.3") / "store"
    (path / "abort").touch()
    manager = DelayOffsetManager(path)
    manager.load()
    manager.offset_table = {1: 3, 17: 0, 18: 0}
    manager.persist()
    last = records(path)[-1]
    with reput.open(path, mode="inline") as store:
        wait_delivered(store)
        end = last.commit_log_offset + last.record_size
        assert {record.properties["DELAY"] for record in store.records(end)} == {"17", "18"}
        assert [row.next_queue_offset for row in store.delays()] == [22, 5, 1, 4, 9]


def test_somebody_who_puts_the_properties_of_a_delivered_message_again_hides_none(tmp_path):
    """Such a record, for example a row rewritten by Spark, is not a delivery: the next due message is delivered."""
    path = tmp_path / "store"
    with open_inline(path, message_delay_level="0s 1h", flush_delay_offset_interval=3_600_000) as store:
        store.put(reput.Message("orders", b"first", delay_level=1))
        wait_delivered(store)
        (copy,) = delivered(store)
        store._engine.schedule.stop()
        store.put(reput.Message("orders", b"second", delay_level=1))
        store.put(MessageExtBrokerInner("orders", copy.body, properties=copy.properties))
        store._engine.schedule.known = False
    # The state after a kill: no offsets are stored.
    assert not (path / "reput" / "delay_offsets").exists()
    with open_inline(path, message_delay_level="0s 1h") as store:
        wait_delivered(store)
        assert [record.body for record in delivered(store)] == [b"first", b"first", b"second"]


KILLED_PROGRAM = """
import sys
import reput
from tests_settings import SETTINGS

store = reput.open(sys.argv[1], mode=sys.argv[3], dispatchers=["consume_queue"], **SETTINGS)
number = int(sys.argv[2])
while True:
    store.put(reput.Message("orders", b"%d" % number, delay_level=1 + number % 3, queue_id=number % 2))
    if number % 5 == 0:
        store.put(reput.Message("orders", b"now"))
    number += 1
    print(number, flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize(("mode", "programs"), [("inline", 5), ("processes", 3)])
def test_nothing_is_delivered_twice_or_lost_through_kills_at_random(tmp_path, mode, programs):
    """Several programs in turn delay and deliver messages; each is killed at some point."""
    seed = random.randrange(1 << 30)
    print(f"seed={seed}")
    chance = random.Random(seed)
    settings = {**SMALL, "message_delay_level": "0s 0s 1s", "flush_delay_offset_interval": 30}
    (tmp_path / "tests_settings.py").write_text(f"SETTINGS = {settings!r}\n")
    (tmp_path / "program.py").write_text(KILLED_PROGRAM)
    path = tmp_path / "store"
    number = 0
    for _ in range(programs):
        program = subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py"), str(path), str(number), mode], stdout=subprocess.PIPE
        )
        assert program.stdout is not None
        try:
            last = number + chance.randrange(1, 1500)
            while number < last:
                line = program.stdout.readline()
                assert line, "the program ended by itself"
                number = int(line)
        finally:
            program.kill()
            number = max([number, *map(int, program.stdout.read().split())])
            program.wait(LIMIT_S)
            program.stdout.close()
        # A message that was put without an acknowledgement.
        number += 1
    with open_inline(path, **settings) as store:
        wait_delivered(store)
        found = list(store.records())
    scheduled = Counter(record.body for record in found if record.topic == SCHEDULE_TOPIC)
    copies = Counter(record.body for record in found if record.topic == "orders" and record.body != b"now")
    assert len(scheduled) >= number - 2 * programs
    assert copies == scheduled
    for level in ("1", "2", "3"):
        order = [int(record.body) for record in found if record.topic == "orders" and delay_of(record) == level]
        assert order == sorted(order)


def delay_of(record: Record) -> str | None:
    return record.properties.get("DELAY")

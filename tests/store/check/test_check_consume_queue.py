"""Checking the consume queues: each kind of wrong unit is named, and a correct queue has no findings."""

from __future__ import annotations

import os
from struct import Struct

import pytest

from golden_sets import read_lines
from reput.settings import Settings
from reput.store.check.check import check_store
from small_store import overwrite
from written_log import WrittenLog

UNIT = Struct(">qiq")
PRE_BLANK = UNIT.pack(0, 0x7FFFFFFF, 0)
# A queue file of basic-5.3 has 300 units.
FILE_UNITS = 300
TOPIC, QUEUE_ID = "Meadow_orders-12", 0


@pytest.fixture
def store(golden):
    """A store of RocketMQ, to be damaged."""
    return golden("basic-5.3") / "store"


def queue_file(store, queue_offset=0, topic=TOPIC, queue_id=QUEUE_ID):
    """Return the file of a queue with the unit of *queue_offset*."""
    begin = queue_offset - queue_offset % FILE_UNITS
    return store / "consumequeue" / topic / str(queue_id) / f"{begin * UNIT.size:020d}"


def read_unit(store, queue_offset, **queue):
    """Return one unit."""
    data = queue_file(store, queue_offset, **queue).read_bytes()
    return UNIT.unpack_from(data, queue_offset % FILE_UNITS * UNIT.size)


def write_unit(store, queue_offset, unit, **queue):
    """Replace one unit."""
    with queue_file(store, queue_offset, **queue).open("r+b") as file:
        file.seek(queue_offset % FILE_UNITS * UNIT.size)
        file.write(UNIT.pack(*unit))


def view(store):
    """Return a check's result for the queues."""
    return check_store(store, Settings()).views["consume_queue"]


def test_a_unit_that_points_elsewhere_is_a_difference(store):
    """The message names queue, unit and record."""
    offset, size, code = read_unit(store, 5)
    write_unit(store, 5, (offset + 1, size, code))
    found = view(store)
    assert (found.state, found.difference_count) == ("different", 1)
    assert found.differences == [
        f"unit points elsewhere: topic={TOPIC} queue_id=0 queue_offset=5 unit={offset + 1}+{size} "
        f"record={offset}+{size}"
    ]
    write_unit(store, 5, (offset, size - 1, code))
    assert view(store).difference_count == 1
    write_unit(store, 5, (offset, size, code))
    assert view(store).state == "equal"


def test_a_unit_with_another_tags_code_is_a_difference(store):
    """Consumers by that tag would not get the message."""
    offset, size, code = read_unit(store, 7)
    write_unit(store, 7, (offset, size, code + 1))
    found = view(store)
    assert found.state == "different"
    assert found.differences == [
        f"unit has another tags code: topic={TOPIC} queue_id=0 queue_offset=7 unit={code + 1} record={code} "
        f"commit_log_offset={offset}"
    ]


def test_an_address_without_ext_files_cannot_be_verified(store):
    """The ext files may have been removed; readers then have no tags code, and return the message."""
    offset, size, _ = read_unit(store, 7)
    write_unit(store, 7, (offset, size, -(1 << 63)))
    found = view(store)
    assert (found.state, found.unverified_count) == ("equal", 1)


def test_a_zero_unit_between_others_is_a_difference(store):
    """RocketMQ would treat the queue as ended there."""
    offset, _, _ = read_unit(store, 5)
    write_unit(store, 5, (0, 0, 0))
    found = view(store)
    assert found.state == "different"
    assert found.differences == [f"unit is missing: topic={TOPIC} queue_id=0 queue_offset=5 commit_log_offset={offset}"]


def test_swapped_units_are_two_differences(store):
    """Each unit has exactly one place."""
    first, second = read_unit(store, 3), read_unit(store, 4)
    write_unit(store, 3, second)
    write_unit(store, 4, first)
    assert view(store).difference_count == 2


def test_only_the_first_ten_differences_are_told(store):
    """All of them are counted."""
    for queue_offset in range(30):
        write_unit(store, queue_offset, (1, 1, 1))
    found = view(store)
    assert (found.difference_count, len(found.differences)) == (30, 10)


def test_units_that_are_missing_at_the_end_of_the_log_are_not_yet_there(store, golden_listing):
    """A correct prefix in log order, over all queues, lags by the part of the log after its end."""
    listing = golden_listing("basic-5.3")
    for line in listing[-25:]:
        write_unit(store, line["queueOffset"], (0, 0, 0), topic=line["topic"], queue_id=line["queueId"])
    found = view(store)
    assert (found.state, found.difference_count) == ("behind", 0)
    assert found.behind_bytes == 699705 - listing[-25]["physicalOffset"]


def test_queues_that_retention_has_overtaken_in_the_middle_of_a_file_are_behind(store, golden_listing):
    """They end where they were built up to: removed records have no unit, and later ones not yet."""
    segments = sorted((store / "commitlog").iterdir())
    overtaken = int(segments[1].name) + 500
    for line in golden_listing("basic-5.3"):
        if line["physicalOffset"] >= overtaken:
            write_unit(store, line["queueOffset"], (0, 0, 0), topic=line["topic"], queue_id=line["queueId"])
    for path in segments[:3]:
        path.unlink()
    found = view(store)
    assert (found.state, found.differences) == ("behind", [])
    last = golden_listing("basic-5.3")[-1]
    unit = (last["physicalOffset"], last["size"], 0)
    write_unit(store, last["queueOffset"], unit, topic=last["topic"], queue_id=last["queueId"])
    assert view(store).state == "different"


def test_a_unit_that_is_missing_before_the_last_one_is_a_difference(store, golden_listing):
    """If one queue lags and the others do not, it is not a prefix."""
    listing = golden_listing("basic-5.3")
    line = listing[-25]
    write_unit(store, line["queueOffset"], (0, 0, 0), topic=line["topic"], queue_id=line["queueId"])
    assert view(store).state == "different"


def test_a_queue_that_is_gone_is_as_many_differences_as_it_had_units(store):
    """Unless no record came after it."""
    directory = queue_file(store).parent
    for path in directory.iterdir():
        path.unlink()
    found = view(store)
    assert found.state == "different"
    assert found.difference_count == 340
    directory.rmdir()
    assert view(store).difference_count == 340


def test_a_file_that_was_cut_short_lacks_its_units(store):
    """Even if the cut is in the middle of a unit."""
    path = queue_file(store)
    path.write_bytes(path.read_bytes()[: 100 * UNIT.size + 7])
    assert view(store).difference_count == 200


def test_units_behind_the_queues_end_are_stale(store):
    """RocketMQ zeroes nothing when it cuts; old units may also point below the end of a log that has grown since."""
    write_unit(store, 340, (10_000_000, 100, 0))
    write_unit(store, 341, (10_000_100, 100, 0))
    write_unit(store, 360, (100, 100, 0))
    found = view(store)
    assert (found.state, found.stale_count) == ("equal", 3)


def test_queues_of_the_log_before_its_head_was_trimmed_are_expired(store):
    """So are units of a queue that has no records left."""
    for begin in (0, 69632, 139264):
        (store / "commitlog" / f"{begin:020d}").unlink()
    found = view(store)
    assert found.state == "equal"
    assert found.expired_count == sum(
        1 for line in read_lines(store.parent / "listing.jsonl") if line["physicalOffset"] < 208896
    )


@pytest.mark.parametrize("unit", [(0, 0x7FFFFFFF, 0), (600, 100, 0)])
def test_a_queue_without_a_record_in_the_log(store, unit):
    """Pre-blank units count as expired; a unit that points into the log, but not to a record of the queue, is wrong."""
    directory = store / "consumequeue" / "silent" / "0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}").write_bytes((PRE_BLANK + UNIT.pack(*unit)).ljust(6000, b"\0"))
    found = view(store)
    if unit[1] == 100:
        assert (found.state, found.expired_count) == ("different", 1)
        assert found.differences == [
            "unit has no record in the log: topic=silent queue_id=0 queue_offset=1 unit=600+100"
        ]
    else:
        assert (found.state, found.expired_count) == ("equal", 2)


def small_log(tmp_path, *queue_offsets):
    """Write a log of records of one queue with these queue offsets, and their units."""
    log = WrittenLog(tmp_path / "store", 4096)
    file = bytearray(6000)
    for queue_offset in queue_offsets:
        offset = log.append(b"x", queue_offset=queue_offset, properties=b"")
        file[queue_offset * 20 : queue_offset * 20 + 20] = UNIT.pack(offset, log.end - offset, 0)
    return log, file


def save_queue(log, file):
    """Write log and queue, and return the check's result."""
    directory = log.save() / "consumequeue" / "orders" / "0"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{0:020d}").write_bytes(file)
    return view(log.store)


def test_queue_offsets_that_the_log_lost_are_pre_blank_units(tmp_path):
    """They keep the later units in their places."""
    log, file = small_log(tmp_path, 0, 1, 4, 5)
    file[40:80] = PRE_BLANK * 2
    found = save_queue(log, file)
    assert (found.state, found.expired_count) == ("equal", 2)


def test_zeros_where_the_log_lost_queue_offsets_are_a_difference(tmp_path):
    """RocketMQ would treat the queue as ended there."""
    log, file = small_log(tmp_path, 0, 1, 4, 5)
    found = save_queue(log, file)
    assert (found.state, found.difference_count) == ("different", 2)
    assert "unit is zero before the queue's end" in found.differences[0]


def test_a_unit_for_a_place_that_the_log_has_no_record_for_is_a_difference(tmp_path):
    """It points to a record with another queue offset."""
    log, file = small_log(tmp_path, 0, 1, 3)
    file[40:60] = UNIT.pack(0, 98, 0)
    found = save_queue(log, file)
    assert (found.state, found.difference_count) == ("different", 1)


def test_two_records_of_one_place_differ_by_one_unit(tmp_path):
    """The queue can refer to only one of them."""
    log, file = small_log(tmp_path, 0, 1)
    log.append(b"again", queue_offset=1, properties=b"")
    found = save_queue(log, file)
    assert (found.state, found.difference_count) == ("different", 1)


def test_prepared_and_rolled_back_records_have_no_unit(tmp_path):
    """They have no queue offset."""
    log, file = small_log(tmp_path, 0, 1)
    for sys_flag in (0x4, 0xC):
        log.append(b"half", sys_flag=sys_flag, queue_offset=0, properties=b"")
    assert save_queue(log, file).state == "equal"


def test_light_queues_are_compared_too(golden):
    """A record that multi-dispatch put into additional queues has a unit in each."""
    store = golden("lmq-5.3") / "store"
    queue = {"topic": "%LMQ%Cobalt_l2-12", "queue_id": 0}
    offset, size, code = read_unit(store, 4, **queue)
    write_unit(store, 4, (offset, size, code + 1), **queue)
    found = view(store)
    assert found.difference_count == 1
    assert "topic=%LMQ%Cobalt_l2-12 queue_id=0 queue_offset=4" in found.differences[0]


def test_a_pipe_among_the_files_of_a_queue_keeps_nobody_waiting(store):
    """Opening it would block until its other end is opened."""
    os.mkfifo(store / "consumequeue" / TOPIC / str(QUEUE_ID) / f"{9000 * UNIT.size:020d}")
    assert view(store).state == "equal"


@pytest.mark.parametrize("sys_flag", [0x4, 0xC])
def test_a_transaction_that_is_not_committed_is_in_no_light_queue(tmp_path, sys_flag):
    """Prepared and rolled-back records contain a queue offset that the next record also gets."""
    log = WrittenLog(tmp_path)
    names = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
    log.append(sys_flag=sys_flag, properties=names)
    log.append(queue_offset=0, properties=names)
    log.save()
    for name in ("orders/0", "%LMQ%a/0"):
        directory = tmp_path / "consumequeue" / name
        directory.mkdir(parents=True)
        unit = UNIT.pack(log.offsets[1], log.end - log.offsets[1], 0)
        (directory / f"{0:020d}").write_bytes(unit.ljust(FILE_UNITS * UNIT.size, b"\0"))
    assert view(tmp_path).state == "equal"


def test_a_topic_that_can_be_no_folder_is_looked_for_nowhere(tmp_path):
    """A log may hold anything; no path outside the store is ever derived from it."""
    log, file = small_log(tmp_path, 0, 1)
    log.append(b"evil", topic=b"../../../secret", properties=b"")
    (tmp_path / "secret" / "0").mkdir(parents=True)
    assert save_queue(log, file).state == "equal"


def test_a_flipped_byte_in_the_log_hides_one_record_only(store):
    """The units of all other records are compared as before."""
    overwrite(store, 700, b"\xff")
    write_unit(store, 300, (1, 1, 1))
    found = view(store)
    assert (found.difference_count, found.unverified_count) == (1, 1)


@pytest.mark.parametrize(("unit_offset", "state"), [(0, "equal"), (1, "different")])
def test_a_light_queue_may_hold_what_rocketmq_4_put_there_before_its_time(tmp_path, unit_offset, state):
    """It dispatches a waiting message to its light queues, and again at its delivery time, as its record shows."""
    log = WrittenLog(tmp_path)
    names = b"INNER_MULTI_DISPATCH\x01%%LMQ%%a\x02INNER_MULTI_QUEUE_OFFSET\x01%d\x02"
    queues = [(b"SCHEDULE_TOPIC_XXXX", 17), (b"orders", 0)]
    for number, (topic, queue_id) in enumerate(queues):
        log.append(topic=topic, queue_id=queue_id, properties=names % number)
    log.save()
    units = [
        UNIT.pack(begin, end - begin, 0) for begin, end in zip(log.offsets, [*log.offsets[1:], log.end], strict=True)
    ]
    light = [units[0] if unit_offset == 0 else UNIT.pack(1, 90, 0), units[1]]
    for name, held in (("SCHEDULE_TOPIC_XXXX/17", units[:1]), ("orders/0", units[1:]), ("%LMQ%a/0", light)):
        directory = tmp_path / "consumequeue" / name
        directory.mkdir(parents=True)
        (directory / f"{0:020d}").write_bytes(b"".join(held).ljust(FILE_UNITS * UNIT.size, b"\0"))
    assert view(tmp_path).state == state


@pytest.mark.parametrize(("place", "state"), [(0, "equal"), (7, "different")])
def test_any_further_queue_may_hold_what_rocketmq_4_put_there_before_its_time(tmp_path, place, state):
    """Its multi-dispatch accepts other names than those of light queues, too."""
    log = WrittenLog(tmp_path)
    names = b"INNER_MULTI_DISPATCH\x01copies\x02INNER_MULTI_QUEUE_OFFSET\x01%d\x02" % place
    log.append(topic=b"%RETRY%g", properties=names)
    log.save()
    for name in ("%RETRY%g/0", "copies/0"):
        directory = tmp_path / "consumequeue" / name
        directory.mkdir(parents=True)
        (directory / f"{0:020d}").write_bytes(UNIT.pack(0, log.end, 0).ljust(FILE_UNITS * UNIT.size, b"\0"))
    assert view(tmp_path).state == state

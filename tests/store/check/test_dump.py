"""Dump: the log in order, with a row for every range that is not a record; and the content of views."""

from __future__ import annotations

import base64
import json
import os

import msgspec
import pytest

from golden_sets import CLEAN_SETS
from reput.errors import ConfigError, NotAStore
from reput.settings import Settings
from reput.store.check.dump import dump_log
from reput.store.check.dump_view import ConsumeQueueRow, IndexRow, ViewDamageRow, dump_view
from reput.store.recovery.log_walk import Extent
from small_store import SEGMENT_SIZE, drop, message_of_size, open_store, overwrite
from written_log import WrittenLog


def lines(store, **bounds):
    """Return a dump as text: offsets of records, and kind, begin and end of other ranges."""
    return [
        f"{row.kind} {row.begin}..{row.end}" if isinstance(row, Extent) else row.commit_log_offset
        for row in dump_log(store, **bounds)
    ]


@pytest.fixture
def log(tmp_path):
    """Eleven records in three segments."""
    written = WrittenLog(tmp_path / "store", SEGMENT_SIZE)
    for number in range(11):
        written.append(b"x" * 900, topic=(b"even", b"odd")[number % 2])
    written.save()
    return written


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_every_record_of_a_real_log_is_there(golden_read_only, golden_listing, golden_about, name):
    """In order, with the blanks between the segments."""
    found = lines(golden_read_only(name) / "store")
    assert [row for row in found if isinstance(row, int)] == [line["physicalOffset"] for line in golden_listing(name)]
    blanks = [f"blank {begin}..{begin + size}" for begin, size in golden_about(name)["listing"]["blanks"]]
    assert [row for row in found if isinstance(row, str)] == blanks


@pytest.mark.parametrize("part", ["before", "torn-before", "torn-after", "lost-before", "after", "soft-after"])
def test_every_record_before_a_crash_is_there(golden_read_only, golden_listing, part):
    """The torn record is named, once, at the end."""
    found = lines(golden_read_only("crash-5.3") / part / "store")
    offsets = [line["physicalOffset"] for line in golden_listing(f"crash-5.3/{part}")]
    assert [row for row in found if isinstance(row, int)] == offsets
    torn = ["stale 169476..169707"] if part.startswith("torn") else []
    assert [row for row in found if isinstance(row, str) and not row.startswith("blank")] == torn


def test_a_record_that_is_torn_in_its_properties_is_none(golden_read_only, golden_listing):
    """RocketMQ keeps it, with zeros inside; reput does not."""
    found = lines(golden_read_only("crash-5.3") / "soft-before" / "store")
    offsets = [line["physicalOffset"] for line in golden_listing("crash-5.3/soft-before")]
    assert [row for row in found if isinstance(row, int)] == offsets[:-1]
    assert found[-1] == f"stale {offsets[-1]}..170071"


def test_a_dump_goes_on_behind_damage(golden_read_only, golden_listing):
    """The garbled record has its own row; all others are printed."""
    found = lines(golden_read_only("damaged-4.9") / "clean-before" / "store")
    offsets = [line["physicalOffset"] for line in golden_listing("damaged-4.9/clean-before")]
    offsets.remove(660987)
    assert [row for row in found if isinstance(row, int)] == offsets
    assert [row for row in found if isinstance(row, str) and "damage" in row] == ["damage 660987..661309"]


def test_bounds_are_offsets_of_any_byte(log):
    """A record belongs to the offset at which it begins."""
    offsets = log.offsets
    assert lines(log.store, begin=offsets[5], until=offsets[7]) == offsets[5:7]
    assert lines(log.store, begin=offsets[5] + 1, until=offsets[7] + 1) == offsets[6:8]
    assert lines(log.store, begin=offsets[9] + 1) == offsets[10:]
    assert lines(log.store, begin=log.end) == []
    assert lines(log.store, begin=1 << 40) == []
    assert lines(log.store, until=0) == []
    assert lines(log.store, begin=SEGMENT_SIZE - 1, until=SEGMENT_SIZE + 1) == [SEGMENT_SIZE]


def test_damage_that_begins_before_the_bound_is_shown(log):
    """A dump of a range inside it also shows it."""
    overwrite(log.store, log.offsets[5], bytes(log.offsets[6] - log.offsets[5]))
    assert lines(log.store, begin=log.offsets[5] + 10, until=log.offsets[7]) == [
        f"damage {log.offsets[5]}..{log.offsets[6]}",
        log.offsets[6],
    ]


def test_records_of_one_topic(log):
    """Then blanks are omitted, damage is not."""
    assert lines(log.store, topic="odd") == log.offsets[1::2]
    assert lines(log.store, topic="absent") == []
    overwrite(log.store, log.offsets[2], bytes(log.offsets[3] - log.offsets[2]))
    assert lines(log.store, topic="odd")[:2] == [log.offsets[1], f"damage {log.offsets[2]}..{log.offsets[3]}"]


def test_a_number_of_records_at_most(log):
    """Rows of other ranges do not count."""
    assert [row for row in lines(log.store, count=5) if isinstance(row, int)] == log.offsets[:5]
    assert lines(log.store, count=1, begin=log.offsets[3]) == [log.offsets[3]]


def test_beside_a_writer_the_dump_ends_where_the_log_did(tmp_path):
    """A half-written record is not reported."""
    opened = open_store(tmp_path / "store")
    results = [opened.put(message_of_size(700)) for _ in range(9)]
    overwrite(tmp_path / "store", opened.appended + 4, b"\xda\xa3\x20\xa7 half a record")
    offsets = [row for row in lines(tmp_path / "store") if isinstance(row, int)]
    assert offsets == [result.commit_log_offset for result in results]
    assert not [row for row in lines(tmp_path / "store") if "stale" in str(row) or "damage" in str(row)]
    assert lines(tmp_path / "store", begin=results[-1].commit_log_offset) == offsets[-1:]
    drop(opened)
    assert [row for row in lines(tmp_path / "store") if "stale" in str(row)]


def test_a_store_without_a_record_has_no_rows(tmp_path):
    """Open or closed."""
    opened = open_store(tmp_path / "store")
    assert lines(tmp_path / "store") == []
    opened.close(views_complete=True)
    assert lines(tmp_path / "store") == []


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    """Nothing is created in it."""
    with pytest.raises(NotAStore):
        lines(tmp_path)
    with pytest.raises(NotAStore):
        list(dump_view(tmp_path, "index", Settings()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_the_units_of_the_queues_are_those_of_the_records(golden_read_only, golden_listing, golden_queries, name):
    """By queue, in the order of queue offsets; including light queues."""
    rows = list(dump_view(golden_read_only(name) / "store", "consume_queue", Settings()))
    records = {(line["topic"], line["queueId"], line["queueOffset"]): line for line in golden_listing(name)}
    for row in rows:
        line = records.get((row.topic, row.queue_id, row.queue_offset))
        if line is not None and line["sysFlag"] & 0xC in (0, 8):
            assert (row.commit_log_offset, row.record_size) == (line["physicalOffset"], line["size"])
    ends = {(line["topic"], line["queueId"]): line["maxOffset"] for line in golden_queries(name, "queue")}
    counted = dict.fromkeys(ends, 0)
    for row in rows:
        counted[row.topic, row.queue_id] += 1
    assert counted == ends
    assert rows == sorted(rows, key=lambda row: (row.topic, row.queue_id, row.queue_offset))


def test_the_units_of_one_topic_or_queue(golden_read_only):
    """Other topics and queues have none."""
    store = golden_read_only("basic-5.3") / "store"
    rows = list(dump_view(store, "consume_queue", Settings(), topic="Meadow_orders-12", queue_id=0))
    assert [row.queue_offset for row in rows] == list(range(340))
    assert isinstance(rows[0], ConsumeQueueRow)
    assert {row.queue_id for row in dump_view(store, "consume_queue", Settings(), queue_id=3)} == {3}
    assert list(dump_view(store, "consume_queue", Settings(), topic="absent")) == []


def test_ext_units_have_the_addresses_that_the_queues_have(golden_read_only):
    """Their bit maps are base64 in JSON."""
    store = golden_read_only("ext-4.9") / "store"
    rows = list(dump_view(store, "consume_queue_ext", Settings()))
    units = list(dump_view(store, "consume_queue", Settings()))
    assert [(row.topic, row.queue_id, row.address) for row in rows] == [
        (unit.topic, unit.queue_id, unit.tags_code) for unit in units
    ]
    last = json.loads(msgspec.json.encode(rows[-1]))
    assert list(last) == ["topic", "queue_id", "address", "tags_code", "store_timestamp", "filter_bit_map"]
    assert base64.b64decode(last["filter_bit_map"]) == rows[-1].filter_bit_map


def test_entries_of_the_index_name_file_and_position(golden_read_only):
    """Without settings; every entry of every file."""
    store = golden_read_only("basic-5.3") / "store"
    rows = list(dump_view(store, "index", Settings()))
    files = sorted(path.name for path in (store / "index").iterdir())
    assert [row.position for row in rows if row.file == files[0]] == list(range(1, 400))
    assert [row.file for row in rows] == sorted(row.file for row in rows)
    assert len(rows) == 4 * 399 + 297
    assert isinstance(rows[0], IndexRow)
    assert (rows[0].position, rows[0].commit_log_offset, rows[0].previous) == (1, 0, 0)


def test_a_view_that_has_no_files_has_no_rows(golden_read_only):
    """It may simply not be enabled."""
    assert list(dump_view(golden_read_only("basic-5.3") / "store", "consume_queue_ext", Settings())) == []


def test_only_views_that_there_are_and_that_know_topics_are_asked(golden_read_only):
    """The error says what is possible."""
    store = golden_read_only("basic-5.3") / "store"
    with pytest.raises(ConfigError, match="view='lake'") as caught:
        list(dump_view(store, "lake", Settings()))
    assert "consume_queue_ext" in caught.value.advice
    with pytest.raises(ConfigError, match="topic='orders'"):
        list(dump_view(store, "index", Settings(), topic="orders"))


@pytest.mark.parametrize("number", [0, 2, 4])
@pytest.mark.parametrize("entries", [0, 100, 390])
def test_an_index_file_that_was_cut_short_is_named_behind_what_it_has(golden, number, entries):
    """The other files show its layout."""
    store = golden("basic-5.3") / "store"
    before = list(dump_view(store, "index", Settings()))
    path = sorted((store / "index").iterdir())[number]
    size = 40 + 4 * 100 + 20 * (1 + entries) + 7
    os.truncate(path, size)
    rows = list(dump_view(store, "index", Settings()))
    kept = [row for row in before if row.file != path.name or row.position <= entries]
    [damage] = [row for row in rows if isinstance(row, ViewDamageRow)]
    assert (damage.file, damage.size) == (f"index/{path.name}", size)
    assert damage.reason.startswith("the file has another size: expected=8440 entries=")
    assert [row for row in rows if row is not damage] == kept


def test_the_only_index_file_is_read_by_the_configured_sizes(golden):
    """Its last entry, which would show them, is missing."""
    store = golden("basic-5.3") / "store"
    first, *others = sorted((store / "index").iterdir())
    for path in others:
        path.unlink()
    os.truncate(first, 40 + 4 * 100 + 20 * 50)
    rows = list(dump_view(store, "index", Settings(max_hash_slot_num=100, max_index_num=400)))
    assert [row.position for row in rows[:-1]] == list(range(1, 50))
    assert rows[-1].reason == "the file has another size: expected=8440 entries=399"
    [row] = dump_view(store, "index", Settings())
    assert row.reason == "the file has another size: expected=unknown entries=399"


def test_a_queue_file_of_another_size_and_units_that_are_none_are_named(golden):
    """In separate rows."""
    store = golden("basic-5.3") / "store"
    queues = sorted((store / "consumequeue" / "Meadow_orders-12").iterdir())
    short, garbled = (sorted(queue.iterdir())[0] for queue in queues[:2])
    size = short.stat().st_size
    os.truncate(short, 70)
    with garbled.open("r+b") as file:
        file.seek(20)
        file.write((-5).to_bytes(8, "big", signed=True))
    rows = [row for row in dump_view(store, "consume_queue", Settings()) if isinstance(row, ViewDamageRow)]
    assert [(row.file, row.reason) for row in rows] == [
        (str(short.relative_to(store)), f"the file has another size: expected={size}"),
        (str(garbled.relative_to(store)), "no unit: queue_offset=1"),
    ]

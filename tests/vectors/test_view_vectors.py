"""RocketMQ's vectors of the views: consume queue, its ext, index, checkpoint, and the status of a get."""

from __future__ import annotations

import os
import time

from reput.filter.string_hash import string_hash
from reput.settings import Settings
from reput.store.disk.file_name import file_name
from reput.store.disk.files import Files
from reput.store.ext.consume_queue_ext import (
    ADDRESS_MAX,
    END_BLANK_SIZE,
    OFFSET_MAX,
    UNIT_SIZE_MAX,
    UNIT_SIZE_MIN,
    ExtUnit,
    decode_unit,
    encode_unit,
    is_address,
    offset_of,
    to_address,
)
from reput.store.ext.consume_queue_ext_files import ConsumeQueueExtFiles
from reput.store.index.index_builder import next_name
from reput.store.index.index_file import key_hash
from reput.store.index.index_layout import ENTRY, HEADER, SLOT, IndexHeader
from reput.store.index.index_mapping import IndexMapping, index_file_size
from reput.store.queue.batch_consume_queue import BatchUnit, decode_batch_unit, encode_batch_unit
from reput.store.queue.consume_queue import UNIT, UNIT_SIZE
from reput.store.queue.consume_queue_files import PRE_BLANK_UNIT, ConsumeQueueFiles
from reput.store.reader.consume_queue_reader import ConsumeQueueReader
from reput.store.reader.message_reader import MessageReader
from reput.store.reader.readable_store import ReadableStore
from reput.store.reader.results import empty_status
from reput.store.state.store_checkpoint import CHECKPOINT_SIZE, StoreCheckpoint, decode_checkpoint, encode_checkpoint
from rocketmq_vectors import store_vectors

STORED_TIMESTAMP = 1_700_000_000_123


@store_vectors("consume_queue_unit")
def test_a_unit_of_a_queue_is_twenty_bytes(vector):
    """The record's position and size, and its signed tags code."""
    unit = vector["input"]
    data = UNIT.pack(unit["commitLogOffset"], unit["size"], unit["tagsCode"])
    assert data.hex() == vector["expected"]["hex"]
    assert len(data) == UNIT_SIZE


@store_vectors("consume_queue_pre_blank")
def test_a_pre_blank_unit_stands_where_no_record_is(vector):
    """It has the largest possible size, so no reader takes it for a record."""
    assert PRE_BLANK_UNIT.hex() == vector["expected"]["hex"]


@store_vectors("consume_queue_position")
def test_a_queue_that_begins_late_begins_at_its_file(vector, tmp_path):
    """The unit is at its queue offset, in the file for that offset, after pre-blank units."""
    numbers, expected = vector["input"], vector["expected"]
    file_size, queue_offset = numbers["mappedFileSize"], numbers["cqOffset"]
    position = queue_offset * UNIT_SIZE
    assert position == expected["logicOffset"]
    queue = ConsumeQueueFiles(tmp_path / "queue", file_size, Files())
    assert queue.put(0, 100, 0, queue_offset)
    queue.write()
    (path,) = (tmp_path / "queue").iterdir()
    assert path.name == expected["fileName"]
    at = expected["positionInFile"]
    data = path.read_bytes()
    assert data[:at] == PRE_BLANK_UNIT * expected["preBlankUnitsIfFirstFile"]
    assert data[at : at + UNIT_SIZE] == UNIT.pack(0, 100, 0)
    units_of_a_file = file_size // UNIT_SIZE
    assert queue_offset - queue_offset % units_of_a_file + units_of_a_file == expected["rollNextFile_of_300001"]


@store_vectors("ext_constants")
def test_addresses_lie_below_every_hash(vector):
    """And units are within the range of a short."""
    assert vector["expected"] == {
        "MAX_ADDR": ADDRESS_MAX,
        "MAX_REAL_OFFSET": OFFSET_MAX,
        "MIN_EXT_UNIT_SIZE": UNIT_SIZE_MIN,
        "MAX_EXT_UNIT_SIZE": UNIT_SIZE_MAX,
        "END_BLANK_DATA_LENGTH": END_BLANK_SIZE,
    }


@store_vectors("ext_decorate")
def test_an_offset_becomes_an_address_and_back(vector):
    """Above the smallest long."""
    address = to_address(vector["input"]["offset"])
    assert address == vector["expected"]["address"]
    assert address.to_bytes(8, "big", signed=True).hex() == vector["expected"]["int64_be_hex"]
    assert offset_of(address) == vector["expected"]["undecorated"]


@store_vectors("ext_is_addr")
def test_an_address_is_told_from_a_tags_code(vector):
    """Hashes may be negative; addresses are below them all."""
    assert is_address(vector["input"]["value"]) is vector["expected"]["isExtAddr"]


@store_vectors("cq_ext_unit")
def test_an_ext_unit_holds_tags_code_time_and_bits(vector):
    """Without a bit map it is twenty bytes."""
    message, expected = vector["input"], vector["expected"]
    bit_map = None if message["bitmap_hex"] is None else bytes.fromhex(message["bitmap_hex"])
    unit = ExtUnit(message["tagsCode"], message["msgStoreTime"], bit_map)
    assert encode_unit(unit).hex() == expected["hex"]
    assert unit.size == expected["size"]
    assert decode_unit(bytes.fromhex(expected["hex"])) == unit


@store_vectors("cq_ext_end_blank")
def test_an_ext_unit_that_does_not_fit_starts_the_next_file(vector, tmp_path):
    """A size of -1 marks its place."""
    numbers, expected = vector["input"], vector["expected"]
    files = ConsumeQueueExtFiles(tmp_path / "ext", numbers["mappedFileSize"], Files())
    for size in (35, 35, numbers["unitSize"]):
        address = files.put(ExtUnit(1, STORED_TIMESTAMP, bytes(size - UNIT_SIZE_MIN)))
    files.write()
    at = expected["writtenAt"]
    assert at == numbers["wrotePosition"]
    first = (tmp_path / "ext" / file_name(0)).read_bytes()
    assert first[at : at + 2].hex() == expected["hex"]
    assert len(first) - at - 4 == expected["blankSize"]
    assert len(first) == expected["wrotePositionAfter"]
    assert address == expected["nextUnitAddress"]


@store_vectors("index_key")
def test_a_key_is_hashed_with_its_topic(vector):
    """Without its sign; the smallest int has no positive counterpart, and counts as 0."""
    topic, key, expected = vector["input"]["topic"], vector["input"]["key"], vector["expected"]
    assert string_hash(expected["indexKey"]) == expected["javaHash"]
    assert key_hash(topic, key) == expected["keyHash"]
    assert key_hash(topic, key) % 5_000_000 == expected["slot_of_5000000"]
    assert HEADER.size + SLOT.size * expected["slot_of_5000000"] == expected["slot_pos_of_5000000"]
    assert key_hash(topic, key) % 10 == expected["slot_of_10"]


@store_vectors("index_file_size")
def test_an_index_file_has_its_full_size_at_once(vector):
    """Header, slots, entries."""
    slots, entries = vector["input"]["maxHashSlotNum"], vector["input"]["maxIndexNum"]
    assert index_file_size(slots, entries) == vector["expected"]["fileSize"]
    # Entry 0 is never used.
    assert HEADER.size + SLOT.size * slots + ENTRY.size == vector["expected"]["firstEntryPosition"]


@store_vectors("index_file")
def test_an_index_file_is_written_as_rocketmq_writes_it(vector, tmp_path):
    """Header, slots and chains, byte for byte; a file continues where the previous one ended."""
    numbers, expected = vector["input"], vector["expected"]
    slots, entries, preset = numbers["slots"], numbers["indexNum"], numbers["preset"]
    path = tmp_path / "index"
    path.touch()
    os.truncate(path, index_file_size(slots, entries))
    file = IndexMapping(path, slots, entries, Files())
    try:
        if preset is not None:
            before = IndexHeader(end_offset=preset["endPhyOffset"], end_timestamp=preset["endTimestamp"])
            file.begin_behind(before)
        puts = [(key_hash(*put["key"].split("#")), put["phyOffset"], put["storeTimestamp"]) for put in numbers["puts"]]
        for put in puts:
            file.reserve(1)
            file.put([put])
        data = bytes(file.memory)
    finally:
        file.close()
    assert len(data) == expected.get("fileSize", len(data))
    assert data[: HEADER.size].hex() == expected["header_hex"]
    entries_at = HEADER.size + SLOT.size * slots
    if "slots_hex" in expected:
        assert data[HEADER.size : entries_at].hex() == expected["slots_hex"]
        assert file.header.hash_slot_count == expected["hashSlotCount"]
        assert file.header.index_count == expected["indexCount"]
        assert {key: key_hash(*key.split("#")) % slots for key in expected["slots"]} == expected["slots"]
    for number in range(1, len(puts) + 1):
        at = entries_at + ENTRY.size * number
        assert data[at : at + ENTRY.size].hex() == expected[f"entry{number}_hex"]


@store_vectors("index_file_name")
def test_an_index_file_is_named_by_the_local_time(vector, monkeypatch):
    """To the millisecond."""
    monkeypatch.setenv("TZ", vector["input"]["timeZone"])
    time.tzset()
    try:
        assert next_name("", vector["input"]["timestampMs"]) == vector["expected"]["name"]
    finally:
        monkeypatch.undo()
        time.tzset()


@store_vectors("store_checkpoint")
def test_a_checkpoint_is_five_numbers_in_a_page(vector):
    """Zeros fill the page."""
    numbers, expected = vector["input"], vector["expected"]
    checkpoint = StoreCheckpoint(
        numbers["physicMsgTimestamp"],
        numbers["logicsMsgTimestamp"],
        numbers["indexMsgTimestamp"],
        numbers["masterFlushedOffset"],
        numbers["confirmPhyOffset"],
    )
    data = encode_checkpoint(checkpoint)
    assert data[:40].hex() == expected["first_40_hex"]
    assert data[40:] == bytes(CHECKPOINT_SIZE - 40)
    assert len(data) == expected["fileSize"]
    assert decode_checkpoint(data) == checkpoint


@store_vectors("get_message_offset_check")
def test_a_get_outside_of_the_queue_says_why_and_where_to_go_on(vector, golden_read_only, monkeypatch):
    """RocketMQ's status and next offset on each side of the bounds."""
    numbers, expected = vector["input"], vector["expected"]
    low, high, offset = numbers["minOffset"], numbers["maxOffset"], numbers["offset"]
    status = empty_status(offset, low, high)
    if expected["status"] == "READ":
        assert status is None
        return
    monkeypatch.setattr(ConsumeQueueReader, "range", lambda queue: (low, high))
    reader = MessageReader(ReadableStore(golden_read_only("lmq-5.3") / "store", Settings(), lambda view: 0))
    found = reader.get_message("orders", 0, offset, 32)
    assert found.status.value == expected["status"]
    assert found.next_queue_offset == expected["nextBeginOffset"]
    assert list(found) == []


@store_vectors("batch_consume_queue_unit")
def test_a_unit_of_a_batch_queue_is_forty_six_bytes(vector):
    """It has the queue offset of a record's first message, and the number of messages."""
    given = vector["input"]
    unit = BatchUnit(
        given["commitLogOffset"],
        given["size"],
        given["tagsCode"],
        given["storeTimestamp"],
        given["msgBaseOffset"],
        given["batchSize"],
    )
    data = encode_batch_unit(unit)
    assert data.hex() == vector["expected"]["hex"]
    assert decode_batch_unit(data) == unit
    assert decode_batch_unit(bytes(len(data))) is None

"""Batch consume queues of RocketMQ 5: each message of a batch is read separately, at its own queue offset."""

from __future__ import annotations

import json

import pytest

import reput
from reput.cli import main
from reput.errors import DamagedStore
from reput.filter import TagMessageFilter, parse_tags
from reput.filter.string_hash import string_hash
from reput.settings import Settings
from reput.store.queue.batch_consume_queue import BATCH_UNIT_SIZE, BatchUnit, encode_batch_unit
from reput.store.reader.message_reader import MessageReader
from reput.store.reader.readable_store import ReadableStore
from reput.store.reader.results import BoundaryType, GetMessageStatus, TransferLimits
from written_log import START_MS, WrittenLog, inner_batch_body

INNER_BATCH = 0xC0
FILE_UNITS = 4
# Several files, batches of one, and a single message outside a batch.
SIZES = (3, 1, 2, None, 5, 1, 4)
COUNT = 17


@pytest.fixture
def log(tmp_path):
    """A log of batches in the topic ``batches`` between messages of another one."""
    return WrittenLog(tmp_path / "store", segment_size=1024)


@pytest.fixture
def store(log):
    """A store like one of RocketMQ, with a batch consume queue in files of four units."""
    units = []
    base = 0
    for size in SIZES:
        log.append(topic=b"orders")
        at = START_MS + len(log.offsets)
        if size is None:
            log.append(
                b"m%d" % base,
                topic=b"batches",
                queue_offset=base,
                flag=base,
                properties=b"TAGS\x01t%d\x02KEYS\x01k%d\x02INNER_BASE\x01%d\x02" % (base % 2, base, base),
            )
        else:
            log.append(
                inner_batch_body(base, size),
                topic=b"batches",
                queue_offset=base,
                sys_flag=INNER_BATCH,
                properties=b"INNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (size, base),
            )
        units.append(BatchUnit(log.offsets[-1], log.end - log.offsets[-1], string_hash(""), at, base, size or 1))
        base += size or 1
    log.save()
    directory = log.store / "batchconsumequeue" / "batches" / "0"
    directory.mkdir(parents=True)
    for first in range(0, len(units), FILE_UNITS):
        data = b"".join(map(encode_batch_unit, units[first : first + FILE_UNITS]))
        path = directory / f"{first * BATCH_UNIT_SIZE:020d}"
        path.write_bytes(data.ljust(FILE_UNITS * BATCH_UNIT_SIZE, b"\0"))
    return log.store


@pytest.fixture
def reader(store, log):
    """Reads that store."""
    opened = MessageReader(ReadableStore(store, Settings(), lambda view: log.end))
    yield opened
    opened.close()


def numbers(records):
    """Return the numbers of messages, from their bodies."""
    return [int(record.body[1:]) for record in records]


def test_every_queue_offset_gives_its_message(reader):
    """For every begin and count; each message has the batch's shared fields."""
    assert reader.queue_range("batches", 0) == (0, COUNT)
    for begin in range(COUNT):
        for count in (1, 2, 5, 100):
            found = reader.get_message("batches", 0, begin, count)
            expected = list(range(begin, min(begin + count, COUNT)))
            assert found.status is GetMessageStatus.FOUND
            assert numbers(found.records) == expected
            assert [record.queue_offset for record in found.records] == expected
            assert [record.flag for record in found.records] == expected
            assert [record.keys for record in found.records] == [[f"k{number}"] for number in expected]
            assert found.next_queue_offset == expected[-1] + 1
            assert not any(record.sys_flag for record in found.records)


def test_offsets_outside_of_the_queue_have_the_answers_of_any_queue(reader):
    """Beyond its end, far beyond it, and in a missing queue."""
    for offset, status, following in (
        (COUNT, GetMessageStatus.OFFSET_OVERFLOW_ONE, COUNT),
        (99, GetMessageStatus.OFFSET_OVERFLOW_BADLY, COUNT),
        (-1, GetMessageStatus.OFFSET_TOO_SMALL, 0),
    ):
        found = reader.get_message("batches", 0, offset)
        assert (found.status, found.next_queue_offset, len(found)) == (status, following, 0)
    assert reader.get_message("batches", 1, 0).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    assert reader.topics() == {"batches": [0]}


def test_tags_choose_messages_not_batches(reader):
    """Like RocketMQ's client filters within a batch."""
    found = reader.get_message("batches", 0, 1, 4, message_filter=TagMessageFilter(parse_tags("t1")))
    assert numbers(found.records) == [1, 3, 5, 7]
    assert found.next_queue_offset == 8
    assert (
        reader.get_message("batches", 0, 0, message_filter=TagMessageFilter(parse_tags("none"))).status
        is GetMessageStatus.NO_MATCHED_MESSAGE
    )


def test_a_transfer_has_its_limits(reader):
    """One batch always fits; otherwise it could never be read."""
    limits = TransferLimits(1, 1, 1, 1, 1 << 40)
    assert numbers(reader.get_message("batches", 0, 0, limits=limits).records) == [0, 1, 2]


def test_a_store_time_names_the_first_message_of_a_batch(reader):
    """From the units' own times."""
    times = {0: 1, 3: 3, 4: 5, 6: 7, 7: 9, 12: 11, 13: 13}
    for offset, after in times.items():
        assert reader.offset_by_time("batches", 0, START_MS + after) == offset
        assert reader.offset_by_time("batches", 0, START_MS + after - 1) == offset
        assert reader.offset_by_time("batches", 0, START_MS + after, BoundaryType.UPPER) == offset
    assert reader.offset_by_time("batches", 0, START_MS + 99) == COUNT
    assert reader.offset_by_time("batches", 0, START_MS, BoundaryType.UPPER) == 0


def test_units_of_what_the_log_has_no_more_or_not_yet_do_not_count(store, log):
    """Retention removes batches at the front; a crash may leave units beyond the log's end."""
    (store / "commitlog" / f"{0:020d}").unlink()
    kept = [offset for offset in log.offsets[1::2] if offset >= 1024]
    with reput.open(store, read_only=True) as opened:
        low, high = opened.queue_range("batches")
        assert low > 0
        assert high == COUNT
        first = opened.get("batches", 0, low, 1).records[0]
        assert (first.commit_log_offset, first.queue_offset) == (kept[0], low)
    reader = MessageReader(ReadableStore(store, Settings(), lambda view: log.offsets[-1]))
    assert reader.queue_range("batches", 0)[1] == COUNT - SIZES[-1]
    reader.close()


def test_a_body_that_is_no_batch_is_damage(store, log, reader):
    """The error has the position; messages before it can be read."""
    path = store / "commitlog" / f"{log.offsets[-1] // 1024 * 1024:020d}"
    data = bytearray(path.read_bytes())
    at = data.index(b"m13")
    data[at - 1] += 1
    path.write_bytes(data)
    with pytest.raises(DamagedStore, match="does not have its CRC: topic=batches"):
        reader.get_message("batches", 0, 13)
    assert numbers(reader.get_message("batches", 0, 0, 13).records) == list(range(13))


def test_the_command_line_gets_and_consumes_them(store, capsys):
    """A group continues after the messages it has read, also within a batch."""
    assert main(["get", str(store), "batches", "0", "0", "--count", "100", "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["queue_offset"] for row in rows] == list(range(COUNT))
    command = ["consume", str(store), "batches", "--group", "billing", "--from", "earliest", "--format", "json"]
    assert main([*command, "--count", "8"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 8
    assert main([*command, "--count", "100"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["queue_offset"] for row in rows] == list(range(8, COUNT))


def test_a_consumer_is_given_each_message_of_a_batch(store):
    """It acknowledges them one by one, and receives unacknowledged ones again."""
    with reput.open(store, mode="inline") as opened, opened.consumer("billing", "batches") as consumer:
        messages = [consumer.receive(timeout=10) for _ in range(COUNT)]
        assert numbers(messages) == list(range(COUNT))
        for message in messages[:5]:
            consumer.acknowledge(message)
    with reput.open(store, mode="inline") as opened, opened.consumer("billing", "batches") as consumer:
        assert numbers([consumer.receive(timeout=10) for _ in range(COUNT - 5)]) == list(range(5, COUNT))

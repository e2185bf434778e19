"""TopicReader: all queues of a topic, merged, filtered, from any position."""

from __future__ import annotations

import pytest

import reput
from reput.consume.pull.topic_reader import TopicReader, first_queue_offset
from reput.filter import parse, parse_tags
from reput.store.reader.results import GetMessageResult, GetMessageStatus

TOPIC = "Meadow_orders-12"


@pytest.fixture
def source(golden_read_only):
    """A store that RocketMQ wrote, with several queues in the topic."""
    with reput.open(golden_read_only("basic-5.3") / "store", read_only=True) as store:
        yield store


@pytest.fixture
def listed(golden_listing):
    """The topic's records according to RocketMQ's own decoder, in log order."""
    return [line for line in golden_listing("basic-5.3") if line["topic"] == TOPIC]


def offsets(records) -> list[int]:
    """Return the records' offsets."""
    return [record.commit_log_offset for record in records]


def earliest(source, queue_id):
    """Begin every queue at its first message."""
    return first_queue_offset(source, TOPIC, queue_id, "earliest")


def test_all_queues_come_in_the_order_of_the_log(source, listed):
    """Every message of the topic, exactly once."""
    assert len({line["queueId"] for line in listed}) > 1
    reader = TopicReader(TOPIC, earliest)
    assert offsets(reader.records(source)) == [line["physicalOffset"] for line in listed]


def test_at_the_end_positions_are_the_queues_ends(source):
    """Another read returns nothing."""
    reader = TopicReader(TOPIC, earliest)
    list(reader.records(source))
    queue_ids = source.topics()[TOPIC]
    assert reader.positions == {queue_id: source.queue_range(TOPIC, queue_id)[1] for queue_id in queue_ids}
    assert list(reader.records(source)) == []


@pytest.mark.parametrize("count", [1, 7, 40])
def test_who_stops_goes_on_behind_what_was_acknowledged(source, listed, count):
    """No message is repeated or lost, however far the reader read ahead."""
    first = TopicReader(TOPIC, earliest)
    records = first.records(source)
    taken = [next(records) for _ in range(count)]
    first.acknowledge()
    second = TopicReader(TOPIC, lambda source, queue_id: first.positions[queue_id])
    rest = offsets(second.records(source))
    assert offsets(taken) + rest == [line["physicalOffset"] for line in listed]


def test_who_fails_gets_the_last_record_again(source):
    """It was yielded, but never acknowledged."""
    first = TopicReader(TOPIC, earliest)
    records = first.records(source)
    taken = [next(records) for _ in range(3)]
    second = TopicReader(TOPIC, lambda source, queue_id: first.positions[queue_id])
    assert offsets([next(second.records(source))]) == offsets(taken[-1:])


def test_tags_are_compared_themselves(source, listed):
    """Not only their hashes."""
    reader = TopicReader(TOPIC, earliest, tag_filter=parse_tags("TagA || TagC"))
    expected = [line["physicalOffset"] for line in listed if line["tags"] in ("TagA", "TagC")]
    assert expected
    assert offsets(reader.records(source)) == expected
    collision = TopicReader("t", earliest, tag_filter=parse_tags("Aa"))
    assert not collision.wants({"TAGS": "BB"})
    assert collision.wants({"TAGS": "Aa"})


def test_expressions_are_evaluated_on_properties(source, listed):
    """Messages that do not match are skipped for good."""
    reader = TopicReader(TOPIC, earliest, sql_filter=parse("a > 3"))
    expected = [
        line["physicalOffset"]
        for line in listed
        if (value := (line["properties"] or {}).get("a", "")).isdigit() and int(value) > 3
    ]
    assert expected
    assert offsets(reader.records(source)) == expected
    assert list(reader.records(source)) == []


def test_a_topic_that_is_not_there_has_no_messages(source):
    """It has no queues, either."""
    reader = TopicReader("absent", earliest)
    assert list(reader.records(source)) == []
    assert reader.positions == {}


def test_a_queue_can_be_begun_at_a_time(source, listed):
    """At the first message stored at that time or later."""
    for queue_id in source.topics()[TOPIC]:
        times = [line["storeTimestamp"] for line in listed if line["queueId"] == queue_id]
        for time in (times[0] - 1, times[0], times[len(times) // 2], times[-1], times[-1] + 1):
            expected = sum(other < time for other in times)
            assert first_queue_offset(source, TOPIC, queue_id, time) == expected
        assert first_queue_offset(source, TOPIC, queue_id, "earliest") == 0
        assert first_queue_offset(source, TOPIC, queue_id, "latest") == len(times)


class Queue:
    """A source with one queue that answers as instructed."""

    def __init__(self, *answers: GetMessageResult) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def queue_ids(self, topic):
        return [0]

    def queue_range(self, topic, queue_id=0):
        raise AssertionError

    def get(self, topic, queue_id=0, queue_offset=0, count_max=32, *, tags=None):
        self.asked.append(queue_offset)
        return self.answers.pop(0)


def test_what_retention_took_is_passed_over():
    """A position below the queue's first message moves up to it."""
    source = Queue(
        GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, 7, 7, 7),
        GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, 7, 7, 7),
    )
    reader = TopicReader("t", lambda source, queue_id: 3)
    assert list(reader.records(source)) == []
    assert source.asked == [3, 7]
    assert reader.positions == {0: 7}


def test_a_position_behind_the_queue_comes_back():
    """The log was cut; new messages get these offsets again, and must be read."""
    source = Queue(GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5, 0, 5))
    reader = TopicReader("t", lambda source, queue_id: 9)
    assert list(reader.records(source)) == []
    assert reader.positions == {0: 5}


def test_units_without_records_are_passed_over():
    """Where the log was trimmed, or no message of a range matched."""
    source = Queue(
        GetMessageResult(GetMessageStatus.MESSAGE_WAS_REMOVING, 32, 0, 40),
        GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, 40, 0, 40),
        GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, 40, 0, 40),
    )
    reader = TopicReader("t", lambda source, queue_id: 0)
    assert list(reader.records(source)) == []
    assert reader.positions == {0: 40}

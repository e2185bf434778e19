"""Options of reads and streams, and their effect on a stream's reader, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_reput import DefaultSource
from pyspark_reput.read_options import parse_options
from reput.errors import ConfigError, DamagedStore, OffsetOutOfRange
from written_log import START_MS, WrittenLog


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return a log of 60 records in several segments."""
    log = WrittenLog(tmp_path / "store")
    for number in range(60):
        log.append(b"body %d" % number * 10, store_timestamp=START_MS + 1000 * number)
    log.save()
    return log


def stream(log: WrittenLog, **options: Any) -> Any:
    """Return the reader of a stream."""
    source = DefaultSource({"path": str(log.store), **options})
    return source.streamReader(source.schema())


def batch(log: WrittenLog, **options: Any) -> Any:
    """Return the reader of a batch."""
    source = DefaultSource({"path": str(log.store), **options})
    return source.reader(source.schema())


def rows_of(reader: Any) -> int:
    """Return the number of rows of a batch."""
    return sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))


def micro_batches(reader: Any) -> list[tuple[int, int]]:
    """Return (begin, end) of the micro-batches up to the end of the log, as Spark requests them."""
    limit, found = reader.getDefaultReadLimit(), []
    begin = reader.initialOffset()
    while (end := reader.latestOffset(begin, limit)) != begin:
        found.append((begin["offset"], end["offset"]))
        begin = end
    return found


@pytest.mark.parametrize(
    ("options", "mebibytes"),
    [
        ({}, 64),
        ({"columns": "tags,body"}, 64),
        ({"columns": "tags,keys"}, 256),
        ({"columns": "tags", "splitBytes": "9m"}, 9),
        ({"schemaMode": "kafka", "columns": "key"}, 256),
        ({"schemaMode": "damage"}, 64),
    ],
)
def test_a_read_without_bodies_has_larger_splits(log: WrittenLog, options: dict[str, str], mebibytes: int):
    """A task takes about as long to begin, but less for a record; the option decides otherwise."""
    assert batch(log, **options).options.split_bytes == mebibytes << 20
    if options.get("schemaMode") != "damage":
        assert stream(log, **options).options.split_bytes == mebibytes << 20


def test_every_crc_is_compared_by_default(log: WrittenLog):
    """A body that changed on disk stops a read; ``onCorruption=report`` omits it."""
    assert parse_options({"path": "store"}).table.verify_crc == "all"
    log.data[log.offsets[7] + 90] ^= 0xFF
    log.save()
    with pytest.raises(DamagedStore, match=f"from={log.offsets[7]} .*reason='a CRC does not match'"):
        rows_of(batch(log))
    assert rows_of(batch(log, onCorruption="report")) == 59
    assert rows_of(batch(log, schemaMode="damage")) == 1


def test_both_bounds_of_a_micro_batch_are_kept(log: WrittenLog):
    """The one reached first ends it, and finally everything is read."""
    few_rows = micro_batches(
        stream(log, startingOffsets="earliest", maxBytesPerTrigger="3000", maxOffsetsPerTrigger="4")
    )
    few_bytes = micro_batches(
        stream(log, startingOffsets="earliest", maxBytesPerTrigger="400", maxOffsetsPerTrigger="9")
    )
    for batches, count_max, bytes_max in ((few_rows, 4, 3000), (few_bytes, 9, 400)):
        assert [batches[0][0], batches[-1][1]] == [0, log.end]
        for begin, end in batches:
            within = [at for at in log.offsets if begin <= at < end]
            assert 1 <= len(within) <= count_max
            assert within[-1] < begin + bytes_max
    assert max(sum(begin <= at < end for at in log.offsets) for begin, end in few_rows) == 4
    assert max(sum(begin <= at < end for at in log.offsets) for begin, end in few_bytes) < 9


def test_spark_may_ask_for_everything_whatever_the_bounds_are(log: WrittenLog):
    """Its trigger ``once`` does."""
    reader = stream(log, startingOffsets="earliest", maxBytesPerTrigger="400", maxOffsetsPerTrigger="4")
    assert isinstance(stream(log, maxOffsetsPerTrigger="4").getDefaultReadLimit(), ReadMaxRows)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["offset"] == log.end


def test_only_what_a_query_reads_is_compared(log: WrittenLog):
    """A body that changed on disk stops no query that does not read it, unless every comparison was asked for."""
    log.data[log.offsets[7] + 90] ^= 0xFF
    log.save()

    def tags(**options: str) -> int:
        source = DefaultSource({"path": str(log.store), "columns": "tags", **options})
        return rows_of(source.reader(source.schema()))

    assert tags() == 60
    with pytest.raises(DamagedStore, match="reason='a CRC does not match'"):
        tags(verifyCrc="all")
    # What is left out is left out for every column.
    assert tags(onCorruption="report") == 59


def test_a_query_for_tags_holds_no_bytes_of_bodies(log: WrittenLog):
    """Its batches are a small part of those with bodies."""

    def size(column: str) -> int:
        source = DefaultSource({"path": str(log.store), "columns": column})
        reader = source.reader(source.schema())
        return sum(batch.nbytes for part in reader.partitions() for batch in reader.read(part))

    assert size("body") > 60 * 60
    assert size("tags") < 60 * 8


def test_a_bound_counts_the_records_of_the_subscription(log: WrittenLog):
    """Records of other topics are passed over, as if each topic had its own log."""
    for number in range(40):
        log.append(b"paid", topic=b"payments" if number % 10 == 9 else b"orders")
    log.save()
    payments = [at for at in log.offsets[60:] if (log.offsets.index(at) - 60) % 10 == 9]
    reader = stream(log, startingOffsets="earliest", subscribe="payments", maxOffsetsPerTrigger="3")
    batches = micro_batches(reader)
    assert [sum(begin <= at < end for at in payments) for begin, end in batches] == [3, 1]
    assert batches[-1][1] == log.end


def test_a_micro_batch_waits_for_enough_records(log: WrittenLog, monkeypatch: pytest.MonkeyPatch):
    """The first one comes at once; the next one when there are enough of the subscription, or when it waited enough."""
    now = [0.0]
    monkeypatch.setattr("pyspark_reput.stream_reader.time.monotonic", lambda: now[0])
    options = {"startingOffsets": "earliest", "subscribe": "orders", "minOffsetsPerTrigger": "5"}
    reader = stream(log, **options, maxTriggerDelay="10s")
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert first["offset"] == log.end

    def append(count: int, topic: bytes) -> None:
        for _ in range(count):
            log.append(b"more", topic=topic)
        log.save()

    append(4, b"orders")
    append(9, b"payments")
    assert reader.latestOffset(first, limit) == first
    now[0] = 9.9
    assert reader.latestOffset(first, limit) == first
    append(1, b"orders")
    second = reader.latestOffset(first, limit)
    assert second["offset"] == log.end
    append(1, b"orders")
    assert reader.latestOffset(second, limit) == second
    now[0] = 20.0
    third = reader.latestOffset(second, limit)
    assert third["offset"] == log.end
    append(1, b"orders")
    last = stream(log, **options)
    last.prepareForTriggerAvailableNow()
    assert last.latestOffset(third, limit)["offset"] == log.end
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger=5 maxOffsetsPerTrigger=3"):
        parse_options({"path": "store", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "3"})


def rows_from(reader: Any, begin: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    """Return (queue id, queue offset) of the rows of one micro-batch."""
    parts = reader.partitions(begin, end)
    batches = [rows for part in parts for rows in reader.read(part)]
    return sorted(
        (row["queueId"], row["queueOffset"])
        for batch in batches
        for row in batch.select(["queueId", "queueOffset"]).to_pylist()
    )


@pytest.fixture
def queues(tmp_path: Path) -> WrittenLog:
    """Return a log of 60 records in three queues, one record a second."""
    log = WrittenLog(tmp_path / "queues")
    for number in range(60):
        log.append(b"body", queue_id=number % 3, store_timestamp=START_MS + 1000 * number)
    log.save()
    return log


def test_each_queue_of_a_stream_begins_where_it_is_told(queues: WrittenLog):
    """At a queue offset, at its latest or its earliest record; a restart keeps what the first run found."""
    reader = stream(queues, startingOffsets='{"orders":{"0":18,"1":-1,"2":-2}}')
    first = reader.initialOffset()
    for number in range(6):
        queues.append(b"later", queue_id=number % 3, store_timestamp=START_MS + 60_000 + 1000 * number)
    queues.save()
    expected = [(0, 18), (0, 19), (0, 20), (0, 21), (1, 20), (1, 21), *((2, number) for number in range(22))]
    restarted = stream(queues, startingOffsets='{"orders":{"0":18,"1":-1,"2":-2}}', maxOffsetsPerTrigger="7")
    found, begin = [], first
    while (end := restarted.latestOffset(begin, restarted.getDefaultReadLimit())) != begin:
        rows = rows_from(restarted, begin, end)
        assert 1 <= len(rows) <= 7
        found += rows
        begin = end
    assert sorted(found) == expected
    assert "begins" in first
    assert "begins" not in begin
    with pytest.raises(ConfigError, match=r"a batch cannot begin at the latest offset: .*topic=orders queue_id=1"):
        batch(queues, startingOffsets='{"orders":{"1":-1}}')


def test_each_queue_begins_and_ends_at_a_time(queues: WrittenLog):
    """In batches and streams, as in Kafka's source; a time for all wins, and a queue that is not named has no bound."""
    options = {"startingOffsetsByTimestamp": f'{{"orders":{{"0":{START_MS + 30_000},"1":{START_MS + 50_001}}}}}'}
    ends = {"endingOffsetsByTimestamp": f'{{"orders":{{"0":{START_MS + 39_000},"2":{START_MS + 5_000}}}}}'}
    expected = [(0, 10), (0, 11), (0, 12), *((1, number) for number in range(17, 20)), (2, 0)]
    reader = batch(queues, **options, **ends, startingOffsets='{"orders":{"0":19}}')
    found = [row for part in reader.partitions() for rows in reader.read(part) for row in rows.to_pylist()]
    assert sorted((row["queueId"], row["queueOffset"]) for row in found) == expected
    follower = stream(queues, assign='{"orders":[0,1]}', **options)
    begin = follower.initialOffset()
    # Nothing before the earlier of the two is read.
    assert begin["offset"] == queues.offsets[30]
    rows = rows_from(follower, begin, follower.latestOffset(begin, ReadAllAvailable()))
    assert rows == [*((0, number) for number in range(10, 20)), *((1, number) for number in range(17, 20))]
    assert rows_of(batch(queues, **options, startingTimestamp=str(START_MS + 57_000))) == 3
    late = {"startingOffsetsByTimestamp": f'{{"orders":{{"2":{START_MS + 90_000}}}}}'}
    with pytest.raises(ConfigError, match="the queue has no record of that time or later: topic=orders queue_id=2"):
        batch(queues, **late).partitions()
    assert rows_of(batch(queues, **late, startingOffsetsByTimestampStrategy="latest")) == 40


def test_a_stream_reports_its_lag(log: WrittenLog):
    """In bytes, seconds, and records of the subscription, after the micro-batch."""
    from pyspark_reput import stream_lag

    log.append(b"other", topic=b"payments", store_timestamp=START_MS + 60_000)
    log.save()
    reader = stream(log, startingOffsets="earliest", subscribe="orders", maxOffsetsPerTrigger="50")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    (lag,) = stream_lag({"sources": [{"latestOffset": reader.reportLatestOffset()}, {"latestOffset": {"topic": 5}}]})
    assert (lag.bytes, lag.records, lag.exact) == (log.end - end["offset"], 10, True)
    assert lag.seconds > 1_000_000
    end = reader.latestOffset(end, reader.getDefaultReadLimit())
    (lag,) = stream_lag({"sources": [{"latestOffset": reader.reportLatestOffset()}]})
    assert (lag.bytes, lag.records, lag.seconds) == (0, 0, 0.0)


def test_a_long_lag_is_estimated(log: WrittenLog, monkeypatch: pytest.MonkeyPatch):
    """Because a report must not read the whole log."""
    monkeypatch.setattr("reput.table.log_table.LAG_BYTES_COUNTED", 2000)
    reader = stream(log, startingOffsets="earliest")
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    reader.reached = reader.initialOffset()
    lag = reader.reportLatestOffset()["lag"]
    assert lag["bytes"] == log.end
    assert not lag["exact"]
    assert 50 <= lag["records"] <= 70


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "splitBytes"]
)
def test_a_bound_of_nothing_is_refused(name: str):
    """It would never read anything."""
    with pytest.raises(ConfigError, match=f"option={name} value='0'"):
        parse_options({"path": "store", name: "0"})


@pytest.mark.parametrize("value", ["", " , "])
def test_a_subscription_names_a_topic(value: str):
    """An empty one would read nothing."""
    with pytest.raises(ConfigError, match="the option takes topics such as orders,payments: option=subscribe"):
        parse_options({"path": "store", "subscribe": value})
    with pytest.raises(ConfigError, match=r"the option takes JSON such as .*: option=assign"):
        parse_options({"path": "store", "assign": '{"orders":[]}'})
    assert parse_options({"path": "store", "subscribe": "a, b,"}).table.row_filter.topics == {"a", "b"}


@pytest.mark.parametrize(
    "options", [{"subscribe": "orders,ordrs"}, {"assign": '{"ordrs":[0]}'}, {"startingOffsets": '{"ordrs":{"0":3}}'}]
)
def test_a_topic_that_the_store_does_not_have_is_named(log: WrittenLog, options: dict[str, str]):
    """In batches and streams alike; if losses are accepted, it is a warning and the others are read."""
    for ask in (
        lambda **more: batch(log, **options, **more).partitions(),
        lambda **more: stream(log, **options, **more).initialOffset(),
    ):
        with pytest.raises(ConfigError, match="the store has no such topic: topic=ordrs nearest=orders"):
            ask()
        ask(failOnDataLoss="false")


@pytest.mark.parametrize("options", [{"subscribe": "orders,refunds"}, {"assign": '{"orders":[0],"refunds":[0]}'}])
def test_a_stream_with_a_checkpoint_outlives_its_topics(log: WrittenLog, options: dict[str, str]):
    """Retention removed one topic completely: a restart continues with the others, and a new query is refused."""
    log.append(b"refund", topic=b"refunds")
    log.save()
    checkpoint = stream(log, **options, startingOffsets="earliest").initialOffset()
    log.data[log.offsets.pop() :] = b""
    log.append(b"order")
    log.save()
    with pytest.raises(ConfigError, match="the store has no such topic: topic=refunds"):
        stream(log, **options).initialOffset()
    restarted = stream(log, **options)
    end = restarted.latestOffset(checkpoint, ReadAllAvailable())
    assert end["offset"] == log.end
    rows = [
        batch.num_rows for partition in restarted.partitions(checkpoint, end) for batch in restarted.read(partition)
    ]
    assert sum(rows) == len(log.offsets)


def test_queue_offsets_that_retention_took_are_data_loss(log: WrittenLog):
    """A batch and a new stream refuse them unless they accept losses."""
    (log.store / "commitlog" / f"{0:020d}").unlink()
    options = {"startingOffsets": '{"orders":{"0":3}}'}
    for ask in (
        lambda **more: batch(log, **options, **more).partitions(),
        lambda **more: stream(log, **options, **more).initialOffset(),
    ):
        with pytest.raises(OffsetOutOfRange, match="topic=orders queue_id=0 queue_offset=3 queue_offset_min="):
            ask()
        ask(failOnDataLoss="false")


def test_starting_offsets_count_for_a_new_stream_only(queues: WrittenLog):
    """As in Kafka's source: a restart continues at its checkpoint, whatever queue offsets it is given."""
    begin = stream(queues, startingOffsets='{"orders":{"0":18}}').initialOffset()
    for number in range(90):
        queues.append(b"later", queue_id=number % 3)
    queues.save()
    for options in ({}, {"startingOffsets": '{"orders":{"0":40,"1":45}}'}):
        restarted = stream(queues, assign='{"orders":[0,1]}', **options)
        rows = rows_from(restarted, begin, restarted.latestOffset(begin, ReadAllAvailable()))
        assert rows == [*((0, number) for number in range(18, 50)), *((1, number) for number in range(50))]


def test_queue_offsets_are_those_of_the_present_topic(log: WrittenLog):
    """A topic that was deleted and created again counts from 0; a stream outlives that, too."""
    offsets = {"startingOffsets": '{"orders":{"0":50}}'}
    reader = stream(log, **offsets)
    begin = reader.initialOffset()
    log.queue_offsets.clear()
    for _ in range(20):
        log.append(b"of the new topic")
    log.save()
    rows = rows_from(reader, begin, reader.latestOffset(begin, ReadAllAvailable()))
    assert [number for _, number in rows] == sorted([*range(50, 60), *range(20)])
    few = {"startingOffsets": '{"orders":{"0":5}}', "endingOffsets": '{"orders":{"0":9}}'}
    ask = batch(log, **few)
    found = [row for part in ask.partitions() for rows in ask.read(part) for row in rows.to_pylist()]
    assert [row["commitLogOffset"] for row in found] == log.offsets[65:69]
    assert rows_of(batch(log, **offsets)) == 0
    with pytest.raises(OffsetOutOfRange, match="topic=orders queue_id=0 queue_offset=50 next_queue_offset=20"):
        stream(log, **offsets).initialOffset()
    (place,) = stream(log, **offsets, failOnDataLoss="false").initialOffset()["begins"] or [()]
    assert place == ("orders", 0, log.end)


def test_a_time_wins_over_queue_offsets(log: WrittenLog):
    """Then they have no effect."""
    reader = batch(log, startingOffsets='{"orders":{"0":50}}', startingTimestamp=str(START_MS + 40_000))
    assert rows_of(reader) == 20


def test_where_a_read_begins_by_default(log: WrittenLog):
    """A batch begins with the first record, a stream with new records, like Spark's Kafka source."""
    assert rows_of(batch(log)) == 60
    assert stream(log).initialOffset()["offset"] == log.end


@pytest.mark.parametrize(
    ("names", "nullable", "sentence"),
    [
        (["topic"], False, "every column may be null: column=topic"),
        (["tags", "topic", "tags"], True, "the schema has a column twice: column=tags"),
    ],
)
def test_a_schema_that_no_row_can_have_is_named(log: WrittenLog, names: list[str], nullable: bool, sentence: str):
    """Spark itself would fail in a worker, with an error that names neither."""
    schema = StructType([StructField(name, StringType(), nullable) for name in names])
    with pytest.raises(ConfigError, match=sentence):
        DefaultSource({"path": str(log.store)}).reader(schema)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endingOffsets", '{"orders":{"0":5}}'),
        ("endingOffsets", '{"orders":{"0":-1}}'),
        ("endingOffsetsByTimestamp", '{"orders":{"0":5}}'),
    ],
)
def test_a_stream_has_no_end_of_single_queues(log: WrittenLog, name: str, value: str):
    """It would stop to return records of the queue, or never stop."""
    with pytest.raises(ConfigError, match=f"a stream has no end: option={name}"):
        stream(log, **{name: value})


def test_a_queue_offset_is_a_number_or_one_of_two_words():
    """As in Kafka's source; others would be taken for the earliest."""
    with pytest.raises(ConfigError, match="the option takes earliest, latest, a commit-log offset, or JSON"):
        parse_options({"path": "store", "startingOffsets": '{"orders":{"0":-3}}'})


def test_a_read_that_ends_within_a_record_includes_it(log: WrittenLog):
    """As if it ended at the next one: an end that was computed is no damage."""
    for end, count in ((log.offsets[7], 7), (log.offsets[7] + 1, 8), (log.offsets[8] - 1, 8), (log.offsets[8], 8)):
        assert rows_of(batch(log, endingOffsets=str(end))) == count

"""Options of reads and streams, and their effect on a stream's reader, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

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


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "splitBytes"])
def test_a_bound_of_nothing_is_refused(name: str):
    """It would never read anything."""
    with pytest.raises(ConfigError, match=f"option={name} value='0'"):
        parse_options({"path": "store", name: "0"})


@pytest.mark.parametrize("value", ["", " , "])
def test_a_subscription_names_a_topic(value: str):
    """An empty one would read nothing."""
    with pytest.raises(ConfigError, match="the option takes topics such as orders,payments: option=subscribe"):
        parse_options({"path": "store", "subscribe": value})
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


def test_a_time_wins_over_queue_offsets(log: WrittenLog):
    """Then they have no effect."""
    reader = batch(log, startingOffsets='{"orders":{"0":50}}', startingTimestamp=str(START_MS + 40_000))
    assert rows_of(reader) == 20


def test_where_a_read_begins_by_default(log: WrittenLog):
    """A batch begins with the first record, a stream with new records, like Spark's Kafka source."""
    assert rows_of(batch(log)) == 60
    assert stream(log).initialOffset()["offset"] == log.end

"""``spark.read.format("reput")``: rows, options, columns and filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import reput.table
from golden_sets import CLEAN_SETS, some_of
from reput.table.worker_memory import is_worker
from written_log import START_MS, WrittenLog

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    """Return a log of 120 records in three topics with two queues each, one record a second."""
    log = WrittenLog(tmp_path_factory.mktemp("store"))
    for number in range(120):
        topic = (b"orders", b"payments", b"%RETRY%group")[number % 3]
        log.append(b"body %d" % number, topic=topic, queue_id=number % 2, store_timestamp=START_MS + 1000 * number)
    log.save()
    return log


def load(spark: Any, store: Path, **options: Any) -> Any:
    """Return the frame of a store."""
    return spark.read.format("reput").options(**options).load(str(store))


def offsets_of(frame: Any) -> list[int]:
    """Return the commit-log offsets of a frame, ascending."""
    return sorted(row["commitLogOffset"] for row in frame.select("commitLogOffset").collect())


@pytest.mark.parametrize("name", some_of(CLEAN_SETS, "batch-4.9", "basic-5.5", "lmq-5.3"))
def test_rows_equal_the_table_for_any_split_size(
    spark: Any,
    name: str,
    golden_read_only: Callable[[str], Path],
    golden_listing: Callable[[str], list[dict[str, Any]]],
):
    """Every record of every store that RocketMQ closed is a row; offset message ids are those of RocketMQ."""
    store = golden_read_only(name) / "store"
    expected = reput.table.read(store, decompress=False)
    for split_bytes in ("20k", "64m"):
        frame = load(spark, store, decompress="false", splitBytes=split_bytes)
        assert frame.orderBy("commitLogOffset").toArrow().cast(expected.schema).equals(expected)
    assert expected["offsetMsgId"].to_pylist() == [line["msgId"] for line in golden_listing(name)]


def test_columns_can_be_some_in_any_order(spark: Any, log: WrittenLog):
    """With ``.schema(…)`` only those columns are decoded, in that order."""
    frame = spark.read.format("reput").schema("queueOffset bigint, topic string").load(str(log.store))
    assert frame.columns == ["queueOffset", "topic"]
    assert frame.collect()[0].asDict() == {"queueOffset": 0, "topic": "orders"}
    assert frame.count() == 120
    assert len(frame.limit(7).collect()) == 7


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"subscribe": "orders,payments"}, [n for n in range(120) if n % 3 != 2]),
        ({"subscribePattern": "pay.*"}, [n for n in range(120) if n % 3 == 1]),
        ({"assign": '{"orders":[1]}'}, [n for n in range(120) if n % 3 == 0 and n % 2 == 1]),
        ({"userTopicsOnly": "true"}, [n for n in range(120) if n % 3 != 2]),
        ({"STARTINGTIMESTAMP": START_MS + 50_000}, range(50, 120)),
        ({"startingTimestamp": START_MS + 49_001, "endingTimestamp": START_MS + 60_000}, range(50, 60)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(120)),
        (
            {"startingOffsets": '{"orders":{"0":3,"1":-2}}', "subscribe": "orders"},
            [n for n in range(120) if n % 3 == 0 and (n % 2 == 1 or n // 6 >= 3)],
        ),
        (
            {"endingOffsets": '{"orders":{"0":3,"1":-1}}', "subscribe": "orders"},
            [n for n in range(120) if n % 3 == 0 and (n % 2 == 1 or n // 6 < 3)],
        ),
    ],
    ids=str,
)
def test_rows_are_those_that_the_options_ask_for(spark: Any, log: WrittenLog, options: Any, numbers: Any):
    """Options are named after Spark's Kafka source, in any case."""
    assert offsets_of(load(spark, log.store, **options)) == [log.offsets[number] for number in numbers]


def test_offsets_of_the_log_bound_a_read(spark: Any, log: WrittenLog):
    """A number is a commit-log offset, and the end is exclusive."""
    frame = load(spark, log.store, startingOffsets=log.offsets[10], endingOffsets=log.offsets[20])
    assert offsets_of(frame) == log.offsets[10:20]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffset": "earliest"}, "no such option: option=startingoffset nearest=startingOffsets"),
        ({"verifyCrc": "some"}, r"option=verifyCrc value='some'"),
        ({"splitBytes": "a lot"}, "option=splitBytes"),
        ({"startingOffsets": "latest"}, "a batch cannot begin at the latest offset"),
        ({"endingOffsets": "earliest"}, "a batch cannot end at the earliest offset"),
        ({"subscribe": "a", "assign": "{}"}, "only one of these options may be given: options=subscribe,assign"),
        ({"startingTimestamp": START_MS * 2}, "no record was stored at that time or later"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "a batch cannot begin at the latest offset: .*queue_id=0"),
        ({"maxTriggerDelay": "soon"}, "the option takes a time such as 15m or 30s: option=maxTriggerDelay"),
        ({"startingOffsetsByTimestamp": '{"orders":5}'}, "the option takes times in ms by queue as JSON"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(spark: Any, log: WrittenLog, options: Any, sentence: str):
    """A misspelled option would read the wrong rows, so it is refused, with the nearest existing name."""
    with pytest.raises(Exception, match=sentence):
        load(spark, log.store, **options).collect()


def test_a_time_behind_the_last_record_may_mean_nothing(spark: Any, log: WrittenLog):
    """With the strategy ``latest`` the frame is empty; otherwise it is an error."""
    options = {"startingTimestamp": START_MS * 2, "startingOffsetsByTimestampStrategy": "latest"}
    assert load(spark, log.store, **options).count() == 0


def test_an_empty_store_has_no_rows(spark: Any, tmp_path: Path):
    """A store without records gives a frame without rows."""
    assert load(spark, WrittenLog(tmp_path).save()).count() == 0


def test_a_directory_that_is_no_store_is_refused(spark: Any, tmp_path: Path):
    """The error names the directory."""
    with pytest.raises(Exception, match="no message store here"):
        load(spark, tmp_path).collect()


def test_damage_is_a_table_of_its_own(spark: Any, tmp_path: Path):
    """With ``schemaMode=damage`` the rows are the ranges that are not records; a plain read stops at the first."""
    log = WrittenLog(tmp_path)
    for number in range(60):
        log.append(b"%d" % number * 30)
    log.data[log.offsets[7] + 4] ^= 0xFF
    store = log.save()
    with pytest.raises(Exception, match=f"the log is damaged: from={log.offsets[7]} until={log.offsets[8]}"):
        load(spark, store).collect()
    damage = load(spark, store, schemaMode="damage").collect()
    assert [(row["begin"], row["until"]) for row in damage] == [(log.offsets[7], log.offsets[8])]
    reported = load(spark, store, onCorruption="report")
    assert offsets_of(reported) == [at for at in log.offsets if at != log.offsets[7]]


def test_rows_of_kafkas_schema(spark: Any, log: WrittenLog):
    """A job written for Spark's Kafka source finds its columns."""
    frame = load(spark, log.store, schemaMode="kafka", includeHeaders="true", subscribe="orders")
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert frame.columns == names
    row = frame.orderBy("timestamp").collect()[0]
    assert (bytes(row["key"]), bytes(row["value"]), row["partition"], row["offset"]) == (b"k0", b"body 0", 0, 0)


CONDITIONS = [
    "topic = 'orders'",
    "topic in ('orders', 'payments') and queueId = 1",
    "queueOffset > 5 and queueOffset <= 9",
    "storeTimestamp >= timestamp'2023-11-14 22:13:50' and storeTimestamp < timestamp'2023-11-14 22:14:20.001'",
    "commitLogOffset >= 5000 and commitLogOffset < 9001",
    "storeTimestamp = timestamp'2023-11-14 22:13:50'",
    "tags = 't1' or queueId = 0",
    "properties['KEYS'] = 'k7'",
    "topic is null",
    "queueId is not null and keys is not null",
    "not (topic = 'orders')",
    "topic like 'pay%' and storeTimestamp > timestamp'2023-11-14 22:13:50.0005'",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_filters_give_the_same_rows_pushed_down_or_not(spark: Any, log: WrittenLog, condition: str):
    """Conditions on a record's header are evaluated there; the rows are the same."""
    plain = offsets_of(load(spark, log.store).where(condition))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for pushdown in ("true", "false"):
            assert offsets_of(load(spark, log.store, pushdown=pushdown).where(condition)) == plain
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_filter_on_times_finds_records_of_a_clock_that_was_set_back(spark: Any, tmp_path: Path):
    """As RocketMQ stores them: the filter gives the same rows in the log's reader as in Spark."""
    log = WrittenLog(tmp_path)
    for seconds in (0, 7200, 1, 2, 7300, 3):
        log.append(store_timestamp=START_MS + 1000 * seconds)
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = load(session, log.save()).where(f"storeTimestamp < timestamp_millis({START_MS + 2000})")
    assert offsets_of(frame) == [log.offsets[0], log.offsets[2]]


def test_a_worker_of_spark_recognises_itself(spark: Any):
    """So a task's end exempts what is loaded from Spark's garbage collections, and nothing else does."""

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch([[is_worker()]], names=["worker"])

    assert [row.worker for row in spark.range(1).mapInArrow(seen, "worker boolean").collect()] == [True]
    assert not is_worker()

"""`pyspark_reput.register` and `read`, and tables in SQL: what of the log a query reads, as its plan shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pyspark_reput
from written_log import START_MS, WrittenLog

pytestmark = pytest.mark.spark

BODY_SIZE = 1024


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    """Return a log of 1200 records in two topics with two queues each, one record a second."""
    log = WrittenLog(tmp_path_factory.mktemp("store"), 1 << 20)
    for number in range(1200):
        topic = (b"orders", b"payments")[number % 2]
        body = (b"%d " % number).ljust(BODY_SIZE, b"x")
        log.append(body, topic=topic, queue_id=number % 4, store_timestamp=START_MS + 1000 * number)
    log.save()
    return log


@pytest.fixture(scope="module")
def unregistered(spark: Any) -> Any:
    """Return a session in which `register` was not called; other tests may have called it in the common one."""
    return spark.newSession()


@pytest.fixture(scope="module")
def registered(spark: Any) -> Any:
    """Return a session in which `register` was called."""
    session = spark.newSession()
    pyspark_reput.register(session)
    return session


def plan_of(frame: Any) -> str:
    """Return what ``frame.explain("formatted")`` prints."""
    plan: str = frame._sc._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted")
    return plan


def columns_read(frame: Any) -> list[list[str]]:
    """Return the columns that each scan in the plan of *frame* reads."""
    return [re.findall(r"(\w+):", schema) for schema in re.findall(r"ReadSchema: struct<(.*)>", plan_of(frame))]


QUERIES = [
    ("select tags from log", [["tags"]]),
    ("select tags, topic from log where topic = 'orders'", [["topic", "tags"]]),
    ("select tags from log where topic = 'orders' and keys is not null", [["topic", "tags", "keys"]]),
    ("select count(*) from log", [["queueId"]]),
    (
        "select topic, max(length(body)) from log where queueOffset < 3 group by topic",
        [["topic", "queueOffset", "body"]],
    ),
    ("select a.keys from log a join log b on a.tags = b.keys", [["tags", "keys"], ["keys"]]),
    ("select keys from log where queueId = (select max(queueId) from log)", [["queueId", "keys"], ["queueId"]]),
    (
        "with t as (select *, rank() over (order by commitLogOffset) as r from log) select r from t",
        [["commitLogOffset"]],
    ),
    ("select tags from log where properties['KEYS'] = 'k7' limit 3", [["tags", "properties"]]),
]


@pytest.mark.parametrize(("query", "columns"), QUERIES)
def test_a_query_reads_only_the_columns_that_it_uses(
    unregistered: Any, registered: Any, log: WrittenLog, query: str, columns: list[list[str]]
):
    """The plan shows them, and the rows are those of a session without pruning."""
    pyspark_reput.read(registered, log.store).createOrReplaceTempView("log")
    unregistered.read.format("reput").load(str(log.store)).createOrReplaceTempView("log")
    plain, pruned = unregistered.sql(query), registered.sql(query)
    assert {len(read) for read in columns_read(plain)} == {21}
    assert sorted(map(sorted, columns_read(pruned))) == sorted(map(sorted, columns))
    assert sorted(pruned.collect()) == sorted(plain.collect())


def test_columns_can_be_named_in_an_option(spark: Any, log: WrittenLog):
    """Where nothing prunes them: in streams, with Spark Connect, without `register`."""
    frame = spark.read.format("reput").option("columns", "tags, topic").load(str(log.store))
    assert frame.columns == ["tags", "topic"]
    assert columns_read(frame) == [["tags", "topic"]]
    assert frame.count() == 1200
    stream = pyspark_reput.read_stream(spark, log.store, columns="body,topic")
    assert stream.columns == ["body", "topic"]
    with pytest.raises(Exception, match="no such column: column=tag schemaMode=rocketmq columns=topic,queueId,"):
        spark.read.format("reput").option("columns", "tag").load(str(log.store))


def test_filters_reach_the_log_as_soon_as_spark_pushes_any(spark: Any, unregistered: Any, log: WrittenLog):
    """No option is needed, and without Spark's setting a read is what it was."""
    frame = unregistered.read.format("reput").load(str(log.store)).where("topic = 'orders' and queueOffset >= 7")
    assert "PushedFilters" not in plan_of(frame)
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    pushed = session.read.format("reput").load(str(log.store)).where("topic = 'orders' and queueOffset >= 7")
    plan = plan_of(pushed)
    assert re.search(r"PushedFilters: \[.*EqualTo\(topic,orders\), GreaterThanOrEqual\(queueOffset,7\)", plan)
    assert "Condition" not in plan
    assert pushed.count() == frame.count() == 586
    kept = session.read.format("reput").option("pushdown", "false").load(str(log.store)).where("topic = 'orders'")
    assert "Condition" in plan_of(kept)


TABLES = [
    ("CREATE TABLE {name} USING reput OPTIONS (path '{store}', subscribe 'orders')", 600),
    ("CREATE TABLE {name} USING reput LOCATION '{store}' TBLPROPERTIES (subscribe = 'orders')", 600),
    ("CREATE TABLE {name} USING reput OPTIONS (path '{store}', columns 'tags,queueId')", 1200),
    ("CREATE TEMPORARY VIEW {name} USING reput OPTIONS (path '{store}', subscribe 'orders')", 600),
    ("CREATE TEMPORARY VIEW {name} (tags string) USING reput OPTIONS (path '{store}')", 1200),
]


@pytest.mark.parametrize(("statement", "count"), TABLES)
def test_the_log_is_a_table_in_sql(registered: Any, log: WrittenLog, statement: str, count: int):
    """With the options of its definition; to drop it leaves the store alone."""
    registered.sql(statement.format(name="sql_log", store=log.store))
    frame = registered.sql("select tags from sql_log")
    assert frame.count() == count
    assert columns_read(frame) == [["tags"]]
    registered.sql(f"drop {'view' if 'VIEW' in statement else 'table'} sql_log")
    assert len(list((Path(log.store) / "commitlog").iterdir())) == 2


def test_a_session_that_cannot_prune_reads_all_columns(
    spark: Any, log: WrittenLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A Spark whose optimizer takes no such rule gives the same rows, and a warning names the option ``columns``."""
    from pyspark_reput import column_pruning

    broken = Path(log.store) / "Broken.java"
    broken.write_text("public class ColumnPruning extends NoSuchRule {}")
    monkeypatch.setattr(column_pruning, "SOURCE", broken)
    session = spark.newSession()
    assert pyspark_reput.read(session, log.store).select("tags").count() == 1200
    assert "name the wanted ones in the option columns" in caplog.text

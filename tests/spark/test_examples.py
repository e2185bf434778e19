"""The jobs of ``examples/spark`` give the documented results."""

from __future__ import annotations

import importlib
import json
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

import reput.table
from reput_plugins.spark_export import export
from source_tree import ROOT
from written_log import START_MS, WrittenLog

pytestmark = pytest.mark.spark

FOLDER = ROOT / "examples" / "spark"


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a job by name, like Python when it runs it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return a log of 2 minutes of two topics, each message born 100 ms before it was stored, and of dead letters."""
    log = WrittenLog(tmp_path / "store", segment_size=65536)
    for number in range(120):
        stored = START_MS + 1000 * number
        topic = (b"orders", b"orders", b"payments")[number % 3]
        log.append(b"%d" % number, topic=topic, store_timestamp=stored, born_timestamp=stored - 100)
    for _ in range(3):
        properties = b"RETRY_TOPIC\x01orders\x02"
        log.append(b"x", topic=b"%DLQ%billing", properties=properties, reconsume_times=16, store_timestamp=stored)
    log.save()
    return log


@pytest.fixture(scope="module")
def shop(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the store of `sample_shop`."""
    sys.path.insert(0, str(FOLDER))
    try:
        store = str(tmp_path_factory.mktemp("shop") / "store")
        importlib.import_module("sample_shop").sample_shop(spark, store)
    finally:
        sys.path.remove(str(FOLDER))
    return store


def run(frame: Any, name: str, folder: Path) -> Any:
    """Run a streaming frame up to the end of the log, into the view *name*; return its query."""
    stream = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(folder / name))
    query = stream.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a frame."""
    return [tuple(row) for row in frame.collect()]


def test_every_job_is_in_the_list(job: Any):
    """With its arguments."""
    page = (FOLDER / "README.md").read_text("utf-8")
    jobs = {path.name for kind in ("*.py", "*.sql", "*.ipynb") for path in FOLDER.glob(kind)} - {"session.py"}
    assert {name for name in jobs if f"[`{name}`]({name})" in page} == jobs


def test_messages_per_topic_and_minute(spark: Any, job: Any, log: WrittenLog):
    """Every message of users is in one minute; the first minute began at second 20."""
    found = rows_of(job("messages_per_minute").messages_per_minute(spark, str(log.store)))
    assert [(topic, minute.minute, messages) for topic, minute, messages in found] == [
        ("orders", 13, 27),
        ("orders", 14, 40),
        ("orders", 15, 13),
        ("payments", 13, 13),
        ("payments", 14, 20),
        ("payments", 15, 7),
    ]


def test_delay_by_topic(spark: Any, job: Any, log: WrittenLog):
    """Median, tail and maximum in ms."""
    found = rows_of(job("delay").delay(spark, str(log.store)))
    assert found == [("orders", 80, 100, 100, 100), ("payments", 40, 100, 100, 100)]


def test_dead_letters_by_cause(spark: Any, job: Any, log: WrittenLog):
    """Of consumer groups, and of dispatchers."""
    rejected = log.store / "reput" / "dead_letters" / "search.jsonl"
    rejected.parent.mkdir(parents=True)
    rejected.write_text('{"topic": "orders", "reason": "no JSON"}\n')
    found = rows_of(job("dead_letters").dead_letters(spark, str(log.store)))
    assert found == [("billing", "orders", "tried 16 times", 3), ("search", "orders", "no JSON", 1)]


def test_a_day_is_replayed_once(spark: Any, job: Any, log: WrittenLog):
    """However often it is run; order and bodies are those of that day. A topic has any name that RocketMQ allows."""
    new_topic = "orders|again%" + "n" * 100
    for _ in range(2):
        job("replay_day").replay_day(spark, str(log.store), "orders", "2023-11-14", new_topic)
    again = reput.table.read(log.store, topics=[new_topic])["body"].to_pylist()
    assert again == reput.table.read(log.store, topics=["orders"])["body"].to_pylist()
    assert len(again) == 80


def test_a_chart_is_drawn_from_a_lake(spark: Any, job: Any, tmp_path: Path):
    """The chart in the documentation is made from the sample by the same commands."""
    store, lake = str(tmp_path / "store"), str(tmp_path / "lake")
    job("sample_orders").sample_orders(spark, store)
    export(store, lake)
    counts = job("chart").counts(spark, lake)
    assert {topic: sum(of_topic.values()) for topic, of_topic in counts.items()} == {
        "orders": 3000,
        "payments": 2000,
        "shipments": 1000,
    }
    drawn = job("chart").chart(counts)
    assert len(xml.etree.ElementTree.fromstring(drawn).findall("{*}polyline")) == 3
    assert drawn == (ROOT / "docs" / "messages-per-minute.svg").read_text("utf-8")


@pytest.mark.slow
def test_the_funnel_of_orders(spark: Any, job: Any, shop: str, tmp_path: Path):
    """Each order is in one session, with the step that it reached; of the last minutes some have not ended."""
    module = job("funnel")
    # Run as a program, its functions are sent to the workers by value, too.
    cloudpickle.register_pickle_by_value(module)
    run(module.funnel(spark, shop, maxOffsetsPerTrigger="400"), "funnel", tmp_path)
    found = {row["order"]: row for row in spark.table("funnel").collect()}
    assert len(found) == spark.table("funnel").count()
    for order, row in found.items():
        assert row["customer"] == f"c{order % 20}"
        shipped = order % 5 != 0 and order % 10 != 1
        assert row["reached"] == ("shipments" if shipped else "orders" if order % 5 == 0 else "payments")
    shipped = {order for order in range(300) if order % 5 != 0 and order % 10 != 1}
    assert shipped <= set(found)
    assert found[2]["seconds"] == 300


@pytest.mark.slow
def test_orders_meet_their_payments(spark: Any, job: Any, shop: str, tmp_path: Path):
    """Across topics; an order without a payment is a row once none can come any more."""
    joined = job("unpaid_orders").orders_with_payments(spark, shop, maxOffsetsPerTrigger="150")
    run(joined, "joined", tmp_path)
    found = {row["order"]: row["paid"] for row in spark.table("joined").collect()}
    assert {order for order, paid in found.items() if paid is None} <= {
        order for order in range(300) if order % 5 == 0 or order % 50 == 7
    }
    assert sum(paid is None for paid in found.values()) >= 30
    assert {order for order in range(300) if order % 5 and order % 50 != 7} <= set(found)


def test_late_orders_are_left_out_and_counted(spark: Any, job: Any, shop: str, tmp_path: Path):
    """A window that has closed takes no more orders, and the run says how many it left out."""
    late = job("late_orders")
    query = run(late.turnover(spark, shop, 5, maxOffsetsPerTrigger="60"), "turnover", tmp_path)
    assert late.too_late(query) == 1
    closed = {begin.minute: orders for begin, orders, _ in rows_of(spark.table("turnover"))}
    assert closed == {minute: 49 if minute == 20 else 50 for minute in sorted(closed)}
    assert len(closed) >= 4


def test_features_of_customers(spark: Any, job: Any, shop: str):
    """One row for each customer; the figures are those of the sample."""
    found = {row["customer"]: row for row in job("features").features(spark.newSession(), shop).collect()}
    assert len(found) == 20
    assert sum(row["orders"] for row in found.values()) == 300
    assert {row["gap_seconds"] for row in found.values()} == {240.0}
    assert found["c5"]["paid_share"] == 0
    assert found["c6"]["paid_share"] == 1


def test_turnover_in_sql_alone(spark: Any, shop: str):
    """The script runs as it is; the variable names the store."""
    text = (FOLDER / "turnover.sql").read_text("utf-8").replace("${store}", shop)
    session = spark.newSession()
    plain = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("--"))
    *definitions, query = filter(None, map(str.strip, plain.split(";")))
    try:
        for definition in definitions:
            session.sql(definition)
        rows = session.sql(query).collect()
    finally:
        session.sql("drop table if exists log")
    assert sum(row["orders"] for row in rows) == 300
    assert sum(row["unpaid"] for row in rows) == 60
    assert [row["turnover"] for row in rows] == sorted((row["turnover"] for row in rows), reverse=True)


@pytest.mark.slow
def test_the_notebook_runs(spark: Any, job: Any):
    """Its cells one after the other, as Jupyter runs them."""
    cells = json.loads((FOLDER / "shop.ipynb").read_text("utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert rows_of(names["per_topic"]) == [("orders", 300), ("payments", 240), ("shipments", 210)]
    assert len(names["best"].collect()) == 5
    assert names["lag"][0].records == 0
    assert len(names["customers"]) == 20

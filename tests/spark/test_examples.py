"""The jobs of ``examples/spark`` give the documented results."""

from __future__ import annotations

import importlib
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

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


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a frame."""
    return [tuple(row) for row in frame.collect()]


def test_every_job_is_in_the_list(job: Any):
    """With its arguments."""
    page = (FOLDER / "README.md").read_text("utf-8")
    jobs = {path.name for path in FOLDER.glob("*.py")} - {"session.py"}
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
    """However often it is run; order and bodies are those of that day."""
    for _ in range(2):
        job("replay_day").replay_day(spark, str(log.store), "orders", "2023-11-14", "orders-again")
    again = reput.table.read(log.store, topics=["orders-again"])["body"].to_pylist()
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

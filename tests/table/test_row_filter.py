"""The selection of records for rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reput.table
from reput.errors import ConfigError
from reput.table import QueueRange, is_user_topic
from written_log import START_MS, WrittenLog

TOPICS = (b"orders", b"payments", b"%RETRY%group", b"SCHEDULE_TOPIC_XXXX", "订单".encode())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of 200 records in five topics with three queues each, one record a second."""
    log = WrittenLog(tmp_path)
    for number in range(200):
        log.append(topic=TOPICS[number % 5], queue_id=number // 5 % 3, store_timestamp=START_MS + 1000 * number)
    return log.save()


def rows_of(store: Path, **options: Any) -> list[dict[str, Any]]:
    """Return the selected rows."""
    columns = ["topic", "queueId", "queueOffset", "storeTimestamp"]
    rows: list[dict[str, Any]] = reput.table.read(store, columns=columns, **options).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"topics": ["orders", "订单", "absent"]}, lambda row: row["topic"] in ("orders", "订单")),
        ({"topic_pattern": "orders|pay.*"}, lambda row: row["topic"] in ("orders", "payments")),
        ({"topic_pattern": "order"}, lambda row: False),
        ({"queues": [("orders", 1)]}, lambda row: (row["topic"], row["queueId"]) == ("orders", 1)),
        ({"queue_ids": [0, 2]}, lambda row: row["queueId"] in (0, 2)),
        ({"user_topics_only": True}, lambda row: row["topic"] in ("orders", "payments", "订单")),
        ({"queue_offset_min": 3, "queue_offset_until": 9}, lambda row: 3 <= row["queueOffset"] < 9),
        (
            {"queue_ranges": {("orders", 1): QueueRange(2, 5)}},
            lambda row: (row["topic"], row["queueId"]) != ("orders", 1) or 2 <= row["queueOffset"] < 5,
        ),
        (
            {"topics": ["orders"], "queue_ids": [1], "queue_offset_min": 4},
            lambda row: row["topic"] == "orders" and row["queueId"] == 1 and row["queueOffset"] >= 4,
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "rows",
)
def test_rows_are_those_that_the_condition_lets_pass(store: Path, options: dict[str, Any], condition: Any):
    """Each condition keeps the rows that fulfil it, in log order; several conditions must all hold."""
    assert rows_of(store, **options) == [row for row in rows_of(store) if condition(row)]


@pytest.mark.parametrize(("begin", "until"), [(None, 50), (50, None), (17, 18), (-9, 999), (199, 200), (300, None)])
def test_times_are_exact_whatever_is_pruned(store: Path, begin: int | None, until: int | None):
    """The first time is inclusive, the second exclusive."""
    options = {}
    if begin is not None:
        options["store_timestamp_min"] = START_MS + 1000 * begin
    if until is not None:
        options["store_timestamp_until"] = START_MS + 1000 * until
    expected = rows_of(store)[max(begin or 0, 0) : until]
    assert rows_of(store, **options) == expected


def test_a_clock_that_was_set_back_hides_no_record(tmp_path: Path):
    """The time of every record is compared if that is asked for; a search would pass over the later ones."""
    log = WrittenLog(tmp_path, 4 << 20)
    for number in range(3000):
        set_back = 3_600_000 if number >= 1500 else 0
        log.append(bytes(1024), store_timestamp=START_MS + 1000 * number - set_back)
    times = [row["storeTimestamp"].timestamp() * 1000 - START_MS for row in rows_of(log.save())]
    for begin, until in ((-1_000_000, 0), (None, 1_000_000), (100_000, 200_000)):
        options = {
            "any_store_timestamp_min": None if begin is None else START_MS + begin,
            "any_store_timestamp_until": START_MS + until,
        }
        wanted = [time for time in times if (begin is None or time >= begin) and time < until]
        assert len(rows_of(log.store, **options)) == len(wanted) > 0


def test_a_pattern_that_is_none_is_refused(store: Path):
    """The error has the pattern."""
    with pytest.raises(ConfigError, match=r"pattern='\('"):
        rows_of(store, topic_pattern="(")


@pytest.mark.parametrize(
    ("topic", "users"),
    [("orders", True), ("%RETRY%g", False), ("%DLQ%g", False), ("RMQ_SYS_TRANS_HALF_TOPIC", False), ("%LMQ%a", True)],
)
def test_topics_of_users_and_of_the_broker(topic: str, users: bool):
    """System topics, half messages, retries and dead letters belong to the broker."""
    assert is_user_topic(topic) is users

"""`reput query`. The golden tests compare its results with RocketMQ's."""

from __future__ import annotations

import base64
import json
import os

import pytest

import reput
from reput.cli import main
from reput.store.index.index_file import key_hash


@pytest.fixture
def rows(golden_read_only, broker_properties, capsys):
    """Return the rows of a query in one store, and check its exit code."""
    command = ["query", str(golden_read_only("basic-5.3") / "store"), "Meadow_orders-12", "common"]
    settings = ["--config", str(broker_properties("basic-5.3"))]

    def query(*options: object, code: int = 0) -> list[dict[str, object]]:
        assert main([*command, *settings, *map(str, options), "--format", "json"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return query


def test_messages_have_the_key(rows):
    """In the order of the log."""
    found = rows()
    assert found
    for row in found:
        assert "common" in row["properties"]["KEYS"].split(" ")
    offsets = [row["commit_log_offset"] for row in found]
    assert offsets == sorted(offsets)


def test_a_count_takes_the_newest(rows):
    """They are still in log order."""
    assert rows("--count", 2) == rows()[-2:]


@pytest.mark.slow
def test_times_bound_the_answer(rows):
    """Numbers and ISO 8601 alike; exit code 1 if nothing is left."""
    assert rows("--begin", "2020-01-01T00:00:00Z", "--end", "2100-01-01T00:00:00+01:00") == rows()
    assert rows("--begin", "2100-01-01T00:00:00Z", code=1) == []
    assert rows("--end", 1000, code=1) == []


def test_what_is_no_time_is_refused(golden_read_only, capsys):
    """By the option and the text."""
    assert main(["query", str(golden_read_only("basic-5.3") / "store"), "t", "k", "--begin", "yesterday"]) == 2
    error = capsys.readouterr().err
    assert "--begin" in error
    assert "yesterday" in error


def test_a_file_that_was_cut_short_is_an_error_only_for_what_it_held(golden, capsys):
    """Without any settings: the other files show the sizes."""
    store = golden("basic-5.3") / "store"
    path = sorted((store / "index").iterdir())[-1]
    first = path.read_bytes()
    os.truncate(path, 40 + 4 * 100 + 20 * 200)
    assert main(["query", str(store), "Meadow_orders-12", "common"]) == 3
    error = capsys.readouterr().err
    assert f"index file was cut short, or has other sizes than the settings say: path={path} size=4440" in error
    assert "5000000" not in error
    assert "reput rebuild STORE index" in error
    # A slot that leads to an existing entry.
    path.write_bytes(first[:4440])
    number, hash_of = next(
        (number, code)
        for number in range(199, 0, -1)
        for code in [int.from_bytes(first[440 + 20 * number :][:4], "big")]
        if int.from_bytes(first[40 + 4 * (code % 100) :][:4], "big") == number
    )
    offset = int.from_bytes(first[440 + 20 * number + 4 :][:8], "big")
    with reput.open(store, read_only=True) as opened:
        record = next(opened.records(offset))
        key = next(key for key in [*record.keys, record.uniq_key] if key and key_hash(record.topic, key) == hash_of)
    assert main(["query", str(store), record.topic, key]) == 0


@pytest.mark.slow
def test_messages_have_the_tags(golden_read_only, golden_listing, capsys):
    """All of RocketMQ 5.5, whose index has them; the newest are shown."""
    store = golden_read_only("basic-5.5") / "store"
    listed = [line for line in golden_listing("basic-5.5") if line["topic"] == "Orchid_orders-552"]
    tags = sorted({line["tags"] for line in listed if line["tags"]})
    assert len(tags) > 3
    for wanted in tags:
        expected = [line["physicalOffset"] for line in listed if line["tags"] == wanted][-20:]
        command = ["query", str(store), "Orchid_orders-552", "--tags", wanted, "--count", "20", "--format", "json"]
        assert main(command) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["commit_log_offset"] for row in rows] == expected


def test_an_index_without_tags_says_how_to_get_them(golden_read_only, capsys):
    """Instead of an empty result."""
    assert main(["query", str(golden_read_only("basic-5.3") / "store"), "Meadow_orders-12", "--tags", "TagA"]) == 2
    error = capsys.readouterr().err
    assert "the index of this store has no tags" in error
    assert "--change index_tags=true" in error
    assert "reput rebuild" in error


def test_what_asks_for_nothing_or_for_two_things_is_refused(golden_read_only, capsys):
    """A query has a key or tags."""
    for asked in ([], ["t", "k", "--tags", "t"]):
        assert main(["query", str(golden_read_only("basic-5.3") / "store"), *asked]) == 2
        assert "give either KEY or --tags" in capsys.readouterr().err


def test_a_message_id_needs_no_topic(golden_read_only, golden_listing, capsys):
    """It contains the position in the log; any other text needs a topic, as the error says."""
    wanted = golden_listing("basic-5.3")[7]
    store = str(golden_read_only("basic-5.3") / "store")
    assert main(["query", store, wanted["msgId"], "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["commit_log_offset"] == wanted["physicalOffset"]
    assert main(["query", store, "order-17"]) == 2
    assert "a query without a topic needs a message id: key='order-17'" in capsys.readouterr().err
    with reput.open(store, read_only=True) as opened:
        assert [record.body for record in opened.query(key=wanted["msgId"])] == [base64.b64decode(wanted["body"])]
        assert opened.query(key=wanted["msgId"], end=wanted["storeTimestamp"] - 1) == []

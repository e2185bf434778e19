"""`reput topic` on a store directory."""

from __future__ import annotations

import json

import pytest

import reput
from command_line import run_reput
from golden_sets import tree_digest
from reput.cli import main
from reput.store.config.topic_config_manager import TopicConfigManager

# Small sizes, so that comparing whole stores is fast.
SMALL = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 6000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


@pytest.fixture
def topic(capsys):
    """Run a verb of `reput topic` and return the printed rows."""

    def run(verb: str, *arguments: object, code: int = 0, json_rows: bool = True) -> list:
        options = ["--format", "json"] if json_rows else []
        assert main(["topic", verb, *map(str, arguments), *options]) == code
        lines = capsys.readouterr().out.splitlines()
        return [json.loads(line) for line in lines] if json_rows else lines

    return run


@pytest.fixture
def store(tmp_path):
    """A store with three messages in a topic without a description."""
    directory = tmp_path / "store"
    with reput.open(directory, mode="inline", **SMALL) as opened:
        for queue_id in (0, 0, 2):
            opened.put(reput.Message("orders", b"a", queue_id=queue_id))
    return directory


def test_topics_of_a_broker_are_shown(topic, golden_read_only, golden_queries):
    """With the broker's numbers; no byte changes."""
    store = golden_read_only("basic-5.3") / "store"
    described = TopicConfigManager(store)
    described.load()
    rows = {row["topic"]: row for row in topic("list", store)}
    assert described.entries.keys() <= rows.keys()
    name = "Meadow_orders-12"
    assert rows[name]["read_queue_nums"] == described.entries[name].read_queue_nums
    ends = {
        line["queueId"]: line["maxOffset"] for line in golden_queries("basic-5.3", "queue") if line["topic"] == name
    }
    shown = {row["queue_id"]: row["max_offset"] for row in topic("describe", store, name)}
    assert {queue_id: end for queue_id, end in shown.items() if end} == {id: end for id, end in ends.items() if end}


def test_a_topic_that_has_messages_is_there_though_nobody_described_it(topic, store):
    """With the queues that were put to, and none in between."""
    before = tree_digest(store)
    assert topic("list", store)[0]["write_queue_nums"] == 3
    rows = topic("describe", store, "orders")
    assert [(row["queue_id"], row["min_offset"], row["max_offset"]) for row in rows] == [(0, 0, 2), (2, 0, 1)]
    assert rows[0]["last_update_timestamp"] > 0
    assert tree_digest(store) == before


def test_a_topic_is_made_changed_and_deleted(topic, store):
    """Unspecified values stay unchanged."""
    topic("create", store, "drafts", "--queues", 4, json_rows=False)
    topic("update", store, "drafts", "--write-queues", 2, "--perm", 4, json_rows=False)
    row = next(row for row in topic("list", store) if row["topic"] == "drafts")
    assert (row["read_queue_nums"], row["write_queue_nums"], row["perm"]) == (4, 2, 4)
    topic("delete", store, "drafts", json_rows=False)
    assert [row["topic"] for row in topic("list", store)] == ["orders"]


@pytest.mark.processes
def test_a_topic_that_has_messages_is_deleted_with_them(store):
    """Its queues are removed, and its name can be used again; the store passes its check."""
    assert run_reput("topic", "delete", store, "orders").stdout == "deleted: orders\n"
    assert not (store / "consumequeue" / "orders").exists()
    assert not (store / "abort").exists()
    assert run_reput("get", store, "orders", 0, 0).code == 1
    assert run_reput("check", store).code == 0
    with reput.open(store, mode="inline", **SMALL) as opened:
        assert opened.put(reput.Message("orders", b"a")).queue_offset == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("describe", "STORE", "absent"), "absent"),
        (("update", "STORE", "absent", "--perm", "6"), "absent"),
        (("delete", "STORE", "absent"), "absent"),
        (("delete", "STORE", "SCHEDULE_TOPIC_XXXX"), "SCHEDULE_TOPIC_XXXX"),
        (("create", "STORE", "a b"), "illegal character"),
        (("create", "STORE", "x" * 128), "too long"),
        (("create", "STORE", "TBW102"), "TBW102"),
        (("create", "STORE", "drafts", "--queues", "0"), "--queues"),
        (("create", "STORE", "drafts", "--perm", "9"), "perm=9"),
        (("create", "STORE", "drafts", "--queues", "2147483648"), "2147483648"),
    ],
)
def test_a_wrong_request_is_refused(store, capsys, arguments, named):
    """Exit code 2; nothing is written."""
    before = tree_digest(store)
    assert main(["topic", *(str(store) if argument == "STORE" else argument for argument in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err
    assert tree_digest(store) == before


def test_a_store_that_is_open_keeps_its_topics_itself(store, capsys):
    """Reading is allowed."""
    with reput.open(store, mode="inline"):
        assert main(["topic", "create", str(store), "drafts"]) == 3
        assert "pid=" in capsys.readouterr().err
        assert main(["topic", "list", str(store)]) == 0

"""`reput group` on a store directory."""

from __future__ import annotations

import json

import pytest

import reput
from golden_sets import tree_digest
from reput.cli import main
from reput.errors import ConfigError
from reput.store.config.config_json import parse_config

# Small sizes, so that comparing whole stores is fast.
SMALL = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 6000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


@pytest.fixture
def group(capsys):
    """Run a verb of `reput group` and return the printed rows."""

    def run(verb: str, *arguments: object, code: int = 0, json_rows: bool = True) -> list:
        options = ["--format", "json"] if json_rows else []
        assert main(["group", verb, *map(str, arguments), *options]) == code
        lines = capsys.readouterr().out.splitlines()
        return [json.loads(line) for line in lines] if json_rows else lines

    return run


@pytest.fixture
def store(tmp_path):
    """A store of five messages, two of which group ``billing`` has consumed."""
    directory = tmp_path / "store"
    with reput.open(directory, mode="inline", **SMALL) as opened:
        for number in range(5):
            opened.put(reput.Message("orders", b"%d" % number))
        with opened.consumer("billing", "orders") as consumer:
            for _ in range(2):
                consumer.acknowledge(consumer.receive(20))
    return directory


def progress(rows: list) -> list:
    """Return the progress columns of a topic's queues."""
    return [(row["queue_id"], row["consumer_offset"], row["broker_offset"], row["lag"]) for row in rows]


def test_groups_of_a_broker_are_shown(group, golden_read_only):
    """With their committed offsets; no byte changes."""
    store = golden_read_only("delay-retry-5.3") / "store"
    table = parse_config((store / "config" / "consumerOffset.json").read_text())["offsetTable"]
    names = {row["group"] for row in group("list", store)}
    assert {key.rpartition("@")[2] for key in table} <= names
    rows = group("describe", store, "GID_Meadow_bad-12")
    assert {row["queue_id"]: row["consumer_offset"] for row in rows if row["topic"] == "Ember_work-12"} == table[
        "Ember_work-12@GID_Meadow_bad-12"
    ]


def test_a_group_is_described_by_its_lag(group, store):
    """With the store time of its last consumed message."""
    before = tree_digest(store)
    rows = [row for row in group("describe", store, "billing") if row["topic"] == "orders"]
    assert progress(rows) == [(0, 2, 5, 3)]
    assert rows[0]["last_timestamp"] > 0
    assert group("list", store)[0]["lag"] == 3
    assert tree_digest(store) == before


@pytest.mark.slow
def test_a_group_is_reset_and_goes_on_there(group, store):
    """To the beginning, to the end, to a time; the next program that opens the store sees it."""
    with reput.open(store, mode="inline") as opened:
        record = opened.get("orders", queue_offset=3, count_max=1)[0]
    assert progress(group("reset", store, "billing", "orders", "--to", "latest")) == [(0, 5, 5, 0)]
    assert progress(group("reset", store, "billing", "orders", "--to", "earliest")) == [(0, 0, 5, 5)]
    reset = group("reset", store, "billing", "orders", "--to", record.store_timestamp, "--queue-id", 0)
    assert 0 <= reset[0]["consumer_offset"] <= 3
    with reput.open(store, mode="inline") as opened, opened.consumer("billing", "orders") as consumer:
        assert consumer.receive(20).queue_offset == reset[0]["consumer_offset"]


def test_a_reset_beside_consumers_moves_them(store):
    """In the program that has the store open. An invalid position moves no group."""
    with reput.open(store, mode="inline") as opened, opened.consumer("billing", "orders") as consumer:
        assert consumer.receive(20).queue_offset == 2
        opened._engine.services.administration.reset_offsets("billing", "orders", "earliest")
        assert consumer.receive(20).queue_offset == 0
        opened._engine.services.keep()
        for wrong in ("erliest", None, True, -1):
            with pytest.raises(ConfigError, match="to="):
                opened._engine.services.administration.reset_offsets("billing", "orders", wrong)
        assert opened._engine.services.managers.offsets.query_offset("billing", "orders", 0) == 0


@pytest.mark.slow
def test_a_group_is_made_changed_and_deleted(group, store):
    """With its offsets, unless they are kept."""
    group("create", store, "audit", "--retry-max-times", 3, json_rows=False)
    group("update", store, "audit", "--no-consume", json_rows=False)
    row = next(row for row in group("list", store) if row["group"] == "audit")
    assert (row["retry_max_times"], row["consume_enable"], row["lag"]) == (3, False, None)
    group("delete", store, "audit", json_rows=False)
    group("delete", store, "billing", "--keep-offsets", json_rows=False)
    assert [row["group"] for row in group("list", store)] == ["billing"]
    group("delete", store, "billing", json_rows=False)
    assert group("list", store, code=1) == []


@pytest.mark.slow
def test_a_group_whose_messages_are_gone_is_cleaned(group, store):
    """A group that lags but has messages to read is kept, and so is one with consumers."""
    assert group("clean", store) == []
    path = store / "config" / "consumerOffset.json"
    path.write_text(path.read_text().replace('"orders@billing":{0:2', '"orders@billing":{0:2\n\t\t},"gone@dead":{0:-1'))
    with reput.open(store, mode="inline") as opened, opened.consumer("dead", "gone"):
        assert opened._engine.services.administration.clean_offsets() == []
    assert group("clean", store) == [{"group": "dead", "topic": "gone"}]
    assert {row["group"] for row in group("list", store) if row["topics"]} == {"billing"}


def test_offsets_of_what_is_no_topic_are_shown_like_any(group, store):
    """RocketMQ 4 stores whatever a client commits; one such entry hides none of the others."""
    path = store / "config" / "consumerOffset.json"
    odd = '"../../etc@billing":{0:1},"@billing":{0:1},"nothing":{-1:-5},"orders@audit":{7:9223372036854775807'
    path.write_text(path.read_text().replace('"orders@billing":{0:2', f'{odd}\n\t\t}},"orders@billing":{{0:2'))
    rows = {row["group"]: row for row in group("list", store)}
    assert rows.keys() == {"billing", "audit", "nothing"}
    assert rows["billing"]["lag"] == 3
    assert rows["audit"]["lag"] == 0
    assert {row["topic"] for row in group("describe", store, "billing")} == {"", "../../etc", "orders"}
    group("clean", store)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("describe", "STORE", "absent"), "absent"),
        (("update", "STORE", "absent", "--consume"), "absent"),
        (("delete", "STORE", "absent"), "absent"),
        (("create", "STORE", "a b"), "illegal character"),
        (("create", "STORE", "x" * 256), "too long"),
        (("create", "STORE", "audit", "--retry-max-times", "2147483648"), "2147483648"),
        (("reset", "STORE", "billing", "absent", "--to", "latest"), "absent"),
        (("reset", "STORE", "absent", "orders", "--to", "latest"), "absent"),
        (("reset", "STORE", "billing", "orders", "--to", "yesterday"), "--to=yesterday"),
        (("reset", "STORE", "billing", "orders", "--to", "latest", "--queue-id", "9"), "queue_id=9"),
    ],
)
def test_a_wrong_request_is_refused(store, capsys, arguments, named):
    """Exit code 2; nothing is written."""
    before = tree_digest(store)
    assert main(["group", *(str(store) if argument == "STORE" else argument for argument in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err
    assert tree_digest(store) == before

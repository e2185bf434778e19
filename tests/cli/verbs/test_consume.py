"""`reput consume` on a store directory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reput
from command_line import REPUT, run_reput
from reput.cli import main
from reput.cli.verbs.consume import Output
from reput.store.config.config_json import parse_config

TOPIC = "Meadow_orders-12"


@pytest.fixture
def consume(capsys):
    """Run a consume and return the printed rows."""

    def run(store: Path, *options: object, code: int = 0) -> list[dict[str, Any]]:
        assert main(["consume", str(store), *map(str, options), "--format", "json"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.mark.slow
def test_a_topic_is_printed_in_the_order_of_the_log(consume, golden_read_only, golden_listing):
    """Without a group nothing is changed; the fixture compares checksums."""
    expected = [line["physicalOffset"] for line in golden_listing("basic-5.3") if line["topic"] == TOPIC]
    store = golden_read_only("basic-5.3") / "store"
    assert [row["commit_log_offset"] for row in consume(store, TOPIC)] == expected
    assert [row["commit_log_offset"] for row in consume(store, TOPIC, "--count", 3)] == expected[:3]
    assert consume(store, TOPIC, "--from", "latest", code=1) == []
    assert consume(store, "absent", code=1) == []


def test_filters_choose(consume, golden_read_only):
    """By tag and by expression."""
    store = golden_read_only("basic-5.3") / "store"
    assert {row["properties"]["TAGS"] for row in consume(store, TOPIC, "--tags", "TagA||TagC")} == {"TagA", "TagC"}
    assert all(int(row["properties"]["a"]) > 3 for row in consume(store, TOPIC, "--sql", "a > 3"))


def test_a_time_begins_in_the_middle(consume, golden_read_only):
    """As a number or as text."""
    store = golden_read_only("basic-5.3") / "store"
    whole = consume(store, TOPIC)
    time = whole[50]["store_timestamp"]
    assert consume(store, TOPIC, "--from", time) == [row for row in whole if row["store_timestamp"] >= time]


@pytest.mark.slow
def test_a_group_reads_every_message_once(consume, golden):
    """It continues where it left off; --from only applies to queues without a committed offset."""
    store = golden("basic-5.3") / "store"
    whole = consume(store, TOPIC)
    first = consume(store, TOPIC, "--group", "billing", "--count", 30)
    rest = consume(store, TOPIC, "--group", "billing", "--from", "latest")
    assert first + rest == whole
    assert consume(store, TOPIC, "--group", "billing", code=1) == []
    assert consume(store, TOPIC, "--group", "audit", "--from", "latest", code=1) == []
    assert consume(store, TOPIC, "--group", "audit", code=1) == []
    table = parse_config((store / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert table[f"{TOPIC}@billing"] == table[f"{TOPIC}@audit"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--tags", "a", "--sql", "a > 1"), "--tags and --sql"),
        (("--group", "g", "--follow"), "--group and --follow"),
        (("--sql", "a >"), "position="),
        (("--from", "yesterday"), "--from=yesterday"),
        (("--count", "0"), "--count"),
        (("--group", "a b"), "illegal character"),
    ],
)
def test_a_wrong_request_is_refused(options, named, golden_read_only, capsys):
    """Exit code 2, with the name in the error, and advice."""
    assert main(["consume", str(golden_read_only("basic-5.3") / "store"), TOPIC, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err
    assert "--traceback" not in err


@pytest.mark.parametrize("topic", ["", "..", "../commitlog"])
def test_a_topic_that_leads_elsewhere_is_refused(topic, golden_read_only, capsys):
    """It is not treated as a topic without messages."""
    assert main(["consume", str(golden_read_only("basic-5.3") / "store"), topic]) == 2
    assert "TOPIC" in capsys.readouterr().err


def test_a_group_is_not_made_for_a_topic_that_is_not_there(consume, golden):
    """A mistyped name stores nothing."""
    store = golden("basic-5.3") / "store"
    before = (store / "config" / "subscriptionGroup.json").read_bytes()
    assert consume(store, "absent", "--group", "mistyped", code=1) == []
    assert (store / "config" / "subscriptionGroup.json").read_bytes() == before


def test_what_lies_before_a_damaged_record_is_printed_and_committed(consume, tmp_path, capsys):
    """Then the damage is reported; once an operator has accepted it, the group continues after it."""
    store = tmp_path / "store"
    with reput.open(store, mode="inline", mapped_file_size_commit_log=1 << 16) as opened:
        results = [opened.put(reput.Message("orders", b"%d" % number)) for number in range(10)]
    damaged = results[4]
    with (store / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(damaged.commit_log_offset + 4)
        segment.write(bytes(4))
    found = consume(store, "orders", "--group", "billing", code=3)
    assert [row["queue_offset"] for row in found] == [0, 1, 2, 3]
    assert consume(store, "orders", "--group", "billing", code=3) == []
    accepted = f"{damaged.commit_log_offset}..{damaged.next_commit_log_offset}"
    assert main(["repair", str(store), "--accept", accepted]) == 0
    capsys.readouterr()
    found = consume(store, "orders", "--group", "billing")
    assert [row["queue_offset"] for row in found] == [5, 6, 7, 8, 9]


WRITER = """
import sys, reput
with reput.open(sys.argv[1]) as store:
    for line in sys.stdin:
        store.put(reput.Message("orders", line.strip().encode()))
        print(flush=True)
"""


@pytest.mark.processes
def test_following_shows_what_another_process_writes(tmp_path):
    """Until Ctrl-C: exit code 130, and no traceback. A group on that store is refused, with the writer's process id."""
    store = tmp_path / "store"
    command = [sys.executable, "-c", WRITER, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None

        def put(text: str) -> None:
            writer.stdin.write(f"{text}\n")
            writer.stdin.flush()
            writer.stdout.readline()

        put("one")
        follow = [str(REPUT), "consume", str(store), "orders", "--follow", "--format", "json", "--body", "text"]
        with subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline())["body"] == "one"
            for text in ("two", "three"):
                put(text)
                assert json.loads(following.stdout.readline())["body"] == text
            refused = run_reput("consume", store, "orders", "--group", "g")
            assert refused.code == 3
            assert f"pid={writer.pid}" in refused.stderr
            following.send_signal(signal.SIGINT)
            _, error = following.communicate(timeout=60)
            assert following.returncode == 130
            assert "Traceback" not in error
        writer.communicate(timeout=60)
    assert writer.returncode == 0


class Offsets:
    """Offsets that are only recorded."""

    def __init__(self) -> None:
        self.commits: list[dict[int, int]] = []

    def commit(self, positions: dict[int, int]) -> None:
        self.commits.append(dict(positions))


class Reader:
    """A reader whose position is the number of records read."""

    def __init__(self) -> None:
        self.positions = {0: 0}

    def records(self, count: int, interrupted_at: int | None = None):
        for number in range(count):
            if number == interrupted_at:
                raise KeyboardInterrupt
            yield number
            self.acknowledge()

    def acknowledge(self) -> None:
        self.positions[0] += 1


class Printer:
    """A printer without output."""

    def record(self, record: int) -> None:
        pass


def test_offsets_are_committed_now_and_then_and_at_the_end():
    """The committed offset never includes a record that is still being printed."""
    reader, offsets = Reader(), Offsets()
    assert Output(reader, offsets, 0.0).print(reader.records(3), Printer(), 3) == 3
    assert offsets.commits == [{0: 0}, {0: 1}, {0: 3}]


def test_ctrl_c_keeps_what_was_printed():
    """The next run continues from there."""
    reader, offsets = Reader(), Offsets()
    with pytest.raises(KeyboardInterrupt):
        Output(reader, offsets, 60.0).print(reader.records(9, interrupted_at=4), Printer(), None)
    assert offsets.commits == [{0: 4}]


def test_without_a_group_nothing_is_committed():
    """There is no group to commit for."""
    reader = Reader()
    assert Output(reader, None, 0.0).print(reader.records(2), Printer(), 2) == 2

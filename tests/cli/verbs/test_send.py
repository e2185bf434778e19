"""`reput send` into a store directory."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import run_reput
from reput.cli import main
from reput.cli.verbs import send

pytestmark = pytest.mark.processes

SMALL = ("--set", "mappedFileSizeCommitLog=65536", "--set", "maxHashSlotNum=100", "--set", "maxIndexNum=400")


@pytest.fixture
def store(tmp_path) -> Path:
    """A path for a new store."""
    return tmp_path / "store"


def rows(*arguments: object, stdin: str = "") -> list[dict[str, Any]]:
    """Return the rows printed by a command, which must succeed."""
    ended = run_reput(*arguments, "--format", "json", stdin=stdin)
    assert ended.code == 0, ended.stderr
    return ended.rows()


def test_each_line_of_stdin_is_a_message(store):
    """It can be read by queue and by key as soon as `send` has ended; the rows have its position."""
    options = ("--tags", "paid", "--keys", "order-17 order-18", "--property", "k=v=w", "--queue-id", 2)
    sent = rows("send", store, "orders", *options, *SMALL, stdin="one\ntwo ü\n\n")
    assert [(row["status"], row["queue_id"], row["queue_offset"]) for row in sent] == [
        ("PUT_OK", 2, number) for number in range(3)
    ]
    found = rows("get", store, "orders", 2, 0, "--count", 9, "--body", "text")
    assert [row["body"] for row in found] == ["one", "two ü", ""]
    assert [row["message_id"] for row in found] == [row["message_id"] for row in sent]
    assert found[0]["properties"] == {"k": "v=w", "KEYS": "order-17 order-18", "TAGS": "paid"}
    assert [row["commit_log_offset"] for row in rows("query", store, "orders", "order-18")] == [
        row["commit_log_offset"] for row in sent
    ]


def test_messages_can_be_generated(store):
    """Of the requested size; the text output is a summary."""
    ended = run_reput("send", store, "orders", "--count", 3, "--size", 10, *SMALL)
    assert ended.code == 0
    assert ended.stdout.startswith(f"3 sent to orders in {store}: queue 0 from 0 to 2, commit-log offset 0 to ")
    assert [row["body"] for row in rows("dump", store, "--body", "text")] == ["0.........", "1.........", "2........."]


def test_what_was_stored_before_a_message_that_cannot_be_is_said(store):
    """The error is that of the message; the summary tells where to go on."""
    ended = run_reput("send", store, "orders", *SMALL, "--set", "maxMessageSize=20", stdin=f"one\ntwo\n{'x' * 30}\n")
    assert ended.code == 2
    assert "body is too long: body_size=30 max_message_size=20" in ended.stderr
    assert ended.stdout.startswith(f"2 sent to orders in {store}: queue 0 from 0 to 1, commit-log offset 0 to ")


def test_nothing_to_send_is_said():
    """It is not an error."""
    assert send.Sent().summary(Path("store"), "orders") == "nothing was sent"


@pytest.mark.parametrize("arguments", [("--delay-level", 3), ("--property", "DELAY=3")])
def test_a_delay_is_told(store, arguments):
    """For every way to request one."""
    ended = run_reput("send", store, "orders", "--count", 1, *arguments, *SMALL)
    assert ended.code == 0
    assert ended.stdout.startswith(f"1 sent to orders in {store}: queue 2 from 0 to 0, ")
    assert ended.stdout.endswith(", delay level 3\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("t/../t",), "t/../t"),
        (("t", "--count", "1", "--property", "DELAY=soon"), "DELAY='soon'"),
        (("t", "--count", "1", "--property", "DELAY=2", "--delay-level", "3"), "delay_level=3 DELAY='2'"),
        (("t", "--property", "novalue"), "novalue"),
        (("t", "--count", "many"), "--count"),
        (("t", "--count", "1", "--rate", "0"), "--rate"),
        (("t", "--tags", "a\x02b"), "TAGS"),
        (("t", "--set", "flushDiskType=NEVER"), "flushDiskType"),
    ],
)
def test_what_cannot_be_sent_makes_no_store(store, arguments, named, capsys):
    """Exit code 2, with the name in the error."""
    assert main(["send", str(store), *arguments]) == 2
    assert named in capsys.readouterr().err
    assert not store.exists()


def test_an_address_is_not_taken_for_a_directory(capsys, tmp_path, monkeypatch):
    """A store called 127.0.0.1:1 would be a mistake."""
    monkeypatch.chdir(tmp_path)
    # Nothing listens on the first port.
    assert main(["send", "127.0.0.1:1", "orders", "--count", "1"]) == 3
    assert "address=127.0.0.1:1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_person_is_told_how_to_end(monkeypatch, capsys):
    """If stdin is a terminal."""
    terminal = SimpleNamespace(isatty=lambda: True, buffer=io.BytesIO(b"a\r\nb"))
    monkeypatch.setattr(sys, "stdin", terminal)
    assert list(send.stdin_lines()) == [b"a", b"b"]
    assert "Ctrl-D" in capsys.readouterr().err


def test_a_rate_spaces_messages(monkeypatch):
    """Each is due at its number divided by the rate, however long the previous one took."""
    now = [100.0]
    waits = []

    class Waiting:
        def wait(self, seconds: float) -> None:
            waits.append(seconds)
            now[0] += seconds

    monkeypatch.setattr(send.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(send.threading, "Event", Waiting)
    bodies = []
    for body in send.paced(iter([b"a", b"b", b"c", b"d"]), 4.0):
        bodies.append(body)
        now[0] += 0.375 if body == b"b" else 0.0
    assert bodies == [b"a", b"b", b"c", b"d"]
    assert waits == [0.25, 0.125]
    assert list(send.paced(iter([b"a"]), None)) == [b"a"]


def test_json_rows_name_what_was_stored(store):
    """The fields of a put's result."""
    [row] = rows("send", store, "orders", "--count", 1, *SMALL)
    assert list(row) == [
        "status",
        "topic",
        "queue_id",
        "queue_offset",
        "commit_log_offset",
        "next_commit_log_offset",
        "record_size",
        "store_timestamp",
        "message_id",
    ]
    assert json.loads(json.dumps(row))["next_commit_log_offset"] == row["record_size"]


def test_what_is_sent_is_spread_over_a_topics_queues(store):
    """In turn, or by a sharding key; the text output has the offsets per queue."""
    assert run_reput("send", store, "orders", "--count", 1, *SMALL).code == 0
    assert run_reput("topic", "create", store, "invoices", "--queues", 2).code == 0
    ended = run_reput("send", store, "invoices", "--count", 5)
    assert f"5 sent to invoices in {store}: queue 0 from 0 to 2, queue 1 from 0 to 1, commit-log" in ended.stdout
    (row,) = rows("send", store, "invoices", "--count", 1, "--sharding-key", "a")
    assert row["queue_id"] == ord("a") % 2

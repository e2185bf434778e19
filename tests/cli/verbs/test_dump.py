"""`reput dump`: ranges, topics, counts, bodies. The golden tests compare its records with RocketMQ's."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from reput.cli import main


@pytest.fixture
def store(golden_read_only) -> Path:
    """A store with blanks."""
    return golden_read_only("basic-4.9") / "store"


@pytest.fixture
def rows(store, capsys):
    """Return the rows of a dump with these options."""

    def dump(*options: object, code: int = 0) -> list[dict[str, Any]]:
        assert main(["dump", str(store), "--format", "json", *map(str, options)]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return dump


@pytest.mark.slow
def test_a_range_is_a_part_of_the_whole(rows):
    """Rows that begin at or after --from and before --until."""
    whole = rows()
    begin, until = whole[100]["commit_log_offset"], whole[110]["commit_log_offset"]
    assert rows("--from", begin, "--until", until) == whole[100:110]
    assert rows("--from", begin + 1, "--until", until) == whole[101:110]
    assert rows("--from", 1 << 40) == []


@pytest.mark.slow
def test_a_topic_and_a_count_choose_records(rows):
    """Blanks belong to no topic."""
    whole = rows()
    topic = whole[0]["topic"]
    of_topic = [row for row in whole if row.get("topic") == topic]
    assert rows("--topic", topic) == of_topic
    assert rows("--topic", topic, "--count", 3) == of_topic[:3]
    assert rows("--topic", "absent") == []


def test_blanks_are_rows(rows):
    """With their size; the next record follows them."""
    whole = rows("--body", "none")
    number = next(number for number, row in enumerate(whole) if row["kind"] == "blank")
    blank, following = whole[number : number + 2]
    assert list(blank) == ["kind", "commit_log_offset", "size"]
    assert blank["commit_log_offset"] + blank["size"] == following["commit_log_offset"]


def test_bodies_are_shown_as_asked(rows):
    """As base64 by default, as text, or not at all."""
    encoded, text, none = (rows("--count", 20, *options) for options in ([], ["--body", "text"], ["--body", "none"]))
    assert [b64decode(row["body"]).decode("utf-8", "replace") for row in encoded] == [row["body"] for row in text]
    assert not any("body" in row for row in none)


@pytest.mark.slow
def test_people_see_a_line_for_each_row(store, capsys):
    """Offset and size first; a long body is shortened unless requested."""
    assert main(["dump", str(store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    blank = next(line for line in lines if line.endswith("  blank"))
    assert len(blank.split()) == 3
    assert lines[0].split()[0] == "0"
    assert main(["dump", str(store), "--body", "text"]) == 0
    assert max(map(len, lines)) < max(map(len, capsys.readouterr().out.splitlines()))


def test_damage_is_a_row_and_the_answer_no(golden_read_only, capsys):
    """The dump continues after it."""
    damaged = golden_read_only("damaged-4.9") / "clean-before" / "store"
    assert main(["dump", str(damaged), "--body", "none"]) == 1
    lines = capsys.readouterr().out.splitlines()
    number = next(number for number, line in enumerate(lines) if "damage: a CRC does not match" in line)
    assert 0 < number < len(lines) - 1


def test_an_offset_is_not_negative(store, capsys):
    """The error names the option."""
    assert main(["dump", str(store), "--from", "-1"]) == 2
    assert "--from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("view", "fields"),
    [
        ("consume_queue", ["topic", "queue_id", "queue_offset", "commit_log_offset", "record_size", "tags_code"]),
        ("consume_queue_ext", ["topic", "queue_id", "address", "tags_code", "store_timestamp", "filter_bit_map"]),
        ("index", ["file", "position", "key_hash", "commit_log_offset", "seconds", "previous"]),
    ],
)
def test_a_view_is_dumped_unit_by_unit(golden_read_only, view, fields, capsys):
    """As in its files; bit maps are base64."""
    store = str(golden_read_only("ext-4.9") / "store")
    assert main(["dump", store, "--view", view, "--count", "5", "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(row) for row in rows] == [fields] * 5
    assert main(["dump", store, "--view", view, "--count", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{fields[0]}={rows[0][fields[0]]}  {fields[1]}=")


def test_units_of_one_queue_are_its_records(rows):
    """In order."""
    [record] = rows("--count", 1)
    where = ("--topic", record["topic"], "--queue-id", record["queue_id"])
    units = rows("--view", "consume_queue", *where)
    records = [row for row in rows("--topic", record["topic"]) if row["queue_id"] == record["queue_id"]]
    assert [unit["commit_log_offset"] for unit in units] == [row["commit_log_offset"] for row in records]
    assert [unit["queue_offset"] for unit in units] == list(range(len(records)))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--view", "colour"), "colour"),
        (("--view", "index", "--topic", "t"), "topic='t'"),
        (("--view", "index", "--from", "0"), "--from does not go with --view: --from=0"),
        (("--view", "index", "--body", "none"), "--body does not go with --view"),
        (("--queue-id", "0"), "--queue-id does not go with a dump of the log: --queue-id=0"),
    ],
)
def test_options_that_do_not_go_together_are_refused(store, options, named, capsys):
    """By name, with exit code 2."""
    assert main(["dump", str(store), *options]) == 2
    assert named in capsys.readouterr().err

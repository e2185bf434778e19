"""Stores that RocketMQ wrote, through the `reput` command as typed by a user."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest

from command_line import run_reput, run_reput_process
from golden_sets import CLEAN_SETS, newest_of_each, tree_digest

pytestmark = pytest.mark.slow

UNIT_SIZE = 20
FIELDS = {
    "physicalOffset": "commit_log_offset",
    "size": "record_size",
    "magic": "magic_code",
    "topic": "topic",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "bornTimestamp": "born_timestamp",
    "bornHost": "born_host",
    "storeTimestamp": "store_timestamp",
    "storeHost": "store_host",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "bodyCRC": "body_crc",
    "body": "body",
    "properties": "properties",
    "msgId": "message_id",
}
# Fields only in the listing: the check of the body, and extracted properties.
FIELDS_OF_THE_LISTING = {"crcOk", "keys", "tags", "uniqKey"}


def short_host(host: str) -> str:
    """Return ``[2001:db8:0:0:0:0:17:11]:5000``, which is how Java writes it, as ``[2001:db8::17:11]:5000``."""
    address, _, port = host.rpartition(":")
    return f"[{ipaddress.ip_address(address[1:-1])}]:{port}" if address.startswith("[") else host


def expected_row(listed: dict[str, Any]) -> dict[str, Any]:
    """Return `dump`'s row for a line of the listing."""
    assert listed.keys() == FIELDS.keys() | FIELDS_OF_THE_LISTING
    row = {ours: listed[theirs] for theirs, ours in FIELDS.items()}
    row["born_host"] = short_host(row["born_host"])
    row["store_host"] = short_host(row["store_host"])
    row["properties"] = row["properties"] or {}
    row["body_crc"] &= 0xFFFFFFFF
    return {"kind": "record", **row}


def without_empty_properties(row: dict[str, Any]) -> dict[str, Any]:
    """Return *row* like RocketMQ's decoder, which omits properties with an empty value."""
    return {**row, "properties": {name: value for name, value in row["properties"].items() if value}}


def consume_queue_bytes(directory: Path) -> bytes:
    """Return the units of one queue, from all its files in order; no file is missing."""
    files = sorted(directory.iterdir())
    begin = int(files[0].name)
    data = b""
    for file in files:
        assert int(file.name) == begin + len(data)
        data += file.read_bytes()
    return data


def plain_units(data: bytes, count: int) -> list[bytes]:
    """Return the first *count* units; a tags code that is the address of an ext unit is left out."""
    units = [data[at : at + UNIT_SIZE] for at in range(0, count * UNIT_SIZE, UNIT_SIZE)]
    return [unit[:12] if is_ext_address(unit) else unit for unit in units]


def is_ext_address(unit: bytes) -> bool:
    """Tell whether the unit's tags code is the address of an ext unit."""
    return int.from_bytes(unit[12:], "big", signed=True) < -(2**31)


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_dump_shows_every_record_as_rocketmq_reads_it(golden_read_only, golden_listing, name):
    """Every field of every record, in log order, equals the output of RocketMQ's own decoder."""
    dumped = run_reput("dump", golden_read_only(name) / "store", "--format", "json")
    assert dumped.code == 0, dumped.stderr
    records = [without_empty_properties(row) for row in dumped.rows() if row["kind"] == "record"]
    assert records == [expected_row(line) for line in golden_listing(name)]


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_dump_shows_the_blanks_between_the_segments(golden_read_only, golden_about, name):
    """The rest of a segment that the writer skipped has its own row."""
    dumped = run_reput("dump", golden_read_only(name) / "store", "--format", "json", "--body", "none")
    blanks = [[row["commit_log_offset"], row["size"]] for row in dumped.rows() if row["kind"] == "blank"]
    assert blanks == golden_about(name)["listing"]["blanks"]


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_check_finds_every_view_equal_to_the_log(golden_read_only, golden_about, name):
    """A store that the broker closed is undamaged, and so are its views; its settings need not be given."""
    store = golden_read_only(name) / "store"
    checked = run_reput("check", store, "--format", "json")
    report = checked.report()
    assert report["damage"] == []
    # RocketMQ creates the ext files only if they are switched on.
    absent = set() if (store / "consumequeue_ext").exists() else {"consume_queue_ext"}
    states = {view: described["state"] for view, described in report["views"].items() if view not in absent}
    assert states == dict.fromkeys({"consume_queue", "consume_queue_ext", "index"} - absent, "equal")
    assert report["ok"] is True
    assert report["records"] == golden_about(name)["listing"]["records"]
    assert report["clean_shutdown"] is True
    assert checked.code == 0


@pytest.mark.parametrize("name", newest_of_each(CLEAN_SETS))
def test_rebuilt_views_are_the_ones_that_rocketmq_built(
    golden_read_only, golden_queries, broker_properties, tmp_path, name
):
    """Dispatcher processes rebuild queues and index: the bytes are RocketMQ's, and the store is not touched."""
    store, target = golden_read_only(name) / "store", tmp_path / "target"
    before = tree_digest(store)
    command = ("rebuild", store, "--target", target, "--config", broker_properties(name), "--format", "json")
    rebuilt = run_reput(*command)
    assert rebuilt.code == 0, rebuilt.stderr
    assert tree_digest(store) == before
    assert {"consume_queue", "index"} <= {row["view"] for row in rebuilt.rows()}

    queues = {f"{path.parent.name}/{path.name}" for path in (store / "consumequeue").glob("*/*")}
    assert {f"{path.parent.name}/{path.name}" for path in (target / "consumequeue").glob("*/*")} == queues
    end = {f"{line['topic']}/{line['queueId']}": line["maxOffset"] for line in golden_queries(name, "queue")}
    for queue in queues:
        theirs = consume_queue_bytes(store / "consumequeue" / queue)
        ours = consume_queue_bytes(target / "consumequeue" / queue)
        expected = plain_units(theirs, end[queue])
        found = [unit[: len(other)] for unit, other in zip(plain_units(ours, end[queue]), expected, strict=True)]
        assert found == expected, queue
        assert not ours[end[queue] * UNIT_SIZE :].strip(b"\0"), queue

    theirs_of_index = sorted((store / "index").iterdir())
    ours_of_index = sorted((target / "index").iterdir())
    assert len(ours_of_index) == len(theirs_of_index)
    for our_file, their_file in zip(ours_of_index, theirs_of_index, strict=True):
        assert our_file.read_bytes() == their_file.read_bytes(), their_file.name


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_status_of_a_store_that_nobody_has_open(golden_read_only, golden_about, name):
    """It shows the state on disk, and changes nothing."""
    shown = run_reput("status", golden_read_only(name) / "store", "--format", "json")
    writer = shown.report()["writer"]
    assert writer["state"] == "STOPPED"
    assert writer["appended"] == golden_about(name)["maxOffsetOfRealStore"]
    assert writer["pid"] is None


def spread(lines: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return *count* of *lines*, evenly spaced from the first to the last."""
    step = max(1, len(lines) // count)
    return lines[::step]


@pytest.mark.parametrize("name", newest_of_each(["basic-4.9", "basic-5.3", "direct-5.3"]))
def test_get_finds_what_rocketmq_finds(golden_read_only, golden_queries, name):
    """Messages by queue position; missing positions are not found."""
    lines = [
        line for line in golden_queries(name, "getMessage") if line["tags"] is None and None not in line["offsets"]
    ]
    for line in spread(lines, 12):
        store = golden_read_only(name) / "store"
        where = (line["topic"], line["queueId"], line["offset"])
        options = ("--count", line["maxMsgNums"], "--format", "json")
        found = run_reput("get", store, *options, "--", *where)
        # A broker returns a limited number at once; the command returns all requested ones.
        assert [row["commit_log_offset"] for row in found.rows()][: len(line["offsets"])] == line["offsets"], line
        assert found.code == (0 if line["offsets"] else 1)
    assert run_reput_process("get", store, *options, "--", *where) == found


@pytest.mark.parametrize("name", newest_of_each(["basic-4.9", "basic-5.3", "delay-retry-5.3"]))
def test_query_finds_what_rocketmq_finds(golden_read_only, golden_queries, name):
    """Messages by key, in the index's order; a missing key is exit code 1."""
    for line in spread(golden_queries(name, "queryMessage"), 12):
        store = golden_read_only(name) / "store"
        bounds = ("--begin", line["begin"], "--end", line["end"], "--count", line["maxNum"])
        arguments = ("query", store, *bounds, "--format", "json", "--", line["topic"], line["key"])
        found = run_reput(*arguments)
        assert [row["commit_log_offset"] for row in found.rows()] == line["offsets"], line
        assert found.code == (0 if line["offsets"] else 1)
    assert run_reput_process(*arguments) == found

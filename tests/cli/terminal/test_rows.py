"""Rows: the names, units and forms that scripts rely on."""

from __future__ import annotations

import pytest

from reput.cli.terminal.rows import Body, record_row, record_text, time_text
from reput_hooks import Record


@pytest.fixture
def record() -> Record:
    """A record with a value in every field."""
    return Record(
        commit_log_offset=4096,
        record_size=312,
        topic="orders",
        queue_id=3,
        queue_offset=17,
        flag=-1,
        sys_flag=16,
        magic_code=0xDAA320A7,
        born_timestamp=1795256886653,
        born_host="[::1]:5000",
        store_timestamp=1795256886654,
        store_host="127.0.0.1:10911",
        reconsume_times=1,
        prepared_transaction_offset=9,
        body_crc=0xFFFFFFFF,
        body=b"\xff\x00caf\xc3\xa9",
        properties={"TAGS": "paid", "KEYS": "order-17 b", "empty": ""},
        message_id="7F00000100002A9F0000000000001000",
    )


def test_a_record_is_a_row_of_promised_fields(record):
    """In this order, the body as base64, the magic code in hex, properties in stored order."""
    row = record_row(record)
    assert list(row.items()) == [
        ("commit_log_offset", 4096),
        ("record_size", 312),
        ("topic", "orders"),
        ("queue_id", 3),
        ("queue_offset", 17),
        ("flag", -1),
        ("sys_flag", 16),
        ("magic_code", "DAA320A7"),
        ("born_timestamp", 1795256886653),
        ("born_host", "[::1]:5000"),
        ("store_timestamp", 1795256886654),
        ("store_host", "127.0.0.1:10911"),
        ("reconsume_times", 1),
        ("prepared_transaction_offset", 9),
        ("body_crc", 4294967295),
        ("body", "/wBjYWbDqQ=="),
        ("properties", {"TAGS": "paid", "KEYS": "order-17 b", "empty": ""}),
        ("message_id", "7F00000100002A9F0000000000001000"),
    ]


def test_a_body_can_be_left_out_or_shown_as_text(record):
    """Invalid UTF-8 becomes replacement characters."""
    assert "body" not in record_row(record, Body.NONE)
    assert record_row(record, Body.TEXT)["body"] == "�\x00café"


def test_people_see_a_record_on_one_line(record):
    """Ambiguous values are quoted."""
    assert record_text(record_row(record, Body.TEXT)) == (
        "          4096       312  2026-11-21T10:28:06.654Z  orders 3@17  "
        'TAGS=paid  KEYS="order-17 b"  empty=""  "�\\u0000café"'
    )
    assert record_text(record_row(record, Body.NONE)).endswith('empty=""')


def test_a_long_body_is_shortened(record):
    """To the requested number of characters."""
    row = record_row(record, Body.BASE64)
    assert record_text(row, body_size_max=5).endswith("  /wBj…")
    assert record_text(row, body_size_max=12).endswith("  /wBjYWbDqQ==")


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1795256886654, "2026-11-21T10:28:06.654Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
    ],
)
def test_times_are_iso_8601_in_utc(timestamp: int, text: str):
    """A time out of range stays a number."""
    assert time_text(timestamp) == text

"""Ids that a client gives its messages."""

from __future__ import annotations

import datetime

from reput.consume.delivery.uniq_key import Month, new_uniq_key
from reput.store.record.record import encode_host


def test_ids_differ_and_name_the_host():
    """32 upper-case hex digits that begin with the address."""
    keys = {new_uniq_key(encode_host("192.0.2.1", 0)) for _ in range(1000)}
    assert len(keys) == 1000
    assert all(len(key) == 32 and key == key.upper() and key.startswith("C0000201") for key in keys)


def test_a_month_ends_where_the_next_begins():
    """Also a short one, and the last of a year."""
    for year, month in ((2024, 2), (2025, 12), (2026, 4)):
        found = Month.of(datetime.datetime(year, month, 15, 12).timestamp())
        following = Month.of(found.end)
        assert datetime.datetime.fromtimestamp(found.begin) == datetime.datetime(year, month, 1)
        assert following.begin == found.end
        assert Month.of(found.begin) == found

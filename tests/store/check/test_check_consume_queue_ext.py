"""Checking the ext units: invalid addresses, units of other records, missing bits."""

from __future__ import annotations

import re

import pytest

from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.ext.consume_queue_ext import ExtUnit, decode_unit, encode_unit

TOPIC = "Quartz_sql-11"


@pytest.fixture
def store(golden):
    """A store of RocketMQ with ext units and bit maps, to be damaged."""
    return golden("ext-4.9") / "store"


def ext_file(store):
    """Return the first file of the first queue with bit maps."""
    return store / "consumequeue_ext" / TOPIC / "0" / f"{0:020d}"


def change_first_unit(store, **fields):
    """Replace fields of the first unit of that file."""
    path = ext_file(store)
    data = path.read_bytes()
    unit = decode_unit(data)
    changed = ExtUnit(
        fields.get("tags_code", unit.tags_code),
        fields.get("store_timestamp", unit.store_timestamp),
        fields.get("filter_bit_map", unit.filter_bit_map),
    )
    path.write_bytes(encode_unit(changed) + data[changed.size :])
    return unit


def views(store):
    """Return a check's results for queues and ext units."""
    found = check_store(store, Settings()).views
    return found["consume_queue"], found["consume_queue_ext"]


@pytest.mark.parametrize("field", ["tags_code", "store_timestamp"])
def test_a_unit_of_another_record_is_a_difference(store, field):
    """Tags code and store time identify the record. The queue itself is right."""
    change_first_unit(store, **{field: 12345})
    queue, ext = views(store)
    assert (queue.state, ext.state, ext.difference_count) == ("equal", "different", 1)
    assert ext.differences[0].startswith(f"ext unit is of another record: topic={TOPIC} queue_id=0 queue_offset=0")


def test_a_bit_that_a_filter_needs_and_that_is_missing_is_a_difference(store):
    """A consumer with that filter would never get the message."""
    unit = change_first_unit(store)
    assert unit.filter_bit_map is not None
    assert any(unit.filter_bit_map)
    change_first_unit(store, filter_bit_map=bytes(len(unit.filter_bit_map)))
    _, ext = views(store)
    assert ext.state == "different"
    assert ext.differences[0].startswith("bit map lacks bits of filters that match")


def test_a_bit_that_no_known_filter_explains_is_counted(store):
    """A filter that was removed since may have set it. It only makes a reader check one more record."""
    unit = change_first_unit(store)
    change_first_unit(store, filter_bit_map=b"\xff" * len(unit.filter_bit_map))
    _, ext = views(store)
    missing = 8 * len(unit.filter_bit_map) - sum(byte.bit_count() for byte in unit.filter_bit_map)
    assert (ext.state, ext.unverified_count) == ("equal", missing)


def test_without_the_filters_no_bit_is_verified(store):
    """Addresses, tags codes and times still are."""
    (store / "config" / "consumerFilter.json").unlink()
    (store / "config" / "consumerFilter.json.bak").unlink(missing_ok=True)
    _, ext = views(store)
    assert ext.state == "equal"
    assert ext.unverified_count > 100
    (store / "config" / "consumerFilter.json").write_text('{"filterDataByTopic":{torn')
    assert views(store)[1].unverified_count == ext.unverified_count


def test_a_filter_that_was_born_after_the_records_proves_nothing(store):
    """Its bits may be missing or complete: both are right."""
    path = store / "config" / "consumerFilter.json"
    text = path.read_text("utf-8")
    path.write_text(re.sub(r'"bornTime":\d+', '"bornTime":1999999999999', text), "utf-8")
    _, ext = views(store)
    assert ext.state == "equal"
    assert ext.unverified_count > 100


def test_an_address_that_leads_nowhere_is_a_difference(store):
    """One file of a queue is missing: as many addresses as it had units."""
    ext_file(store).unlink()
    queue, ext = views(store)
    assert (queue.state, ext.state) == ("equal", "different")
    assert ext.differences[0].startswith(f"address leads to no ext unit: topic={TOPIC} queue_id=0 queue_offset=0")


def test_without_any_ext_file_the_addresses_are_unverified(store):
    """They only help filters, and readers work without them."""
    for path in sorted((store / "consumequeue_ext").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    queue, ext = views(store)
    assert (queue.state, ext.state) == ("equal", "absent")
    assert queue.unverified_count == 487

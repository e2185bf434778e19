"""MessageReader: what RocketMQ's own stores in ``tests/golden`` do not show of its answers."""

from __future__ import annotations

import reput
from reput.filter import BloomFilter, ConsumerFilter, ExpressionMessageFilter, parse


def test_an_expression_does_not_see_a_property_without_a_value(tmp_path):
    """RocketMQ's reader of properties drops it, so it is null there."""
    wanted = ConsumerFilter(
        consumer_group="group",
        topic="orders",
        sql_filter=parse("a IS NULL"),
        bloom_filter_data=None,
        born_time=0,
    )
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=4096) as store:
        for value in ("1", ""):
            result = store.put(reput.Message("orders", value.encode(), properties={"a": value, "b": "2"}))
        store.wait_for("consume_queue", result.next_commit_log_offset, timeout=60)
        message_filter = ExpressionMessageFilter(wanted, BloomFilter(20, 32))
        found = store.reader.get_message("orders", 0, 0, message_filter=message_filter)
        assert [record.properties for record in found] == [{"a": "", "b": "2"}]

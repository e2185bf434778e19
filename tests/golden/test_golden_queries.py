"""The real store's answers to getMessage and queryMessage, compared with `reput.open` on the same store."""

from __future__ import annotations

import pytest

import reput
from golden_sets import CLEAN_SETS
from reput.store.reader.results import BoundaryType


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_get_answers_as_the_real_store(golden_read_only, golden_queries, broker_properties, name):
    """Status, messages, next offset and the queue's bounds, with and without tags.

    RocketMQ ends a large transfer early; reput returns as many as requested.
    """
    with reput.open(golden_read_only(name) / "store", read_only=True, config=broker_properties(name)) as store:
        for line in golden_queries(name, "getMessage"):
            asked = (line["topic"], line["queueId"], line["offset"], line["maxMsgNums"])
            found = store.get(*asked, tags=line["tags"])
            offsets = [record.commit_log_offset for record in found.records]
            assert found.status.value == line["status"], line
            assert offsets[: len(line["offsets"])] == line["offsets"], line
            assert (found.queue_offset_min, found.queue_offset_max) == (line["minOffset"], line["maxOffset"]), line
            if line["status"] == "NO_MATCHED_MESSAGE":
                # RocketMQ stops at the end of a queue's file, and the consumer asks again.
                assert found.next_queue_offset >= line["nextBeginOffset"], line
            elif len(offsets) == len(line["offsets"]):
                assert found.next_queue_offset == line["nextBeginOffset"], line


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_query_answers_as_the_real_store(golden_read_only, golden_queries, broker_properties, name):
    """Messages by key, in RocketMQ's order."""
    with reput.open(golden_read_only(name) / "store", read_only=True, config=broker_properties(name)) as store:
        for line in golden_queries(name, "queryMessage"):
            bounds = {"begin": line["begin"], "end": line["end"]}
            found = store.query(line["topic"], line["key"], line["maxNum"], **bounds)
            assert [record.commit_log_offset for record in found] == line["offsets"], line


@pytest.mark.slow
@pytest.mark.parametrize("name", CLEAN_SETS)
def test_offset_by_time_answers_as_the_real_store(golden_read_only, golden_queries, broker_properties, name):
    """Every answer: by the boundaries of 5.x, and by the nearest message as in 4.x, which has no boundaries."""
    unnamed = BoundaryType.NEAREST if name.endswith("4.9") else BoundaryType.LOWER
    with reput.open(golden_read_only(name) / "store", read_only=True, config=broker_properties(name)) as store:
        for line in golden_queries(name, "offsetByTime"):
            boundary = BoundaryType(line["boundary"]) if line["boundary"] else unnamed
            found = store._engine.reader.offset_by_time(line["topic"], line["queueId"], line["time"], boundary)
            assert found == line["offset"], line

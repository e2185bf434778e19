"""Crashed, damaged and trimmed stores opened for writing: what readers get afterwards.

They are compared with the real store's answers on a copy of each, line by line. Differences come from behaviour of
RocketMQ that reput does not repeat; each has its reason here, with the number of lines.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import reput
from reput.store.reader.results import BoundaryType
from reput.store.recovery.repair import cut

WAIT_S = 60.0
HEADLESS = ("Cobalt_orders-11", 0)
TORN_AT = 169476

# A unit with offset 0 whose record is gone with the log's head: RocketMQ counts it in the queue's minimum, and returns
# another message's bytes.
OLD_UNIT = "a unit at offset 0"
# A record torn in its properties: RocketMQ keeps it, with zeros in it and under its former keys.
TORN_RECORD = "a torn record is kept"
# Abnormal recovery dispatches the last record again, so its keys are there twice.
TWICE = "keys are there twice"
# Abnormal recovery drops the partial index file and dispatches again from a later segment: keys in between are lost.
LOST_KEYS = "keys are lost"

# The index keeps the entries of records beyond the cut, and they count towards the requested number.
CUT_KEYS = "keys of cut records count"

PARTS: dict[str, dict[str, int]] = {
    "aged-4.9/head-before": {OLD_UNIT: 17},
    "aged-4.9/head-after": {OLD_UNIT: 17},
    "aged-4.9/rebuilt-before": {},
    "aged-4.9/rebuilt-after": {},
    "aged-5.3/head-before": {},
    "aged-5.3/head-after": {},
    "aged-5.3/rebuilt-before": {},
    "aged-5.3/rebuilt-after": {},
    "crash-5.3/before": {TWICE: 10},
    "crash-5.3/after": {TWICE: 10},
    "crash-5.3/lost-before": {},
    "crash-5.3/lost-after": {},
    "crash-5.3/torn-before": {LOST_KEYS: 9},
    "crash-5.3/torn-after": {LOST_KEYS: 9},
    "crash-5.3/soft-before": {TORN_RECORD: 38},
    "crash-5.3/soft-after": {LOST_KEYS: 10},
    "damaged-4.9/clean-before": {CUT_KEYS: 1},
    "damaged-4.9/clean-after": {CUT_KEYS: 1},
    "damaged-4.9/abort-before": {TWICE: 1},
    "damaged-4.9/abort-after": {TWICE: 1},
}


def asked(root: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the questions of one kind with the real store's answers."""
    for line in (root / "queries.jsonl").read_text().splitlines():
        question = json.loads(line)
        if question["q"] == kind:
            yield question


def differences(store: reput.Store, root: Path, is_4: bool) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each question with a different answer, and reput's answer."""
    for line in asked(root, "commitLog"):
        bounds = (store._engine.writer.commit_log_offset_min, store.appended)
        if bounds != (line["minOffset"], line["maxOffset"]):
            yield line, bounds
    for line in asked(root, "queue"):
        found = store.queue_range(line["topic"], line["queueId"])
        if found != (line["minOffset"], line["maxOffset"]):
            yield line, found
    for line in asked(root, "getMessage"):
        got = store.get(line["topic"], line["queueId"], line["offset"], line["maxMsgNums"], tags=line["tags"])
        offsets = [record.commit_log_offset for record in got]
        answer = (got.status.value, offsets[: len(line["offsets"])], got.queue_offset_min, got.queue_offset_max)
        if answer != (line["status"], line["offsets"], line["minOffset"], line["maxOffset"]):
            yield line, offsets
    for line in asked(root, "queryMessage"):
        found = store.query(line["topic"], line["key"], line["maxNum"], begin=line["begin"], end=line["end"])
        offsets = [record.commit_log_offset for record in found]
        if offsets != line["offsets"]:
            yield line, offsets
    # RocketMQ 4 uses the modification times of the queues' files, which are the present here.
    for line in () if is_4 else asked(root, "offsetByTime"):
        boundary = BoundaryType(line["boundary"]) if line["boundary"] else BoundaryType.LOWER
        offset = store._engine.reader.offset_by_time(line["topic"], line["queueId"], line["time"], boundary)
        if offset != line["offset"]:
            yield line, offset


def reason(name: str, line: dict[str, Any], found: Any) -> str | None:
    """Return why reput answers differently; None: it should not."""
    if name.startswith("aged-4.9/head"):
        return OLD_UNIT if (line["topic"], line["queueId"]) == HEADLESS and line["minOffset"] == 0 else None
    if name == "crash-5.3/soft-before":
        # If the log ends before that record, RocketMQ's answers end after it.
        return TORN_RECORD
    if line["q"] != "queryMessage":
        return None
    once = list(dict.fromkeys(line["offsets"]))
    if len(once) < len(line["offsets"]) and found[-len(once) :] == once:
        return TWICE
    if name.startswith("damaged-4.9/clean") and found[-len(once) :] == once:
        return CUT_KEYS
    if name.startswith("crash-5.3/") and set(once) < set(found):
        return LOST_KEYS
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_what_readers_get_after_a_recovery(golden, broker_properties, name):
    """As from the real store, except for its mistakes. No key or unit is lost that the log still has."""
    set_name, _, part = name.partition("/")
    root = golden(set_name) / part
    directory = root / "store"
    config = broker_properties(set_name)
    if set_name == "damaged-4.9":
        # RocketMQ itself ends the log before the first damaged record; here an operator must decide that.
        cut(directory, 660987)
    with reput.open(directory, mode="inline", config=config) as store:
        for view in store.settings.dispatchers:
            store.wait_for(view, store.appended, WAIT_S)
        reasons = collections.Counter()
        for line, found in differences(store, root, set_name.endswith("4.9")):
            why = reason(name, line, found)
            assert why is not None, (line, found)
            reasons[why] += 1
    assert reasons == PARTS[name]

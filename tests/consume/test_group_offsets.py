"""GroupOffsets: one writer of a store's consumerOffset.json."""

from __future__ import annotations

import subprocess
import sys

import pytest

from reput.consume import GroupOffsets
from reput.errors import DamagedStore, StoreLocked
from reput.settings import Settings
from reput.store.config_json import parse_config
from reput.store.store_lock import StoreLock

GROUP = "GID_Meadow_bad-12"
TOPIC = "Ember_work-12"


@pytest.fixture
def store(golden):
    """A copy of a store whose groups have consumed something."""
    return golden("delay-retry-5.3") / "store"


def test_a_group_goes_on_where_a_broker_left_it(store):
    """Other groups and topics keep what they had."""
    before = parse_config((store / "config" / "consumerOffset.json").read_text())
    with GroupOffsets(store, GROUP, TOPIC, Settings()) as offsets:
        assert offsets.next_queue_offset(0) == 15
        assert offsets.next_queue_offset(9) is None
        offsets.commit({0: 16, 9: 2})
    with GroupOffsets(store, GROUP, TOPIC, Settings()) as offsets:
        assert offsets.next_queue_offset(0) == 16
        assert offsets.next_queue_offset(9) == 2
    after = parse_config((store / "config" / "consumerOffset.json").read_text())
    before["offsetTable"][f"{TOPIC}@{GROUP}"] = {0: 16, 1: 15, 9: 2}
    assert after == before


def test_a_broker_with_light_queues_has_another_file(golden):
    """The one that it reads itself."""
    store = golden("lmq-5.3") / "store"
    with GroupOffsets(store, "%LMQ%cid", "%LMQ%t", Settings(enable_lmq=True)) as offsets:
        offsets.commit({0: 3})
    fields = parse_config((store / "config" / "lmqConsumerOffset.json").read_text())
    assert fields["lmqOffsetTable"] == {"%LMQ%t@%LMQ%cid": 3}
    assert not (store / "config" / "consumerOffset.json").exists()


def test_offsets_have_one_writer(store):
    """Whoever writes the store keeps them in memory, and would overwrite ours."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from reput.store.store_lock import StoreLock\n"
        "lock = StoreLock(Path(sys.argv[1]))\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreLocked):
            GroupOffsets(store, GROUP, TOPIC, Settings())
        holder.communicate(timeout=60)
    with GroupOffsets(store, GROUP, TOPIC, Settings()):
        pass


def test_torn_offsets_leave_no_lock_behind(store):
    """Neither the file nor its backup can be read."""
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store / "config" / name).write_text("{")
    with pytest.raises(DamagedStore):
        GroupOffsets(store, GROUP, TOPIC, Settings())
    StoreLock(store).close()

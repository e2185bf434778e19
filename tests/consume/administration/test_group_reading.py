"""GroupReading: a group reads a store that no program has open."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

import pytest

from reput.consume.administration.group_reading import GroupReading
from reput.consume.administration.stopped_store import StoppedStore
from reput.consume.registry.subscription import subscribe
from reput.embedded.read_only_engine import ReadOnlyEngine
from reput.errors import DamagedStore, RequestRefused, StoreLocked
from reput.remoting.response_code import ResponseCode
from reput.settings import Settings
from reput.store.config.config_json import parse_config
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig
from reput.store.state.store_lock import StoreLock


@contextmanager
def reading(directory, group, topic, settings):
    """Read *topic* for *group*."""
    with ReadOnlyEngine(directory, settings) as store, GroupReading(directory, store, group, subscribe(topic)) as found:
        yield found


GROUP = "GID_Meadow_bad-12"
TOPIC = "Ember_work-12"


@pytest.fixture
def store(golden):
    """A copy of a store whose groups have committed offsets."""
    return golden("delay-retry-5.3") / "store"


def test_a_group_goes_on_where_a_broker_left_it(store):
    """Other groups and topics keep their offsets."""
    before = parse_config((store / "config" / "consumerOffset.json").read_text())
    with reading(store, GROUP, TOPIC, Settings()) as offsets:
        assert offsets.next_queue_offset(0) == 15
        assert offsets.next_queue_offset(9) is None
        offsets.commit({0: 16, 9: 2})
    with reading(store, GROUP, TOPIC, Settings()) as offsets:
        assert offsets.next_queue_offset(0) == 16
        assert offsets.next_queue_offset(9) == 2
    after = parse_config((store / "config" / "consumerOffset.json").read_text())
    before["offsetTable"][f"{TOPIC}@{GROUP}"] = {0: 16, 1: 15, 9: 2}
    assert after == before


def test_a_broker_with_light_queues_has_another_file(golden):
    """reput reads and writes the same file."""
    store = golden("lmq-5.3") / "store"
    with reading(store, "%LMQ%cid", "%LMQ%t", Settings(enable_lmq=True)) as offsets:
        offsets.commit({0: 3})
    fields = parse_config((store / "config" / "lmqConsumerOffset.json").read_text())
    assert fields["lmqOffsetTable"] == {"%LMQ%t@%LMQ%cid": 3}
    assert not (store / "config" / "consumerOffset.json").exists()


@pytest.mark.slow
def test_offsets_have_one_writer(store):
    """The process that writes the store keeps them in memory, and would overwrite ours."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from reput.store.state.store_lock import StoreLock\n"
        "lock = StoreLock(Path(sys.argv[1]))\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreLocked), reading(store, GROUP, TOPIC, Settings()):
            pass
        holder.communicate(timeout=60)
    with reading(store, GROUP, TOPIC, Settings()):
        pass


def test_torn_offsets_leave_no_lock_behind(store):
    """Neither the file nor its backup can be read."""
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store / "config" / name).write_text("{")
    with pytest.raises(DamagedStore), reading(store, GROUP, TOPIC, Settings()):
        pass
    StoreLock(store).close()


def test_a_group_that_may_not_consume_reads_nothing(store):
    """The same holds for a missing group that may not be created; no lock is left behind."""
    with ReadOnlyEngine(store, Settings()) as opened, StoppedStore(store, opened) as stopped:
        stopped.administration.update_group(SubscriptionGroupConfig(group_name=GROUP, consume_enable=False))
    with reading(store, GROUP, TOPIC, Settings()) as found, pytest.raises(RequestRefused) as refused:
        found.get(TOPIC)
    assert refused.value.response_code == ResponseCode.NO_PERMISSION
    strict = Settings(auto_create_subscription_group=False)
    with pytest.raises(RequestRefused), reading(store, "stranger", TOPIC, strict):
        pass
    StoreLock(store).close()

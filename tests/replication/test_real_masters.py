"""RocketMQ's own brokers as masters: copies are the same bytes, live and after kills, and nothing changes there."""

from __future__ import annotations

import json

import pytest

import reput
from interop.java_program import VERSIONS
from replication.copies import SEGMENT, assert_same_log, following, reaches, send
from reput.replication.master_requests import MasterRequests

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow]

SETTINGS = {"mappedFileSizeCommitLog": SEGMENT}


def master_end(broker) -> int:
    """Return where a broker's log ends."""
    return MasterRequests(f"127.0.0.1:{broker.port}").describe_when_started().offset_end


@pytest.mark.parametrize(
    "version",
    [VERSIONS[1], *(pytest.param(other, marks=pytest.mark.long) for other in VERSIONS if other != VERSIONS[1])],
)
def test_a_running_rocketmq_is_copied_byte_for_byte_and_read_here(real_broker, tmp_path, version):
    """The log with its blanks, then live; topics and groups come along; the master and its routes stay as they are."""
    broker = real_broker(version, settings=SETTINGS)
    send(broker.name_server, "orders", 1500)
    address, copy = f"127.0.0.1:{broker.port + 1}", tmp_path / "copy"
    routes = broker.names.brokers()
    with following(address, copy) as store:
        reaches(store, master_end(broker))
        send(broker.name_server, "orders", 300, begin=1500)
        reaches(store, master_end(broker))
        store.wait_for("consume_queue", store.appended, 30)
        found = [record for queue in range(4) for record in store.get("orders", queue, 0, count_max=5000)]
        assert sorted(int(record.body.split()[0]) for record in found) == list(range(1800))
        with pytest.raises(reput.StoreReadOnly, match="follows a master"):
            store.put(reput.Message("orders", b"x"))
        end = store.durable
        assert end > SEGMENT
        assert "orders" in json.loads((copy / "config" / "topics.json").read_text())["topicConfigTable"]
    assert_same_log(broker.directory, copy, 0, end)
    assert broker.names.brokers() == routes


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_a_copy_goes_on_with_a_master_that_was_killed(real_broker, tmp_path, version):
    """Killed under load and started again, the master has what its pages held; so does the copy, which reconnects."""
    broker = real_broker(version, settings=SETTINGS)
    address, copy = f"127.0.0.1:{broker.port + 1}", tmp_path / "copy"
    send(broker.name_server, "orders", 50)
    with following(address, copy) as store:
        for round in range(3):
            send(broker.name_server, "orders", 300, begin=50 + 300 * round)
            broker.kill()
            broker.launch()
        send(broker.name_server, "orders", 100, begin=950)
        reaches(store, master_end(broker))
        end = store.durable
    assert_same_log(broker.directory, copy, 0, end)

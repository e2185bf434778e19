"""RocketMQ's own brokers as masters: copies are the same bytes, live and after kills, and nothing changes there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import reput
from interop.clients.brokers import Launched, free_port, write_logging, write_properties
from interop.java_program import VERSIONS, java_command
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


def controller(version: str, home: Path) -> str:
    """Run RocketMQ's controller until the test ends; return its address, which answers a moment later."""
    home.mkdir()
    write_logging(home)
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "controllerDLegerGroup": "group",
        "controllerDLegerPeers": f"n0-{address}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": home / "store",
    }
    configuration = write_properties(home / "controller.properties", settings)
    main = "org.apache.rocketmq.controller.ControllerStartup"
    command = java_command(version, home, main, f"-Drocketmq.home.dir={home}")
    Launched([*command, "-c", str(configuration)], home / "controller.log")
    return address


@pytest.mark.long
@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= "5"])
def test_a_master_in_controller_mode_is_refused_by_name(real_broker, tmp_path, version):
    """Its HA port has other frames: a copy of it would be none. Nothing is written for it."""
    settings = {"enableControllerMode": "true", "controllerAddr": controller(version, tmp_path / "controller")}
    broker = real_broker(version, settings={**SETTINGS, **settings})
    send(broker.name_server, "orders", 50)
    with pytest.raises(reput.FollowError, match="controller mode, which has other frames on the HA port"):
        reput.follow(f"127.0.0.1:{broker.port + 1}", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_a_master_with_dledger_is_refused_by_name(real_broker, tmp_path, version):
    """It has no HA port, and its records lie in entries of another log. Nothing is written for it."""
    peer = free_port()
    settings = {"enableDLegerCommitLog": "true", "dLegerGroup": "broker-a", "dLegerSelfId": "n0"}
    broker = real_broker(version, settings={**SETTINGS, **settings, "dLegerPeers": f"n0-127.0.0.1:{peer}"})
    with pytest.raises(reput.FollowError, match="DLedger, which has no HA port"):
        reput.follow(f"127.0.0.1:{broker.port + 1}", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()

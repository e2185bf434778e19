"""RocketMQ's own slaves at `reput serve`: they reach the end, their files are ours, and clients go on reading there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from delivering import wait_until
from interop.clients.brokers import GET_BROKER_CLUSTER_INFO, NameServer, ReputBroker, ask, free_port
from interop.clients.java_clients import run_java
from interop.java_program import VERSIONS
from replication.copies import SEGMENT, assert_same_log, kill_whole, send
from reput.errors import BrokerError
from reput.replication.master_requests import MasterRequests

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow, pytest.mark.long]

SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "mappedFileSizeCommitLog": SEGMENT, "slaveReadEnable": "true"}


def end_of(port: int) -> int:
    """Return where a broker's log ends; -1: it does not say yet."""
    try:
        return MasterRequests(f"127.0.0.1:{port}").bounds()[1]
    except BrokerError:
        return -1


class OurNames:
    """The name server in a `reput serve` of its own: that of the master would go with it."""

    def __init__(self, home: Path) -> None:
        self.address = ReputBroker(home, {"autoCreateTopicEnable": "false", "brokerName": "names"}).name_server

    def wait(self) -> None:
        """It answers."""

    def brokers(self) -> bytes:
        """Return the names and addresses of the brokers that it knows."""
        return ask(self.address, GET_BROKER_CLUSTER_INFO)


@pytest.mark.parametrize("whose", ["rocketmq", "reput"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_slave_of_rocketmq_copies_reput_serve_and_consumers_read_on_from_it(real_broker, tmp_path, version, whose):
    """Empty at first, then live, then killed inside a record; when our master is killed, a consumer reads from it.

    Slave, master and consumer find each other by a name server of RocketMQ's or of ours.
    """
    if whose == "rocketmq":
        names: Any = NameServer(version, tmp_path / "names").wait()
    else:
        names = OurNames(tmp_path / "names")
    # Slaves ask for topics two ports below that of clients, which a broker on any free port does not have.
    settings = {"mappedFileSizeCommitLog": SEGMENT}
    master = ReputBroker(tmp_path / "master", settings, name_server=names.address, port=free_port())
    send(names.address, "orders", 1500)
    slave = real_broker(version, "slave", SLAVE, names)
    wait_until(lambda: end_of(slave.port) == end_of(master.port) > SEGMENT)
    for round in range(2):
        send(names.address, "orders", 500, begin=1500 + 500 * round)
        slave.kill()
        slave.launch()
    end = end_of(master.port)
    wait_until(lambda: end_of(slave.port) == end)
    assert_same_log(master.directory, slave.directory, 0, end)
    # RocketMQ 5 asks for them a minute after its start.
    topics = slave.directory / "config" / "topics.json"
    with contextlib.suppress(AssertionError):
        wait_until(lambda: topics.exists() and "orders" in topics.read_text())
    wait_until(lambda: topics.exists() and "orders" in topics.read_text())
    kill_whole(master)
    taken = run_java(version, tmp_path / "clients", names.address, "take=orders:readers:2500")["take"]
    assert not taken.error, taken.error
    assert len(taken.lines) == 2500

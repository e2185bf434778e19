"""Fail-over by a lease in etcd: real processes, killed, stopped and cut off; what was acknowledged is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import reput
from delivering import wait_until
from replication.leases import Etcd, LeaseNode, Producer, needs_etcd
from reput.remoting.response_code import ResponseCode
from reput.replication.master_requests import MasterRequests

pytestmark = [pytest.mark.processes, pytest.mark.slow, needs_etcd]


@pytest.fixture
def etcd(tmp_path: Path, ending: None) -> Iterator[Etcd]:
    """An empty etcd."""
    return Etcd(tmp_path / "etcd")


def stored(directory: Path) -> list[int]:
    """Return the numbers in the log of a stopped node."""
    with reput.open(directory, read_only=True) as store:
        return [int(record.body) for record in store.records(0) if record.topic == "orders"]


def assert_kept(directory: Path, producer: Producer) -> None:
    """Each acknowledged number is there, each once, in the order in which they were sent."""
    producer.close()
    numbers = stored(directory)
    assert set(producer.acknowledged) <= set(numbers)
    assert numbers == sorted(set(numbers))


def test_a_follower_becomes_the_master_when_the_master_is_killed(etcd, reput_broker, tmp_path):
    """Clients find it by the name server, and the old master follows it when it comes back."""
    names = reput_broker("names")
    a = LeaseNode(etcd, tmp_path / "a", "--discard", name_server=names.name_server)
    b = LeaseNode(etcd, tmp_path / "b", "--discard", name_server=names.name_server)
    producer = Producer(a, b)
    assert a.is_master()
    wait_until(b.is_in_sync)
    producer.send_until_acknowledged(20)
    a.kill()
    wait_until(b.is_master)
    wait_until(lambda: producer.send() == ResponseCode.SLAVE_NOT_AVAILABLE)
    cluster = MasterRequests(names.name_server).json(106)
    assert cluster["brokerAddrTable"]["reput"]["brokerAddrs"]["0"] == b.address
    a.launch()
    wait_until(a.is_in_sync)
    producer.send_until_acknowledged(20)
    # The next master is there as soon as this one stops.
    b.stop()
    wait_until(a.is_master)
    wait_until(lambda: producer.send() == ResponseCode.SLAVE_NOT_AVAILABLE)
    a.stop()
    assert_kept(a.directory, producer)

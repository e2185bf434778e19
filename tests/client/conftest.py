"""A broker in this process, with its name server, and a client of it."""

from __future__ import annotations

import pytest

import reput
from reput.namesrv.route_info_manager import RegisteredTopic, Registration
from serving import served


@pytest.fixture
def broker(tmp_path):
    """A broker with a store of small segments."""
    with served(tmp_path / "store") as broker:
        yield broker


@pytest.fixture
def address(broker):
    """The address of its name server."""
    return "{}:{}".format(*broker.address)


@pytest.fixture
def client(address):
    """A client of the broker."""
    with reput.connect(address) as client:
        yield client


def register(broker, topic, port):
    """Register a broker-z, with one queue of a topic, at the name server beside *broker*."""
    topics = {topic: RegisteredTopic(topic, 1, 1)}
    registration = Registration("DefaultCluster", "broker-z", 0, f"127.0.0.1:{port}", topics=topics)
    broker.call(lambda: broker.broker.routes.register(registration))

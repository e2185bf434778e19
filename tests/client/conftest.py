"""A broker in this process, with its name server, and a client of it."""

from __future__ import annotations

import pytest

import reput
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

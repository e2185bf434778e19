"""For all tests of replication: RocketMQ's brokers, reput's brokers, and a master whose every answer a test decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop.clients.conftest import ending, real_broker, reput_broker
from replication.fake_master import FakeMaster

__all__ = ["ending", "real_broker", "reput_broker"]


@pytest.fixture
def fake_master() -> Iterator[FakeMaster]:
    """A master that answers the requests of followers, and sends what the test tells it to."""
    with FakeMaster() as master:
        yield master

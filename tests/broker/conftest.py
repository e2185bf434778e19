"""For all tests of the broker: one that runs in this process, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import RawClient, ServedBroker, served


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker with RocketMQ's defaults and small segments."""
    with served(tmp_path / "store") as broker:
        yield broker


@pytest.fixture
def client(broker: ServedBroker) -> Iterator[RawClient]:
    """A connection to `broker`."""
    with broker.client() as client:
        yield client

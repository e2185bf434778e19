"""For all tests of replication: RocketMQ's brokers, reput's brokers, and a master whose every answer a test decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.clients.conftest import ending, real_broker, reput_broker
from replication.copies import written
from replication.fake_master import FakeMaster
from reput.replication import follower
from written_log import WrittenLog

__all__ = ["ending", "real_broker", "reput_broker"]


@pytest.fixture
def fake_master() -> Iterator[FakeMaster]:
    """A master that answers the requests of followers, and sends what the test tells it to."""
    with FakeMaster() as master:
        yield master


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Fifty records over several segments."""
    return written(tmp_path / "master", 50)


@pytest.fixture
def master(fake_master: FakeMaster, log: WrittenLog) -> FakeMaster:
    """A master of `log`."""
    fake_master.log = bytes(log.data)
    return fake_master


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and limits of a test."""
    monkeypatch.setattr(follower, "PAUSE_MIN_S", 0.01)
    monkeypatch.setattr(follower, "READ_WAIT_S", 0.05)

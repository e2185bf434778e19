"""Fixtures for the tests with RocketMQ's own clients: brokers that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from interop.clients.brokers import Launched, NameServer, RealBroker, ReputBroker


@pytest.fixture
def ending() -> Iterator[None]:
    """End what a failed test leaves running."""
    yield
    Launched.kill_all()


@pytest.fixture
def real_broker(tmp_path: Path, ending: None) -> Iterator[Callable[..., RealBroker]]:
    """Start RocketMQ's broker: ``real_broker("5.3.3", name="a", settings={…})``."""
    started: list[RealBroker] = []

    def start(
        version: str, name: str = "real", settings: dict[str, object] | None = None, server: NameServer | None = None
    ) -> RealBroker:
        started.append(RealBroker(version, tmp_path / name, settings, server))
        return started[-1]

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture
def reput_broker(tmp_path: Path, ending: None) -> Iterator[Callable[..., ReputBroker]]:
    """Start `reput serve`: ``reput_broker(name="a", settings={…}, name_server=…)``."""
    started: list[ReputBroker] = []

    def start(name: str = "reput", directory: Path | None = None, **options: object) -> ReputBroker:
        started.append(ReputBroker(directory or tmp_path / name, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture
def both(
    real_broker: Callable[..., RealBroker], reput_broker: Callable[..., ReputBroker]
) -> Callable[[str], tuple[RealBroker, ReputBroker]]:
    """Start both brokers at a time."""

    def start(version: str) -> tuple[RealBroker, ReputBroker]:
        with ThreadPoolExecutor() as pool:
            real, reput = pool.submit(real_broker, version), pool.submit(reput_broker)
            return real.result(), reput.result()

    return start

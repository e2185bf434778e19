"""Fixtures for the tests with the real RocketMQ: its store on any directory, in each version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from zlib import crc32

import pytest

from interop.java_program import VERSIONS, java_command
from interop.rocketmq_store import RocketMQStore, java_settings
from reput.settings import Settings


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every scenario as long except in one version, chosen by the scenario's name."""
    scenarios: dict[tuple[object, ...], dict[str, pytest.Item]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("java") and "version" in item.fixturenames:
            parameters = dict(item.callspec.params)
            version = parameters.pop("version")
            scenario = (item.path, item.originalname, *map(str, parameters.items()))
            scenarios.setdefault(scenario, {})[version] = item
    for (_, *names), of_version in scenarios.items():
        picked = sorted(of_version)[crc32(" ".join(names).encode()) % len(of_version)]
        for version, item in of_version.items():
            if version != picked:
                item.add_marker(pytest.mark.long)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each version of RocketMQ in turn."""
    return str(request.param)


@pytest.fixture
def rocketmq_of(tmp_path: Path) -> Iterator[Callable[..., RocketMQStore]]:
    """Open a directory with a version's store: ``rocketmq_of("5.3.3", directory, settings, enableLmq=True)``."""
    home = tmp_path / "rocketmq-home"
    home.mkdir()
    opened: list[RocketMQStore] = []

    def open_store(version: str, directory: Path, settings: Settings, **more: object) -> RocketMQStore:
        opened.append(RocketMQStore(java_command(version, home), directory, {**java_settings(settings), **more}))
        return opened[-1]

    yield open_store
    for store in opened:
        store.kill()


@pytest.fixture
def rocketmq(version: str, rocketmq_of: Callable[..., RocketMQStore]) -> Callable[..., RocketMQStore]:
    """Open a directory with the current version's store."""
    return partial(rocketmq_of, version)

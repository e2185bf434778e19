"""Each service that consumes is tested in each flush mode: a put is visible at once, once forced, or once committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reput.embedded.opening
from reput.settings import LoadedSettings
from reput.store.state.recorded_settings import load_store_settings, read_recorded

FLUSH_MODES: dict[str, dict[str, Any]] = {
    "ASYNC_FLUSH": {},
    "SYNC_FLUSH": {"flush_disk_type": "SYNC_FLUSH"},
    # A put is visible after a commit; the test uses a shorter interval than the usual 200 ms.
    "transient_pool": {
        "transient_store_pool_enable": True,
        "commit_interval_commit_log": 10,
        "commit_commit_log_thorough_interval": 10,
    },
}
# Modules whose stores are opened and written by this program.
DRIVING = (
    "test_arrival_service",
    "test_broadcasting",
    "test_consumer",
    "test_consumer_filters",
    "test_consumer_group",
    "test_consumer_places",
    "test_hold_service",
    "test_schedule_service",
    "test_send_back",
    "test_transaction_checks",
    "test_transaction_recovery",
    "test_transaction_service",
    "test_waiting_consumers",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of a service in all modes; a test that starts programs or reads a broker's store runs once."""
    once = "golden" in metafunc.fixturenames or any(metafunc.definition.iter_markers("processes"))
    if metafunc.module.__name__.rpartition(".")[2] in DRIVING and not once:
        # The default mode runs on every Python, the others on one.
        usual, *others = FLUSH_MODES
        # A test that is slow by itself is long in the other modes.
        mark = pytest.mark.long if any(metafunc.definition.iter_markers("slow")) else pytest.mark.slow
        modes = [usual, *(pytest.param(name, marks=mark) for name in others)]
        metafunc.parametrize("flush_mode", modes, indirect=True)


@pytest.fixture(autouse=True)
def flush_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the mode in which this program's stores are opened by default."""
    name: str = getattr(request, "param", "ASYNC_FLUSH")

    def load(directory: Path, config: Path | None = None, **settings: Any) -> LoadedSettings:
        # A buffer of the pool is as large as a segment.
        small = {} if read_recorded(directory) else {"mapped_file_size_commit_log": 1 << 20}
        return load_store_settings(directory, config, **{**small, **FLUSH_MODES[name], **settings})

    if name != "ASYNC_FLUSH":
        monkeypatch.setattr(reput.embedded.opening, "load_store_settings", load)
    return name

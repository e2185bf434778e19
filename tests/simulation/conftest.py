"""For all simulations: sizes without a setting are also small, and no piece of the log is taken apart twice."""

from __future__ import annotations

import pytest

from reput.store.log import group_commit_log
from simulation.known_records import keep_what_is_found
from small_store import small_sidecars


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sidecars of the ext files cross the ends of their files, and let some puts find much gathered data."""
    small_sidecars(monkeypatch)
    monkeypatch.setattr(group_commit_log, "GATHERED_MAX", 2000)


@pytest.fixture(autouse=True)
def _records_are_located_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_what_is_found(monkeypatch)

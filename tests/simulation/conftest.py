"""For all simulations: what has no setting is as small as all else."""

from __future__ import annotations

import pytest

from reput.store.log import group_commit_log
from small_store import small_sidecars


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sidecars of the ext files cross the ends of their files, and some puts find too much in memory."""
    small_sidecars(monkeypatch)
    monkeypatch.setattr(group_commit_log, "GATHERED_MAX", 2000)

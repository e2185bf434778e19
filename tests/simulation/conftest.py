"""For all simulations: sidecars of the ext files as small as all else."""

from __future__ import annotations

import pytest

from small_store import small_sidecars


@pytest.fixture(autouse=True)
def _small_sidecars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have them cross the ends of their files."""
    small_sidecars(monkeypatch)

"""For all simulations: sidecars of the ext files as small as all else."""

from __future__ import annotations

import pytest

from reput.store import consume_queue_ext_addresses, consume_queue_ext_builder


@pytest.fixture(autouse=True)
def _small_sidecars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of five entries, where a store has 300,000."""
    for module in (consume_queue_ext_builder, consume_queue_ext_addresses):
        monkeypatch.setattr(module, "ADDRESS_FILE_SIZE", 5 * 20)

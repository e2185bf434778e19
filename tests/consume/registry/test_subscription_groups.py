"""Groups that are created on first use."""

from __future__ import annotations

from unittest.mock import patch

from delivering import open_inline
from reput.store.config.subscription_group_manager import SubscriptionGroupManager


def kept(directory) -> set[str]:
    """Return the groups in the file."""
    manager = SubscriptionGroupManager(directory)
    manager.load()
    return set(manager.entries)


def test_many_new_groups_are_written_together(tmp_path):
    """The file is written as a whole: one write per group would take quadratic time."""
    written = []
    persist = SubscriptionGroupManager.persist
    names = {f"group-{number}" for number in range(50)}
    with open_inline(tmp_path / "store", flush_consumer_offset_interval=3_600_000) as store:
        with patch.object(SubscriptionGroupManager, "persist", lambda self: (written.append(1), persist(self))):
            consumers = [store.consumer(name, "orders") for name in sorted(names)]
            assert written == []
            store._engine.services.keep()
            store._engine.services.keep()
            assert written == [1]
        assert names <= kept(tmp_path / "store")
        for consumer in consumers:
            consumer.close()
        store._engine.services.groups.require("last")
    assert names | {"last"} <= kept(tmp_path / "store")

"""Errors of the system, such as a full disk, reach a program as errors of the store."""

from __future__ import annotations

import errno
import os

import pytest

from embedded.tiny_stores import TIMEOUT, message, open_tiny
from reput.errors import StoreFull


@pytest.fixture
def store(tmp_path):
    """A store whose dispatchers run on a thread of the test."""
    with open_tiny(tmp_path / "store", mode="inline") as opened:
        yield opened


def test_a_full_disk_is_named_by_everything_that_writes_configuration(store, tmp_path, monkeypatch):
    """The error names the file; nothing is lost once there is space again."""
    store.put(message(0))
    sharing = store.consumer("billing", "orders")
    alone = store.consumer("caches", "orders", broadcast=True, offset_store=tmp_path / "offsets.json")
    for consumer in (sharing, alone):
        consumer.ack(consumer.receive(TIMEOUT))
    managers = store._engine.services.managers

    def refuse(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    for files in (managers.topics.files, managers.offsets.files, alone._shared.offsets.files):
        monkeypatch.setattr(files, "replace", refuse)
    with pytest.raises(StoreFull, match=r"configuration cannot be written: .*consumerOffset\.json"):
        sharing.commit()
    with pytest.raises(StoreFull, match=r"No space left .*topics\.json"):
        store.administration.create_topic("payments", 2)
    with pytest.raises(StoreFull, match=r"No space left .*offsets\.json"):
        alone.close()
    monkeypatch.undo()
    sharing.commit()
    sharing.close()
    store.administration.create_topic("payments", 2)
    assert store.administration.topic_config("payments").read_queue_nums == 2

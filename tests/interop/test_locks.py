"""Only one program writes a store: each of the two refuses a store that the other one holds."""

from __future__ import annotations

import pytest

import reput
from interop.file_sizes import FILE_SIZES
from interop.put_questions import put_question
from interop.rocketmq_store import RocketMQError
from reput.errors import StoreLocked
from reput.settings import Settings
from reput.store.record.message import Message
from small_store import records

pytestmark = [pytest.mark.java, pytest.mark.processes]

SETTINGS = Settings(**FILE_SIZES)


def test_reput_refuses_a_store_that_rocketmq_holds(tmp_path, rocketmq):
    """The error has RocketMQ's process id, and reading still works."""
    directory = tmp_path / "store"
    directory.mkdir()
    opened = rocketmq(directory, SETTINGS)
    for number in range(60):
        opened.ask(**put_question(Message("orders", b"%d" % number, keys=[f"k{number}"]), SETTINGS, 1))
    opened.queues()
    with pytest.raises(StoreLocked, match=f"pid={opened.pid} "):
        reput.open(directory, mode="inline", **FILE_SIZES)
    with reput.open(directory, read_only=True, **FILE_SIZES) as store:
        found = store.get("orders", count_max=100).records
        assert [record.body for record in found] == [b"%d" % number for number in range(60)]
        assert [record.body for record in store.query("orders", "k17")] == [b"17"]
    opened.ask(**put_question(Message("orders", b"60"), SETTINGS, 1))
    opened.shutdown()
    reput.open(directory, mode="inline", **FILE_SIZES).close()


def test_rocketmq_refuses_a_store_that_reput_holds(tmp_path, rocketmq):
    """RocketMQ checks the lock only after its recovery, which removes an empty segment: no message is lost."""
    directory = tmp_path / "store"
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        for number in range(60):
            store.put(Message("orders", b"%d" % number, keys=[f"k{number}"]))
        with pytest.raises(RocketMQError, match="already started"):
            rocketmq(directory, SETTINGS)
        for number in range(60, 120):
            store.put(Message("orders", b"%d" % number, keys=[f"k{number}"]))
    assert [record.body for record in records(directory)] == [b"%d" % number for number in range(120)]
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        store.wait_for("index", store.appended, timeout=60)
        found = store.get("orders", count_max=120).records
        assert [record.body for record in found] == [b"%d" % number for number in range(120)]
        for number in range(120):
            assert [record.body for record in store.query("orders", f"k{number}")] == [b"%d" % number]

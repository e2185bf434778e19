"""Offsets that are ahead of a log which has lost its end in a power cut."""

from __future__ import annotations

import shutil

import reput
from delivering import open_inline
from reput.consume.cut_offsets import bring_back_offsets
from reput.store.consumer_offset_manager import ConsumerOffsetManager
from reput.store.queue_offsets import QueueOffsets

WAIT_S = 60.0


def put(store, *bodies: bytes) -> None:
    """Put a message per body."""
    for body in bodies:
        store.put(reput.Message("orders", body))


def test_a_group_misses_nothing_that_takes_the_place_of_what_a_power_cut_took(tmp_path, caplog):
    """What it had consumed is gone, and the next messages have those offsets: they are given all the same."""
    with open_inline(tmp_path / "store") as store:
        put(store, b"0", b"1")
        store.flush()
        shutil.copytree(tmp_path / "store", tmp_path / "cut")
        put(store, b"lost", b"lost, too")
        with store.consumer("billing", "orders") as consumer:
            for _ in range(4):
                consumer.acknowledge(consumer.receive(WAIT_S))
    # As the disk was left: the offsets were on it, the end of the log was not.
    shutil.copytree(tmp_path / "store" / "config", tmp_path / "cut" / "config", dirs_exist_ok=True)
    with open_inline(tmp_path / "cut") as store:
        put(store, b"new", b"newer")
        with store.consumer("billing", "orders") as consumer:
            assert [consumer.receive(WAIT_S).body for _ in range(2)] == [b"new", b"newer"]
    assert "group=billing topic=orders queue_id=0 committed=4 queue_offset_max=2" in caplog.text


def test_offsets_of_unknown_queues_are_left_alone(tmp_path):
    """What nobody knows the end of may still be there."""
    offsets = ConsumerOffsetManager(tmp_path)
    for topic, queue_id in (("orders", 0), ("orders", 1), ("orders", 2), ("absent", 0)):
        offsets.commit_offset("billing", topic, queue_id, 5)
    assert bring_back_offsets(offsets, QueueOffsets({"orders": {0: 5, 1: 4}})) == 1
    assert offsets.offset_table == {"orders@billing": {0: 5, 1: 4, 2: 5}, "absent@billing": {0: 5}}

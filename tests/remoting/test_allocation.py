"""Every member of a group computes the same shares, as RocketMQ's own clients do."""

from __future__ import annotations

import pytest

from reput.remoting.allocation import STRATEGIES, allocate_averagely, allocate_by_circle, allocate_by_hash, hash_of
from reput.remoting.message_queue import MessageQueue


def queues(count):
    """Return so many queues of one broker."""
    return [MessageQueue("broker-a", number, "orders") for number in range(count)]


def java_averagely(client_id, queues, client_ids):
    """Return what AllocateMessageQueueAveragely.allocate returns, line by line."""
    index = client_ids.index(client_id)
    mod = len(queues) % len(client_ids)
    if len(queues) <= len(client_ids):
        average = 1
    elif mod > 0 and index < mod:
        average = len(queues) // len(client_ids) + 1
    else:
        average = len(queues) // len(client_ids)
    start = index * average if mod > 0 and index < mod else index * average + mod
    size = min(average, len(queues) - start)
    return [queues[(start + number) % len(queues)] for number in range(max(size, 0))]


@pytest.mark.parametrize("count", range(18))
@pytest.mark.parametrize("members", range(1, 9))
def test_averagely_as_in_java(count, members):
    """Runs of queues, the longer ones first; more members than queues leave some without."""
    ids = [f"c{number}" for number in range(members)]
    for client_id in ids:
        assert allocate_averagely(client_id, queues(count), ids) == java_averagely(client_id, queues(count), ids)


def test_by_circle_each_member_takes_one_in_turn():
    """The third of three members has every third queue."""
    ids = ["a", "b", "c"]
    assert [queue.queue_id for queue in allocate_by_circle("c", queues(8), ids)] == [2, 5]


def test_the_hash_is_the_beginning_of_md5():
    """MD5 of the empty text begins with d41d8cd9."""
    assert hash_of("") == 0xD41D8CD9


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_each_queue_has_one_member(name):
    """No queue is left out, and none is given twice."""
    ids = sorted(f"192.0.2.{number}@1" for number in range(5))
    shares = [STRATEGIES[name](client_id, queues(16), ids) for client_id in ids]
    assert sorted(queue for share in shares for queue in share) == queues(16)


def test_by_hash_a_member_that_leaves_moves_its_own_queues_only():
    """What the others had, they keep."""
    ids = ["a", "b", "c", "d"]
    for client_id in "abc":
        before = allocate_by_hash(client_id, queues(32), ids)
        assert set(before) <= set(allocate_by_hash(client_id, queues(32), ["a", "b", "c"]))

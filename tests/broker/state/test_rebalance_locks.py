"""Locks of queues that are consumed in order."""

from __future__ import annotations

import json

import pytest

from reput.broker.state import rebalance_locks
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode


def body(client_id, *queues, group="orders"):
    """Return the body of a lock or unlock."""
    mq_set = [{"topic": "T", "brokerName": "broker-a", "queueId": queue} for queue in queues]
    return json.dumps(
        {"consumerGroup": group, "clientId": client_id, "onlyThisBroker": False, "mqSet": mq_set}
    ).encode()


def lock(client, client_id, *queues):
    """Lock queues; return those that the client has now."""
    answer = client.ask(RequestCode.LOCK_BATCH_MQ, body=body(client_id, *queues))
    assert answer.code == ResponseCode.SUCCESS
    return [queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"]]


def test_a_queue_is_locked_by_one_client(client):
    """Another gets the rest of what it asks for."""
    assert lock(client, "one", 0, 1) == [0, 1]
    assert lock(client, "two", 1, 2) == [2]
    assert lock(client, "one", 0, 1) == [0, 1]


def test_an_unlocked_queue_is_free(client):
    """Unless a stranger unlocks it."""
    lock(client, "one", 0)
    assert client.ask(RequestCode.UNLOCK_BATCH_MQ, body=body("two", 0)).code == ResponseCode.SUCCESS
    assert lock(client, "two", 0) == []
    client.ask(RequestCode.UNLOCK_BATCH_MQ, body=body("one", 0, 7))
    assert lock(client, "two", 0) == [0]


def test_a_lock_that_is_not_renewed_expires(broker, client):
    """After 60 seconds."""
    lock(client, "one", 0)
    locks = broker.broker.locks
    broker.call(lambda: setattr(locks, "monotonic", lambda: broker.loop.time() + 59))
    assert lock(client, "two", 0) == []
    broker.call(lambda: setattr(locks, "monotonic", lambda: broker.loop.time() + 61))
    assert not broker.call(lambda: locks.is_locked("orders"))
    assert lock(client, "two", 0) == [0]


def test_locks_have_a_limit(broker, client, monkeypatch):
    """Those that have expired make room; a group without locks is none."""
    monkeypatch.setattr(rebalance_locks, "LOCKS_MAX", 3)
    assert lock(client, "one", 0, 1, 2, 3, 4) == [0, 1, 2]
    locks = broker.broker.locks
    broker.call(lambda: setattr(locks, "monotonic", lambda: broker.loop.time() + 61))
    assert lock(client, "one", 3, 4) == [3, 4]
    client.ask(RequestCode.UNLOCK_BATCH_MQ, body=body("one", 3, 4))
    assert broker.call(lambda: (locks.locks, locks.count)) == ({}, 0)
    client.ask(RequestCode.LOCK_BATCH_MQ, body=body("one", group="none"))
    assert broker.call(lambda: locks.locks) == {}


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize("data", [b"", b"{}", b'{"consumerGroup":"g","clientId":"c","mqSet":[1]}', b"[" * 100_000])
def test_a_body_that_is_none_is_refused(client, code, data):
    """With code 1."""
    assert client.ask(code, body=data).code == ResponseCode.SYSTEM_ERROR

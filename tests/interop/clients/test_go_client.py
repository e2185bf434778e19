"""RocketMQ's Go client sees at `reput serve` what it sees at RocketMQ's own broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from interop.clients.comparing import differences
from interop.clients.go_clients import run_go

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow, pytest.mark.long]

SCENARIOS = (
    *("retry", "transaction", "consume-tags", "consume-sql", "consume-orderly", "consume-broadcasting", "rebalance"),
    *("consume-concurrently", "request-reply", "trace", "delay", "pull", "send-sync", "send-async", "send-oneway"),
    *("send-batch", "send-compressed", "namespace", "retry-orderly", "send-refused", "administer", "from-where"),
)


def test_the_go_client_sees_no_difference(both, tmp_path):
    """SEND_MESSAGE with its long header, batches, consumers that never unregister, subscriptions without a version."""
    real, reput = both("5.3.3")
    with ThreadPoolExecutor() as pool:
        seen = [
            pool.submit(run_go, tmp_path / name, broker.name_server, *SCENARIOS)
            for name, broker in (("clients-of-real", real), ("clients-of-reput", reput))
        ]
        found = differences("5.3.3", *[one.result() for one in seen])
    assert not found, found

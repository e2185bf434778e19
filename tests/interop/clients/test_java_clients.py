"""RocketMQ's Java clients see at `reput serve` what they see at RocketMQ's own broker of their version."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from interop.clients.brokers import RealBroker, ReputBroker
from interop.clients.comparing import differences
from interop.clients.java_clients import run_java
from interop.java_program import VERSIONS

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow]

Both = Callable[[str], tuple[RealBroker, ReputBroker]]

# The longest first: several run at a time.
MAIN = (
    *("transaction-checked", "retry", "transaction-restarted", "consume-tags", "delay", "retry-orderly", "lite-pull"),
    *("consume-concurrently", "consume-orderly", "consume-sql", "rebalance", "trace", "request-reply", "transaction"),
    *("send-sync", "send-async", "send-oneway", "send-batch", "send-selector", "send-refused", "topic-created"),
    *("consume-broadcasting", "consume-offset-reset", "pull", "lite-pull-assigned", "query", "offsets"),
)
FURTHER = (
    *("consume-offset-reset-by-tools", "retry-levels", "rebalance-orderly"),
    *("rebalance-by-broker", "rebalance-by-broker-later", "consume-from-where"),
    *("consume-as-it-comes", "pull-waits"),
    *("consume-sql-refused", "dead-letters-at-once", "send-compressed", "send-properties", "reply-to-nobody"),
)
SENDS = ("send-sync", "send-async", "send-oneway", "send-selector", "send-compressed", "send-properties", "delay")
# The name of the switch is the client's.
LONG_HEADERS = "-Dorg.apache.rocketmq.client.sendSmartMsg=false"


def compare(
    both: Both, directory: Path, version: str, scenarios: tuple[str, ...], options: tuple[str, ...] = ()
) -> None:
    """Run scenarios at both brokers, and fail where clients see a difference."""
    real, reput = both(version)
    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(run_java, version, directory / name, broker.name_server, *scenarios, options=options)
            for name, broker in (("clients-of-real", real), ("clients-of-reput", reput))
        ]
        seen = [one.result() for one in running]
    found = differences(version, *seen)
    assert not found, found


def test_java_clients_see_no_difference(both, tmp_path):
    """Sends in all ways, consumers of all kinds, transactions, queries, replies, traces and groups."""
    compare(both, tmp_path, "5.3.3", MAIN)


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "scenarios"),
    [("5.3.3", FURTHER), *((version, MAIN + FURTHER) for version in VERSIONS if version != "5.3.3")],
)
def test_java_clients_of_all_versions_see_no_difference(both, tmp_path, version, scenarios):
    """Each version at its own broker and at reput."""
    compare(both, tmp_path, version, scenarios)


@pytest.mark.long
def test_java_clients_with_long_headers_see_no_difference(both, tmp_path):
    """SEND_MESSAGE, whose header has full names."""
    compare(both, tmp_path, "5.3.3", SENDS, (LONG_HEADERS,))

"""Fail-over by a lease in etcd: real processes, killed, stopped and cut off; what was acknowledged is kept."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import reput
from command_line import run_reput
from delivering import wait_until
from replication.leases import LEASE_MS, Etcd, LeaseNode, Line, Producer, WallClock, needs_etcd, needs_faketime
from reput.errors import BrokerError
from reput.remoting.response_code import ResponseCode
from reput.replication.master_requests import MasterRequests
from reput.store.record.message import PutMessageStatus
from serving import RawClient

pytestmark = [pytest.mark.processes, pytest.mark.slow, needs_etcd]


# A node whose clock is faked begins slowly.
JUMP_LEASE_MS = 4 * LEASE_MS


@pytest.fixture
def etcd(tmp_path: Path, ending: None) -> Iterator[Etcd]:
    """An empty etcd."""
    return Etcd(tmp_path / "etcd")


def stored(directory: Path) -> list[int]:
    """Return the numbers in the log of a stopped node."""
    with reput.open(directory, read_only=True) as store:
        return [int(record.body) for record in store.records(0) if record.topic == "orders"]


def assert_kept(directory: Path, producer: Producer) -> None:
    """Each acknowledged number is there, each once, in the order in which they were sent."""
    producer.close()
    numbers = stored(directory)
    assert set(producer.acknowledged) <= set(numbers)
    assert numbers == sorted(set(numbers))


def assert_shown(master: LeaseNode, follower: LeaseNode) -> None:
    """`reput status` shows both nodes: who holds the lease, and that both are in the in-sync set."""

    def row(node: LeaseNode) -> dict[str, Any]:
        shown: dict[str, Any] = run_reput("status", node.directory, "--format", "json").report()["lease"]
        return shown

    # A follower looks once in a while.
    wait_until(lambda: len(row(follower)["in_sync"]) == 2)
    shown = [row(node) for node in (master, follower)]
    assert [one["role"] for one in shown] == ["master", "follower"]
    assert [one["member"] for one in shown] == [master.member(), follower.member()]
    for name in ("name", "epoch", "holder", "master", "in_sync"):
        assert shown[0][name] == shown[1][name]
    assert shown[0]["holder"] == master.member()
    assert shown[0]["master"] == master.address
    assert 0 < shown[0]["seconds_left"] <= LEASE_MS / 1000 + 1
    assert shown[1]["seconds_left"] is None


def test_a_follower_becomes_the_master_when_the_master_is_killed(etcd, reput_broker, tmp_path):
    """Clients find it by the name server, and go on; the old master follows it when it comes back."""
    names = reput_broker("names", settings={"autoCreateTopicEnable": "false"})
    a = LeaseNode(etcd, tmp_path / "a", "--discard", name_server=names.name_server)
    b = LeaseNode(etcd, tmp_path / "b", "--discard", name_server=names.name_server)
    producer = Producer(a, b)
    assert a.is_master()
    wait_until(b.is_in_sync)
    producer.send_until_acknowledged(20)
    assert_shown(a, b)
    with reput.connect(names.name_server) as client:
        assert client.put(reput.Message("others", b"before")).status is PutMessageStatus.PUT_OK
        a.kill()
        wait_until(b.is_master)

        def is_stored() -> bool:
            try:
                return client.put(reput.Message("others", b"after")).status is PutMessageStatus.SLAVE_NOT_AVAILABLE
            except BrokerError:
                return False

        wait_until(is_stored)
    cluster = MasterRequests(names.name_server).json(106)
    assert cluster["brokerAddrTable"]["reput"]["brokerAddrs"]["0"] == b.address
    wait_until(lambda: producer.send() == ResponseCode.SLAVE_NOT_AVAILABLE)
    a.launch()
    wait_until(a.is_in_sync)
    producer.send_until_acknowledged(20)
    # The next master is there as soon as this one stops.
    b.stop()
    wait_until(a.is_master)
    wait_until(lambda: producer.send() == ResponseCode.SLAVE_NOT_AVAILABLE)
    a.stop()
    assert_kept(a.directory, producer)


def pair(etcd: Etcd, path: Path, **options: object) -> tuple[LeaseNode, LeaseNode, Producer]:
    """Return a master, a follower in its in-sync set, and a producer that has had some messages acknowledged."""
    a = LeaseNode(etcd, path / "a", "--discard", **options)
    b = LeaseNode(etcd, path / "b", "--discard")
    producer = Producer(a, b)
    wait_until(b.is_in_sync)
    producer.send_until_acknowledged(10)
    return a, b, producer


def assert_kept_by_all(nodes: list[LeaseNode], producer: Producer) -> None:
    """Stop all nodes once they are in sync, behind the last message; each has all that was acknowledged."""
    producer.send_until_acknowledged(5)
    producer.close()
    members = {node.member() for node in nodes}

    def are_in_sync() -> bool:
        # At one moment: a member that is away leaves the set only later.
        state = nodes[0].etcd.read().state
        return state is not None and set(state.in_sync) == members

    wait_until(are_in_sync)
    for node in sorted(nodes, key=LeaseNode.is_master):
        node.stop()
    for node in nodes:
        assert_kept(node.directory, producer)


@pytest.mark.long
def test_what_a_master_acknowledges_that_was_stopped_over_its_lease_is_not_lost(etcd, tmp_path):
    """It goes on where it was, in the middle of requests, when another has long been the master; and follows that."""
    a, b, producer = pair(etcd, tmp_path)
    late = Producer(a)
    late.number = 1_000_000
    a.signal(signal.SIGSTOP)
    # Requests that reach the stopped master, and are answered by whatever it then believes.
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(late.send)
        wait_until(b.is_master)
        producer.go_elsewhere()
        wait_until(lambda: producer.send() is not None)
        a.signal(signal.SIGCONT)
        assert answer.result() != ResponseCode.SUCCESS
    late.close()
    assert_kept_by_all([a, b], producer)


@pytest.mark.long
def test_a_master_that_does_not_reach_etcd_gives_way_while_clients_and_followers_reach_it(etcd, tmp_path):
    """It stops before the other begins: never do both acknowledge."""
    with Line(etcd) as line:
        a, b, producer = pair(etcd, tmp_path, line=line)
        line.whole.clear()
        wait_until(b.is_master)
        late = Producer(a)
        assert late.send() != ResponseCode.SUCCESS
        late.close()
        wait_until(lambda: producer.send() == ResponseCode.SLAVE_NOT_AVAILABLE)
        line.whole.set()
        assert_kept_by_all([a, b], producer)


@pytest.mark.long
@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_without_etcd_there_is_no_master_and_with_it_there_is_one_again(etcd, tmp_path, way):
    """What etcd has on its disk is enough to go on; readers read meanwhile."""
    a, b, producer = pair(etcd, tmp_path)
    if way == "stopped":
        etcd.signal(signal.SIGSTOP)
    else:
        etcd.launched.kill()
    wait_until(lambda: producer.send() not in (ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT))
    with RawClient(("127.0.0.1", b.port)) as client:
        wait_until(lambda: client.pull("g", "orders").code == ResponseCode.SUCCESS)
    if way == "stopped":
        etcd.signal(signal.SIGCONT)
    else:
        etcd.launch()
    assert_kept_by_all([a, b], producer)


def test_an_etcd_that_has_forgotten_everything_makes_nobody_the_master(etcd, tmp_path):
    """The stores know that there was an epoch; a person decides which of them has the most."""
    a, b, producer = pair(etcd, tmp_path)
    producer.close()
    for node in (b, a):
        node.stop()
    etcd.launched.kill()
    shutil.rmtree(etcd.directory)
    etcd.launch()
    refused = subprocess.run(a.command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "has forgotten what the nodes agreed on" in refused.stderr
    assert etcd.read().state is None


def test_a_node_that_waits_for_its_role_is_stopped_like_any_other(etcd, tmp_path):
    """Here for etcd: it serves nobody, and there is nothing to drain."""
    a = LeaseNode(etcd, tmp_path / "a")
    etcd.launched.kill()
    wait_until(lambda: "this node has no role yet" in a.log.read_text())
    a.stop()


def test_a_node_without_its_lease_is_not_served(etcd, tmp_path):
    """A broker that took messages beside the lease would part from the others."""
    a = LeaseNode(etcd, tmp_path / "a")
    a.stop()
    refused = subprocess.run(
        [word for word in a.command if word not in ("--lease", etcd.url)], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    assert "a lease decides" in refused.stderr


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_every_acknowledged_message_survives_whatever_happens_to_three_nodes_and_etcd(etcd, tmp_path, seed):
    """Each once, and in order: masters, followers and etcd killed and stopped, and lines cut, at any moment."""
    chance = random.Random(seed)
    with Line(etcd) as line_a, Line(etcd) as line_b, Line(etcd) as line_c:
        lines = [line_a, line_b, line_c]
        nodes = [
            LeaseNode(etcd, tmp_path / name, "--discard", line=line) for name, line in zip("abc", lines, strict=True)
        ]
        producer = Producer(*nodes)
        for _ in range(20):
            producer.send_until_acknowledged(chance.randrange(5, 40))
            master = next((number for number, node in enumerate(nodes) if node.is_master()), 0)
            number = master if chance.random() < 0.7 else chance.randrange(3)
            disturb(chance.randrange(5), etcd, nodes[number], lines[number], producer, chance.randrange(60))
        assert len(producer.acknowledged) >= 100
        assert_kept_by_all(nodes, producer)


def disturb(way: int, etcd: Etcd, node: LeaseNode, line: Line, producer: Producer, count: int) -> None:
    """Let one thing go wrong, and end it; *count* messages are sent meanwhile, or a next master begins."""

    def pass_time() -> None:
        state = etcd.read().state
        assert state is not None
        if not node.is_master():
            for _ in range(count):
                producer.send()
            return

        def is_replaced() -> bool:
            producer.send()
            now = etcd.read().state
            return now is not None and now.epoch > state.epoch

        wait_until(is_replaced)

    match way:
        case 0 | 1:
            node.kill()
            for _ in range(count):
                producer.send()
            node.launch()
        case 2:
            node.signal(signal.SIGSTOP)
            pass_time()
            node.signal(signal.SIGCONT)
        case 3:
            line.whole.clear()
            pass_time()
            line.whole.set()
        case _:
            etcd.launched.kill()
            for _ in range(count):
                producer.send()
            etcd.launch()


@pytest.mark.long
@needs_faketime
@pytest.mark.parametrize("hours", [5, -5])
def test_a_wall_clock_that_jumps_by_hours_changes_nothing(etcd, tmp_path, hours):
    """Neither the master's nor the follower's: the lease is timed by clocks that no change of date moves."""
    clocks = [WallClock(tmp_path / name) for name in ("master.clock", "follower.clock")]
    a = LeaseNode(etcd, tmp_path / "a", "--discard", clock=clocks[0], lease_time=JUMP_LEASE_MS)
    b = LeaseNode(etcd, tmp_path / "b", "--discard", clock=clocks[1], lease_time=JUMP_LEASE_MS)
    producer = Producer(a, b)
    wait_until(b.is_in_sync)
    producer.send_until_acknowledged(10)
    before = etcd.read()
    for clock in clocks:
        clock.move(hours)
        # Longer than a lease: it was renewed by the clock that had jumped.
        end = time.monotonic() + 1.5 * JUMP_LEASE_MS / 1000
        while time.monotonic() < end:
            producer.send()
        producer.send_until_acknowledged(5)
    assert etcd.read().holder_revision == before.holder_revision
    # The node whose clock is as wrong takes over as any other.
    clocks[1].move(-hours)
    a.kill()
    wait_until(b.is_master)
    wait_until(lambda: producer.send() == ResponseCode.SLAVE_NOT_AVAILABLE)
    b.stop()
    assert_kept(b.directory, producer)

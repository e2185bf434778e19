"""Two brokers of reput and one of RocketMQ under RocketMQ's name server: to clients they are one cluster."""

from __future__ import annotations

import pytest

import reput
from delivering import wait_until
from interop.clients.brokers import NameServer, RealBroker
from interop.clients.java_clients import RunningClients, run_java
from reput.remoting.request_code import RequestCode
from serving import RawClient

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow, pytest.mark.long]

VERSION = "5.3.3"


def test_a_topic_lies_over_three_brokers_of_two_kinds(reput_broker, real_broker, ending, tmp_path):
    """Producers and consumers use all of them, go on when one is killed, and use it again when it is back."""
    server = NameServer(VERSION, tmp_path / "names").wait()
    reputs = {
        name: reput_broker(name=name, settings={"brokerName": name}, name_server=server.address)
        for name in ("reput-a", "reput-b")
    }
    real = real_broker(VERSION, settings={"brokerName": "real-c"}, server=server)
    names = {*reputs, "real-c"}
    wait_until(lambda: all(name.encode() in server.brokers() for name in names))
    # The template's queues are those of all brokers, so each of them creates the topic.
    sent = run_java(VERSION, tmp_path / "first", server.address, "send=fleet:60:first")["send"]
    assert {line.split()[0] for line in sent.lines} == names

    clients = RunningClients(VERSION, tmp_path / "clients", server.address, "produce=fleet", "consume=fleet:group")
    clients.advance("produce", 200)
    clients.advance("consume", 200)
    pid = reputs["reput-a"].place()["pid"]
    reputs["reput-a"].kill_broker()
    clients.advance("produce", 200)
    wait_until(lambda: reputs["reput-a"].place()["pid"] != pid)
    real.kill()
    clients.advance("produce", 200)
    real.launch()
    # Clients hear of it when they ask for the route again.
    before = stored_at(real)
    wait_until(lambda: stored_at(real) >= before + 20)
    clients.advance("produce", 300)
    clients.advance("consume", 300)
    said = clients.finish()
    server_lines = said["produce"].lines
    assert not said["produce"].error
    assert set(server_lines) <= set(said["consume"].lines)
    # All of them have messages at the end, too.
    assert {line.split()[0] for line in server_lines[-100:]} == names


def test_a_broker_that_is_stopped_hands_its_clients_over(reput_broker, ending, tmp_path):
    """No send fails, no acknowledged message is lost, and consumers go on with the other broker."""
    server = NameServer(VERSION, tmp_path / "names").wait()
    first, other = (
        reput_broker(name=name, settings={"brokerName": name}, name_server=server.address)
        for name in ("reput-a", "reput-b")
    )
    run_java(VERSION, tmp_path / "first", server.address, "send=fleet:40:first")
    clients = RunningClients(
        VERSION, tmp_path / "clients", server.address, "produce-anywhere=fleet", "consume=fleet:group"
    )
    for _ in range(3):
        clients.advance("produce-anywhere", 300)
        clients.advance("consume", 300)
        first.stop()
        clients.advance("produce-anywhere", 300)
        clients.advance("consume", 300)
        first.launch()
        first, other = other, first
    clients.advance("produce-anywhere", 300)
    wait_until(lambda: clients.counts["consume"] >= clients.counts["produce-anywhere"])
    said = clients.finish()
    assert not said["produce-anywhere"].error
    assert set(said["produce-anywhere"].lines) <= set(said["consume"].lines)


def test_a_broker_that_hangs_holds_nobody_up(reput_broker, ending, tmp_path):
    """Clients of both kinds go on with the other broker; when it goes on, it serves them again, and nothing is lost."""
    server = NameServer(VERSION, tmp_path / "names").wait()
    hanging, _ = (
        reput_broker(name=name, settings={"brokerName": name}, name_server=server.address)
        for name in ("reput-a", "reput-b")
    )
    run_java(VERSION, tmp_path / "first", server.address, "send=fleet:40:first")
    clients = RunningClients(VERSION, tmp_path / "clients", server.address, "produce=fleet", "consume=fleet:group")
    clients.advance("produce", 200)
    clients.advance("consume", 200)
    with reput.connect(server.address, timeout=30) as client:
        client.put(reput.Message("fleet", b"before"))
        with hanging.hanging():
            # Java's producer waits three seconds for each answer, and the next of its queues may be there, too.
            clients.advance("produce", 4)
            before = clients.counts["consume"]
            bodies = [b"python%d" % number for number in range(100)]
            for body in bodies:
                client.put(reput.Message("fleet", body))
            wait_until(lambda: clients.counts["consume"] >= before + len(bodies))
        clients.advance("produce", 300)
        clients.advance("consume", 300)
        wait_until(lambda: lag(client) == 0)
    said = clients.finish()
    assert not said["produce"].error
    sent = set(said["produce"].lines)
    assert {line.split()[0] for line in said["produce"].lines[-100:]} == {"reput-a", "reput-b"}
    received = said["consume"].lines
    assert sent <= set(received)
    assert {body.decode() for body in bodies} <= {line.split()[-1] for line in received}


def lag(client: reput.Client) -> int:
    """Return how many messages the group has not consumed."""
    return sum(row.lag for row in client.administration.group_progress("group"))


def stored_at(broker: RealBroker) -> int:
    """Return how many messages of the topic this broker has."""
    with RawClient(("127.0.0.1", broker.port)) as client:
        answers = [
            client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "fleet", "queueId": str(queue_id)})
            for queue_id in range(4)
        ]
    return sum(int(answer.ext_fields["offset"]) for answer in answers)

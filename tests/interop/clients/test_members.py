"""One consumer group with members of every version and language: they share the queues, and lose nothing."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from pathlib import Path

import pytest

import reput
from delivering import wait_until
from interop.clients.brokers import NameServer, ReputBroker
from interop.clients.java_clients import RunningClients, run_java
from interop.java_program import VERSIONS
from reput.remoting.request_code import RequestCode
from serving import RawClient

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow, pytest.mark.long]

TOPIC, GROUP = "shared", "mixed"
# In what a Java client says of itself, queues are keys of an object; version 5.5 quotes them.
QUEUE = re.compile(r'\{[^{}]*"brokerName"[^{}]*\}')
Queues = set[tuple[str, int]]


class PythonMember:
    """A consumer on a thread, which acknowledges all that it is given."""

    def __init__(self, name_server: str) -> None:
        self.client = reput.connect(name_server)
        self.consumer = self.client.consumer(GROUP, TOPIC)
        self.lines: list[str] = []
        # A failed test does not end it.
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Receive until the consumer is closed."""
        with contextlib.suppress(reput.StoreClosed):
            for record in self.consumer:
                self.lines.append(record.body.decode())
                self.consumer.ack(record)

    def advance(self) -> None:
        """Wait for further messages."""
        before = len(self.lines)
        wait_until(lambda: len(self.lines) > before)

    def queues(self) -> Queues:
        """Return the queues that it has."""
        queues = list(self.consumer._session.queues)
        return {(queue.broker_name, queue.queue_id) for queue in queues if queue.topic == TOPIC}

    def leave(self) -> list[str]:
        """Leave the group, and return the bodies that came."""
        self.client.close()
        self.thread.join()
        return self.lines


class JavaMember:
    """A consumer in a process of its own."""

    def __init__(self, version: str, home: Path, name_server: str) -> None:
        self.clients = RunningClients(version, home, name_server, f"member={TOPIC}:{GROUP}")

    def advance(self) -> None:
        """Wait for further messages."""
        self.clients.advance("member")

    def leave(self) -> list[str]:
        """Leave the group, and return the bodies that came."""
        return [line.rpartition(" ")[2] for line in self.clients.finish()["member"].lines]


def queues_of_java(brokers: list[ReputBroker], own: int) -> list[Queues]:
    """Return the queues that each of the group's Java members says it has. *own*: members that are not asked."""
    found = []
    with RawClient(("127.0.0.1", brokers[0].port)) as client:
        listed = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})
        ids = re.findall(r'"([^"]+@[^"]+)"', listed.body_bytes.decode())
        for client_id in ids:
            if "client-" not in client_id:
                own -= 1
                continue
            fields = {"consumerGroup": GROUP, "clientId": client_id, "jstackEnable": "false"}
            said = client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields).body_bytes.decode()
            queues = map(json.loads, QUEUE.findall(said.replace("\\", "")))
            found.append({(queue["brokerName"], queue["queueId"]) for queue in queues if queue["topic"] == TOPIC})
    assert own == 0, listed.body_bytes
    return found


def test_a_group_has_members_of_every_version_and_language(reput_broker, ending, tmp_path):
    """Each queue has one owner, each member has a queue, and all that was acknowledged is consumed, however they come
    and go."""
    server = NameServer(VERSIONS[1], tmp_path / "names").wait()
    brokers = [
        reput_broker(name=name, settings={"brokerName": name}, name_server=server.address)
        for name in ("reput-a", "reput-b")
    ]
    everything = {(broker.directory.name, number) for broker in brokers for number in range(4)}
    run_java(VERSIONS[1], tmp_path / "first", server.address, f"send={TOPIC}:40:first")
    producer = RunningClients(VERSIONS[1], tmp_path / "producer", server.address, f"produce-anywhere={TOPIC}")
    consumed: list[str] = []
    members: dict[str, PythonMember | JavaMember] = {}
    shares: list[Queues] = []

    def join(name: str, version: str | None = None) -> None:
        home = tmp_path / f"{name}-{len(consumed)}"
        members[name] = PythonMember(server.address) if version is None else JavaMember(version, home, server.address)

    def leave(name: str) -> None:
        consumed.extend(members.pop(name).leave())

    def is_shared() -> bool:
        nonlocal shares
        python = [member.queues() for member in members.values() if isinstance(member, PythonMember)]
        shares = [*python, *queues_of_java(brokers, len(python))]
        owned = [queue for share in shares for queue in share]
        return len(shares) == len(members) and all(shares) and len(owned) == 8 and set(owned) == everything

    def settle() -> None:
        try:
            wait_until(is_shared)
        except AssertionError:
            pytest.fail(f"the queues are not shared: members={list(members)} shares={shares}")
        for member in members.values():
            member.advance()

    join("python-1")
    join("java-4", VERSIONS[0])
    settle()
    join("java-5", VERSIONS[1])
    join("python-2")
    join("java-newest", VERSIONS[2])
    settle()
    leave("java-4")
    leave("python-1")
    settle()
    join("java-4", VERSIONS[0])
    join("python-1")
    leave("java-5")
    settle()
    sent = [line.rpartition(" ")[2] for line in producer.finish()["produce-anywhere"].lines]
    wait_until(lambda: progress_is_whole(server.address))
    for name in list(members):
        leave(name)
    assert len(sent) > 100
    assert set(sent) <= set(consumed)


def progress_is_whole(name_server: str) -> bool:
    """Tell whether the group has committed all that there is."""
    with reput.connect(name_server) as client:
        rows = [row for row in client.administration.group_progress(GROUP) if row.topic == TOPIC]
    return len(rows) == 8 and not sum(row.lag for row in rows)

"""A broker whose process is killed under load: what it has acknowledged stays, and its clients go on by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import reput
from delivering import wait_until
from interop.clients.brokers import GET_BROKER_CLUSTER_INFO, ReputBroker, ask
from interop.clients.java_clients import RunningClients, run_java

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow, pytest.mark.long]

TOPIC = "killed"
KILLS = 10


def kill(broker: ReputBroker) -> float:
    """Kill the broker's process; return how many seconds later the next one answers."""
    pid = broker.place()["pid"]
    killed = broker.kill_broker()
    wait_until(lambda: broker.place()["pid"] != pid)
    # The request waits in the socket that stays open.
    wait_until(lambda: ask(broker.address, GET_BROKER_CLUSTER_INFO) != b"")
    return time.monotonic() - killed


def positions(lines: list[str]) -> dict[tuple[int, int], str]:
    """Return (queue id, queue offset) → body of what a scenario said."""
    found = {}
    for line in lines:
        _, queue_id, queue_offset, body = line.split()
        found[int(queue_id), int(queue_offset)] = body
    return found


def test_no_acknowledged_message_is_lost_when_the_broker_is_killed_under_load(
    reput_broker: Callable[..., ReputBroker], tmp_path: Path
) -> None:
    """Ten times. The queues have neither holes nor doubles, and producers and consumers need no restart."""
    broker = reput_broker(settings={"flushDiskType": "SYNC_FLUSH"})
    run_java("5.3.3", tmp_path / "first", broker.name_server, f"send={TOPIC}:1:first")
    clients = RunningClients(
        "5.3.3", tmp_path / "clients", broker.name_server, f"produce={TOPIC}", f"consume={TOPIC}:group"
    )
    pauses = []
    for _ in range(KILLS):
        clients.advance("produce", 300)
        clients.advance("consume")
        pauses.append(round(kill(broker), 2))
    # For the reader of a report: no test depends on it.
    print(f"seconds until the broker answered again: {pauses}")
    clients.advance("produce", 50)
    clients.advance("consume")
    # What was sent last reaches the consumer, too.
    wait_until(lambda: clients.counts["consume"] >= clients.counts["produce"])
    said = clients.finish()
    broker.stop()

    acknowledged = positions(said["produce"].lines)
    consumed = positions(said["consume"].lines)
    assert not said["produce"].error
    assert len(acknowledged) == len(said["produce"].lines), "two messages were given the same place"
    with reput.open(broker.directory, read_only=True) as store:
        stored = {
            (queue_id, record.queue_offset): record.body.decode()
            for queue_id in range(4)
            for record in store.get(TOPIC, queue_id, count_max=1 << 20)
        }
        for queue_id in range(4):
            offsets = sorted(offset for one, offset in stored if one == queue_id)
            assert offsets == list(range(len(offsets)))
    for place, body in acknowledged.items():
        assert stored[place] == body
        assert consumed[place] == body

"""Stores in turn under both brokers, with the Java client: what one served the other goes on to serve."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import reput
from interop.clients.java_clients import Outcome, run_java

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow, pytest.mark.long]

VERSION = "5.3.3"
# Golden stores are older than a broker keeps its files.
KEPT = {"fileReservedTime": 1_000_000}


def places(outcome: Outcome) -> Counter[tuple[int, int]]:
    """Return queue id and queue offset of what a scenario was given."""
    assert not outcome.error, outcome.error
    found: Counter[tuple[int, int]] = Counter()
    for line in outcome.lines:
        _, queue_id, queue_offset = line.split(" ")[:3]
        found[int(queue_id), int(queue_offset)] += 1
    return found


def bodies(outcome: Outcome) -> list[str]:
    """Return the bodies, in order."""
    assert not outcome.error, outcome.error
    return sorted(line.split()[3] for line in outcome.lines)


def committed_offsets(directory: Path, topic: str, group: str) -> dict[int, int]:
    """Return how far a group is, as the broker has written it: with numbers for keys."""
    text = re.sub(r"\s", "", (directory / "config" / "consumerOffset.json").read_text())
    (found,) = re.findall(re.escape(f'"{topic}@{group}":{{') + r"([^}]*)\}", text)
    return {int(queue): int(offset) for queue, offset in (pair.split(":") for pair in found.split(","))}


def test_a_store_of_rocketmq_is_consumed_from_its_committed_offsets(golden, broker_properties, reput_broker, tmp_path):
    """A group gets what lies behind its offsets: what was delayed when the broker ended, and what comes now."""
    name, topic, group = "delay-retry-5.3", "Velvet_delay-12", "GID_Copper_good-12"
    directory = golden(name) / "store"
    offsets = committed_offsets(directory, topic, group)
    broker = reput_broker(directory=directory, settings=KEPT, config=broker_properties(name))
    run_java(VERSION, tmp_path / "clients", broker.name_server, f"send={topic}:8:new")
    with reput.open(directory, read_only=True) as store:
        expected = Counter(
            (queue_id, record.queue_offset)
            for queue_id, offset in offsets.items()
            for record in store.get(topic, queue_id, offset, count_max=1000)
        )
    taken = run_java(VERSION, tmp_path / "clients", broker.name_server, f"take={topic}:{group}:{len(expected)}")["take"]
    assert places(taken) == expected
    assert {f"new{i}" for i in range(8)} <= set(bodies(taken))


@pytest.mark.parametrize(("name", "topic"), [("basic-5.3", "Meadow_orders-12"), ("basic-4.9", "Cobalt_orders-11")])
def test_a_new_group_gets_all_messages_of_a_store_of_rocketmq(
    golden, broker_properties, reput_broker, tmp_path, name, topic
):
    """Each of them once, compressed ones and odd properties included."""
    folder = golden(name)
    broker = reput_broker(directory=folder / "store", settings=KEPT, config=broker_properties(name))
    listing = [json.loads(line) for line in (folder / "listing.jsonl").read_text().splitlines()]
    expected = Counter((row["queueId"], row["queueOffset"]) for row in listing if row["topic"] == topic)
    assert len(expected) > 300
    clients = tmp_path / "clients"
    taken = run_java(VERSION, clients, broker.name_server, f"take={topic}:new-group:{len(expected)}")["take"]
    assert places(taken) == expected


def test_a_store_written_through_reput_goes_on_under_rocketmq_and_back(reput_broker, real_broker, tmp_path):
    """Messages, topics and the offsets of groups stay; each broker goes on where the other one ended."""
    directory = tmp_path / "real" / "store"
    directory.mkdir(parents=True)
    clients = tmp_path / "clients"
    broker = reput_broker(directory=directory)
    run_java(VERSION, clients, broker.name_server, "send=T:20:first")
    assert len(bodies(run_java(VERSION, clients, broker.name_server, "take=T:group:20")["take"])) == 20
    broker.stop()

    real = real_broker(VERSION)
    run_java(VERSION, clients, real.name_server, "send=T:6:second")
    taken = run_java(VERSION, clients, real.name_server, "take=T:group:6")["take"]
    assert bodies(taken) == [f"second{i}" for i in range(6)]
    everything = run_java(VERSION, clients, real.name_server, "take=T:another-group:26")["take"]
    assert len(places(everything)) == len(bodies(everything)) == 26
    real.stop()

    broker.launch()
    run_java(VERSION, clients, broker.name_server, "send=T:4:third")
    for group in ("group", "another-group"):
        taken = run_java(VERSION, clients, broker.name_server, f"take=T:{group}:4")["take"]
        assert bodies(taken) == [f"third{i}" for i in range(4)]

"""Brokers are measured through their own Python clients, by the same loops."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from benchmarks import clients
from benchmarks.clients import BROKERS, Consumer, Received, main
from benchmarks.figures import FIGURES
from reput.bench.figures import figures_of


@pytest.mark.parametrize("broker", ["NATS", "Redis"])
def test_what_is_not_installed_is_left_out(broker, monkeypatch, capsys):
    """The report says what is missing; this is no failure."""
    monkeypatch.setattr(shutil, "which", lambda program, path: None)
    assert main([broker, "--flush", "sync"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["left_out"] == (
        f"{broker} is not measured, --flush sync: its server is not installed: program={broker.lower()}-server"
    )
    assert list(figures_of(report, FIGURES)) == []


def test_messages_are_acknowledged_in_groups(monkeypatch):
    """The rest is acknowledged when the consumer is closed."""
    monkeypatch.setattr(clients, "FETCH", 2)
    groups: list[list[int]] = []

    async def acknowledge(handles):
        groups.append(handles)

    async def consume():
        consumer = Consumer(acknowledge)
        for number in range(5):
            consumer.arrived.put_nowait(Received(b"body", number))
        while (record := await consumer.areceive(0.01)) is not None:
            consumer.ack(record)
        await asyncio.gather(*consumer.tasks)
        assert groups == [[0, 1], [2, 3]]
        await consumer.aclose()

    asyncio.run(consume())
    assert groups == [[0, 1], [2, 3], [4]]


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("broker", BROKERS)
def test_a_broker_is_measured(broker, flush, capsys):
    """Each figure is there, unless the broker is left out."""
    assert main([broker, "--flush", flush, "--count", "500"]) == 0
    report = json.loads(capsys.readouterr().out)
    if "left_out" in report:
        pytest.skip(report["left_out"])
    found = [figure.what for figure, value in figures_of(report, FIGURES) if value > 0]
    promise = "broker, to disk: " if flush == "sync" else "broker: "
    assert found == [figure.what for figure in FIGURES["clients"] if figure.what.startswith(promise)]

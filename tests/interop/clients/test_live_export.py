"""A lake that follows a running RocketMQ's disk, while its broker and our exporter are killed and files go."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from delivering import wait_until
from interop.clients.brokers import RealBroker
from interop.clients.java_clients import RunningClients, run_java
from interop.clients.live_export import RETENTION, SEGMENT_SIZE, FollowingExport, age_segments
from reput.table import LogTable

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.processes, pytest.mark.slow, pytest.mark.long]

TOPIC = "live"
# What runs on a host of `reput export --follow`, by its command line: JVM, a worker of Spark, or the driver itself.
VICTIMS = ("SparkSubmit", "pyspark.daemon", "driver")
LONG_SECONDS = 600
LONG_KILLS = 20


def rows_of(lake: Path) -> list[tuple[int, int, int, str]]:
    """Return (commit-log offset, queue id, queue offset, body) of the topic's rows, sorted."""
    table = deltalake.DeltaTable(lake).to_pyarrow_table(
        filters=[("topic", "=", TOPIC)], columns=["commitLogOffset", "queueId", "queueOffset", "body"]
    )
    columns = [table.column(name).to_pylist() for name in ("commitLogOffset", "queueId", "queueOffset", "body")]
    return sorted((offset, queue, at, body.decode()) for offset, queue, at, body in zip(*columns, strict=True))


@pytest.fixture
def exporter_of(tmp_path: Path, ending: None) -> Callable[[Path], FollowingExport]:
    """Start an exporter of a store."""
    return lambda store: FollowingExport(store, tmp_path / "lake", tmp_path / "export.log")


def follow_live(
    broker: RealBroker,
    exporter: FollowingExport,
    clients: RunningClients,
    disturbances: list[str],
    pause: Callable[[], None],
) -> None:
    """Disturb broker and exporter while the clients send, with pauses between."""
    for victim in disturbances:
        clients.advance("produce", 200)
        pause()
        exporter.go_on()
        if victim == "broker":
            broker.kill()
            broker.launch()
        else:
            exporter.kill(victim)
        age_segments(broker.directory, exporter.committed())


def check_lake(broker: RealBroker, exporter: FollowingExport, acknowledged: list[str]) -> None:
    """The lake has each acknowledged message once, where the client was told that it lies."""
    end = LogTable(broker.directory).find_durable_end()
    exporter.wait_for(end)
    exporter.stop()
    rows = rows_of(exporter.lake)
    offsets = [row[0] for row in rows]
    assert len(set(offsets)) == len(offsets)
    places = {(queue_id, queue_offset): body for _, queue_id, queue_offset, body in rows}
    assert len(places) == len(rows)
    for queue_id in {queue_id for queue_id, _ in places}:
        of_queue = sorted(at for one, at in places if one == queue_id)
        assert of_queue == list(range(len(of_queue)))
    for line in acknowledged:
        _, queue_id, queue_offset, body = line.split()
        assert places[int(queue_id), int(queue_offset)] == body


def test_a_lake_follows_a_running_broker(
    real_broker: Callable[..., RealBroker], exporter_of: Callable[[Path], FollowingExport], tmp_path: Path
) -> None:
    """Broker and Spark are killed, files roll and retention takes them: each message is in the lake once."""
    run_live("5.3.3", real_broker, exporter_of, tmp_path, ["SparkSubmit", "broker"], lambda: None)


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_a_lake_follows_a_running_broker_for_ten_minutes(
    version: str, real_broker: Callable[..., RealBroker], exporter_of: Callable[[Path], FollowingExport], tmp_path: Path
) -> None:
    """The same with twenty kills of driver, JVM or worker, and three of the broker."""
    chosen = random.Random(18)
    disturbances = [chosen.choice(VICTIMS) for _ in range(LONG_KILLS)]
    for at in (5, 11, 17):
        disturbances.insert(at, "broker")
    mean = LONG_SECONDS / len(disturbances)
    run_live(version, real_broker, exporter_of, tmp_path, disturbances, lambda: time.sleep(chosen.uniform(0, 2 * mean)))


def run_live(
    version: str,
    real_broker: Callable[..., RealBroker],
    exporter_of: Callable[[Path], FollowingExport],
    tmp_path: Path,
    disturbances: list[str],
    pause: Callable[[], None],
) -> None:
    """Follow a broker of a version."""
    broker = real_broker(version, settings=RETENTION)
    # A producer that finds no topic makes none before its second try.
    run_java(version, tmp_path / "first", broker.name_server, f"send={TOPIC}:1:first")
    clients = RunningClients(version, tmp_path / "clients", broker.name_server, f"produce={TOPIC}")
    clients.advance("produce", 10)
    exporter = exporter_of(broker.directory)
    exporter.wait_for(1)
    follow_live(broker, exporter, clients, disturbances, pause)
    exporter.wait_for(2 * SEGMENT_SIZE)
    age_segments(broker.directory, exporter.committed())
    # Retention keeps the segment that is written to.
    wait_until(lambda: not (broker.directory / "commitlog" / f"{0:020d}").exists())
    clients.advance("produce", 200)
    said = clients.finish()["produce"]
    assert not said.error
    check_lake(broker, exporter, said.lines)
    assert not (broker.directory / "reput").exists()

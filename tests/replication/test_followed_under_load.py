"""RocketMQ's brokers at work: a load of its own client, retention, kills of both sides; a typed lake of the copy."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import reput
from command_line import run_reput
from delivering import wait_until
from interop.clients.brokers import RealBroker
from interop.clients.java_clients import RunningClients, run_java
from interop.clients.live_export import RETENTION, SEGMENT_SIZE, FollowingExport, age_segments
from interop.java_program import VERSIONS
from replication.copies import Copy
from reput.replication.master_requests import MasterRequests
from reput.store.disk.file_name import file_name
from reput.table import LogTable

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.processes, pytest.mark.slow, pytest.mark.long]

TOPIC = "live"
TABLES = f'[tables.lines]\ntopic = "{TOPIC}"\nformat = "text"\n'
# How long the load goes on: a person may say 600.
SECONDS = float(os.environ.get("REPUT_FOLLOW_SECONDS", "60"))
KILLS = 20
KILLS_OF_MASTER = 5
# A start of RocketMQ's broker takes seconds.
pytestmark.append(pytest.mark.timeout(SECONDS + 600))


class MastersFiles:
    """The segments of a broker, which stay here when its retention deletes them there."""

    def __init__(self, store: Path, directory: Path) -> None:
        self.store, self.directory = store, directory
        directory.mkdir()

    def keep(self, until: int) -> None:
        """Link the segments that begin below *until*, and are there.

        A segment that the log has not reached is made anew by a broker that was killed.
        """
        for path in (self.store / "commitlog").glob("[0-9]*"):
            if int(path.name) < until and not (self.directory / path.name).exists():
                os.link(path, self.directory / path.name)

    def keep_and_age(self, until: int) -> None:
        """Let retention delete what lies below *until*."""
        self.keep(until)
        age_segments(self.store, until)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_copy_and_a_typed_lake_of_it_follow_a_broker_at_work(
    version: str, real_broker: Callable[..., RealBroker], tmp_path: Path
) -> None:
    """Retention deletes what the copy has; both are killed twenty times; bytes, queues and rows are equal."""
    chance = random.Random(version)
    broker = real_broker(version, settings=RETENTION)
    # A producer that finds no topic makes none before its second try.
    run_java(version, tmp_path / "first", broker.name_server, f"send={TOPIC}:1:first")
    clients = RunningClients(version, tmp_path / "clients", broker.name_server, f"produce={TOPIC}")
    clients.advance("produce", 10)
    copy = Copy(f"127.0.0.1:{broker.port}", tmp_path / "copy")
    (tmp_path / "tables.toml").write_text(TABLES)
    options = ("--tables", str(tmp_path / "tables.toml"))
    exporter = FollowingExport(copy.directory, tmp_path / "lake", tmp_path / "export.log", *options)
    masters_files = MastersFiles(broker.directory, tmp_path / "masters_files")
    victims = ["master"] * KILLS_OF_MASTER + ["copy"] * (KILLS - KILLS_OF_MASTER)
    chance.shuffle(victims)
    times = sorted(chance.uniform(0, SECONDS) for _ in victims)
    begin = time.monotonic()
    for victim, at in zip(victims, times, strict=True):
        clients.advance("produce", 100)
        time.sleep(max(begin + at - time.monotonic(), 0))
        exporter.go_on()
        if victim == "master":
            broker.kill()
            broker.launch()
        else:
            copy.launched.kill()
            copy.launch()
        masters_files.keep_and_age(copied(copy))

    wait_until(lambda: copied(copy) > SEGMENT_SIZE)
    masters_files.keep_and_age(copied(copy))
    # Retention keeps the segment that is written to.
    wait_until(lambda: not (broker.directory / "commitlog" / file_name(0)).exists())
    clients.advance("produce", 100)
    said = clients.finish()["produce"]
    assert not said.error
    end = MasterRequests(f"127.0.0.1:{broker.port}").bounds()[1]
    wait_until(lambda: copied(copy) >= end)
    masters_files.keep(end)
    exporter.wait_for(end)
    exporter.stop()
    copy.launched.stop()
    broker.stop()

    assert_same_bytes(masters_files.directory, copy.directory / "commitlog", SEGMENT_SIZE, end)
    assert_same_queues(broker.directory, copy.directory)
    check = run_reput("check", copy.directory, "--lake", tmp_path / "lake")
    assert check.code == 0, check.stdout
    assert_same_rows(tmp_path / "lake" / "lines", copy.directory, said.lines)


def copied(copy: Copy) -> int:
    """Return where a copy's log ends on disk."""
    return LogTable(copy.directory).find_durable_end()


def assert_same_bytes(theirs: Path, ours: Path, size: int, end: int) -> None:
    """Compare the files of two logs up to *end*."""
    names = [file_name(begin) for begin in range(0, end, size)]
    assert len(names) > 1
    for number, name in enumerate(names):
        until = min(size, end - number * size)
        assert (ours / name).read_bytes()[:until] == (theirs / name).read_bytes()[:until], name


def assert_same_queues(master: Path, copy: Path) -> None:
    """Compare the files of the consume queues that the master still has."""
    files = sorted((master / "consumequeue" / TOPIC).glob("*/[0-9]*"))
    assert files
    for path in files:
        ours = copy / path.relative_to(master)
        # Behind the last unit there are zeros; files that nothing was written to may be there or not.
        units = path.read_bytes().rstrip(b"\0")
        assert (ours.read_bytes() if ours.exists() else b"").rstrip(b"\0") == units, path


def assert_same_rows(lake: Path, copy: Path, acknowledged: list[str]) -> None:
    """Compare the rows of a typed table with the copy's records, and with what the client was told."""
    table = deltalake.DeltaTable(lake).to_pyarrow_table(columns=["text", "_log"])
    rows = sorted(
        (row["_log"]["commitLogOffset"], row["_log"]["queueId"], row["_log"]["queueOffset"], row["text"])
        for row in table.to_pylist()
    )
    with reput.open(copy, read_only=True) as store:
        records = [
            (record.commit_log_offset, record.queue_id, record.queue_offset, record.body.decode())
            for record in store.records(0)
            if record.topic == TOPIC
        ]
    assert rows == records
    places = {(queue_id, queue_offset): text for _, queue_id, queue_offset, text in rows}
    for line in acknowledged:
        _, queue_id, queue_offset, text = line.split()
        assert places[int(queue_id), int(queue_offset)] == text

"""The memory of a stream's processes stays bounded, however many micro-batches it reads."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import reput

pytestmark = [pytest.mark.spark, pytest.mark.long]

MIB = 1 << 20
BATCHES = 30


def resident(pid: int) -> dict[int, tuple[str, int]]:
    """Return name and resident bytes of a process and those below it."""
    found: dict[int, tuple[str, int]] = {}
    waiting = [pid]
    while waiting:
        number = waiting.pop()
        process = Path(f"/proc/{number}")
        # A process may end before it is read.
        with contextlib.suppress(OSError, KeyError):
            status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            found[number] = status["Name"].strip(), int(status["VmRSS"].split()[0]) << 10
            for children in process.glob("task/*/children"):
                waiting += map(int, children.read_text().split())
    return found


def test_thirty_micro_batches_cost_no_more_than_a_few(spark: Any, tmp_path: Path):
    """No Python worker exceeds 256 MiB and the JVM not 1 GiB; after the first batches neither grows."""
    body = bytes(range(256)) * 4
    with reput.open(tmp_path / "store", dispatchers=[], mode="inline") as store:
        while store.appended < 2 * BATCHES * MIB:
            store.put_batch([reput.Message(f"topic-{number % 8}", body) for number in range(512)])
    seen: list[dict[int, tuple[str, int]]] = []

    def look(frame: Any, batch_id: int) -> None:
        frame.write.format("noop").mode("overwrite").save()
        seen.append(resident(spark.sparkContext._gateway.proc.pid))

    stream = spark.readStream.format("reput").options(startingOffsets="earliest", maxBytesPerTrigger="2m")
    rows = stream.load(str(tmp_path / "store")).writeStream.foreachBatch(look).trigger(availableNow=True)
    query = rows.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    assert len(seen) >= BATCHES
    for name, size in seen[-1].values():
        assert size <= (1024 if name == "java" else 256) * MIB
    total = [sum(size for _, size in processes.values()) for processes in seen]
    assert max(total[10:]) <= 1.1 * max(total[5:10])

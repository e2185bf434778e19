"""Measures replication on the loopback: how fast a copy catches up, what it costs, and what a producer waits for it.

    python benchmarks/follow.py --size-mib 1024 --seconds 10

The master is `reput serve`, the copy `reput follow`, each a process of its own with its dispatchers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import reput
from reput.bench.serve import put_in_flight
from reput.replication.master_requests import MasterRequests

REPUT = Path(sys.executable).with_name("reput")
BODY_SIZE = 1024
PORT = 23_911
# Puts beside a copy that catches up, and as many without it, in turns.
TURNS = 5
PUTS_OF_TURN = 50_000
IN_FLIGHT = 256


def fill(store: Path, size: int) -> int:
    """Fill a store with messages of 1 KiB; return where its log ends."""
    with reput.open(store, dispatchers=[]) as opened:
        batch = [reput.Message("orders", os.urandom(BODY_SIZE), tags="t", keys=["k"]) for _ in range(500)]
        while opened.appended < size:
            opened.put_batch(batch)
        return opened.flush()


def serve(store: Path, *settings: str) -> subprocess.Popen[str]:
    """Serve a store; return once clients can connect."""
    command = [REPUT, "serve", store, "--listen", f"127.0.0.1:{PORT}", "--name-server-listen", f"127.0.0.1:{PORT + 50}"]
    for setting in settings:
        command += ["--set", setting]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")
    return process


def follow(copy: Path, dispatchers: str) -> subprocess.Popen[bytes]:
    """Follow the served store."""
    command = [REPUT, "follow", f"127.0.0.1:{PORT + 1}", copy, "--set", f"dispatchers={dispatchers}"]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)


def copied(copy: Path) -> int:
    """Return up to where the copy's log is forced, as its master was told."""
    status = json.loads(MasterRequests(f"127.0.0.1:{PORT}").body(907))
    return max((row["slaveAckOffset"] or 0 for row in status["haConnectionInfo"]), default=0)


def resident(pid: int) -> int:
    """Return the anonymous memory of a process in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def processor_seconds(keeper: int) -> float:
    """Return the processor time of a served store's processes, but for its dispatchers: the keeper and the broker."""
    broker = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0]
    ticks = 0
    for pid in (keeper, int(broker)):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def catch_up(directory: Path, size: int, dispatchers: str) -> dict[str, object]:
    """Measure a new copy of a full log, until its master knows that all of it is forced."""
    store, copy = directory / "master", directory / f"copy{len(dispatchers)}"
    end = fill(store, size) if not store.exists() else 0
    master = serve(store)
    end = end or MasterRequests(f"127.0.0.1:{PORT}").bounds()[1]
    follower = follow(copy, dispatchers)
    try:
        while not copied(copy):
            time.sleep(0.005)
        began, used, first = time.monotonic(), processor_seconds(master.pid), copied(copy)
        while copied(copy) < end:
            time.sleep(0.02)
        seconds, used = time.monotonic() - began, processor_seconds(master.pid) - used
        return {
            "measurement": "catch_up",
            "dispatchers": dispatchers or "none",
            "mb_per_s": round((end - first) / seconds / 1e6, 1),
            "mib": round(end / (1 << 20)),
            "master_cpu_s_per_gib": round(used / (end - first) * (1 << 30), 2),
            "anonymous_memory_mib": round(resident(follower.pid) / 1024, 1),
        }
    finally:
        for process in (follower, master):
            process.terminate()
            process.wait()


def beside(directory: Path, size: int) -> dict[str, object]:
    """Measure puts at full speed beside a copy that catches up from *size* behind, and without it, in turns."""
    store, copy = directory / "behind", directory / "copy-behind"
    fill(store, size)
    master = serve(store)
    follower = follow(copy, "")
    rates: dict[bool, list[float]] = {True: [], False: []}

    async def put() -> float:
        async with reput.connect(f"127.0.0.1:{PORT + 50}") as client:
            return float((await put_in_flight(client, "load", PUTS_OF_TURN, b"x" * BODY_SIZE, IN_FLIGHT))["per_s"])

    try:
        while not copied(copy):
            time.sleep(0.005)
        begin = copied(copy)
        for number in range(2 * TURNS):
            is_beside = bool(number % 2)
            follower.send_signal(signal.SIGCONT if is_beside else signal.SIGSTOP)
            rates[is_beside].append(asyncio.run(put()))
        alone, with_copy = (statistics.median(rates[is_beside]) for is_beside in (False, True))
        return {
            "measurement": "beside",
            "put_per_s": round(alone),
            "put_per_s_beside": round(with_copy),
            "slower_percent": round(100 * (1 - with_copy / alone), 1),
            "copied_mib": round((copied(copy) - begin) / (1 << 20)),
            "behind_mib": round((MasterRequests(f"127.0.0.1:{PORT}").bounds()[1] - copied(copy)) / (1 << 20)),
        }
    finally:
        follower.send_signal(signal.SIGCONT)
        for process in (follower, master):
            process.terminate()
            process.wait()


def latency(directory: Path, seconds: float, role: str, rate: int) -> dict[str, object]:
    """Measure sends at *rate* a second, each from its call until its answer; a late one delays those behind it."""
    master = serve(directory / f"latency-{role}", f"brokerRole={role}")
    follower = follow(directory / f"copy-{role}", "consume_queue")
    try:
        times = []
        with reput.connect(f"127.0.0.1:{PORT + 50}") as client:
            for _ in range(20):
                result = client.put(reput.Message("orders", b"x" * BODY_SIZE))
                time.sleep(0.1)
            assert role == "ASYNC_MASTER" or result.status.name == "PUT_OK", result
            begin = time.monotonic()
            for number in range(int(seconds * rate)):
                if (left := begin + number / rate - time.monotonic()) > 0:
                    time.sleep(left)
                called = time.monotonic()
                client.put(reput.Message("orders", b"x" * BODY_SIZE))
                times.append((time.monotonic() - called) * 1000)
            sent_per_s = len(times) / (time.monotonic() - begin)
        cuts = statistics.quantiles(times, n=100)
        return {
            "measurement": "send",
            "role": role,
            "sent_per_s": round(sent_per_s),
            "p50_ms": round(cuts[49], 3),
            "p95_ms": round(cuts[94], 3),
            "p99_ms": round(cuts[98], 3),
        }
    finally:
        for process in (follower, master):
            process.terminate()
            process.wait()


def main() -> None:
    """Measure, and print a JSON object per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=1000, help="sends a second")
    parser.add_argument("--only", choices=("catch_up", "beside", "send"), default=None)
    parser.add_argument("--directory", type=Path, default=None)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="reput-follow-", dir=arguments.directory))
    try:
        parts = (arguments.only,) if arguments.only else ("catch_up", "beside", "send")
        size = arguments.size_mib << 20
        for dispatchers in ("", "consume_queue,index") if "catch_up" in parts else ():
            print(json.dumps(catch_up(directory, size, dispatchers)), flush=True)
        if "beside" in parts:
            print(json.dumps(beside(directory, size)), flush=True)
        for role in ("ASYNC_MASTER", "SYNC_MASTER") if "send" in parts else ():
            print(json.dumps(latency(directory, arguments.seconds, role, arguments.rate)), flush=True)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()

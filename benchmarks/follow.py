"""Measures replication on the loopback: how fast a copy catches up, what it costs, and what a producer waits for it.

    python -m benchmarks.follow --size-mib 1024 --seconds 10 [--peer DIR --version 5.3.3]
    python -m benchmarks.follow --only beside --behind-mib 2048

The master is `reput serve`, the copy `reput follow`, each a process of its own with its dispatchers. With `--peer`, the
program that runs RocketMQ, sends are measured at a RocketMQ master with its slave as well, by the same clients: those
at a rate by `reput.connect`, those of many threads by the Java client of `peer`. A SYNC_MASTER's answer says of a
`reput follow` that the message is on its disk, of a RocketMQ slave that it is in its memory. With an asynchronous
master, the shared memory of the copy's process tells when a message is on its disk.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import reput
from benchmarks.rocketmq_peer import Peer
from reput.bench.serve import put_in_flight
from reput.replication.master_requests import MasterRequests
from reput.ring import RingHeader, RingMemory

REPUT = Path(sys.executable).with_name("reput")
BODY_SIZE = 1024
PORT = 23_911
# Puts beside a copy that catches up, and as many without it, in turns. Each is long enough for the master to find out
# what the copy costs.
TURNS = 4
IN_FLIGHT = 256
# Flow control of the master, and niceness of the copy, which on a machine of its own takes nothing from producers.
BESIDE = (("false", 0), ("true", 0), ("false", 19))
# RocketMQ's pair, with the ports on both sides of each.
MASTER_PORT, SLAVE_PORT, NAMES_PORT = PORT + 100, PORT + 200, PORT + 300
SYNC = "brokerRole=SYNC_MASTER"
OURSELVES = "reput"
THREADS = 64
LOOK_S = 20e-6
IN_SYNC_MAX_S = 90.0


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


def follow(copy: Path, dispatchers: str, niceness: int = 0) -> subprocess.Popen[bytes]:
    """Follow the served store."""
    command = ["nice", "-n", niceness, REPUT, "follow", f"127.0.0.1:{PORT + 1}", copy]
    command += ["--set", f"dispatchers={dispatchers}"]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)


def copied(copy: Path) -> int:
    """Return up to where the copy's log is forced, as its master was told."""
    status = json.loads(MasterRequests(f"127.0.0.1:{PORT}").body(907))
    return max((row["slaveAckOffset"] or 0 for row in status["haConnectionInfo"]), default=0)


@contextmanager
def header_of(pid: int) -> Iterator[RingHeader]:
    """Have the numbers that the writer of a store shows to its dispatchers."""
    links = {
        os.readlink(path).partition(" ")[0]: path for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()
    }
    memory = RingMemory.from_descriptors(
        os.open(links[f"/memfd:reput-{name}"], os.O_RDONLY) for name in ("ring", "cells")
    )
    try:
        yield memory.header
    finally:
        memory.close()


def resident(pid: int) -> int:
    """Return the anonymous memory of a process in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def serving(keeper: int) -> Sequence[int]:
    """Return a served store's processes, but for its dispatchers: the keeper and the broker."""
    return keeper, int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])


def processor_seconds(pids: Sequence[int]) -> float:
    """Return the processor time of processes."""
    ticks = 0
    for pid in pids:
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
        groups = serving(master.pid), (follower.pid,)
        began, first = time.monotonic(), copied(copy)
        before = [processor_seconds(pids) for pids in groups]
        while copied(copy) < end:
            time.sleep(0.02)
        seconds = time.monotonic() - began
        masters, followers = (processor_seconds(pids) - used for pids, used in zip(groups, before, strict=True))
        share = (1 << 30) / (end - first)
        return {
            "measurement": "catch_up",
            "dispatchers": dispatchers or "none",
            "mb_per_s": round((end - first) / seconds / 1e6, 1),
            "mib": round(end / (1 << 20)),
            "master_cpu_s_per_gib": round(masters * share, 2),
            "follower_cpu_s_per_gib": round(followers * share, 2),
            "anonymous_memory_mib": round(resident(follower.pid) / 1024, 1),
        }
    finally:
        for process in (follower, master):
            process.terminate()
            process.wait()


def beside(directory: Path, size: int, puts: int, flow_control: str, niceness: int) -> dict[str, object]:
    """Measure puts at full speed beside a copy that catches up from *size* behind, and without it, in turns."""
    store, copy = directory / "behind", directory / f"copy-{flow_control}-{niceness}"
    if not store.exists():
        fill(store, size)
    master = serve(store, f"haFlowControlEnable={flow_control}")
    follower = follow(copy, "", niceness)
    rates: dict[bool, list[float]] = {True: [], False: []}

    async def put() -> float:
        async with reput.connect(f"127.0.0.1:{PORT + 50}") as client:
            return float((await put_in_flight(client, "load", puts, b"x" * BODY_SIZE, IN_FLIGHT))["per_s"])

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
            "flow_control": flow_control,
            "niceness": niceness,
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


@contextmanager
def our_pair(directory: Path, role: str) -> Iterator[tuple[str, int]]:
    """Run a master with a copy; yield the address of their name server, and the copy's process."""
    master = serve(directory / f"master-{role.partition('=')[2]}", role)
    follower = follow(directory / f"copy-{role}", "consume_queue")
    try:
        yield f"127.0.0.1:{PORT + 50}", follower.pid
    finally:
        for process in (follower, master):
            process.terminate()
            process.wait()


@contextmanager
def rocketmq_pair(peer: Peer, version: str, directory: Path, role: str) -> Iterator[str]:
    """Run RocketMQ's master with its slave; yield the address of their name server."""

    def run(action: str, name: str, port: int, *settings: str) -> None:
        command = [
            peer.program,
            "broker",
            action,
            "--version",
            version,
            "--dir",
            directory / f"{name}-{version}-{role.partition('=')[2]}",
        ]
        if action == "up":
            # The slave finds the master's name server there, and needs none of its own.
            command += ["--port", str(port), "--namesrv-port", str(NAMES_PORT)]
        command += [word for setting in settings for word in ("--set", setting)]
        with peer.log.open("ab") as log:
            subprocess.run([*map(str, command), "--log", str(peer.log)], check=True, stdout=log, stderr=log)

    with ExitStack() as stack:
        # Version 5 waits for slaves only if it is told how many.
        run("up", "master", MASTER_PORT, role, "inSyncReplicas=2" if role == SYNC else "inSyncReplicas=1")
        stack.callback(run, "down", "master", MASTER_PORT)
        run("up", "slave", SLAVE_PORT, "brokerRole=SLAVE", "brokerId=1")
        stack.callback(run, "down", "slave", SLAVE_PORT)
        yield f"127.0.0.1:{NAMES_PORT}"


def wait_in_sync(name_server: str) -> None:
    """Wait until the master answers that its follower has a message."""
    deadline = time.monotonic() + IN_SYNC_MAX_S
    with reput.connect(name_server) as client:
        while True:
            try:
                if client.put(reput.Message("orders", b"x" * BODY_SIZE)).status.name == "PUT_OK":
                    return
            except reput.BrokerError:
                pass
            assert time.monotonic() < deadline, "the follower is not in sync in time"
            time.sleep(0.1)


def latency(
    who: str, name_server: str, seconds: float, role: str, rate: int, copy: RingHeader | None = None
) -> dict[str, object]:
    """Measure sends at *rate* a second, each from its call until its answer; a late one delays those behind it.

    Args:
        copy: of a copy: measure until the message is on its disk.
    """
    times = []
    with reput.connect(name_server) as client:
        for _ in range(20):
            client.put(reput.Message("orders", b"x" * BODY_SIZE))
            time.sleep(0.1)
        begin = time.monotonic()
        for number in range(int(seconds * rate)):
            if (left := begin + number / rate - time.monotonic()) > 0:
                time.sleep(left)
            called = time.monotonic()
            result = client.put(reput.Message("orders", b"x" * BODY_SIZE))
            while copy is not None and (copy.durable or 0) < result.next_commit_log_offset:
                time.sleep(LOOK_S)
            times.append((time.monotonic() - called) * 1000)
        sent_per_s = len(times) / (time.monotonic() - begin)
    cuts = statistics.quantiles(times, n=100)
    return {
        "measurement": "send",
        "who": who,
        "role": role.removeprefix("brokerRole="),
        "until": "answer" if copy is None else "on the copy's disk",
        "sent_per_s": round(sent_per_s),
        "p50_ms": round(cuts[49], 3),
        "p95_ms": round(cuts[94], 3),
        "p99_ms": round(cuts[98], 3),
    }


def threads(who: str, name_server: str, seconds: float, peer: Peer, version: str) -> dict[str, object]:
    """Measure sends of many threads of the Java client to a SYNC_MASTER."""
    command = ("client-send", "--namesrv", name_server, "--mode", "sync", "--threads", str(THREADS))
    run = peer.measure(version, (*command, "--seconds", str(seconds)), seconds + 120)
    report = run.reports[-1] if run.reports else {}
    assert not run.failed, run.failed
    return {
        "measurement": "threads",
        "who": who,
        "threads": THREADS,
        "sent_per_s": round(report["messages_per_s"]),
        "p50_ms": round(report["send_p50_us"] / 1000, 3),
        "p99_ms": round(report["send_p99_us"] / 1000, 3),
        "failures": report["failures"],
    }


def sends(directory: Path, asked: argparse.Namespace, parts: Sequence[str]) -> Iterator[dict[str, object]]:
    """Measure sends to our pair and to RocketMQ's, each with both roles."""
    peer = None
    versions: list[str] = []
    if asked.peer is not None:
        peer = Peer(asked.peer, asked.version or ["5.3.3"], directory, asked.log)
        for note in peer.build():
            print(note, file=sys.stderr)
        versions = peer.versions
    for role in ("brokerRole=ASYNC_MASTER", SYNC):
        for who in (OURSELVES, *versions):
            with ExitStack() as stack:
                copy_pid = None
                if who == OURSELVES:
                    names, copy_pid = stack.enter_context(our_pair(directory, role))
                else:
                    assert peer is not None
                    names = stack.enter_context(rocketmq_pair(peer, who, directory, role))
                wait_in_sync(names)
                if "send" in parts:
                    yield latency(who, names, asked.seconds, role, asked.rate)
                    if copy_pid is not None and role != SYNC:
                        header = stack.enter_context(header_of(copy_pid))
                        yield latency(who, names, asked.seconds, role, asked.rate, header)
                if "threads" in parts and role == SYNC and peer is not None and versions:
                    yield threads(who, names, asked.seconds, peer, versions[0])


def main() -> None:
    """Measure, and print a JSON object per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--behind-mib", type=int, default=2048, help="how far a copy is behind beside which is put")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=1000, help="sends a second")
    parser.add_argument("--puts", type=int, default=120_000, help="of a turn beside a copy that catches up")
    parser.add_argument("--only", choices=("catch_up", "beside", "send", "threads"), default=None)
    parser.add_argument(
        "--peer", type=Path, metavar="DIR", help="the program `peer`, which runs RocketMQ, or its folder"
    )
    parser.add_argument("--version", action="append", metavar="V", help="of RocketMQ, repeatable; default 5.3.3")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), metavar="FILE", help="gets what `peer` says")
    parser.add_argument("--directory", type=Path, default=None)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="reput-follow-", dir=arguments.directory))
    try:
        parts = (arguments.only,) if arguments.only else ("catch_up", "beside", "send", "threads")
        size = arguments.size_mib << 20
        for dispatchers in ("", "consume_queue,index") if "catch_up" in parts else ():
            print(json.dumps(catch_up(directory, size, dispatchers)), flush=True)
        for flow_control, niceness in BESIDE if "beside" in parts else ():
            print(
                json.dumps(beside(directory, arguments.behind_mib << 20, arguments.puts, flow_control, niceness)),
                flush=True,
            )
        if "send" in parts or "threads" in parts:
            for row in sends(directory, arguments, parts):
                print(json.dumps(row), flush=True)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()

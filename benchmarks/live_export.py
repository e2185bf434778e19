"""A lake that follows a running RocketMQ: what it costs the broker, and whether it has every message once after kills.

    sends │ sends + export, killed │ sends │ …     one broker, one client, 16 threads, one lake

The export runs as a page of the documentation advises: with the least priority, and started again whenever it ends. It
is killed between its transactions and in them: in turn its driver, Spark's JVM, and a worker. RocketMQ's retention runs
every minute. At the end, the rows are compared with RocketMQ's own queues, and with the log by `reput check --lake`.

    python -m benchmarks.live_export --peer DIR --version 5.3.3                            a few minutes
    python -m benchmarks.live_export --peer DIR --version 5.3.3 --rounds 10 --kills 20     ten minutes of sends or more
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

import reput
from benchmarks.brokers import CLIENT_VERSION, NAME_SERVER_PORT, Contender, client_run, descendants, sends
from benchmarks.rocketmq_peer import Peer
from reput.bench.machine import machine_facts, machine_text
from reput.bench.scratch import scratch_directory
from reput.bench.user_command import REPUT, user_environment
from reput.cli.terminal.output import write_line
from reput.process.system.memory import anonymous_memory

__all__ = ["main"]

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0
PAUSE_S = 1.0
TOPIC = "live"
KINDS = ("driver", "JVM", "worker")
# A kill comes at most this long after a transaction.
KILL_SECONDS_MAX = 12.0
# Retention removes files that were last written more than an hour ago, and looks for them once a minute.
RETENTION = {
    "mappedFileSizeCommitLog": str(64 << 20),
    "fileReservedTime": "1",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "cleanResourceInterval": "60000",
}
EXPIRED_S = 2 * 3600
# The file that is written, and those that are allocated in advance.
OPEN_FILES = 3


@contextlib.contextmanager
def repeated(work: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Do *work* again and again, on a thread of its own, until the block ends."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause_s):
            work()

    thread = threading.Thread(target=run, name="repeated", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Service:
    """The export of one store, started again whenever it ends, as a service manager does; used as a context.

    Attributes:
        kills: how often each kind of process was killed.
        starts: how often the export was started.
    """

    def __init__(self, store: Path, lake: Path, log: Path, niceness: int) -> None:
        priority = ("nice", "-n", str(niceness), "ionice", "-c", "3")
        self.command = [*priority, *REPUT, "export", str(store), str(lake), "--follow", "--format", "json"]
        self.log = log
        self.begin = 0
        self.kills: Counter[str] = Counter()
        self.starts = 0
        self.kinds = itertools.cycle(KINDS)
        self.chance = random.Random(18)
        self.process: subprocess.Popen[bytes] | None = None
        self.running = contextlib.ExitStack()

    def __enter__(self) -> Service:
        """Return once the lake is in step."""
        self.start()
        self.running.enter_context(repeated(self.start_again, PAUSE_S))
        try:
            self.wait_for(lambda: any(row["lag_bytes"] == 0 for row in printed(self.log, self.begin)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.running.close()
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(STOP_TIMEOUT_S)

    def start(self) -> None:
        """Start the export."""
        self.begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output, env=user_environment())
        self.starts += 1

    def start_again(self) -> None:
        """Start the export again if it has ended."""
        if self.process is not None and self.process.poll() is not None:
            self.start()

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until *holds* is true."""
        end = time.monotonic() + START_TIMEOUT_S
        while not holds():
            if time.monotonic() > end:
                raise RuntimeError(f"the export does not follow: see log={self.log}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the next kind of process, at some moment after the export's next transaction."""
        count = len(printed(self.log, 0))
        self.wait_for(lambda: len(printed(self.log, 0)) > count)
        time.sleep(self.chance.uniform(0, KILL_SECONDS_MAX))
        kind = next(self.kinds)
        for pid in self.pids(kind)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.kills[kind] += 1

    def pids(self, kind: str | None = None) -> list[int]:
        """Return the processes of one kind, the youngest first; None: all."""
        assert self.process is not None
        found = [self.process.pid, *descendants([self.process.pid])]
        if kind is None:
            return found
        if kind == "driver":
            return found[:1]
        return [pid for pid in reversed(found[1:]) if (kind == "JVM") == (name_of(pid) == "java")]

    def memory_mib(self) -> float:
        """Return the anonymous memory of all processes."""
        return sum(anonymous_memory(pid) or 0 for pid in self.pids()) / (1 << 20)


def name_of(pid: int) -> str:
    """Return the name of a process's program; an empty text if it has ended."""
    try:
        return str(psutil.Process(pid).name())
    except psutil.NoSuchProcess:
        return ""


def printed(log: Path, begin: int) -> list[dict[str, float]]:
    """Return the transactions that the export has printed from byte *begin* on."""
    with log.open("rb") as file:
        file.seek(begin)
        return [json.loads(line) for line in file if line.startswith(b"{") and line.endswith(b"}\n")]


def expire(store: Path, reserve_s: float) -> None:
    """Let the segments that were full *reserve_s* ago look old to RocketMQ's retention, which counts in hours."""
    now = time.time()
    for path in sorted((store / "commitlog").iterdir())[:-OPEN_FILES]:
        with contextlib.suppress(FileNotFoundError):
            if reserve_s < now - path.stat().st_mtime < EXPIRED_S:
                os.utime(path, (now - EXPIRED_S, now - EXPIRED_S))


def command(*words: str) -> dict[str, Any]:
    """Run a command of reput, and return what it prints."""
    done = subprocess.run(
        [*REPUT, *words, "--format", "json"], stdout=subprocess.PIPE, env=user_environment(), check=False
    )
    if done.returncode:
        raise RuntimeError(f"command failed: exit_code={done.returncode} command={words[0]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(store: Path, lake: Path) -> str:
    """Bring the lake up to the end of the log; compare it with the log and with RocketMQ's queues, and return a text.

    Raises:
        RuntimeError: it differs.
    """
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    command("export", str(store), str(lake))
    report = command("check", str(store), "--lake", str(lake))
    rows = DeltaTable(lake).to_pyarrow_table(columns=["queueId", "queueOffset"], filters=[("topic", "=", TOPIC)])
    wanted, wrong = 0, []
    with reput.connect(f"127.0.0.1:{NAME_SERVER_PORT}") as client:
        for queue_id in client.queue_ids(TOPIC):
            _, end = client.queue_range(TOPIC, queue_id)
            wanted += end
            found = rows.filter(pc.equal(rows["queueId"], queue_id))["queueOffset"]
            if len(found) != end or pc.count_distinct(found).as_py() != end or pc.max(found).as_py() != end - 1:
                wrong.append(f"queue={queue_id} messages={end} rows={len(found)}")
    if not report["ok"] or wrong or wanted != len(rows):
        raise RuntimeError(f"the lake differs: check_ok={report['ok']} {' '.join(wrong)}")
    first = min(path.name for path in (store / "commitlog").iterdir())
    expired = report["lake"]["uncheckable_count"]
    return (
        f"{wanted:,} messages = {len(rows):,} rows, check ok: {report['lake']['rows'] - expired:,} rows equal their "
        f"records, and retention has removed the records of {expired:,}, up to {int(first) >> 20:,} MiB of the log"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live_export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peer", type=Path, required=True, metavar="DIR", help="the program `peer`, or its folder")
    parser.add_argument("--version", default="5.3.3", metavar="V", help="the version of RocketMQ")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="rounds of 20 s of sends or more; default 2")
    parser.add_argument("--kills", type=int, default=3, metavar="N", help="kills in all rounds together; default 3")
    parser.add_argument(
        "--reserve", type=float, default=120.0, metavar="S", help="age at which retention may remove a segment"
    )
    parser.add_argument("--nice", type=int, default=19, metavar="N", help="niceness of the export; default 19")
    parser.add_argument("--directory", type=Path, metavar="D", help="where scratch stores are made and removed")
    asked = parser.parse_args(arguments)
    rates: dict[bool, list[float]] = {False: [], True: []}
    memory: list[float] = []
    lags: list[float] = []
    with scratch_directory(asked.directory) as scratch:
        log, lake = scratch / "export.log", scratch / "lake"
        peer = Peer(asked.peer, [asked.version, CLIENT_VERSION], scratch, scratch / "peer.log")
        for note in peer.build():
            print(f"reput: {note}", file=sys.stderr)
        print(f"reput: {machine_text(machine_facts(scratch))}", file=sys.stderr)
        with Contender(asked.version, peer, scratch, RETENTION) as broker:
            sending = sends("sync", 16, "--topic", TOPIC)

            def send(with_export: bool) -> None:
                run = client_run(peer, sending, scratch)
                if run.failed:
                    raise RuntimeError(f"the client failed: {run.failed} log={peer.log}")
                rates[with_export].append(float(run.reports[-1]["messages_per_s"]))

            # Not counted: it warms up the broker, and makes the topic.
            client_run(peer, sending, scratch)
            (store,) = (found.parent for found in broker.directory.rglob("commitlog"))
            service = Service(store, lake, log, asked.nice)
            with repeated(lambda: expire(store, asked.reserve), PAUSE_S):
                for number in range(1, asked.rounds + 1):
                    send(False)
                    due = asked.kills * number // asked.rounds
                    with service:
                        killing = threading.Thread(target=kill_until, args=(service, due), name="killing", daemon=True)
                        killing.start()
                        send(True)
                        send(True)
                        while killing.is_alive():
                            send(True)
                        memory.append(service.memory_mib())
                    send(False)
                    print(f"reput: round={number} rates={rates} kills={dict(service.kills)}", file=sys.stderr)
                lags = [row["lag_seconds"] for row in printed(log, 0)]
                text = compare(store, lake)
    alone, beside_export = (statistics.median(rates[with_export]) for with_export in (False, True))
    kills = ", ".join(f"{kind} {count}" for kind, count in service.kills.items())
    write_line(
        f"RocketMQ {asked.version}, 16 threads: {alone:,.0f} messages/s alone, {beside_export:,.0f} beside the export, "
        f"ratio {beside_export / alone:.3f}; memory of the export {max(memory):.0f} MiB; lag at most {max(lags):.1f} s"
        f"\nkills: {kills or 'none'}, {asked.kills} asked; starts: {service.starts}\n{text}"
    )
    return 0


def kill_until(service: Service, count: int) -> None:
    """Kill processes of the export until there were *count* kills."""
    while sum(service.kills.values()) < count:
        service.kill()


if __name__ == "__main__":
    sys.exit(main())

"""What a lake that follows a running RocketMQ costs the broker: its throughput with and without the export beside it.

    sends │ sends + export │ sends + export │ sends │ …     one broker, one client, 16 threads

The export runs as a page of the documentation advises: with the least priority.

    python -m benchmarks.live_export --peer DIR --version 5.3.3
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.brokers import CLIENT_VERSION, Contender, client_report, descendants, sends
from benchmarks.rocketmq_peer import Peer
from reput.bench.machine import machine_facts, machine_text
from reput.bench.scratch import scratch_directory
from reput.bench.user_command import REPUT, user_environment
from reput.cli.terminal.output import write_line
from reput.process.system.memory import anonymous_memory

__all__ = ["main"]

LEAST_PRIORITY = ("nice", "-n", "19", "ionice", "-c", "3")
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


@contextlib.contextmanager
def exporting(store: Path, lake: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Follow *store* into *lake*; the block begins once the lake is in step."""
    begin = log.stat().st_size if log.exists() else 0
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*LEAST_PRIORITY, *REPUT, "export", str(store), str(lake), "--follow", "--format", "json"],
            stdout=output,
            stderr=output,
            env=user_environment(),
        )
    try:
        end = time.monotonic() + START_TIMEOUT_S
        while not any(row["lag_bytes"] == 0 for row in printed(log, begin)):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the export does not follow: see log={log}")
            time.sleep(0.1)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)


def printed(log: Path, begin: int) -> list[dict[str, float]]:
    """Return the transactions that the export has printed from byte *begin* on."""
    with log.open("rb") as file:
        file.seek(begin)
        return [json.loads(line) for line in file if line.startswith(b"{") and line.endswith(b"}\n")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_export", description=__doc__)
    parser.add_argument("--peer", type=Path, required=True, metavar="DIR", help="the program `peer`, or its folder")
    parser.add_argument("--version", default="5.3.3", metavar="V", help="the version of RocketMQ")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="pairs of each kind; default 2")
    parser.add_argument("--directory", type=Path, metavar="D", help="where scratch stores are made and removed")
    asked = parser.parse_args(arguments)
    rates: dict[bool, list[float]] = {False: [], True: []}
    memory: list[float] = []
    lags: list[float] = []
    with scratch_directory(asked.directory) as scratch:
        log = scratch / "export.log"
        peer = Peer(asked.peer, [asked.version, CLIENT_VERSION], scratch, scratch / "peer.log")
        for note in peer.build():
            print(f"reput: {note}", file=sys.stderr)
        print(f"reput: {machine_text(machine_facts(scratch))}", file=sys.stderr)
        with Contender(asked.version, peer, scratch) as broker:
            command = sends("sync", 16)
            client_report(peer, command, scratch)
            (store,) = (found.parent for found in broker.directory.rglob("commitlog"))
            for number, with_export in enumerate([False, True, True, False] * asked.rounds):
                # Each time into a new lake: an export that finds nothing to do prints nothing to wait for.
                lake = scratch / f"lake-{number}"
                beside = exporting(store, lake, log) if with_export else contextlib.nullcontext()
                begin = log.stat().st_size if log.exists() else 0
                with beside as process:
                    rates[with_export].append(float(client_report(peer, command, scratch)["messages_per_s"]))
                    if process is not None:
                        pids = [process.pid, *descendants([process.pid])]
                        memory.append(sum(anonymous_memory(pid) or 0 for pid in pids) / (1 << 20))
                        lags += [row["lag_seconds"] for row in printed(log, begin)]
    alone, beside_export = (statistics.median(rates[with_export]) for with_export in (False, True))
    write_line(
        f"RocketMQ {asked.version}, 16 threads: {alone:,.0f} messages/s alone, {beside_export:,.0f} beside the export, "
        f"ratio {beside_export / alone:.3f}; memory of the export {max(memory):.0f} MiB; lag at most {max(lags):.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

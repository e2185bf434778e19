"""What an open console costs the program whose store it shows: puts with and without five open pages, alternating.

    part 1   puts alone    part 2   puts, and five pages that get a reading a second    part 3   puts alone    ...

The console and its pages run in processes of their own, like an operator's. Puts go as fast as they do.

    python -m benchmarks.console --seconds 60
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec
import psutil

import reput
from reput.bench.machine import machine_facts, machine_text
from reput.bench.scratch import scratch_directory
from reput.bench.user_command import REPUT, user_environment
from reput.cli.terminal.output import write_line

__all__ = ["PartOfRun", "main", "measure_console"]

PAGES = 5
PARTS = 6
BODY_SIZE = 1024
# A page of the console, as a browser asks for it: the page itself, then its stream of readings.
PAGE = """
import sys, threading, urllib.request
def page():
    urllib.request.urlopen(sys.argv[1]).read()
    with urllib.request.urlopen(sys.argv[1] + "events") as stream:
        for line in stream:
            pass
for _ in range(int(sys.argv[2])):
    threading.Thread(target=page, daemon=True).start()
sys.stdin.read()
"""


class PartOfRun(msgspec.Struct, frozen=True):
    """One part.

    Attributes:
        pages: how many pages were open.
        console_mib: resident memory of the console at the end of the part.
    """

    pages: int
    puts_per_s: float
    p99_us: float
    console_mib: float


def measure_console(directory: Path, seconds: float, parts: int = PARTS) -> Iterator[PartOfRun]:
    """Yield the parts of one run, which takes *seconds* in all."""
    with reput.open(directory / "store") as store:
        for _ in range(20_000):
            store.put(reput.Message("orders", b"x" * BODY_SIZE))
        with console_of(store.directory) as (address, console):
            for number in range(parts):
                pages = PAGES if number % 2 else 0
                with open_pages(address, pages):
                    rate, p99 = put_for(store, seconds / parts)
                    memory = console.memory_info().rss / (1 << 20)
                yield PartOfRun(pages, rate, p99, memory)


def put_for(store: reput.Store, seconds: float) -> tuple[float, float]:
    """Put for so long; return the puts a second, and the 99th percentile of their durations in microseconds."""
    body, durations = b"x" * BODY_SIZE, []
    begun = before = time.perf_counter_ns()
    end = begun + int(seconds * 1e9)
    while before < end:
        store.put(reput.Message("orders", body))
        after = time.perf_counter_ns()
        durations.append(after - before)
        before = after
    rate = len(durations) / ((before - begun) / 1e9)
    durations.sort()
    return rate, durations[len(durations) * 99 // 100] / 1000


@contextmanager
def console_of(store: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Run a console; yield its address and its process."""
    command = [*REPUT, "console", str(store), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=user_environment()) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.search(r"console=(\S+)", line)
            if address is None:
                raise RuntimeError(f"the console did not start: line={line!r}")
            yield address[1], psutil.Process(process.pid)
        finally:
            process.terminate()


@contextmanager
def open_pages(address: str, count: int) -> Iterator[None]:
    """Have pages open."""
    if not count:
        yield
        return
    command = [sys.executable, "-c", PAGE, address, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        # The first readings, which fill the pages.
        time.sleep(1.5)
        try:
            yield
        finally:
            process.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print each part and the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of the whole run [600]")
    parser.add_argument("--parts", type=int, default=PARTS, help=f"alternating [{PARTS}]")
    parser.add_argument("--dir", type=Path, help="where the store is [the system's temporary directory]")
    given = parser.parse_args(arguments)
    with scratch_directory(given.dir) as directory:
        write_line(machine_text(machine_facts(directory)))
        rows = []
        for row in measure_console(directory, given.seconds, given.parts):
            rows.append(row)
            write_line(json.dumps(msgspec.to_builtins(row)))
    alone, watched = ([row for row in rows if bool(row.pages) is is_open] for is_open in (False, True))
    rate = median(row.puts_per_s for row in watched) / median(row.puts_per_s for row in alone)
    p99 = median(row.p99_us for row in watched) / median(row.p99_us for row in alone)
    memory = max(row.console_mib for row in rows)
    write_line(f"with {PAGES} pages: put rate x{rate:.3f}, p99 x{p99:.3f}, console {memory:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

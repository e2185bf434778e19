"""What a backup and a restore cost: a first backup, one after the log has grown, and a restore, beside the bare disk.

    write ──▶ plain writes of the same size, forced ──▶ backup ──▶ write a sixteenth more ──▶ backup ──▶ restore

The goal is 300 MB/s or the rate of the plain writes, whichever is lower, and an increment as large as what has grown.
Processor time says what bounds it on a machine that is shared: the wall's time says nothing there.

    python -m benchmarks.backup --gib 10
    python -m benchmarks.backup --gib 0.01 --directory /dev/shm
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import reput
from reput.backup.backup import backup_store
from reput.backup.directory_target import DirectoryTarget
from reput.backup.restore import RestoreRequest, restore_store
from reput.bench.machine import machine_facts
from reput.bench.scratch import scratch_directory
from reput.cli.terminal.output import write_line
from reput.store.state.recorded_settings import load_store_settings

__all__ = ["main", "measure_backup"]

GIB = 1 << 30
BATCH = 200
GROWN = 16
CHUNK = 4 << 20


def measure_backup(directory: Path | None, size: int, body_size: int) -> dict[str, Any]:
    """Measure with a log of *size* bytes; everything is removed again."""
    with scratch_directory(directory) as scratch:
        store, target, restored = scratch / "store", scratch / "target", scratch / "restored"
        write(store, size, body_size)
        disk = timed(lambda: write_plainly(scratch / "plain", size))
        settings = load_store_settings(store, None, ()).settings
        first, first_cost = timed_report(lambda: backup_store(store, DirectoryTarget(target), settings))
        write(store, size // GROWN, body_size)
        second, second_cost = timed_report(lambda: backup_store(store, DirectoryTarget(target), settings))
        back, back_cost = timed_report(
            lambda: restore_store(DirectoryTarget(target), restored, RestoreRequest(str(target)))
        )
        return {
            "bench": "backup",
            "machine": machine_facts(scratch),
            "body_size": body_size,
            "disk": rates(size, disk),
            "first": {"bytes": first.copied, "records": first.records, **rates(first.copied, first_cost)},
            "increment": {
                "bytes": second.copied,
                "grown": second.log_end - first.log_end,
                **rates(second.copied, second_cost),
            },
            "restore": {
                "bytes": back.log_end - back.log_begin,
                "records": back.records,
                **rates(back.log_end - back.log_begin, back_cost),
            },
        }


def write(store: Path, size: int, body_size: int) -> None:
    """Put messages until the log has grown by *size* bytes."""
    with reput.open(store, mode="inline", dispatchers=[]) as opened:
        end = opened.appended + size
        while opened.appended < end:
            opened.put_batch([reput.Message("orders", os.urandom(body_size), keys=["order"])] * BATCH)


def write_plainly(path: Path, size: int) -> None:
    """Write so many bytes to a file, force them, and remove it: what the disk gives at best."""
    data = os.urandom(CHUNK)
    with path.open("wb") as file:
        for begin in range(0, size, CHUNK):
            file.write(data[: size - begin])
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


Cost = tuple[float, float, float]
Report = TypeVar("Report")


def timed(work: Callable[[], object]) -> Cost:
    """Do *work*; return seconds of the wall, of the program, and of the kernel for it."""
    return timed_report(work)[1]


def timed_report(work: Callable[[], Report]) -> tuple[Report, Cost]:
    """Do *work*; return its result as well."""
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    report = work()
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    return report, (wall, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)


def rates(size: int, cost: Cost) -> dict[str, float]:
    """Return MB a second of the wall, and seconds of processor time a GB, in the program and in the kernel."""
    wall, user, system = cost
    return {
        "mb_per_s": round(size / 1e6 / wall, 1),
        "user_s_per_gb": round(user * 1e9 / size, 3),
        "system_s_per_gb": round(system * 1e9 / size, 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the report as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the log [1]")
    parser.add_argument("--body-size", type=int, default=4000, help="of each message [4000]")
    parser.add_argument("--directory", type=Path, help="where the stores are [the system's temporary directory]")
    given = parser.parse_args(arguments)
    write_line(json.dumps(measure_backup(given.directory, int(given.gib * GIB), given.body_size), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

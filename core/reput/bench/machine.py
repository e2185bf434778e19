"""The machine of a measurement, and its other load."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import reput
from reput.kernel import kernel_version

__all__ = ["group_memory", "machine_facts", "machine_text", "percentiles", "processor_time"]


def machine_facts(directory: Path) -> dict[str, Any]:
    """Return processor, cores, memory, kernel, Python, and the file system of *directory*."""
    status = os.statvfs(directory)
    return {
        "reput": reput.__version__,
        "reput_kernel": kernel_version(),
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "file_system": file_system(directory),
        "free_bytes": status.f_bavail * status.f_frsize,
        "load_average": os.getloadavg()[0],
        "time": time.time_ns() // 1_000_000,
    }


def processor_name() -> str:
    """Return the processor's name as the kernel knows it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(directory: Path) -> str:
    """Return the type of the file system that holds *directory*."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] == wanted:
            return fields[fields.index("-") + 1]
    return "unknown"


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return p50, p99, p99.9 and the maximum of *seconds*, in microseconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1

    def at(share: float) -> float:
        return round(ordered[min(last, int(len(ordered) * share))] * 1e6, 1)

    return {"p50_us": at(0.50), "p99_us": at(0.99), "p999_us": at(0.999), "max_us": round(ordered[-1] * 1e6, 1)}


def processor_time(pid: int, *, with_children: bool = False) -> float:
    """Return the processor time of a process in seconds; *with_children*: plus that of its reaped children.

    Raises:
        OSError: there is no such process.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if with_children else 13])) / os.sysconf("SC_CLK_TCK")


def group_memory(pids: list[int]) -> dict[str, int]:
    """Return the anonymous resident memory of *pids* and their shared memory, counted once, in bytes.

    The shared memory is the largest share of any of them, since all map the same.
    """
    anonymous = shared = 0
    for pid in pids:
        try:
            fields = dict(
                line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
            )
        except OSError:
            continue
        # A zombie has no memory and lacks these lines.
        if "RssAnon" not in fields:
            continue
        anonymous += int(fields["RssAnon"].split()[0]) * 1024
        shared = max(shared, int(fields["RssShmem"].split()[0]) * 1024)
    return {"anonymous_bytes": anonymous, "shared_bytes": shared, "total_bytes": anonymous + shared}


def machine_text(machine: Mapping[str, Any]) -> str:
    """Return the machine of a measurement as text."""
    processor = f"{machine['processor']}, {machine['cores']} cores"
    return (
        f"{processor}, Python {machine['python']}, {machine['file_system']}, reput {machine['reput']}, "
        f"reput-kernel {machine.get('reput_kernel') or 'off'}"
    )

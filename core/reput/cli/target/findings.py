"""Findings: conditions on this machine that would keep reput from working well, for `reput doctor`.

Each function checks one condition and changes nothing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from reput.errors import ReputError
from reput.kernel import ADVICE, NOT_INSTALLED, VARIABLE, found_kernel, kernel_version

__all__ = ["Finding", "machine_findings", "store_findings"]

OPEN_FILES_MIN = 4_096  # every open queue and segment is a file
MAPPINGS_MIN = 65_530  # Linux's default; every segment and index file needs one
JAVA_VERSION_MIN = 17  # what Spark 4 needs
JAVA_TIMEOUT_S = 20.0
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "glusterfs"})
VOLATILE_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "overlay"})


class Finding(msgspec.Struct, frozen=True):
    """The result of one check.

    Attributes:
        state: ``problem``: reput or a part of it will not work; ``warning``: it will not work well.
        advice: what to do; empty if all is well.
    """

    name: str
    state: Literal["ok", "warning", "problem"]
    finding: str
    advice: str = ""


def machine_findings() -> Iterator[Finding]:
    """Yield the findings about the machine and the installation."""
    yield python()
    yield processor()
    yield shared_memory()
    yield open_files()
    yield mappings()
    yield checksums()
    yield compiled_kernel()
    yield java()
    yield from packages()
    yield from plugins()


def store_findings(store: Path) -> Iterator[Finding]:
    """Yield the findings about the store at *store* and its file system.

    Raises:
        NotAStore: there is no store.
    """
    from reput.store.state.identity import require_store

    require_store(store)
    yield file_system(store)
    yield free_space(store)
    yield permissions(store)
    yield holder(store)
    yield store_times(store)


def store_times(store: Path) -> Finding:
    """If the clock once ran ahead, every later message gets that time."""
    from reput.store.disk.files import Clock
    from reput.store.state.store_checkpoint import ahead_of_clock, read_checkpoint

    try:
        last = read_checkpoint(store).physic_msg_timestamp
    except OSError as error:
        advice = "Check its owner and mode."
        return Finding("store times", "warning", f"the checkpoint cannot be read: error={error.strerror}", advice)
    ahead = ahead_of_clock(last, Clock().now_ms())
    if ahead is not None:
        advice = (
            "Check this machine's clock (timedatectl). If it is right now, it was wrong when that message was stored: "
            "wait, or continue in a new store."
        )
        return Finding("store times", "warning", ahead, advice)
    return Finding("store times", "ok", f"store_timestamp={last}")


def python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", "ok", f"version={version} executable={sys.executable}")


def processor() -> Finding:
    from reput.ring import word_access

    try:
        word_access()
    except ReputError as error:
        return Finding("processor", "problem", str(error), error.advice)
    return Finding("processor", "ok", f"machine={os.uname().machine} system={sys.platform}")


def shared_memory() -> Finding:
    """The ring is a memfd sealed against other writers, which requires Linux 5.1."""
    kernel = os.uname().release
    found = re.match(r"(\d+)\.(\d+)", kernel)
    if found and (int(found[1]), int(found[2])) < (5, 1):
        advice = 'Use a newer kernel, or open stores with mode="inline".'
        return Finding("kernel", "problem", f"its shared memory cannot be sealed: kernel={kernel}", advice)
    return Finding("kernel", "ok", f"kernel={kernel}")


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    finding = f"soft={soft} hard={hard}"
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN:
        return Finding(
            "open files", "warning", finding, f"Raise the limit to {OPEN_FILES_MIN}: ulimit -n {OPEN_FILES_MIN}"
        )
    return Finding("open files", "ok", finding)


def mappings() -> Finding:
    count = int(Path("/proc/sys/vm/max_map_count").read_text())
    if count < MAPPINGS_MIN:
        advice = f"Raise it: sysctl vm.max_map_count={MAPPINGS_MIN}"
        return Finding("mappings", "warning", f"max_map_count={count}", advice)
    return Finding("mappings", "ok", f"max_map_count={count}")


def checksums() -> Finding:
    """Without its compiled part crcmod is 30 times slower."""
    if importlib.util.find_spec("crcmod._crcfunext") is not None:
        return Finding("crcmod", "ok", "compiled")
    advice = "Install a C compiler and Python's headers, then: pip install --force-reinstall --no-binary :all: crcmod"
    return Finding("crcmod", "warning", "its compiled part is missing; CRC-32C is 30 times slower without it", advice)


def compiled_kernel() -> Finding:
    """Without it a put takes twice the processor time."""
    try:
        version = kernel_version()
    except ReputError as error:
        return Finding("reput-kernel", "problem", str(error), ADVICE)
    if version is not None:
        return Finding("reput-kernel", "ok", f"version={version}")
    if os.environ.get(VARIABLE) == "off":
        return Finding("reput-kernel", "ok", f"not used: {VARIABLE}=off")
    reason = found_kernel()[1]
    if reason == NOT_INSTALLED:
        # It is offered, not missed.
        return Finding("reput-kernel", "ok", f"not used: {reason}")
    return Finding("reput-kernel", "warning", f"not used: {reason}", ADVICE)


def java() -> Finding:
    """Only Spark needs it."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = f"Install a JDK of version {JAVA_VERSION_MIN} or later for Spark; nothing else needs it."
    if command is None:
        return Finding("java", "warning", "java is not in PATH, and JAVA_HOME is not set", advice)
    try:
        asked = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "warning", f"it does not answer: java={command} error={error}", advice)
    version = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    if version is None or int(version[1]) < JAVA_VERSION_MIN:
        return Finding("java", "warning", f"too old: java={command} version={version[1] if version else None}", advice)
    return Finding("java", "ok", f"java={command} version={version[1]}")


def packages() -> Iterator[Finding]:
    """Check the optional packages without importing them."""
    for extra, modules in (("arrow", ("pyarrow",)), ("spark", ("pyspark", "deltalake"))):
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            advice = f'For tables of the log: pip install "reput[{extra}]"'
            yield Finding(f"extra {extra}", "warning", f"not installed: {', '.join(missing)}", advice)
        else:
            yield Finding(f"extra {extra}", "ok", ", ".join(modules))


def plugins() -> Iterator[Finding]:
    """Import each installed dispatcher, in its own process."""
    from reput.process.logs.exception_text import exception_line
    from reput.process.plugin.catalogue import installed_dispatchers
    from reput.process.plugin.describe import describe

    for entry in installed_dispatchers().values():
        answer = describe(entry, {})
        finding = f"distribution={entry.distribution} version={entry.version}"
        if answer.broken:
            reason = exception_line(answer.broken)
            yield Finding(f"dispatcher {entry.name}", "problem", f"{reason} {finding}", "Repair or uninstall it.")
        else:
            yield Finding(f"dispatcher {entry.name}", "ok", finding)


def file_system(store: Path) -> Finding:
    kind = file_system_type(store)
    if kind in NETWORK_FILE_SYSTEMS:
        advice = "Keep the store on a local disk: locks, mappings and forcing to disk are not reliable there."
        return Finding("file system", "warning", f"on a network: type={kind}", advice)
    if kind in VOLATILE_FILE_SYSTEMS:
        advice = "Use another file system for a store that must outlive the machine or its container."
        return Finding("file system", "warning", f"files may not survive a restart: type={kind}", advice)
    return Finding("file system", "ok", f"type={kind}")


def file_system_type(path: Path) -> str:
    """Return the kernel's name for the type of the file system that holds *path*."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, described = line.partition(" - ")
        if mount.split()[2] == number:
            return described.split()[0]
    return "unknown"


def free_space(store: Path) -> Finding:
    """RocketMQ refuses messages above a certain disk usage; the next segment also needs space."""
    from reput.settings import Settings
    from reput.store.log.segments import Segments

    usage = shutil.disk_usage(store)
    used_percent = 100 - 100 * usage.free // usage.total
    segment_size = Segments(store / "commitlog").segment_size
    finding = f"used={used_percent}% free_bytes={usage.free} segment_size={segment_size}"
    ratio = Settings().disk_space_warning_level_ratio
    if usage.free < segment_size or used_percent >= ratio:
        return Finding("disk", "warning", finding, "Make room, or keep fewer hours (file_reserved_time).")
    return Finding("disk", "ok", finding)


def permissions(store: Path) -> Finding:
    if os.access(store, os.W_OK) and not os.statvfs(store).f_flag & os.ST_RDONLY:
        return Finding("permissions", "ok", "it is writable")
    return Finding(
        "permissions",
        "warning",
        "it is read-only for this user",
        "Grant write permission if the store should be written.",
    )


def holder(store: Path) -> Finding:
    from reput.store.state.store_lock import StoreLock

    lock = StoreLock.look(store)
    if lock.held:
        return Finding("writer", "ok", f"held by pid={lock.pid or 'unknown'}")
    if lock.held is None:
        advice = "Ask as the user who owns the store, or as root."
        return Finding("writer", "warning", "this user may not see whether a program has it open", advice)
    if (store / "abort").exists():
        advice = "Open it for writing once to recover it; `reput check` shows what was lost."
        return Finding("writer", "warning", "the last writer did not close it", advice)
    return Finding("writer", "ok", "no program has it open; it was closed cleanly")

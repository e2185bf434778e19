"""Processes for the ring's tests: started by exec with the ring's descriptors, like a supervisor.

`run_role` waits for the end of one, `start_role` leaves it running; each prints one line of JSON as its result.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from reput.errors import RingClosed, RingLapped
from reput.ring import RingMemory, RingReader, RingWriter, ring_memory, word_access
from reput.ring.layout import CELL_WORDS, DURABLE, HEADER_SIZE

__all__ = ["make_frame", "result_of", "run_role", "start_role"]


# On any machine the words that the ring uses on aarch64.
kernel_access = partial(word_access, "aarch64", "linux")


def start_role(role: str, memory: RingMemory | None = None, **options: object) -> subprocess.Popen[str]:
    """Start the process *role*, with the ring's descriptors."""
    descriptors = memory.descriptors if memory else []
    command = [sys.executable, __file__, role, json.dumps(descriptors), json.dumps(options)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, pass_fds=descriptors)


def run_role(role: str, memory: RingMemory | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the process *role* until it ends."""
    with start_role(role, memory, **options) as process:
        stdout, stderr = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def result_of(process: subprocess.Popen[str]) -> Any:
    """Wait for *process* and return its output."""
    with process:
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    return json.loads(stdout)


def make_frame(number: int, size: int) -> bytes:
    """Return a frame that can be verified: its number, its CRC, and *size* bytes derived from the number."""
    body = struct.pack("<Q", number) * (size // 8 + 1)
    return struct.pack("<QI", number, zlib.crc32(body)) + body


def number_of(frame: bytes) -> int:
    """Return the number of *frame*, -1 if it is torn."""
    number, crc = struct.unpack_from("<QI", frame)
    body = frame[12:]
    whole = zlib.crc32(body) == crc and body == struct.pack("<Q", number) * (len(body) // 8)
    return int(number) if whole else -1


def address_of(name: str, access: str, offset: int = 0) -> int:
    """Return the address at which this process has mapped the memfd *name* with *access* from *offset* on."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.match(rf"([0-9a-f]+)-\S+ {access}\S* ([0-9a-f]+) .*/memfd:{name}", line)
        if found and int(found[2], 16) == offset:
            return int(found[1], 16)
    raise LookupError(name)


def stray(memory: RingMemory, target: str) -> None:
    """Act as the dispatcher of slot 1, and write where only another process may."""
    memory.open_cell(0)
    memory.confine(1)
    if target == "ring":
        address = address_of("reput-ring", "r-") + HEADER_SIZE
    elif target == "header":
        address = address_of("reput-ring", "r-")
    else:
        address = address_of("reput-cells", "r-")
    ctypes.memset(address, 0xFF, 8)


def confined(memory: RingMemory) -> None:
    """Act as the dispatcher of slot 1."""
    supervisors = memory.open_cell(0)
    cell = memory.confine(1)
    cell.set_progress(77, None)
    for forbidden in (lambda: os.pwrite(memory.cells_descriptor, b"x", 0), lambda: supervisors.set_progress(1, 1)):
        try:
            forbidden()
        except (OSError, ValueError):
            continue
        raise AssertionError("another dispatcher's cell can be written")


def forks() -> None:
    """Act as an owner that forks, like a program that uses multiprocessing."""
    memory = RingMemory.create(4096, 2)
    writer = RingWriter(memory, appended=0, durable=0, commit_log_offset_min=0, epoch=1, ordinal=0)
    descriptor = memory.descriptors[0]
    pid = os.fork()
    if pid == 0:
        try:
            writer.publish(b"from the child", 1, 1)
        except ValueError:
            os._exit(10 if memory.closed and not os.path.exists(f"/proc/self/fd/{descriptor}") else 11)
        os._exit(12)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 10
    writer.publish(b"from the parent", 1, 1)
    assert memory.header.tail == 24


def read_all(memory: RingMemory, slot: int, pause: float = 0.0) -> dict[str, int]:
    """Read until the ring is closed; report what was read.

    Args:
        pause: seconds to sleep occasionally, so that the writer laps this reader.
    """
    cell = memory.confine(slot)
    cell.clear(f"reader {slot}")
    reader = RingReader(memory, cell)
    reader.position = 0
    cell.set_progress(0, None)
    frame_count = torn_count = gap_count = 0
    expected = 1
    while True:
        try:
            frames = reader.read(1 << 16)
        except RingClosed:
            break
        except RingLapped:
            # A reader that joins again first sees some later frame, and then all frames in order.
            reader.join()
            expected = 0
            continue
        for frame in frames:
            number = number_of(frame)
            frame_count += 1
            torn_count += number < 0
            gap_count += expected not in (0, number)
            expected = number + 1
        if frames:
            cell.set_progress(expected - 1, None)
            if pause and frame_count % 7 == 0:
                time.sleep(pause)
        else:
            reader.park()
    view = memory.view(slot)
    return {
        "frames": frame_count,
        "torn": torn_count,
        "gaps": gap_count,
        "lapped": view.lapped_count,
        "backstop": view.backstop_count,
    }


def echo_progress(memory: RingMemory, slot: int, predecessor: int | None = None, seed: int = 0) -> dict[str, int]:
    """Publish the number of each frame as progress; after *predecessor*, if there is one."""
    chance = random.Random(seed)
    cell = memory.confine(slot)
    cell.clear(f"echo {slot}")
    reader = RingReader(memory, cell)
    reader.position = 0
    cell.set_progress(0, None)
    while True:
        try:
            frames = reader.read()
        except RingClosed:
            return {"backstop": memory.view(slot).backstop_count}
        if not frames:
            reader.park()
            continue
        number = number_of(frames[-1])
        while predecessor is not None and (memory.view(predecessor).progress or 0) < number:
            reader.park(frames=False, predecessors=(predecessor,), progress=number)
        spin(chance.random() * 30e-6)
        cell.set_progress(number, None)


def spin(seconds: float) -> None:
    """Wait *seconds* without a system call that would order memory accesses."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        continue


def watch_word(memory: RingMemory, values: list[int], count: int) -> dict[str, int]:
    """Load one word of the ring *count* times; report how often it was none of *values*."""
    words = memory.words
    expected = frozenset(values)
    memory.open_cell(0).set_pid(os.getpid())
    return {"wrong": sum(words[DURABLE] not in expected for _ in range(count))}


def watch_packed(memory: RingMemory, values: list[int], index: int, count: int) -> dict[str, int]:
    """Load word *index* of slot 1 until it is none of *values*, up to *count* times; report whether it was."""
    words = memory.cell_words
    expected = frozenset(values)
    at = CELL_WORDS + index
    memory.open_cell(0).set_pid(os.getpid())
    return {"wrong": int(any(words[at] not in expected for _ in range(count)))}


ROLES: dict[str, Callable[..., object]] = {
    "stray": stray,
    "confined": confined,
    "read_all": read_all,
    "echo_progress": echo_progress,
    "watch_word": watch_word,
    "watch_packed": watch_packed,
}

if __name__ == "__main__":
    role_name, descriptor_text, option_text = sys.argv[1:]
    role_options = json.loads(option_text)
    if role_options.pop("words", "own") == "kernel":
        ring_memory.word_access = kernel_access  # type: ignore[assignment]
    if role_name == "forks":
        forks()
    else:
        role_memory = RingMemory.from_descriptors(json.loads(descriptor_text))
        print(json.dumps(ROLES[role_name](role_memory, **role_options)))

"""For tests of replication: sending, copies of small segments, and comparing a copy with its master's files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import reput
from command_line import REPUT
from delivering import wait_until
from interop.clients.brokers import SETTINGS, Launched, ReputBroker
from reput.replication.follower import FollowState
from reput.replication.following import FollowingStore
from reput.replication.master_requests import MasterRequests
from reput.store.disk.file_name import file_name
from written_log import WrittenLog

__all__ = [
    "INLINE",
    "SEGMENT",
    "SMALL_SEGMENT",
    "Copy",
    "assert_same_log",
    "following",
    "ha_port",
    "kill_whole",
    "reaches",
    "send",
    "stops",
    "written",
]

SEGMENT = 1 << 20
# Of logs that a test writes itself.
SMALL_SEGMENT = 4096
# Sizes of files are recorded with the store: those of the brokers, which may serve the copy later.
SIZES = ("mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
# The dispatchers of a copy here run on a thread.
INLINE: dict[str, Any] = {"mode": "inline", "max_hash_slot_num": 64, "max_index_num": 1000}


def written(directory: Path, count: int, begin: int = 0, body: bytes = b"b" * 200) -> WrittenLog:
    """Return a log of *count* records."""
    log = WrittenLog(directory, SMALL_SEGMENT, begin)
    for _ in range(count):
        log.append(body)
    log.save()
    return log


@contextmanager
def following(master: str, path: Path, **options: Any) -> Iterator[FollowingStore]:
    """Follow *master* into *path* inside the block."""
    store = reput.follow(master, path, **{**INLINE, **options})
    try:
        yield store
    finally:
        store.close()


class Copy:
    """`reput follow` on a directory."""

    def __init__(self, address: str, directory: Path, *options: str) -> None:
        """Follow the master that answers requests at *address*."""
        self.master = f"127.0.0.1:{ha_port(address)}"
        self.directory = directory
        sizes = [f"--set={name}={SETTINGS[name]}" for name in SIZES]
        self.options = (*options, "--broker", address, *sizes)
        self.launch()

    def launch(self) -> None:
        """Start it, and wait until it copies."""
        log = self.directory.with_name(f"{self.directory.name}.follow.log")
        begin = log.stat().st_size if log.exists() else 0
        self.launched = Launched([str(REPUT), "follow", self.master, str(self.directory), *self.options], log)
        self.launched.wait_for(lambda: "COPYING" in log.read_text()[begin:], "reput follow")


def ha_port(address: str) -> int:
    """Return where the followers of the broker at *address* connect."""
    return MasterRequests(address).describe_when_started().ha_port


def send(name_server: str, topic: str, count: int, size: int = 1000, begin: int = 0) -> None:
    """Send *count* messages through brokers, in batches."""
    with reput.connect(name_server) as client:
        for first in range(begin, begin + count, 50):
            last = min(first + 50, begin + count)
            client.put_batch([message(topic, number, size) for number in range(first, last)])


def message(topic: str, number: int, size: int = 1000) -> reput.Message:
    """Return one message, recognisable by its number."""
    return reput.Message(topic, b"%d " % number + b"x" * size, tags="t", keys=[f"k{number}"])


def reaches(store: FollowingStore, end: int) -> None:
    """Wait until a copy has the master's log up to *end*, on disk."""
    wait_until(lambda: store.durable >= end or store.following.state is FollowState.STOPPED)
    assert store.durable >= end, store.following


def stops(store: FollowingStore) -> str:
    """Wait until the following has ended for good; return why."""
    wait_until(lambda: store.following.state is FollowState.STOPPED)
    reason = store.following.reason
    assert reason is not None
    return reason


def assert_same_log(master: Path, copy: Path, begin: int, end: int, segment: int = SEGMENT) -> None:
    """Compare the bytes of two logs in [begin, end)."""
    assert end > begin
    for first in range(begin - begin % segment, end, segment):
        size = min(segment, end - first)
        theirs, ours = ((store / "commitlog" / file_name(first)).read_bytes()[:size] for store in (master, copy))
        assert ours == theirs, f"the segments differ: begin={first}"


def kill_whole(broker: ReputBroker) -> None:
    """Kill a broker and its keeper at once."""
    broker.launched.process.kill()
    os.kill(broker.place()["pid"], signal.SIGKILL)
    broker.launched.process.wait()

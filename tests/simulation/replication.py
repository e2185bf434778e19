"""ReplicationSimulation: a master, its copy and the way between them in one thread, under faults that a seed chooses.

    puts ──▶ MessageStore on a disk ──▶ frames, cut, lost, doubled ──▶ Follower ──▶ FollowingMessageStore on a disk
                  │  killed, power cut                                    ◀── reports ──┘  killed, power cut

The follower's own code runs; only its socket and the master's answers are simulated. After every fault the promises are
checked: a copy is the beginning of one history of its master, what it has acknowledged it still has, and two histories
are never stitched together: a copy of a master that lost records stops, and an operator promotes it or discards.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct

import pytest

from faulty_files import Killed
from reput.errors import BrokerError, FollowError
from reput.replication import comparison, copied_records, copy_preparation, follower
from reput.replication.copy_preparation import MasterAddress, difference
from reput.replication.follower import Follower
from reput.replication.ha_protocol import HaFrameReader, Room, new_memory
from reput.replication.log_history import LogHistory
from reput.replication.master_requests import MasterDescription
from reput.settings import Settings
from reput.store.disk.file_name import file_name
from reput.store.disk.files import Files
from reput.store.following_store import FollowingMessageStore
from reput.store.log.segments import Segments
from reput.store.message_store import MessageStore
from reput.store.record.message import Message
from reput.store.recovery.repair import cut
from reput.store.state.followed_master import FollowedMaster, forget_followed_master
from simulation.simulated_disk import ProcessFiles, SimulatedDisk, content
from simulation.simulated_machine import HeldThreads, SimulatedClock

__all__ = ["FAULTS", "ReplicationSimulation"]

SEGMENT_SIZE = 4096
OPERATION_COUNT = 40
EVENTS_MAX = 60
RECORD_SIZE_MAX = 1 << 16
FRAME = Struct(">qi")
SETTINGS = {"mapped_file_size_commit_log": SEGMENT_SIZE, "max_hash_slot_num": 7, "max_index_num": 12}
FAULTS = (
    "connection lost",
    "frame lost",
    "frame doubled",
    "copy killed in a file call",
    "copy cut off power",
    "master killed",
    "master cut off power",
    "master lost records that the copy has",
    "copy promoted",
    "copy discarded",
)


class Machine:
    """One store with its disk."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory = directory
        self.disk = SimulatedDisk(chance)
        self.files = ProcessFiles(self.disk)
        self.store: MessageStore | None = None

    def log(self) -> bytes:
        """Return the log from its first byte to its end."""
        assert self.store is not None
        end = self.store.shown
        segments = range(0, max(end, 1), SEGMENT_SIZE)
        return b"".join(content(self.directory / "commitlog" / file_name(at)) for at in segments)[:end]

    def die(self) -> None:
        """End the process at once."""
        if self.store is not None:
            store, self.store = self.store, None
            self.files.die()
            store.store_files.store_lock.close()


class ReplicationSimulation:
    """One run. *faults* counts the faults."""

    def __init__(self, seed: int, directory: Path, faults: Counter[str], patch: pytest.MonkeyPatch) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.faults = faults
        self.clock = SimulatedClock()
        directory.mkdir(parents=True)
        self.master = Machine(directory / "a", self.chance)
        self.copy = Machine(directory / "b", self.chance)
        self.followed = FollowedMaster("ha:2", "broker:1", "C", "broker-a", 0)
        # Where this, as `MasterRequests`, asks.
        self.address = self.followed.address
        self.number = 0
        # What was acknowledged: the copy must have these bytes until an operator discards them.
        self.safe = b""
        self.is_reliable = False
        self.copy_count = 0
        # Less than a large record, in a log that is as small.
        for module, name in ((follower, "OVERLAP_SIZE"), (comparison, "FIRST_STEP"), (comparison, "PROBE_SIZE")):
            patch.setattr(module, name, 100)
        # Forced by the thread that copies, or by the flusher.
        patch.setattr(follower, "FORCED_AT_ONCE_MAX", self.chance.choice((0, 300)))
        # Memory is used again after a few records, some of which are not forced.
        patch.setattr(copied_records, "MEMORY_SIZE", self.chance.choice((400, 3000)))
        patch.setattr(follower, "MasterStream", self.stream)
        patch.setattr(copy_preparation, "MasterStream", self.stream)
        patch.setattr(follower, "MasterRequests", lambda address, credentials: self)

    # The run.

    def run(self) -> None:
        """Do all operations."""
        self.prepare(self.copy)
        self.open_master()
        self.open_copy()
        operations: list[tuple[Callable[[], None], int]] = [
            (self.put, 10),
            (self.flush_master, 4),
            (self.follow, 14),
            (self.kill_master, 2),
            (self.cut_master, 4),
            (self.cut_copy, 3),
            (self.promote, 1),
        ]
        choices, weights = zip(*operations, strict=True)
        try:
            for operation in range(OPERATION_COUNT):
                self.clock.advance(0.05)
                self.chance.choices(choices, weights)[0]()
                self.check(operation)
            self.is_reliable = True
            self.settle()
        finally:
            self.master.die()
            self.copy.die()

    def check(self, operation: int) -> None:
        """Hold the promises against what is there."""
        copied = self.copy.log()
        assert copied.startswith(self.safe), f"seed={self.seed} operation={operation}: what was acknowledged is gone"

    def settle(self) -> None:
        """Without further faults the copy becomes the same log."""
        # A blank at the master's end comes with the record behind it.
        self.put()
        for _ in range(5):
            self.follow()
            if self.copy.log() == self.master.log():
                return
        raise AssertionError(
            f"seed={self.seed}: the copy does not reach the master's end: copy={len(self.copy.log())} "
            f"master={len(self.master.log())}"
        )

    # The master.

    def open_master(self) -> None:
        """Start the master, which recovers its log."""
        machine = self.master
        machine.files = ProcessFiles(machine.disk)
        machine.store = MessageStore(
            machine.directory, Settings(**SETTINGS), files=machine.files, clock=self.clock, threads=HeldThreads()
        )

    def put(self) -> None:
        """Put some messages."""
        assert self.master.store is not None
        for _ in range(self.chance.randrange(1, 6)):
            self.number += 1
            # Of the same number, the same message.
            topic, times = ("orders", "a")[self.number % 2], (1, 5, 100)[self.number % 3]
            self.master.store.put(Message(topic, b"%d " % self.number * times, keys=["k"]))

    def flush_master(self) -> None:
        """Let the master force its log."""
        assert self.master.store is not None
        self.master.store.durability.flush_service.flush()

    def kill_master(self) -> None:
        """Its pages survive."""
        self.master.die()
        self.open_master()
        self.faults["master killed"] += 1

    def cut_master(self) -> None:
        """Its unforced bytes may be lost."""
        before = len(self.master.log())
        self.master.die()
        self.master.disk.cut()
        self.clock.boot += 1
        self.open_master()
        self.faults["master cut off power"] += 1
        end = len(self.master.log())
        if end < before and len(self.copy.log()) > end:
            self.faults["master lost records that the copy has"] += 1
        # It grows again, with other records; some of their messages are those that producers had no answer to.
        if self.chance.random() < 0.7:
            self.number -= min(self.chance.randrange(8), self.number)
            self.put()
            self.put()

    # The copy.

    def prepare(self, machine: Machine) -> None:
        """Make a new copy, as `prepare_copy` does."""
        machine.directory.mkdir()
        files = Files()
        self.followed.write(machine.directory, files)
        files.make_directory(machine.directory / "commitlog")
        files.create(machine.directory / "commitlog" / file_name(0), SEGMENT_SIZE)

    def open_copy(self) -> None:
        """Start the copy, which recovers its log."""
        machine = self.copy
        machine.files = ProcessFiles(machine.disk)
        machine.store = FollowingMessageStore(
            machine.directory,
            Settings(**SETTINGS),
            self.followed,
            files=machine.files,
            clock=self.clock,
            threads=HeldThreads(),
        )

    def cut_copy(self) -> None:
        """Cut the power of the copy's machine."""
        self.copy.die()
        self.copy.disk.cut()
        self.clock.boot += 1
        self.open_copy()
        self.faults["copy cut off power"] += 1

    def follow(self) -> None:
        """Follow over one connection, as long as it lasts; then do what an operator does if the logs have parted."""
        assert isinstance(self.copy.store, FollowingMessageStore)
        self.following = Follower(self.copy.store, lambda: None, MasterAddress("ha:2"))
        try:
            # A follower waits for this before it connects again.
            self.copy.store.durability.flush_service.do_round()
            self.following.follow()
        except BrokerError:
            self.faults["connection lost"] += 1
        except Killed:
            self.faults["copy killed in a file call"] += 1
            self.copy.die()
            self.open_copy()
        except FollowError:
            self.part()
        self.copy.files.calls_left = None

    def part(self) -> None:
        """The two logs differ: an operator promotes the copy, or discards what only it has."""
        self.copy.files.calls_left = None
        copied, theirs = self.copy.log(), self.master.log()
        assert not theirs.startswith(copied), f"seed={self.seed}: the copy stopped although it is a part of the log"
        if self.chance.random() < 0.5:
            self.promote()
        else:
            self.discard_or_renew()
            self.faults["copy discarded"] += 1

    def discard(self, machine: Machine, reopen: Callable[[], None]) -> None:
        """Cut off what the master lacks; its bytes are kept."""
        before = machine.log()
        machine.die()
        self.is_reliable, was_reliable = True, self.is_reliable
        segments = Segments(machine.directory / "commitlog")
        plan = difference(machine.directory, segments, self.followed, self.describe(), MasterAddress("ha:2"))
        self.is_reliable = was_reliable
        if plan is not None:
            files = ProcessFiles(machine.disk)
            cut(machine.directory, plan.cut_at, files=files, clock=self.clock)
            kept = b"".join(content(path) for path in sorted((machine.directory / "reput" / "cut").iterdir()))
            # Zeros at the end of a segment are not kept.
            rest = before[plan.cut_at : plan.cut_at - plan.cut_at % SEGMENT_SIZE + SEGMENT_SIZE].rstrip(b"\0")
            assert rest[:200] in kept
        reopen()
        assert self.master.log().startswith(machine.log()), f"seed={self.seed}: histories are stitched"

    def promote(self) -> None:
        """Make the copy the master, and the old master a copy of it, without what only that has."""
        if not self.copy.log().startswith(self.safe) or not self.copy.log():
            return
        store = self.copy.store
        assert isinstance(store, FollowingMessageStore)
        store.begin_epoch()
        store.close(views_complete=False)
        forget_followed_master(self.copy.directory, self.copy.files)
        self.copy.store = None
        old, self.master = self.master, self.copy
        self.open_master()
        self.copy = old
        self.faults["copy promoted"] += 1
        self.followed.write(self.copy.directory, Files())
        self.discard_or_renew()

    def discard_or_renew(self) -> None:
        """Let the copy follow without what only it has; if it has nothing else, begin a new one."""
        try:
            self.discard(self.copy, self.open_copy)
        except FollowError:
            self.copy_count += 1
            self.copy = Machine(self.copy.directory.with_name(f"c{self.copy_count}"), self.chance)
            self.prepare(self.copy)
            self.open_copy()
        self.safe = self.safe[: len(self.copy.log())]

    # The master's answers, in place of `MasterRequests`.

    def describe(self) -> MasterDescription:
        """Return what the master is."""
        begin, end = self.bounds()
        return MasterDescription(
            cluster_name="C",
            broker_name="broker-a",
            broker_id=0,
            role="ASYNC_MASTER",
            segment_size=SEGMENT_SIZE,
            record_size_max=RECORD_SIZE_MAX,
            delay_level="",
            ha_port=2,
            offset_min=begin,
            offset_end=end,
            epoch=1 if self.seed % 2 else None,
        )

    def bounds(self) -> tuple[int, int]:
        """Return where the master's log begins and ends."""
        return 0, len(self.master.log())

    def history(self) -> LogHistory:
        """Return the marks of the master's log."""
        assert self.master.store is not None
        return LogHistory.of(self.master.store.epochs)

    def stream(self, address: str, begin: int, segment_size: int, **options: object) -> SimulatedStream:
        """Return a connection to the master, in place of `MasterStream`."""
        return SimulatedStream(self, begin, segment_size)


class SimulatedStream:
    """One connection."""

    def __init__(self, simulation: ReplicationSimulation, begin: int, segment_size: int) -> None:
        self.simulation = simulation
        self.at = begin
        self.frames = HaFrameReader(begin, segment_size)

    def __enter__(self) -> SimulatedStream:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def report(self, end: int) -> None:
        """Take an acknowledgement: from now on the copy must have these bytes."""
        simulation = self.simulation
        simulation.safe = max(simulation.safe, simulation.copy.log()[:end], key=len)

    def pieces(self, wait: float, on_quiet: Callable[[], None], room: Room = new_memory) -> Iterator[memoryview]:
        """Yield what comes, and let everything else happen in between."""
        simulation = self.simulation
        chance = simulation.chance
        machine = simulation.master
        events = ["bytes"] * 12 + ["put", "flush", "force"] * 3 + ["end", "lose", "double", "kill"]
        if simulation.is_reliable:
            events = ["bytes", "force"]
        for _ in range(EVENTS_MAX * 20 if simulation.is_reliable else EVENTS_MAX):
            event = chance.choice(events)
            log = machine.log()
            if event == "bytes" and self.at < len(log):
                size = min(chance.choice((1, 7, 300, 5000)), len(log) - self.at, SEGMENT_SIZE - self.at % SEGMENT_SIZE)
                yield from self.feed(FRAME.pack(self.at, size) + log[self.at : self.at + size])
                self.at += size
                on_quiet()
            elif event == "put":
                simulation.put()
            elif event == "flush":
                simulation.flush_master()
            elif event == "force" and simulation.copy.store is not None:
                simulation.copy.store.durability.flush_service.do_round()
                on_quiet()
            elif event == "end":
                break
            elif event == "lose":
                simulation.faults["frame lost"] += 1
                yield from self.feed(FRAME.pack(self.at + 5, 0))
            elif event == "double" and self.at > 10:
                simulation.faults["frame doubled"] += 1
                yield from self.feed(FRAME.pack(self.at - 10, 10) + log[self.at - 10 : self.at])
            elif event == "kill":
                simulation.copy.files.calls_left = chance.randrange(4)
        raise BrokerError("the connection was lost")

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Yield the bytes of the log in *data*, cut by chance."""
        at = 0
        while at < len(data):
            size = self.simulation.chance.choice((1, 5, 4000))
            yield from self.frames.feed(memoryview(data)[at : at + size])
            at += size

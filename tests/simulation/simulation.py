"""Simulation: writer, ring and dispatchers in one thread, on a disk, a clock and a scheduler driven by one seed.

    seed ──▶ operations ──▶ MessageStore ──▶ ring ──▶ DispatcherLoop: consume_queue, index, ledger, in some runs ext
                │                │                        │
                └──▶ faults      └────── SimulatedDisk ───┘

The module is long because a run is one state machine: each operation reads and changes what all the others check.

After every death of the writer the store is opened again and its promises are checked: acknowledged messages exist, the
log is what was put, in order and without a gap, and the views catch up with it.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from struct import Struct

from faulty_files import Killed
from reput.errors import StoreFull, StoreReadOnly
from reput.filter.string_hash import string_hash
from reput.process.dispatcher.dispatcher_loop import DispatcherLoop
from reput.process.dispatcher.host_context import HostContext
from reput.process.dispatcher.states import StopMode
from reput.process.frames.frame_publisher import FramePublisher
from reput.process.frames.log_feed import LogFeed
from reput.process.views.dead_letters import DeadLetters
from reput.process.views.view_folders import ViewFolders
from reput.ring import Cell, RingMemory, RingReader, RingWriter
from reput.settings import Settings
from reput.store.ext.consume_queue_ext_addresses import ExtAddresses
from reput.store.log.group_commit_log import GroupCommitLog
from reput.store.log.pooled_commit_log import PooledCommitLog
from reput.store.message_store import MessageStore
from reput.store.record.layout import BLANK_MAGIC_CODE
from reput.store.record.message import Message
from reput.store.record.record import decode_record
from reput.store.service.threads import Threads
from reput.store.state.epochs import read_epochs
from reput_hooks import CommitLogDispatcher, DispatcherDescription
from reput_plugins import consume_queue, consume_queue_ext, index
from simulation.expected_log import ExpectedLog, ExpectedRecord, ExtFiles, Violation
from simulation.ledger import DESCRIPTION, Ledger
from simulation.quick_path import QuickPath
from simulation.simulated_disk import ProcessFiles, SimulatedDisk, content
from simulation.simulated_machine import HeldThreads, PromptThreads, SimulatedClock

__all__ = ["FAULTS", "OPERATION_COUNT", "Simulation", "SimulationFailed"]

# With 120 operations a run, each broken build of `test_broken_builds` is found as surely as with 200.
OPERATION_COUNT = 120
SIZE_AND_MAGIC = Struct(">iI")
SEGMENT_SIZE = 4096
SLOT_COUNT = 7
# Three units, plus the free space that a file keeps after them.
EXT_FILE_SIZE = 64
SETTINGS = {
    "mapped_file_size_commit_log": SEGMENT_SIZE,
    "mapped_file_size_consume_queue": 5 * 20,
    "mapped_file_size_consume_queue_ext": EXT_FILE_SIZE,
    "max_hash_slot_num": SLOT_COUNT,
    "max_index_num": 12,
}
# Few frames fit, so a dispatcher that has not run for a while is lapped.
RING_SIZE = 4096
TOPICS = ("orders", "payments", "a")
KEYS = ("k1", "k2", "k3", "k4", "k5")
TAGS = ("", "", "red", "blue")
# Upper bound for the rounds that a dispatcher needs to take in the whole log of one run.
ROUNDS_MAX = 3000
ATTEMPTS_MAX = 100

FAULTS = (
    "writer killed",
    "writer killed in a file call",
    "writer killed in the middle of a record",
    "dispatcher killed",
    "dispatcher killed in a file call",
    "power cut",
    "power cut that took records",
    "power cut in a recovery",
    "recovery killed in a file call",
    "no room",
    "no force",
    "clock forward",
    "clock back",
    "dispatcher lapped",
    "segment removed",
    "topic deleted",
    "ext dispatcher killed",
)


class SimulationFailed(AssertionError):
    """A run failed. The text says how to repeat it."""


class Member:
    """One dispatcher: its process, and its published progress."""

    def __init__(self, name: str, description: DispatcherDescription, cell: Cell) -> None:
        self.name = name
        self.description = description
        self.cell = cell
        self.files: ProcessFiles | None = None
        self.loop: DispatcherLoop | None = None
        self.context: HostContext | None = None
        # Its open descriptors, which end with the process.
        self.read_files: ExtAddresses | None = None
        self.lapped_count = 0


class Simulation:
    """One run. *faults* counts the faults."""

    # How often an opening is killed in a file call, and how often there are ext files.
    recovery_kill_share = 0.25
    ext_share = 0.4

    def __init__(self, seed: int, directory: Path, faults: Counter[str]) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.directory = QuickPath(directory)
        self.faults = faults
        self.disk = SimulatedDisk(self.chance)
        self.clock = SimulatedClock()
        self.flush_threads: Threads = PromptThreads()
        synchronous = self.chance.random() < 0.5
        self.settings = Settings(
            **SETTINGS,
            flush_disk_type="SYNC_FLUSH" if synchronous else "ASYNC_FLUSH",
            enabled_append_prop_crc=self.chance.random() < 0.3,
        )
        self.ext: ExtFiles | None = None
        if self.chance.random() < self.ext_share:
            self.ext = ExtFiles(self.directory / "consumequeue_ext", EXT_FILE_SIZE)
        self.expected = ExpectedLog(SEGMENT_SIZE)
        self.acknowledged = 0
        self.maybe_stored: list[Message] = []
        self.operation = 0
        self.done: list[str] = []
        self.message_number = 0
        self.alive = False
        self.members: list[Member] = []

    # The run.

    def run(self) -> None:
        """Do all operations.

        Raises:
            SimulationFailed: a promise was broken.
        """
        operations: list[tuple[Callable[[], None], int]] = [
            (self.put, 1000),
            (self.put_batch, 120),
            (self.burst, 8),
            (self.let_dispatchers_work, 400),
            (self.flush, 260),
            (self.help_log, 120),
            (self.pass_time, 200),
            (self.write_back, 40),
            (self.kill_dispatcher, 20),
            (self.kill_dispatcher_in_call, 20),
            (self.kill_writer, 6),
            (self.kill_writer_in_call, 15),
            (self.kill_writer_in_record, 6),
            (self.cut_power, 20),
            (self.fill_disk, 20),
            (self.refuse_force, 12),
            (self.jump_clock, 20),
            (self.remove_segment, 60),
            (self.delete_topic, 12),
            (self.close_and_open, 5),
            (self.verify, 5),
        ]
        choices, weights = zip(*operations, strict=True)
        cum_weights = list(accumulate(weights))
        try:
            self.open()
            for self.operation in range(OPERATION_COUNT):
                operation = self.chance.choices(choices, cum_weights=cum_weights)[0]
                self.done.append(operation.__name__)
                self.clock.advance(0.05)
                operation()
            self.operation = OPERATION_COUNT
            self.verify()
            self.close()
        except (Exception, Killed) as error:
            raise SimulationFailed(
                f"seed={self.seed} operation={self.operation} last={self.done[-6:]} "
                f"flush={self.settings.flush_disk_type} {type(error).__name__}: {error}\n"
                f"Again: REPUT_SIMULATION_SEEDS={self.seed} pytest tests/simulation"
            ) from error
        finally:
            self.abandon()

    # The processes.

    def open(self) -> None:
        """Start the writer, however often that is killed, and the dispatchers."""
        for _ in range(ATTEMPTS_MAX):
            killed_early = self.chance.random() < self.recovery_kill_share
            if self.try_open(self.chance.randrange(30) if killed_early else None):
                return
            self.faults["recovery killed in a file call"] += 1
            if self.chance.random() < 0.5:
                self.disk.cut()
                self.clock.boot += 1
                self.faults["power cut in a recovery"] += 1
        raise Violation("the store cannot be opened")

    def try_open(self, calls: int | None) -> bool:
        """Start the writer and the dispatchers; return False if the writer was killed after *calls* file calls."""
        files = self.writer_files = ProcessFiles(self.disk)
        files.calls_left = calls
        try:
            self.store = MessageStore(
                self.directory, self.settings, files=files, clock=self.clock, threads=HeldThreads()
            )
        except Killed:
            files.die()
            return False
        files.calls_left = None
        self.alive = True
        self.check_recovered()
        self.start_group()
        return True

    def start_group(self) -> None:
        """Create the ring and the dispatchers' loops."""
        store = self.store
        self.memory = RingMemory.create(RING_SIZE, 4)
        self.ring = RingWriter(
            self.memory,
            appended=store.appended,
            durable=store.durable,
            commit_log_offset_min=store.commit_log_offset_min,
            epoch=store.epochs.epoch,
            ordinal=store.ordinal,
        )
        descriptions = {
            **({"consume_queue_ext": consume_queue_ext.reput_describe_dispatcher()} if self.ext else {}),
            "consume_queue": consume_queue.reput_describe_dispatcher(),
            "index": index.reput_describe_dispatcher(),
            "ledger": DESCRIPTION,
        }
        self.members = []
        for slot, (name, description) in enumerate(descriptions.items()):
            cell = self.memory.open_cell(slot)
            cell.clear(name)
            member = Member(name, description, cell)
            self.members.append(member)
            self.start_dispatcher(member)
        publisher = FramePublisher(self.ring, store.epochs.epoch)
        store.attach(publisher, needs_properties=self.ext is not None, reads_durable=True)

    def start_dispatcher(self, member: Member) -> None:
        """Begin a loop in a separate simulated process."""
        files = member.files = ProcessFiles(self.disk)
        folders = ViewFolders(self.directory, member.name, member.description.store_folders)
        dead_letters = DeadLetters(self.directory, member.name)

        def create() -> CommitLogDispatcher:
            if member.context is not None:
                member.context.close()
            # Like `ViewFolders.prepare`, which just did it with the real directory.
            files.force_directory(folders.directory)
            member.context = HostContext(
                name=member.name,
                options=None,
                settings=self.settings,
                store_directory=self.directory,
                store_id=self.store.store_id,
                folders=folders,
                dead_letters=dead_letters,
                cell=member.cell,
                epoch=lambda: self.store.epochs.epoch,
                alive=lambda: None,
            )
            if member.name == "consume_queue_ext":
                return consume_queue_ext.ConsumeQueueExtDispatcher(member.context, files, self.flush_threads)
            if member.name == "consume_queue":
                dispatcher = consume_queue.ConsumeQueueDispatcher(member.context, files, self.flush_threads)
                member.read_files = dispatcher.addresses
                return dispatcher
            if member.name == "index":
                return index.IndexDispatcher(member.context, files, self.clock, self.flush_threads)
            return Ledger(member.context, files, self.complain)

        member.loop = DispatcherLoop(
            name=member.name,
            description=member.description,
            create=create,
            folders=folders,
            dead_letters=dead_letters,
            reader=RingReader(self.memory, member.cell),
            cell=member.cell,
            predecessors=[other.cell for other in self.members if other.name in member.description.after],
            log_feed=LogFeed(self.directory, self.settings),
            load_epochs=lambda: read_epochs(self.directory, self.store.store_id),
            flush_interval_s=0.5,
            flush_time_max_s=60.0,
            dispatch_time_max_s=60.0,
            now=self.clock.monotonic,
        )

    def end_dispatcher(self, member: Member) -> None:
        """Remove all state of a loop, as if its process had died."""
        if member.loop is not None:
            member.loop.log_feed.close()
        if member.context is not None:
            member.context.close()
        if member.read_files is not None:
            member.read_files.close()
        if member.files is not None:
            member.files.die()
        member.loop = member.context = member.files = member.read_files = None

    def abandon(self) -> None:
        """Remove all state of all processes."""
        self.faults["dispatcher lapped"] += sum(member.cell.lapped_count for member in self.members)
        for member in self.members:
            self.end_dispatcher(member)
        if self.members:
            self.members = []
            self.memory.close()
        if self.alive:
            self.alive = False
            self.writer_files.die()
            self.store.store_files.store_lock.close()

    def complain(self, text: str) -> None:
        raise Violation(text)

    # Normal operations.

    def message(self) -> Message:
        self.message_number += 1
        chance = self.chance
        size = chance.choice((0, 1, 20, 20, 100, 100, 300, 900))
        body = str(self.message_number).encode().ljust(size, b"b") if size else b""
        keys = chance.sample(KEYS, chance.choice((0, 0, 1, 2)))
        return Message(
            chance.choice(TOPICS),
            body,
            tags=chance.choice(TAGS),
            keys=" ".join(keys),
            queue_id=chance.choice((0, 0, 1)),
            properties={"number": str(self.message_number), "filler": "p" * chance.choice((0, 0, 0, 5, 5, 500))},
        )

    def put(self) -> None:
        message = self.message()
        self.maybe_stored = [message]
        self.refused(lambda: self.store.appender.append_batch([message]) and None)
        self.take_over()

    def put_batch(self) -> None:
        self.maybe_stored = [self.message() for _ in range(self.chance.randrange(2, 8))]
        self.refused(lambda: self.store.appender.append_batch(self.maybe_stored) and None)
        self.take_over()

    def burst(self) -> None:
        """Put more messages than the ring holds, before a dispatcher runs."""
        for _ in range(40):
            self.put()

    def refused(self, call: Callable[[], None]) -> None:
        """Call, and accept the error of a full disk."""
        try:
            call()
        except StoreFull:
            if not self.disk.full:
                raise
            self.faults["no room"] += 1

    def take_over(self) -> None:
        """Add to the model the records since the last check, which must be what was put, in order."""
        at = self.expected.end
        segment, begin = b"", -1
        while at < self.store.appended:
            if at - at % SEGMENT_SIZE != begin:
                begin = at - at % SEGMENT_SIZE
                segment = self.segment_of_writer(begin)
            size, magic_code = SIZE_AND_MAGIC.unpack_from(segment, at % SEGMENT_SIZE)
            if magic_code == BLANK_MAGIC_CODE:
                at += size
                continue
            data = segment[at % SEGMENT_SIZE : at % SEGMENT_SIZE + size]
            record = decode_record(data)
            if not self.maybe_stored:
                raise Violation(f"a record that was never put: commit_log_offset={at}")
            message = self.maybe_stored.pop(0)
            queue_offset = self.expected.next_queue_offset(message.topic, message.queue_id)
            if (record.topic, record.queue_id, record.body, record.queue_offset) != (
                message.topic,
                message.queue_id,
                message.body,
                queue_offset,
            ):
                raise Violation(f"a record is not what was put: record={record} message={message}")
            keys = message.keys.split() if isinstance(message.keys, str) else list(message.keys or ())
            tags_code = string_hash(message.tags or "")
            self.expected.records.append(
                ExpectedRecord(
                    at, data, message.topic, message.queue_id, queue_offset, tags_code, record.store_timestamp, keys
                )
            )
            at += size
        self.maybe_stored = []

    def segment_of_writer(self, begin: int) -> bytes:
        """Return the segment as in its file, completed by what the writer still has in memory."""
        segment = bytearray(content(f"{self.directory}/commitlog/{begin:020d}"))
        log = self.store.commit_log
        if isinstance(log, GroupCommitLog):
            for gathered_at, piece in log.gathered.items():
                if begin <= gathered_at < begin + SEGMENT_SIZE:
                    segment[gathered_at - begin : gathered_at - begin + len(piece)] = piece
        elif isinstance(log, PooledCommitLog):
            for written in log.unforced:
                if written.begin == begin and written.buffer is not None:
                    at = max(0, log.committed - begin)
                    segment[at:] = written.buffer.memory[at:]
        return bytes(segment)

    def flush(self) -> None:
        """Run the flusher's thread."""
        self.store.durability.flush_service.do_round()
        self.note_durable()

    def note_durable(self) -> None:
        self.expected.durable = max(self.expected.durable, min(self.store.durable, self.expected.end))

    def help_log(self) -> None:
        """Run the log's helper."""
        self.refused(lambda: self.store.commit_log.prepare(self.store.appended))

    def pass_time(self) -> None:
        self.clock.advance(self.chance.choice((0.01, 0.3, 1.5, 12.0)))

    def write_back(self) -> None:
        self.disk.write_back()

    def let_dispatchers_work(self) -> None:
        for member in self.members:
            if self.chance.random() < 0.6:
                self.work(member, self.chance.randrange(1, 5))

    def work(self, member: Member, count: int) -> None:
        """Let one dispatcher do up to *count* pieces of work; restart it if it dies."""
        for _ in range(count):
            if member.loop is None:
                self.start_dispatcher(member)
            assert member.loop is not None
            try:
                member.loop.do_work()
            except Killed:
                self.faults["dispatcher killed in a file call"] += 1
                self.faults["ext dispatcher killed"] += member.name == "consume_queue_ext"
                self.end_dispatcher(member)

    # Faults.

    def kill_dispatcher(self) -> None:
        member = self.chance.choice(self.members)
        self.end_dispatcher(member)
        self.faults["dispatcher killed"] += 1
        self.faults["ext dispatcher killed"] += member.name == "consume_queue_ext"

    def kill_dispatcher_in_call(self) -> None:
        member = self.chance.choice(self.members)
        if member.files is not None:
            member.files.calls_left = self.chance.randrange(12)
        self.work(member, 10)
        if member.files is not None:
            member.files.calls_left = None

    def kill_writer(self) -> None:
        self.faults["writer killed"] += 1
        self.die_and_open()

    def die_and_open(self) -> None:
        """Kill the writer; dispatchers live on for a moment."""
        for member in self.members:
            if self.chance.random() < 0.3:
                self.work(member, 3)
        self.abandon()
        self.open()

    def kill_writer_in_call(self) -> None:
        self.writer_files.calls_left = self.chance.randrange(8)
        try:
            for _ in range(self.chance.randrange(1, 10)):
                self.chance.choice((self.put_batch, self.flush, self.help_log, self.write_snapshot))()
        except Killed:
            self.faults["writer killed in a file call"] += 1
            self.die_and_open()
            return
        self.writer_files.calls_left = None

    def write_snapshot(self) -> None:
        self.clock.advance(12.0)
        self.store.durability.snapshot_regularly()

    def kill_writer_in_record(self) -> None:
        """Kill the last put after some of the record's bytes, which a put writes after the size word, before that.

        With SYNC_FLUSH the flusher writes them, with all other messages since the last force.
        """
        at = self.store.appended
        self.put()
        if self.settings.flush_disk_type == "SYNC_FLUSH":
            if self.store.appended > self.store.durable:
                self.writer_files.calls_left = 0
                try:
                    self.flush()
                except Killed:
                    self.faults["writer killed in the middle of a record"] += 1
                    self.abandon()
                    self.open()
            return
        record = self.expected.records[-1] if self.expected.records else None
        if record is None or record.begin < at:
            return
        self.expected.records.pop()
        begin = record.begin - self.store.commit_log.begin
        memory = self.store.commit_log.memory
        written = self.chance.randrange(4, len(record.data))
        memory[begin : begin + 4] = bytes(4)
        memory[begin + written : begin + len(record.data)] = bytes(len(record.data) - written)
        self.faults["writer killed in the middle of a record"] += 1
        self.abandon()
        self.open()

    def cut_power(self) -> None:
        self.faults["power cut"] += 1
        self.abandon()
        self.disk.cut()
        self.clock.boot += 1
        self.open()

    def fill_disk(self) -> None:
        """Fill the disk for a while."""
        self.disk.full = True
        for _ in range(self.chance.randrange(1, 6)):
            self.chance.choice((self.put_batch, self.let_dispatchers_work, self.help_log, self.pass_time))()
        self.disk.full = False

    def refuse_force(self) -> None:
        """Make forces fail; the store must report it, refuse puts, and lose no acknowledged message."""
        self.put()
        self.disk.force_error = errno.EIO
        self.clock.advance(12.0)
        self.store.durability.flush_service.do_round()
        self.disk.force_error = None
        if self.store.durable < self.store.appended:
            self.faults["no force"] += 1
            if self.store.state != "READ_ONLY" or "Input/output error" not in (self.store.reason or ""):
                raise Violation(f"a failed force is kept secret: state={self.store.state} reason={self.store.reason}")
            try:
                self.store.appender.append(self.message())
            except StoreReadOnly:
                pass
            else:
                raise Violation("a store that could not be forced takes messages")
            self.kill_writer()

    def jump_clock(self) -> None:
        forward = self.chance.random() < 0.5
        self.clock.ms += (1 if forward else -1) * self.chance.choice((1, 5_000, 86_400_000))
        self.faults["clock forward" if forward else "clock back"] += 1

    def remove_segment(self) -> None:
        """Let retention remove the oldest segment that every dispatcher has durably."""
        begin = self.expected.offset_min
        until = begin + SEGMENT_SIZE
        cursors = [member.cell.durable_cursor for member in self.members]
        if self.store.durable <= until or any(cursor is None or cursor.commit_log_offset < until for cursor in cursors):
            return
        self.store.trim(self.directory / "commitlog" / f"{begin:020d}", until)
        self.expected.offset_min = until
        self.faults["segment removed"] += 1

    def delete_topic(self) -> None:
        """Delete a topic with its queues; its records stay, and later messages have queue offsets from 0 on."""
        topic = self.chance.choice(TOPICS)
        self.store.delete_topic(topic)
        if self.expected.delete_topic(topic):
            self.faults["topic deleted"] += 1

    # Checks.

    def check_recovered(self) -> None:
        """Compare the newly opened store with what was put."""
        expected, end = self.expected, self.store.appended
        expected.offset_min = min(int(path.name) for path in (self.directory / "commitlog").iterdir())
        if self.lose_records(end):
            self.faults["power cut that took records"] += 1
        self.take_over()
        expected.check_log(self.directory, end)
        found = {
            (topic, queue_id): next_offset
            for topic, queues in self.store.queue_offsets.queues.items()
            for queue_id, next_offset in queues.items()
        }
        wanted = {name: len(records) for name, records in expected.queues().items()}
        if found != wanted:
            raise Violation(f"queues go on elsewhere: found={found} wanted={wanted}")
        self.note_durable()

    def lose_records(self, end: int) -> int:
        expected = self.expected
        if end < expected.durable:
            raise Violation(f"what was durable is lost: durable={expected.durable} end={end}")
        return expected.lose_behind(end)

    def catch_up(self) -> None:
        """Let the dispatchers take in everything and make it durable."""
        for _ in range(ROUNDS_MAX):
            self.flush()
            end = self.store.appended
            if self.store.durable == end and all(
                member.cell.durable_cursor is not None and member.cell.durable_cursor.commit_log_offset == end
                for member in self.members
            ):
                return
            self.clock.advance(0.3)
            for member in self.members:
                self.work(member, 5)
        raise Violation(f"the dispatchers do not catch up: durable={self.store.durable} appended={self.store.appended}")

    def verify(self) -> None:
        """Let everything come to rest, and compare log and views with what was put."""
        self.catch_up()
        self.expected.check_log(self.directory, self.store.appended)
        self.expected.check_queues(self.directory / "consumequeue", self.ext)
        if self.ext is not None:
            self.ext.check(self.expected.queues().keys())
        self.expected.check_index(self.directory / "index", SLOT_COUNT)
        ledger = self.members[-1].loop
        assert ledger is not None
        assert isinstance(ledger.dispatcher, Ledger)
        wanted = [(record.begin, len(record.data), record.queue_offset) for record in self.expected.records]
        if ledger.dispatcher.records != wanted:
            raise Violation(f"the ledger is not what the log says: {ledger.dispatcher.records} wanted={wanted}")

    def close(self) -> None:
        """Close like a program that has time."""
        self.store.stop_puts()
        self.catch_up_closed()
        self.store.close(views_complete=True)
        self.alive = False
        self.abandon()

    def catch_up_closed(self) -> None:
        for member in self.members:
            if member.loop is None:
                self.start_dispatcher(member)
            assert member.loop is not None
            member.loop.request_stop(StopMode.DRAIN)
            for _ in range(ROUNDS_MAX):
                member.loop.do_work()
                if member.loop.finished:
                    break
                self.clock.advance(0.3)
            else:
                raise Violation(f"a dispatcher does not end: dispatcher={member.name}")

    def close_and_open(self) -> None:
        self.close()
        self.open()

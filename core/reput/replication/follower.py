"""Follower: the thread that copies a master's log into a store, and says how far it is.

    describe the master ──▶ compare the overlap ──▶ copy: check, append, force, report ──▶ … the connection ends
           ▲                                                                                      │
           └──────────────────────────── a pause that grows ◀─────────────────────────────────────┘

A gap, diverged logs, another master or damage ends the following for good: two histories are never joined.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from reput.errors import BrokerError, FollowError, OffsetOutOfRange, ReputError, StoreFull
from reput.replication.comparison import (
    OVERLAP_SIZE,
    find_parting,
    lost_records,
    read_bytes,
    record_begin,
    request_offset,
)
from reput.replication.compression import NO_COMPRESSION
from reput.replication.copied_records import CopiedRecords
from reput.replication.copy_preparation import MasterAddress, agreed_epoch, require_epoch
from reput.replication.ha_protocol import END, MEMBER
from reput.replication.master_requests import FIELDS_SIZE_MAX, MasterDescription, MasterRequests
from reput.replication.master_stream import NO_FIELDS, MasterStream
from reput.store.following_store import FollowingMessageStore
from reput.store.log.segments import Segments
from reput.store.service.wake import Wake
from reput.store.state.closed_store import closed_store
from reput.store.state.followed_master import FollowedMaster

__all__ = ["FollowState", "FollowStatus", "Follower"]

PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 10.0
# A connection that lasted so long begins with the shortest pause again.
LASTED_S = 5.0
READ_WAIT_S = 1.0
# A master that has sent nothing of its log for so long has nothing under way either.
QUIET_S = 10.0
# So much is appended before more is taken apart: what comes at a time may be much more, if it is compressed.
TAKEN_SIZE = 1 << 20
# A producer of a SYNC_MASTER may wait for few bytes: they are forced by the thread that copies, and reported before
# anything else is done with them. More are forced by the flusher, beside the copying of what comes next.
FORCED_AT_ONCE_MAX = 64 << 10
# Bytes in memory that are not on disk yet: a disk that is slower than the master must not fill memory.
UNFORCED_MAX = 8 << 20

logger = logging.getLogger(__name__)


class FollowState(enum.Enum):
    """What a follower does.

    Attributes:
        CONNECTING: it connects to its master.
        COPYING: it is connected, and receives the log.
        WAITING: the connection has failed, and is made again after a pause.
        STOPPED: it has stopped for good.
    """

    CONNECTING = "CONNECTING"
    COPYING = "COPYING"
    WAITING = "WAITING"
    STOPPED = "STOPPED"


class FollowStatus(msgspec.Struct, frozen=True):
    """A follower as it is now.

    Attributes:
        master: where the log is copied from.
        end: commit-log offset up to which the log is copied.
        durable: up to which it is forced, and acknowledged.
        master_end: where the master's log ended when it was last asked; None: it never answered.
        reason: why the follower waits or has stopped.
        connections: how often it has connected.
    """

    state: FollowState
    master: str
    end: int
    durable: int
    master_end: int | None
    reason: str | None
    connections: int


class Follower:
    """Copies the log of one master into one store."""

    def __init__(
        self,
        writer: FollowingMessageStore,
        on_copying: Callable[[], None],
        address: MasterAddress,
    ) -> None:
        """*on_copying* is called, by the follower's thread, each time that a master was found to be the right one, and
        its log to continue ours.

        *address*: by which the master was named.
        """
        self.writer = writer
        self.on_copying = on_copying
        self.address = address
        self.requests = MasterRequests(writer.master.address, address.credentials)
        self.membership = address.membership
        # Whether the master has called itself a reput.
        self.is_reput = False
        self.state = FollowState.CONNECTING
        self.reason: str | None = None
        # Why the following has ended for good.
        self.error: FollowError | None = None
        self.master_begin = 0
        self.master_end: int | None = None
        # What was to come next when the log was last seen to stand still, and since when.
        self.quiet_at, self.quiet_since = -1, 0.0
        self.connections = 0
        self.stopping = False
        self.stream: MasterStream | None = None
        self.wake = Wake()
        self.changed = threading.Condition()
        writer.notice_of_master = self.notice

    # Seen from outside.

    @property
    def master(self) -> FollowedMaster:
        """The master, where it was last."""
        return self.writer.master

    def start(self) -> None:
        """Start the thread."""
        self.thread = self.writer.threads.start("reput-follower", self.run, self.died)

    def stop(self) -> None:
        """End the following, and return once the thread has ended."""
        self.stopping = True
        self.wake.set()
        with self.changed:
            self.changed.notify_all()
        self.requests.end()
        if self.stream is not None:
            self.stream.end()
        self.thread.join()

    def status(self) -> FollowStatus:
        """Return what the follower does, and how far it is."""
        writer = self.writer
        return FollowStatus(
            self.state,
            self.master.ha_address,
            writer.appended,
            writer.durable,
            self.master_end,
            self.reason,
            self.connections,
        )

    def notice(self) -> str | None:
        """Return what an operator should know, for `reput status`."""
        if self.state is FollowState.COPYING:
            return f"follows a master: master={self.master.ha_address}"
        return f"does not reach the end of its master's log: state={self.state.value} reason={self.reason!r}"

    def wait_for_change(self, seen: FollowState, timeout: float | None) -> FollowState:
        """Wait until the state differs from *seen*, at most *timeout* seconds; return it."""
        with self.changed:
            self.changed.wait_for(lambda: self.state is not seen, timeout)
        return self.state

    def wait_copied(self, commit_log_offset: int, timeout: float | None) -> bool:
        """Wait until the log is copied up to *commit_log_offset*, and on disk; return False if it is not in time.

        Raises:
            FollowError: the following has ended before.
            StoreClosed: the store is being closed.
        """
        writer = self.writer
        with self.changed:
            ended = self.changed.wait_for(
                lambda: writer.durable >= commit_log_offset or self.error is not None or self.stopping, timeout
            )
        if writer.durable >= commit_log_offset:
            return True
        if self.error is not None:
            raise self.error
        if ended:
            raise closed_store(writer.directory, None)
        return False

    def is_copying(self) -> bool:
        """Tell whether what answers now was found to be the master of our log. Any thread may call."""
        return self.state is FollowState.COPYING

    def take_bounds(self, begin: int, end: int) -> None:
        """Take where the master's log begins and ends now. Any thread may call."""
        self.master_begin, self.master_end = begin, end

    def died(self, reason: str) -> None:
        """An error of ours has ended the thread."""
        self.error = FollowError(reason)
        self.become(FollowState.STOPPED, reason)

    def become(self, state: FollowState, reason: str | None = None) -> None:
        """Change the state."""
        with self.changed:
            self.state, self.reason = state, reason
            self.changed.notify_all()

    # The thread.

    def run(self) -> None:
        """Follow until stopped, or until nothing may be appended any more."""
        pause = PAUSE_MIN_S
        complaint = ""
        while not self.stopping:
            began = time.monotonic()
            try:
                self.become(FollowState.CONNECTING)
                self.follow()
            except FollowError as error:
                self.error = error
                self.become(FollowState.STOPPED, str(error))
                logger.error("the store no longer follows: %s store=%s", error, self.writer.directory)
                return
            except (BrokerError, StoreFull, OSError) as error:
                self.become(FollowState.WAITING, str(error))
                if not self.stopping and str(error) != complaint:
                    complaint = str(error)
                    # Not the error itself: where records of the log are kept, it would keep what was received.
                    logger.warning("the connection to the master ends, and is made again: reason=%s", complaint)
            except ReputError as error:
                if not self.stopping:
                    self.error = FollowError(f"the store takes no more records: {error}", error.advice)
                    self.become(FollowState.STOPPED, str(self.error))
                    logger.error("the store no longer follows: %s", error)
                return
            if time.monotonic() - began > LASTED_S:
                pause = PAUSE_MIN_S
            if not self.stopping:
                self.wake.wait(pause)
            pause = min(pause * 2, PAUSE_MAX_S)
        self.become(FollowState.STOPPED, "it was closed")

    def follow(self) -> None:
        """Copy over one connection.

        Raises:
            FollowError: nothing may be appended any more.
            BrokerError: the connection has ended.
        """
        self.look_up()
        master = self.requests.describe()
        self.take_bounds(master.offset_min, master.offset_end)
        require_epoch(master, self.membership, self.requests.address)
        self.check_identity(master)
        writer = self.writer
        if self.address.name_server is not None:
            writer.move_master(master.ha_address(self.requests.address), self.requests.address)
        own_end = writer.appended
        # The overlap is read from the files.
        self.wait_forced(own_end)
        self.check_bounds(master, own_end)
        self.is_reput = master.epoch is not None
        if self.is_reput:
            self.check_history(own_end)
        begin = record_begin(
            self.read_log, max(writer.commit_log_offset_min, master.offset_min), own_end - OVERLAP_SIZE
        )
        # A log within its first segment begins there for RocketMQ, too.
        asked = 0 if begin == 0 and master.offset_end < master.segment_size else request_offset(begin)
        # The master may have stored larger ones before its setting was lowered.
        record_size_max = max(master.record_size_max, writer.settings.max_message_size + FIELDS_SIZE_MAX)
        records = CopiedRecords(
            own_end, writer.segment_size, record_size_max, writer.plain_rows, lambda: writer.durable
        )
        fields = {END: str(own_end)}
        if self.membership is not None:
            fields[MEMBER] = self.membership.member
        with self.open_stream(asked, writer.settings.ha_compression, fields) as stream:
            self.stream = stream
            self.connections += 1
            overlap = self.read_log(asked, own_end) if own_end > asked else b""
            if own_end < asked:
                # The first byte of the log, which cannot be asked for.
                records.feed(b"\0")
            self.copy(stream, records, overlap, asked)

    def look_up(self) -> None:
        """Ask the name server again: the master may be elsewhere now, or another may have taken its place."""
        # One that does not answer, or knows no master for now, changes nothing.
        with contextlib.suppress(BrokerError):
            if self.address.name_server is not None:
                self.requests.address, _ = self.address.found()

    def open_stream(
        self, begin: int, compression: str = NO_COMPRESSION, fields: Mapping[str, str] = NO_FIELDS
    ) -> MasterStream:
        """Return a new connection that asks for the log from *begin* on.

        *fields*: what a follower that copies says of itself; one that only compares says nothing.

        Raises:
            BrokerError: the master cannot be reached, or refuses.
        """
        return MasterStream(
            self.master.ha_address,
            begin,
            self.writer.segment_size,
            is_reput=self.is_reput,
            credentials=self.address.credentials,
            compression=compression,
            fields={**agreed_epoch(self.membership), **fields},
        )

    def copy(self, stream: MasterStream, records: CopiedRecords, overlap: bytes, asked: int) -> None:
        """Compare the overlap, then append what follows it."""
        compared = 0
        if compared == len(overlap):
            self.begin_copying()

        def on_quiet() -> None:
            self.append(stream, records)
            self.look(stream)

        for piece in stream.pieces(READ_WAIT_S, on_quiet, records.room):
            if self.stopping:
                return
            if compared < len(overlap):
                size = min(len(piece), len(overlap) - compared)
                if piece[:size] != overlap[compared : compared + size]:
                    raise self.parted()
                compared += size
                piece = piece[size:]
                if compared < len(overlap):
                    continue
                stream.report(self.writer.durable)
                self.begin_copying()
            if piece:
                records.feed(piece)
                if records.held_size >= TAKEN_SIZE:
                    self.append(stream, records)

    def begin_copying(self) -> None:
        """Nothing contradicts that this is the master of our log."""
        self.become(FollowState.COPYING)
        self.on_copying()

    def append(self, stream: MasterStream, records: CopiedRecords) -> None:
        """Append all whole records, and report them once they are forced."""
        writer = self.writer
        forced = partial(self.forced, stream)
        for run in records.take():
            end = writer.append_copied(run)
            if end - writer.durable <= FORCED_AT_ONCE_MAX:
                writer.force_at_once(forced)
                continue
            writer.call_when_durable(end, forced)
            self.wait_forced(end - UNFORCED_MAX)

    def forced(self, stream: MasterStream) -> None:
        """Report what is on disk now."""
        stream.report(self.writer.durable)
        with self.changed:
            self.changed.notify_all()

    def look(self, stream: MasterStream) -> None:
        """Called when nothing more comes for now.

        A RocketMQ that has removed what comes next sends heartbeats for ever.

        Raises:
            BrokerError: the store is being closed, or the overlap was removed; the next connection begins behind that.
            FollowError: what comes behind our log was removed.
        """
        self.require_open()
        now, frames = time.monotonic(), stream.frames
        if frames.expected != self.quiet_at or frames.body_left:
            self.quiet_at, self.quiet_since = frames.expected, now
        elif now - self.quiet_since > QUIET_S and frames.expected < self.master_begin:
            self.check_gap(self.master_begin, self.writer.appended)
            raise BrokerError(
                f"the master has removed what comes next: commit_log_offset={frames.expected} "
                f"master_begin={self.master_begin}"
            )

    def require_open(self) -> None:
        """Refuse to go on in a store that is being closed.

        Raises:
            BrokerError: it is.
        """
        if self.stopping:
            raise BrokerError("the store is being closed")

    def wait_forced(self, end: int) -> None:
        """Wait until our log is on disk up to *end*.

        Raises:
            BrokerError: the disk is too slow; the next connection goes on from where it is by then.
            StoreReadOnly: it refuses.
        """
        if not self.writer.durability.wait(end):
            raise BrokerError(
                f"the disk does not force the log in time: end={end} durable={self.writer.durable} "
                f"sync_flush_timeout={self.writer.settings.sync_flush_timeout}"
            )

    # What may not be copied.

    def check_identity(self, master: MasterDescription) -> None:
        """Refuse a master other than the one whose log this is.

        Raises:
            FollowError: it is another, or its segments have another size.
        """
        known = self.master
        if (master.cluster_name, master.broker_name) != (known.cluster_name, known.broker_name):
            raise FollowError(
                f"another broker answers there: broker_name={master.broker_name} expected={known.broker_name} "
                f"cluster={master.cluster_name} expected={known.cluster_name} master={self.requests.address}",
                "Follow it into a store of its own, or correct the address. A promoted copy has its old master's names "
                "only if it is served with them: --set brokerName=NAME --set brokerClusterName=CLUSTER.",
            )
        if master.segment_size != self.writer.segment_size:
            raise FollowError(
                f"the master's segments have another size: mapped_file_size_commit_log={master.segment_size} "
                f"ours={self.writer.segment_size}",
                "Follow it into a new store.",
            )

    @staticmethod
    def check_gap(master_begin: int, own_end: int) -> None:
        """Refuse a master that has removed the records to copy next.

        Raises:
            FollowError: it has.
        """
        if own_end < master_begin:
            raise FollowError(
                f"the master has removed records that were not copied: own_end={own_end} "
                f"master_begin={master_begin} missing={master_begin - own_end}",
                "This store keeps what it has. Follow into a new store with --from earliest, and keep the master's "
                "log longer (fileReservedTime).",
            )

    def check_bounds(self, master: MasterDescription, own_end: int) -> None:
        """Refuse a master that has removed the records to copy next, or lacks some that are here.

        Raises:
            FollowError: it does.
        """
        self.check_gap(master.offset_min, own_end)
        if own_end > master.offset_end:
            raise self.parted()

    def check_history(self, own_end: int) -> None:
        """Compare the marks of a master that is a reput: they lie over the whole log, and the overlap only at its end.

        Raises:
            FollowError: one is contradicted.
        """
        segments = Segments(self.writer.directory / "commitlog", self.writer.segment_size)
        mark = self.requests.history().first_contradiction(segments, own_end)
        if mark is not None:
            raise self.parted(mark.offset)

    def parted(self, known_end: int | None = None) -> FollowError | BrokerError:
        """Return the error that names where the two logs part, and what is only here.

        A `BrokerError`: they do not part, and what was compared has changed on the way.

        Args:
            known_end: they differ before this offset, and may be the same behind it; None: that is not known.
        """
        writer = self.writer
        offset_min, master_end = self.requests.bounds()
        begin = max(offset_min, writer.commit_log_offset_min)
        end = min(writer.appended, master_end, writer.appended if known_end is None else known_end)
        if begin > end:
            return FollowError(
                f"the master has another log: own_begin={writer.commit_log_offset_min} own_end={writer.appended} "
                f"master_begin={offset_min} master_end={master_end}",
                "It was replaced. Follow it into a new store.",
            )
        parting = find_parting(self.open_stream, self.read_log, begin, end)
        if parting >= writer.appended:
            return BrokerError(
                f"bytes of the master's log have changed on the way: own_end={writer.appended} "
                f"ha_address={self.master.ha_address}"
            )
        plan = lost_records(writer.directory, parting)
        if plan.cut_at <= begin < writer.appended:
            return FollowError(
                f"the master has another log from its first byte on: from={begin} own_end={writer.appended} "
                f"master_end={master_end}",
                "It was replaced, or this is another broker's log. Follow it into a new store.",
            )
        return FollowError(
            f"the master's log diverges from this copy: from={plan.cut_at} own_end={writer.appended} "
            f"master_end={master_end} records_only_here={plan.records} bytes_only_here={writer.appended - plan.cut_at}",
            f"The master has lost records, or was replaced by another. To keep them, make this store the master: "
            f"`reput promote {writer.directory}`. To follow the master, `reput follow --discard` moves these records "
            f"to {writer.directory}/reput/cut/ and continues from {plan.cut_at}.",
        )

    def read_log(self, begin: int, end: int) -> bytes:
        """Return our own bytes for a comparison, which may be one of the whole log.

        Raises:
            BrokerError: the store is being closed, or retention has just removed them; the next connection asks for
                others.
        """
        self.require_open()
        try:
            return read_bytes(Segments(self.writer.directory / "commitlog", self.writer.segment_size), begin, end)
        except OffsetOutOfRange as error:
            raise BrokerError(str(error)) from None

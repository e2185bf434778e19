"""DispatcherLoop: brings one view up to the log, batch by batch. The same loop runs in a process of its own and inline.

It is an agent: `do_work` does a little and says how much, `waiting` says what it waits for when there is nothing, and
whoever runs it parks. One thread.

    start ──▶ cursor compared with the epochs ──▶ truncate, or empty the view and start again
                      │
                      ▼
             catching up: the commit log ◀─────────┐ lapped, a hole in the frames
                      │ joined, and come so far    │
                      ▼                            │
             following: frames of the ring ────────┘

Nothing is dispatched beyond the bound: what is appended (or durable, as declared), and the progress of those it comes
``after``. The joining leaves no gap: the reader joins at the ring's end first and then reads the log up to what was
appended there, so each record comes from one or the other; what comes from both is cut off by the loop's own position.
"""

from __future__ import annotations

import enum
import itertools
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from reput.errors import DamagedStore, DispatcherError, OffsetOutOfRange, RingClosed, RingLapped, StoreError
from reput.process.dispatcher.batch_bound import BatchBound, BatchSize
from reput.process.dispatcher.states import ABSENT, Phase
from reput.process.frames.frame import BATCH, DELETE_TOPIC, EXPIRE, Frame, cut_columns
from reput.process.frames.joined_frames import decode_frames
from reput.process.frames.log_feed import LogFeed
from reput.process.frames.protocols import FrameReader, LoopCell, Predecessor, Waiting
from reput.process.views.dead_letters import DeadLetter, DeadLetters
from reput.process.views.gaps import Gap, Gaps
from reput.process.views.view_folders import ViewFolders
from reput.store.state.epochs import Epochs
from reput_hooks import (
    CommitLogDispatcher,
    Cursor,
    DispatchBatch,
    DispatchColumns,
    DispatcherDescription,
    RebuildNeeded,
    RetryLater,
)
from reput_hooks.dispatch import ROW_SIZE

__all__ = ["DispatcherLoop", "StartRefused", "Stop"]

# A back-stop: whoever has work for the loop wakes it.
PARK_S = 0.1
# Shorter pauses between batches are no idleness, and a flush there would be in the way of the next batch.
IDLE_S = 0.1
# Readers see the end of a batch when all of it is dispatched: one of so many rows takes some milliseconds, and a larger
# one is no cheaper for each of them.
BATCH_ROWS_MAX = 2048
# After a batch of so many rows the loop rests for a while, in which more gather: fewer and larger batches are
# dispatched, and the writer need not wake the loop for each record. Fewer rows come singly, and it rests only if nobody
# takes notice of the view; more are a backlog, which goes on.
GATHER_ROWS_MIN = 3
GATHER_ROWS_MAX = 1024
GATHER_MS = 4
# Frames that were read but lie beyond the bound. Whoever has more outstanding reads the log, when its time comes.
PENDING_SIZE_MAX = 8 << 20
# Bytes of the log that are left when the loop joins the ring; few enough that the ring holds what comes meanwhile.
JOIN_DISTANCE = 16 << 20
RETRY_MIN_S = 0.02
RETRY_MAX_S = 5.0
# How often accepted damage is looked for, while the loop stands before some.
DAMAGE_RETRY_S = 1.0
# ``properties_size`` of a row without them is -1, and nowhere else negative; its last byte is the row's.
NO_PROPERTIES_LAST_BYTE = 0xFF
# Flush intervals after which a loop waits for the durable cursors of those it comes after, and how often it looks.
FLUSH_PATIENCE = 5
# Flush intervals for which a loop that has drained waits for those, if they run on.
END_PATIENCE = 2
HOLD_S = 0.01
# Before the next step of a flush, where there is nothing else to do: a thread of the plugin may be at it.
FLUSH_STEP_S = 0.0005


class StartRefused(DispatcherError):
    """The view cannot go on with this store, and trying again would not help."""


class Stop(enum.Enum):
    """How a loop ends."""

    NOW = "now"  # flush and end
    DRAIN = "drain"  # dispatch what is there, flush and end


class Retry(NamedTuple):
    """A batch that is to come again at *at* (monotonic seconds)."""

    batch: DispatchBatch
    ordinal: int | None
    at: float


class DispatcherLoop:
    """The loop of one dispatcher.

    Args:
        create: makes the plugin's dispatcher, also again after its view was emptied.
        reader: the ring.
        cell: where the loop publishes its numbers.
        predecessors: cells of the enabled dispatchers that this one comes after.
        load_epochs: reads the store's epochs.
        count_from_first: count records from the first one that is there, instead of from the log's birth.
        builds_anew: the view is built from the log's beginning, in a place where there is nothing yet.
        flush_time_max_s: for how long a flush may be prepared with batches in between; within one call to the plugin
            the time limits are the supervisor's.
        dispatch_time_max_s: that limit of one batch, by which batches grow and shrink.
        first_batch: bound of the first batch, after one that took too long; None: nothing did.
        view_elsewhere: it is built again on an operator's word alone.
        came_to: commit-log offset that such a view is known to have come to before; None: none is.
        now: monotonic seconds.

    Attributes:
        cursor: up to where the view is dispatched.
        gather_ms: milliseconds for which frames may gather before `do_work` is called again.
        is_awaited: the last frames were few, and somebody waits for the view.
        finished: a requested stop is done; the loop must not be called any more.
    """

    def __init__(
        self,
        *,
        name: str,
        description: DispatcherDescription,
        create: Callable[[], CommitLogDispatcher],
        folders: ViewFolders,
        dead_letters: DeadLetters,
        reader: FrameReader,
        cell: LoopCell,
        predecessors: Sequence[Predecessor],
        log_feed: LogFeed,
        load_epochs: Callable[[], Epochs],
        flush_interval_s: float,
        flush_time_max_s: float,
        dispatch_time_max_s: float,
        first_batch: BatchSize | None = None,
        view_elsewhere: bool = False,
        came_to: int | None = None,
        count_from_first: bool = False,
        builds_anew: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.create = create
        self.folders = folders
        self.dead_letters = dead_letters
        self.reader = reader
        self.header = reader.header
        self.cell = cell
        self.predecessors = predecessors
        self.proceeds = description.after_failed == "proceed"
        self.durable_only = description.reads == "durable"
        self.positions_only = description.feeds == "positions"
        self.needs_properties = description.needs_properties
        self.view_version = description.view_version
        self.log_feed = log_feed
        self.load_epochs = load_epochs
        self.flush_interval_s = flush_interval_s
        self.flush_time_max_s = flush_time_max_s
        self.view_elsewhere = view_elsewhere
        self.came_to = came_to
        self.batch_bound = BatchBound(description, dispatch_time_max_s, first_batch)
        self.count_from_first = count_from_first
        self.builds_anew = builds_anew
        self.now = now
        self.logger = logging.getLogger(f"reput.dispatcher.{name}")
        self.dispatcher: CommitLogDispatcher | None = None
        self.cursor = Cursor("", 0, 0, 0)
        self.ordinal: int | None = None
        self.expired_below = 0
        self.following = False
        self.joined: int | None = None
        # Deletions of topics that were passed on at the present position.
        self.deletions_here = 0
        self.pending: deque[Frame] = deque()
        self.pending_size = 0
        self.retry: Retry | None = None
        # Why the loop waits for something that passes, for how long since the last try, and until when no flush comes.
        self.shortage: str | None = None
        self.shortage_delay = 0.0
        self.flush_at = 0.0
        # When dead letters are to be handed out again; None: nobody wished for it.
        self.replay_at: float | None = None
        # Those that were handed out, until the view is flushed.
        self.replayed: list[DeadLetter] | None = None
        self.damage: str | None = None
        self.resume_at = 0.0
        self.gather_ms = 0
        self.is_awaited = False
        self.dirty = False
        # A flush is being prepared in steps, with batches in between; since when its time limit runs.
        self.preparing = False
        self.preparing_since = 0.0
        self.flushed_at = self.worked_at = now()
        self.stop: Stop | None = None
        self.drain_target: int | None = None
        # The view was emptied, and nothing of it was flushed since.
        self.rebuilt = False
        # Why the view is being built again, until it has caught up; None: it is not.
        self.built_again: str | None = None
        # What of the dispatcher's own small files cannot be read; None: nothing. It goes on without that.
        self.damaged_lines: str | None = None
        # Everything is dispatched, and this is until when it is waited for that it can be flushed.
        self.end_by: float | None = None
        self.finished = False

    # Life.

    def do_work(self) -> int:
        """Do a piece of what there is to do; return how many batches or changes that were, 0: there was nothing.

        Raises:
            Exception: whatever the plugin raised, other than what `CommitLogDispatcher` names. The loop is over.
        """
        self.gather_ms = 0
        try:
            if self.dispatcher is None:
                return self.start_when_due()
            try:
                return self.step(self.dispatcher)
            except RebuildNeeded as error:
                self.rebuild(error)
        except RetryLater as reason:
            self.begin_again(reason)
        return 1

    def alive(self) -> None:
        """Renew the time limit of the present phase, and of a flush that goes on beside: the plugin is at work."""
        self.cell.beat()
        self.preparing_since = self.now()

    def request_stop(self, stop: Stop) -> None:
        """Have the loop end; `finished` says when it has. May be called by a signal handler."""
        self.stop = stop

    def start_when_due(self) -> int:
        """Start, unless it is not the time yet. A drain does not wait for a shortage to pass, the next start does."""
        if self.stop is Stop.NOW or (self.stop is not None and self.shortage is not None):
            self.finished = True
            return 1
        if self.now() < self.resume_at:
            self.cell.beat()
            return 0
        self.start()
        return 1

    def begin_again(self, reason: RetryLater) -> None:
        """Have another dispatcher made, from the durable cursor on, once the time has come."""
        delay = self.wait_for_shortage(reason)
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.dispatcher = None
        self.resume_at = self.now() + delay
        self.expired_below = 0
        self.retry = None
        self.dirty = self.preparing = False
        self.leave_ring()
        self.log_feed.close()
        self.cell.set_phase(Phase.IDLE)

    def wait_for_shortage(self, reason: RetryLater) -> float:
        """Say what is waited for, and return for how many seconds: as wished, or twice as long as the last time."""
        if reason.after is None:
            delay = self.shortage_delay = min(self.shortage_delay * 2, RETRY_MAX_S) or RETRY_MIN_S
        else:
            delay = self.wished_delay(reason.after)
        shortage = str(reason) or "RetryLater was raised without a reason"
        if shortage != self.shortage:
            self.logger.warning("waiting for what should pass: reason=%s", shortage)
        self.shortage = shortage
        self.cell.set_error(self.shortage)
        return delay

    def wished_delay(self, seconds: object) -> float:
        """Return the pause that a plugin wishes for.

        Raises:
            DispatcherError: it is none.
        """
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < math.inf:
            return float(seconds)
        raise DispatcherError(
            f"RetryLater takes seconds from 0 on: dispatcher={self.name} after={seconds!r:.100}",
            "Leave it out, and the host waits longer each time.",
        )

    def end_shortage(self) -> None:
        """Nothing is waited for any more."""
        if self.shortage is not None:
            self.shortage = None
            self.shortage_delay = 0.0
            self.say_error(None)

    def look_for_damaged_lines(self) -> None:
        """Log which lines of the dispatcher's own small files cannot be read, and have the status name the first."""
        damaged = [*self.dead_letters.damaged_lines(), *self.gaps.damaged_lines]
        for line in damaged:
            self.logger.error("%s", line)
        self.damaged_lines = f"{damaged[0]} damaged_lines={len(damaged)}" if damaged else None

    def say_error(self, text: str | None) -> None:
        """Have the status say *text*, or, where there is none, what is wrong all the time."""
        self.cell.set_error(text or self.damaged_lines)

    def step(self, dispatcher: CommitLogDispatcher) -> int:
        if self.stop is Stop.NOW:
            return self.finish(dispatcher)
        now = self.now()
        if self.end_by is not None:
            return self.finish_when_flushable(dispatcher, now, self.end_by)
        is_due = self.dirty and now >= self.flush_at and now - self.flushed_at >= self.flush_interval_s
        if self.preparing or is_due:
            self.flush(dispatcher)
        minimum = self.header.commit_log_offset_min
        if minimum is not None and minimum > self.expired_below:
            self.expire(dispatcher, minimum)
        if self.replay_at is not None and now >= self.replay_at:
            self.replay(dispatcher)
            return 1
        if self.retry is not None:
            work = self.dispatch_again(dispatcher, self.retry, now)
        elif now < self.resume_at:
            work = 0
        elif self.following:
            work = self.follow(dispatcher)
        else:
            work = self.catch_up(dispatcher)
        if work:
            self.worked_at = now
            return work
        self.cell.beat()
        if self.stop is Stop.DRAIN and self.drained():
            self.end_by = now + END_PATIENCE * self.flush_interval_s
            return self.finish_when_flushable(dispatcher, now, self.end_by)
        if self.dirty and not self.preparing and now >= self.flush_at and now - self.worked_at >= IDLE_S:
            self.flush(dispatcher)
        return 0

    def is_current(self) -> bool:
        """Whether all frames that had come were dispatched, so that there is nothing to do until more come."""
        return self.following and not self.pending and self.retry is None and self.stop is None

    def waiting(self) -> Waiting:
        """Return what the loop waits for after `do_work` returned 0, or while it `is_current`."""
        timeout = PARK_S
        now = self.now()
        flush_at = max(self.flush_at, self.flushed_at + self.flush_interval_s)
        if self.preparing:
            timeout = FLUSH_STEP_S
        elif self.dirty and flush_at > now:
            timeout = min(timeout, flush_at - now)
        resume_at = self.retry.at if self.retry else self.resume_at
        if resume_at > now:
            return Waiting(min(timeout, resume_at - now), False, None, (), 0)
        if self.end_by is not None or self.holds():
            return Waiting(HOLD_S, False, None, (), 0)
        wanted = self.cursor.commit_log_offset + 1
        slots = [
            predecessor.slot
            for predecessor in self.predecessors
            if not self.passes_over(predecessor) and (predecessor.progress or 0) < wanted
        ]
        durable = wanted if self.durable_only else None
        # A durable reader wakes for the first frame behind what it has, and asks for that to be forced. Further frames
        # do not wake it; it takes them up by the way.
        is_at_end = self.following and (self.header.appended or 0) < wanted
        return Waiting(timeout, not slots and (durable is None or is_at_end), durable, slots, wanted)

    def start(self) -> None:
        """Make the dispatcher, ask where it is, and bring it to the log's present history.

        Raises:
            StartRefused: its cursor belongs to another store.
        """
        self.cell.set_phase(Phase.START)
        durable = self.cell.durable_cursor
        # Before the plugin touches its view: what it takes back there must not be trusted any more.
        if durable is None:
            self.cell.forget_progress()
        else:
            self.cell.set_progress(durable.commit_log_offset, None)
        self.gaps = Gaps(self.folders.root, self.name)
        self.cell.set_gap_bytes(self.gaps.size)
        self.look_for_damaged_lines()
        self.folders.prepare()
        is_empty = self.folders.is_empty()
        try:
            if self.folders.is_stale(self.view_version):
                raise RebuildNeeded(self.folders.format_changed(self.view_version))
            if is_empty:
                self.folders.keep_version(self.view_version)
            self.dispatcher = self.create()
            cursor = self.returned_cursor("start", self.dispatcher.start())
            if is_empty and self.builds_anew and cursor is not None:
                raise StartRefused(
                    "the dispatcher keeps its view elsewhere, where it cannot be built anew; with another place in its "
                    f"options it begins with the log: dispatcher={self.name} "
                    f"commit_log_offset={cursor.commit_log_offset}",
                )
            if is_empty and cursor is None and (self.came_to or 0) > (self.header.commit_log_offset_min or 0):
                raise StartRefused(
                    "the view lies elsewhere and its folder is empty, so all would be sent again: "
                    f"dispatcher={self.name} came_to={self.came_to}",
                    f"Bring back its folder, or `reput rebuild STORE {self.name} --force`.",
                )
            self.settle(self.dispatcher, cursor)
        except RebuildNeeded as error:
            self.rebuild(error)
        self.shortage = None
        self.shortage_delay = 0.0
        self.say_error(self.built_again)
        self.cell.set_phase(Phase.IDLE)
        if self.dead_letters.give_up_replay():
            self.logger.error("dead letters were being replayed when the dispatcher ended; they are left as they are")
        self.replay_at = self.now() if self.dead_letters.replay_is_due() else None

    def settle(self, dispatcher: CommitLogDispatcher, cursor: Cursor | None) -> None:
        """Go on from *cursor*, in the log's present history."""
        epochs = self.load_epochs()
        minimum = self.header.commit_log_offset_min or 0
        if cursor is None:
            self.cursor = Cursor(epochs.store_id, epochs.epoch, minimum, 0)
            # How many records were there before is known at the log's birth only.
            self.ordinal = 0 if minimum == 0 or self.count_from_first else None
        else:
            self.ordinal = None
            try:
                difference = epochs.first_difference(cursor, minimum)
            except StoreError as error:
                raise StartRefused(f"{error} dispatcher={self.name}", error.advice) from None
            appended = self.header.appended
            if difference is None and appended is not None and cursor.commit_log_offset > appended:
                # The epochs know of no cut there, so all that the log can still tell is taken in again.
                difference = Cursor(epochs.store_id, epochs.epoch, minimum, 0)
            if difference is not None:
                self.logger.warning(
                    "the log's history parts from the view's: commit_log_offset=%d view=%d epoch=%d",
                    difference.commit_log_offset,
                    cursor.commit_log_offset,
                    epochs.epoch,
                )
                dispatcher.truncate(difference)
                self.dirty = True
                cursor = difference
            self.cursor = Cursor(epochs.store_id, epochs.epoch, cursor.commit_log_offset, cursor.store_timestamp)
        # What was passed on at another position, or to a view that was emptied since, does not count here.
        self.deletions_here = 0
        self.say_durable(self.cursor)
        self.leave_ring()
        self.flushed_at = self.now()
        # A view that was cut, or begun anew because it had no cursor yet, has other files: readers open them again.
        self.cell.raise_generation()
        self.cell.set_progress(self.cursor.commit_log_offset, self.ordinal)

    def rebuild(self, needed: RebuildNeeded) -> None:
        """Empty the view and begin with the log. Until it has caught up, its status says why.

        Raises:
            StartRefused: the view lies elsewhere, and all of the log would be sent there again.
            DispatcherError: nothing was flushed since that was done before: it would go on so for ever.
        """
        if self.view_elsewhere:
            reason = (
                str(needed.__cause__ or needed) or "the log's history parts from the view's, which takes nothing back"
            )
            raise StartRefused(
                f"the view lies elsewhere, and is not built again without an operator's word: dispatcher={self.name} "
                f"commit_log_offset={self.cursor.commit_log_offset} reason={reason}",
                f"`reput rebuild STORE {self.name} --force` sends it all records of the log once more.",
            )
        if self.rebuilt:
            raise self.rebuilt_in_vain()
        self.rebuilt = True
        self.logger.warning("the view is emptied and built again: commit_log_offset=%d", self.cursor.commit_log_offset)
        reason = str(needed.__cause__ or needed)
        self.built_again = "the view is built again from the log" + (f": {reason}" if reason else "")
        self.cell.set_phase(Phase.START)
        self.cell.forget_progress()
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.retry = None
        self.replayed = None
        self.dead_letters.give_up_replay()
        self.folders.empty()
        self.folders.keep_version(self.view_version)
        self.dispatcher = self.create()
        try:
            cursor = self.returned_cursor("start", self.dispatcher.start())
        except RebuildNeeded:
            raise self.rebuilt_in_vain() from None
        if cursor is not None:
            raise DispatcherError(
                f"the view was emptied, but the dispatcher still has a cursor: dispatcher={self.name} "
                f"commit_log_offset={cursor.commit_log_offset}"
            )
        self.settle(self.dispatcher, None)
        self.dirty = True
        self.say_error(self.built_again)
        self.cell.set_phase(Phase.IDLE)

    def rebuilt_in_vain(self) -> DispatcherError:
        """Return the error of a dispatcher that goes round in a circle."""
        return DispatcherError(
            f"the dispatcher wants its view to be built again, as it just was: dispatcher={self.name} "
            f"commit_log_offset={self.cursor.commit_log_offset}"
        )

    def drained(self) -> bool:
        """Whether everything was dispatched that can be, of what there was when draining began."""
        if self.drain_target is None:
            self.drain_target = self.bound()
        return self.cursor.commit_log_offset >= min(self.drain_target, self.bound()) or self.damage is not None

    def finish_when_flushable(self, dispatcher: CommitLogDispatcher, now: float, end_by: float) -> int:
        """Finish once this view may be flushed as it is now. Those it comes after may run on, as in a rebuild."""
        if self.dirty and now < end_by and not self.is_flushable():
            self.cell.beat()
            return 0
        return self.finish(dispatcher)

    def finish(self, dispatcher: CommitLogDispatcher) -> int:
        """Flush, close, and be finished."""
        self.preparing = False
        if self.dirty and self.is_flushable():
            self.force(dispatcher)
        dispatcher.close()
        self.log_feed.close()
        self.cell.set_phase(Phase.IDLE)
        self.finished = True
        return 1

    # Where batches come from.

    def passes_over(self, predecessor: Predecessor) -> bool:
        """Whether this predecessor need not be waited for."""
        return self.proceeds and predecessor.state in ABSENT

    def bound(self) -> int:
        """Return the commit-log offset beyond which nothing may be dispatched now."""
        bound = (self.header.durable if self.durable_only else self.header.appended) or 0
        for predecessor in self.predecessors:
            if not self.passes_over(predecessor):
                bound = min(bound, predecessor.progress or 0)
        return min(bound, self.cursor.commit_log_offset) if self.holds() else bound

    def holds(self) -> bool:
        """Whether to stand still until the durable cursors of those before let this view be flushed.

        Mostly they come by themselves: a dispatcher that flushes publishes no progress, so its successors arrive where
        it will be durable.
        """
        if not self.predecessors or not self.dirty:
            return False
        overdue = (self.now() - self.flushed_at) / self.flush_interval_s
        # One that never says a durable cursor must not stop those after it for ever.
        return FLUSH_PATIENCE < overdue < 2 * FLUSH_PATIENCE

    def leave_ring(self) -> None:
        """Go on in the commit log."""
        self.following = False
        self.joined = None
        self.pending.clear()
        self.pending_size = 0

    def catch_up(self, dispatcher: CommitLogDispatcher) -> int:
        """Dispatch a part of the commit log; join the ring when little is left."""
        begin = self.cursor.commit_log_offset
        if self.joined is None and (self.header.appended or 0) - begin <= JOIN_DISTANCE:
            self.joined = self.reader.join().appended
            if self.header.epoch not in (None, self.cursor.epoch):
                # The frame that said so was overwritten before it was read.
                self.settle(dispatcher, self.cursor)
                if self.header.epoch != self.cursor.epoch:
                    raise DispatcherError(
                        f"the epochs on disk are not those of the writer: dispatcher={self.name} "
                        f"epoch={self.cursor.epoch} writer={self.header.epoch}"
                    )
                return 1
        bound = self.bound()
        if self.joined is not None:
            # From there on frames say everything, topics' deletions at their places included.
            bound = min(bound, self.joined)
        # After the bound was read: a deletion is written down before anything is appended behind it.
        deletions = self.log_feed.topic_deletions.following(begin)[self.deletions_here :]
        if deletions and deletions[0].commit_log_offset == begin:
            self.delete_topic(dispatcher, deletions[0].topic)
            return 1
        if self.joined is not None and begin >= self.joined:
            self.following = True
            self.log_feed.close()
            if self.built_again is not None:
                self.built_again = None
                self.say_error(None)
            return self.follow(dispatcher)
        if deletions:
            bound = min(bound, deletions[0].commit_log_offset)
        if bound <= begin:
            return 0
        try:
            if self.log_feed.scan is None:
                # The libraries of a scan are loaded with the first, which takes seconds on a busy machine.
                self.cell.set_phase(Phase.START)
                self.log_feed.open()
            self.cell.set_phase(Phase.DISPATCH)
            found = self.log_feed.read(begin, bound, self.batch_bound.record_count, self.batch_bound.size)
        except DamagedStore as error:
            return self.stand_before_damage(error)
        except OffsetOutOfRange:
            minimum = self.header.commit_log_offset_min
            if minimum is not None and minimum > begin:
                self.expire(dispatcher, minimum)
                return 1
            if not self.log_feed.begins_behind(begin):
                raise
            # Retention removes a segment first and says so then; in between there is nothing to read here.
            self.log_feed.close()
            self.resume_at = self.now() + HOLD_S
            self.cell.set_phase(Phase.IDLE)
            return 0
        if self.damage is not None:
            self.damage = None
            self.say_error(None)
        end = Cursor(
            self.cursor.store_id, self.cursor.epoch, found.end, found.store_timestamp or self.cursor.store_timestamp
        )
        batch = DispatchBatch(begin, end, found.parts)
        ordinal = None if self.ordinal is None or self.positions_only else self.ordinal + len(batch)
        self.dispatch(dispatcher, batch, ordinal)
        return 1

    def stand_before_damage(self, error: DamagedStore) -> int:
        """Wait before bytes that are no record, until an operator has accepted them: nothing is skipped in silence."""
        if self.damage is None:
            self.logger.error("%s", error)
        self.damage = str(error)
        self.cell.set_error(self.damage)
        self.resume_at = self.now() + DAMAGE_RETRY_S
        self.log_feed.close()
        self.cell.set_phase(Phase.IDLE)
        return 0

    def follow(self, dispatcher: CommitLogDispatcher) -> int:
        """Dispatch the frames that are there."""
        pending = self.pending
        if self.pending_size < PENDING_SIZE_MAX:
            try:
                frames = self.reader.read()
            except RingLapped:
                self.leave_ring()
                return 1
            except RingClosed:
                frames = []
            self.pending_size += sum(map(len, frames))
            # Each frame says for itself whether it has the properties.
            pending.extend(decode_frames(frames, 0 if self.needs_properties else self.bound()))
        if not pending:
            return 0
        work = self.dispatch_pending(dispatcher)
        if not pending:
            self.pending_size = 0
        return work

    def dispatch_pending(self, dispatcher: CommitLogDispatcher) -> int:
        """Dispatch what of the pending frames lies below the bound, as one batch."""
        pending, bound = self.pending, self.bound()
        begin, epoch, store_timestamp = self.cursor.commit_log_offset, self.cursor.epoch, self.cursor.store_timestamp
        end, ordinal, row_count = begin, self.ordinal, 0
        parts: list[DispatchColumns] = []
        hole = False
        count_max = BATCH_ROWS_MAX if self.positions_only else min(BATCH_ROWS_MAX, self.batch_bound.record_count)
        reach = min(bound, begin + self.batch_bound.size)
        while pending and row_count < count_max:
            frame = pending[0]
            if frame.kind != BATCH:
                if end > begin:
                    break
                if frame.kind == DELETE_TOPIC and frame.end > end:
                    hole = True
                    break
                pending.popleft()
                self.change(dispatcher, frame)
                return 1
            columns = frame.columns
            if frame.begin > end or (self.needs_properties and lacks_properties(columns)):
                hole = True
                break
            if frame.end <= end:
                pending.popleft()
                continue
            if frame.begin == end and frame.end <= reach and row_count + len(columns) <= count_max:
                pending.popleft()
                end, store_timestamp, ordinal = frame.end, frame.end_store_timestamp, frame.end_ordinal
            else:
                cut = cut_columns(columns, end, reach, count_max - row_count)
                if cut.end == begin and reach < bound:
                    # One record goes, however large it is.
                    cut = cut_columns(columns, end, bound, 1)
                if cut.row_count == len(columns) and frame.end <= bound:
                    pending.popleft()
                    end, store_timestamp, ordinal = frame.end, frame.end_store_timestamp, frame.end_ordinal
                elif cut.end > end:
                    end, store_timestamp, ordinal = cut.end, cut.store_timestamp, frame.ordinal + cut.row_count
                else:
                    break
                columns = cut.columns
            epoch = frame.epoch
            row_count += len(columns)
            if columns.rows and not self.positions_only:
                parts.append(columns)
        if end > begin:
            cursor = Cursor(self.cursor.store_id, epoch, end, store_timestamp)
            self.dispatch(dispatcher, DispatchBatch(begin, cursor, parts), ordinal)
            self.is_awaited = row_count < GATHER_ROWS_MIN and self.cell.is_asked_for()
            if self.is_awaited:
                # Who waits for the view may be waiting for this very processor.
                os.sched_yield()
            elif row_count < GATHER_ROWS_MAX:
                self.gather_ms = GATHER_MS
            return 1
        if hole:
            self.leave_ring()
            return 1
        return 0

    # What the plugin is called for.

    def dispatch(self, dispatcher: CommitLogDispatcher, batch: DispatchBatch, ordinal: int | None) -> None:
        """Have the view brought up to the batch's end, and say so."""
        cell = self.cell
        size = BatchSize(len(batch), batch.end.commit_log_offset - batch.commit_log_offset)
        cell.set_batch(size.record_count, size.size)
        cell.set_phase(Phase.DISPATCH)
        began = self.now()
        try:
            dispatcher.dispatch(batch)
        except RetryLater as reason:
            rest = batch if reason.until is None else rest_of(batch, reason.until, self.name)
            if reason.until is not None:
                # It goes on, so the pauses begin anew.
                self.shortage_delay = 0.0
            self.retry = Retry(rest, ordinal, self.now() + self.wait_for_shortage(reason))
            if reason.until is not None:
                self.come_to(reason.until, None if ordinal is None else ordinal - len(rest))
            cell.set_phase(Phase.IDLE)
            return
        if self.retry is not None:
            self.retry = None
            self.end_shortage()
        self.batch_bound.took(size, self.now() - began)
        cell.add_batch()
        self.come_to(batch.end, ordinal)
        cell.set_phase(Phase.IDLE)

    def come_to(self, cursor: Cursor, ordinal: int | None) -> None:
        """Take up that the view is dispatched up to *cursor*, and say so."""
        self.cursor = cursor
        self.ordinal = ordinal
        self.deletions_here = 0
        self.cell.set_progress(cursor.commit_log_offset, ordinal)
        if not self.dirty:
            self.dirty = True
            self.flushed_at = self.now()

    def replay(self, dispatcher: CommitLogDispatcher) -> None:
        """Hand out the dead letters that an operator wants to be taken in now. The view's position stays as it is."""
        self.replay_at = None
        try:
            letters = self.dead_letters.begin_replay()
        except DamagedStore as error:
            self.logger.error("%s", error)
            return
        handed_out: list[DeadLetter] = []
        parts: list[DispatchColumns] = []
        for letter in letters:
            # What lies further on comes by itself.
            if letter.commit_log_offset < self.cursor.commit_log_offset:
                columns = self.log_feed.read_record(letter.commit_log_offset, letter.record)
                if columns is None:
                    self.logger.warning(
                        "the log does not hold a dead letter's record: commit_log_offset=%d", letter.commit_log_offset
                    )
                else:
                    handed_out.append(letter)
                    parts.append(columns)
        if parts:
            try:
                for batch in self.replayed_batches(handed_out, parts):
                    self.cell.set_phase(Phase.DISPATCH)
                    dispatcher.replay(batch)
            except RetryLater as reason:
                self.logger.info("dead letters are replayed later: reason=%s", reason)
                self.dead_letters.postpone_replay()
                self.replay_at = self.now() + (RETRY_MAX_S if reason.after is None else self.wished_delay(reason.after))
                self.cell.set_phase(Phase.IDLE)
                return
            self.dirty = True
            self.replayed = handed_out
            # The view stands where it is durable already, so nobody whom it comes after has to be waited for.
            self.force(dispatcher)
        else:
            self.finish_replay(handed_out)

    def replayed_batches(
        self, letters: Sequence[DeadLetter], parts: Sequence[DispatchColumns]
    ) -> Iterator[DispatchBatch]:
        """Yield *parts*, the request of each of *letters*, in batches no larger than others."""
        batch: list[DispatchColumns] = []
        size = 0
        for number, (letter, part) in enumerate(zip(letters, parts, strict=True), 1):
            batch.append(part)
            size += len(letter.record)
            if len(batch) >= self.batch_bound.record_count or size >= self.batch_bound.size or number == len(parts):
                self.cell.set_batch(len(batch), size)
                yield DispatchBatch(self.cursor.commit_log_offset, self.cursor, batch)
                batch, size = [], 0

    def finish_replay(self, handed_out: list[DeadLetter]) -> None:
        """Forget the letters that the view has durably."""
        self.replayed = None
        self.dead_letters.finish_replay(handed_out)
        self.cell.set_rejected_count(len(self.dead_letters))
        self.logger.warning("dead letters replayed: handed_out=%d left=%d", len(handed_out), len(self.dead_letters))

    def dispatch_again(self, dispatcher: CommitLogDispatcher, retry: Retry, now: float) -> int:
        """Try a batch once more when its time has come. A drain does not wait for that, the next start brings it."""
        if self.stop is not None:
            return self.finish(dispatcher)
        if now < retry.at:
            return 0
        self.dispatch(dispatcher, retry.batch, retry.ordinal)
        return 1

    def flush(self, dispatcher: CommitLogDispatcher) -> None:
        """Have the view made durable, or a step of that done, unless those it comes after are not durable as far."""
        if not self.preparing and not self.is_flushable():
            return
        in_steps = self.preparing
        if not in_steps:
            self.preparing_since = self.now()
        self.cell.set_phase(Phase.FLUSH)
        try:
            self.preparing = dispatcher.prepare_flush()
        except RetryLater as reason:
            self.preparing = False
            self.flush_at = self.now() + self.wait_for_shortage(reason)
            self.cell.set_phase(Phase.IDLE)
            return
        self.cell.set_phase(Phase.IDLE)
        if not self.preparing:
            self.force(dispatcher, in_steps=in_steps)
        elif self.now() - self.preparing_since > self.flush_time_max_s:
            # As on a disk that does not answer any more. Whatever becomes of it later, nothing of it counts.
            raise DispatcherError(
                f"a flush exceeded its time limit, and is not trusted any more: dispatcher={self.name} "
                f"flush_time_max_ms={round(self.flush_time_max_s * 1000)} "
                f"commit_log_offset={self.cursor.commit_log_offset}",
                "See whether the disk still works; the view goes on behind what was flushed before.",
            )

    def is_flushable(self) -> bool:
        """Whether those it comes after are durable as far as this view."""
        for predecessor in self.predecessors:
            durable = predecessor.durable_cursor
            if not self.passes_over(predecessor) and (
                durable is None or durable.commit_log_offset < self.cursor.commit_log_offset
            ):
                return False
        return True

    def force(self, dispatcher: CommitLogDispatcher, *, in_steps: bool = False) -> None:
        """Have the view made durable. *in_steps*: up to where it was when the steps before this began."""
        self.cell.set_phase(Phase.FLUSH)
        try:
            cursor = self.returned_cursor("flush", dispatcher.flush())
        except RetryLater as reason:
            self.flush_at = self.now() + self.wait_for_shortage(reason)
            self.cell.set_phase(Phase.IDLE)
            return
        self.cell.set_phase(Phase.IDLE)
        if self.retry is None:
            self.end_shortage()
        if cursor is not None:
            if cursor.commit_log_offset > self.cursor.commit_log_offset:
                raise DispatcherError(
                    f"the durable cursor lies beyond what was dispatched: dispatcher={self.name} "
                    f"durable={cursor.commit_log_offset} dispatched={self.cursor.commit_log_offset}"
                )
            if cursor.store_id != self.cursor.store_id:
                raise DispatcherError(
                    f"the durable cursor is of another store: dispatcher={self.name} store_id={cursor.store_id} "
                    f"expected={self.cursor.store_id}"
                )
            self.say_durable(cursor)
        self.dirty = in_steps and cursor is not None and cursor.commit_log_offset < self.cursor.commit_log_offset
        self.flushed_at = self.now()
        self.rebuilt = False
        if self.replayed is not None:
            self.finish_replay(self.replayed)

    def returned_cursor(self, method: str, cursor: object) -> Cursor | None:
        """Return what a plugin's *method* returned.

        Raises:
            DispatcherError: it is no cursor.
        """
        if cursor is None or (isinstance(cursor, Cursor) and cursor.commit_log_offset >= 0):
            return cursor
        raise DispatcherError(f"{method} returned no cursor: dispatcher={self.name} returned={cursor!r:.200}")

    def say_durable(self, cursor: Cursor) -> None:
        self.cell.set_durable_cursor(cursor.commit_log_offset, cursor.epoch, cursor.store_timestamp)

    def expire(self, dispatcher: CommitLogDispatcher, minimum: int) -> None:
        """Tell the view that the log was trimmed, and note what it lost by that."""
        self.expired_below = minimum
        lost = self.cursor.commit_log_offset
        if lost < minimum:
            self.logger.error("retention took what was not dispatched: from=%d until=%d", lost, minimum)
            self.gaps.add(Gap(time.time_ns() // 1_000_000, lost, minimum))
            self.cell.set_gap_bytes(self.gaps.size)
            self.cursor = Cursor(self.cursor.store_id, self.cursor.epoch, minimum, self.cursor.store_timestamp)
            self.ordinal = None
            self.retry = None
            self.leave_ring()
            self.cell.set_progress(minimum, None)
            self.dirty = True
        self.cell.set_phase(Phase.EXPIRE)
        dispatcher.expire(minimum)
        self.cell.set_phase(Phase.IDLE)

    def change(self, dispatcher: CommitLogDispatcher, frame: Frame) -> None:
        """Pass on a frame that is no batch."""
        if frame.kind == EXPIRE:
            if frame.end > self.expired_below:
                self.expire(dispatcher, frame.end)
            return
        if frame.kind == DELETE_TOPIC:
            if frame.end == self.cursor.commit_log_offset:
                self.delete_topic(dispatcher, frame.columns.queues[0][0])
        else:
            self.cell.set_phase(Phase.EXPIRE)
            assert frame.end >= (self.header.commit_log_offset_min or 0)
            cut = Cursor(self.cursor.store_id, frame.epoch, frame.end, frame.end_store_timestamp)
            if frame.end < self.cursor.commit_log_offset:
                # Readers must not trust what is about to be taken back.
                self.cell.set_progress(frame.end, frame.ordinal)
                dispatcher.truncate(cut)
                self.cursor, self.ordinal = cut, frame.ordinal
            else:
                self.cursor = Cursor(
                    cut.store_id, cut.epoch, self.cursor.commit_log_offset, self.cursor.store_timestamp
                )
            self.dirty = True
            self.cell.set_phase(Phase.IDLE)

    def delete_topic(self, dispatcher: CommitLogDispatcher, topic: str) -> None:
        """Tell the view that a topic was deleted here."""
        self.cell.set_phase(Phase.EXPIRE)
        dispatcher.delete_topic(topic)
        # Readers may have files of the topic open.
        self.cell.raise_generation()
        self.deletions_here += 1
        self.dirty = True
        self.cell.set_phase(Phase.IDLE)


def rest_of(batch: DispatchBatch, until: object, name: str) -> DispatchBatch:
    """Return what of *batch* lies behind *until*, up to which a view was brought.

    Raises:
        DispatcherError: that is no place in it at which a record ends.
    """
    place = until.commit_log_offset if isinstance(until, Cursor) and until.store_id == batch.end.store_id else None
    if place is None or not batch.commit_log_offset <= place < batch.end.commit_log_offset:
        raise DispatcherError(
            f"RetryLater takes a cursor in the batch, before its end: dispatcher={name} until={until!r:.200} "
            f"begin={batch.commit_log_offset} end={batch.end.commit_log_offset}",
            "Make it with `batch.cursor_behind(request)`; return if the whole batch was taken in.",
        )
    parts = [cut_columns(part, place, batch.end.commit_log_offset, len(part)).columns for part in batch.parts]
    rest = DispatchBatch(place, batch.end, [part for part in parts if len(part)])
    behind = itertools.takewhile(lambda request: request.commit_log_offset < place, batch)
    if any(request.commit_log_offset + request.record_size > place for request in behind):
        raise DispatcherError(
            f"RetryLater takes a cursor at which a record ends: dispatcher={name} until={place}",
            "Make it with `batch.cursor_behind(request)`.",
        )
    return rest


def lacks_properties(columns: DispatchColumns) -> bool:
    """Whether a row was made before the writer knew that somebody wants the properties. The log has them.

    Not only the first: a thread may have begun its put before that, and end it behind those who began theirs later.
    """
    return NO_PROPERTIES_LAST_BYTE in columns.rows[ROW_SIZE - 1 :: ROW_SIZE]

"""DispatcherLoop: brings one view up to the log, batch by batch. The same loop runs in a dispatcher process and inline.

It is an agent: `do_work` does a little and returns how much, and `waiting` returns what to wait for when there is
nothing to do. The caller parks. One thread.

    start ──▶ cursor compared with the epochs ──▶ truncate, or empty the view and start again
                      │
                      ▼
             catching up: the commit log ◀─────────┐ lapped, a hole in the frames
                      │ joined, and come so far    │
                      ▼                            │
             following: frames of the ring ────────┘

The loop never dispatches beyond the bound: the appended (or durable, as declared) end of the log, and the progress of
its predecessors. Joining leaves no gap: the reader first joins at the ring's end and then reads the log up to the
offset appended there, so each record comes from one or the other. The loop's own position drops duplicates.

Separate classes: `ViewPosition` is where the view is, `ViewFlush` makes it durable, `LogChanges` tells the plugin what
happened to the log, `LetterReplay` hands out dead letters, `LogReading` reads the log, `PendingFrames` cuts batches
from frames, `Shortage` sets the pauses after `RetryLater`. The loop decides which of them acts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from reput.errors import DispatcherError, RingClosed, RingLapped
from reput.process.dispatcher.batch_bound import BatchBound, BatchSize
from reput.process.dispatcher.cursor_checks import (
    check_started,
    history_difference,
    rebuild_refused,
    rebuilt_twice,
    returned_cursor,
)
from reput.process.dispatcher.error_line import ErrorLine
from reput.process.dispatcher.gathering import Gathering
from reput.process.dispatcher.letter_replay import LetterReplay
from reput.process.dispatcher.log_changes import LogChanges
from reput.process.dispatcher.log_reading import HOLD_S, LogReading
from reput.process.dispatcher.pending_frames import PendingFrames
from reput.process.dispatcher.predecessors import Predecessors
from reput.process.dispatcher.retried_batch import RetriedBatch, rest_of
from reput.process.dispatcher.shortage import Shortage
from reput.process.dispatcher.states import Phase, StopMode
from reput.process.dispatcher.view_flush import ViewFlush
from reput.process.dispatcher.view_position import ViewPosition
from reput.process.frames.frame import DELETE_TOPIC, EXPIRE, Frame
from reput.process.frames.log_feed import LogFeed
from reput.process.frames.protocols import FrameReader, LoopCell, Predecessor, Waiting
from reput.process.views.dead_letters import DeadLetters
from reput.process.views.gaps import Gaps
from reput.process.views.view_folders import ViewFolders
from reput.store.state.epochs import Epochs
from reput_hooks import CommitLogDispatcher, Cursor, DispatchBatch, DispatcherDescription, RebuildNeeded, RetryLater

__all__ = ["DispatcherLoop"]

# A back-stop: every source of work wakes the loop.
PARK_S = 0.1
# Bytes of the log left when the loop joins the ring; few enough that the ring can hold what is put meanwhile.
JOIN_DISTANCE = 16 << 20
# Flush intervals for which a drained loop waits for the durable cursors of predecessors that still run.
END_PATIENCE = 2


class DispatcherLoop:
    """The loop of one dispatcher.

    Args:
        create: creates the plugin's dispatcher, and again after its view was emptied.
        reader: the ring.
        cell: where the loop publishes its numbers.
        predecessors: cells of the enabled dispatchers that this one comes after.
        load_epochs: reads the store's epochs.
        flush_interval_s, flush_time_max_s: see `ViewFlush`.
        dispatch_time_max_s: time limit of one batch; batches grow and shrink by it.
        first_batch: bound of the first batch, after one that took too long; None: no batch did.
        view_elsewhere: the view may be rebuilt only by an operator.
        came_to: commit-log offset that such a view reached before; None: not known.
        count_from_first: count records from the first one in the log, instead of from the log's birth.
        builds_anew: the view is built from the log's beginning, in empty folders.
        now: monotonic seconds.

    Attributes:
        gathering: how long frames may gather before the next call of `do_work`.
        finished: a requested stop is done; do not call the loop again.
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
        self.predecessors = Predecessors(predecessors, proceeds=description.after_failed == "proceed")
        self.durable_only = description.reads == "durable"
        self.positions_only = description.feeds == "positions"
        self.needs_properties = description.needs_properties
        self.view_version = description.view_version
        self.log_feed = log_feed
        self.load_epochs = load_epochs
        self.view_elsewhere = view_elsewhere
        self.came_to = came_to
        self.batch_bound = BatchBound(description, dispatch_time_max_s, first_batch)
        self.builds_anew = builds_anew
        self.now = now
        self.logger = logging.getLogger(f"reput.dispatcher.{name}")
        self.position = ViewPosition(cell, count_from_first=count_from_first)
        self.error_line = ErrorLine(cell, self.logger)
        self.gathering = Gathering(cell)
        self.shortage = Shortage(name, self.logger, self.error_line.show)
        self.flushing = ViewFlush(
            name=name,
            cell=cell,
            predecessors=self.predecessors,
            shortage=self.shortage,
            interval_s=flush_interval_s,
            time_max_s=flush_time_max_s,
            now=now,
        )
        self.changes = LogChanges(self.position, cell, self.flushing, self.logger)
        self.replay = LetterReplay(
            name=name,
            cell=cell,
            dead_letters=dead_letters,
            log_feed=log_feed,
            batch_bound=self.batch_bound,
            logger=self.logger,
            now=now,
        )
        self.pending = PendingFrames(needs_properties=self.needs_properties, positions_only=self.positions_only)
        self.reading = LogReading(
            log_feed=log_feed,
            header=self.header,
            cell=cell,
            batch_bound=self.batch_bound,
            logger=self.logger,
            show_error=self.error_line.show,
            now=now,
        )
        self.dispatcher: CommitLogDispatcher | None = None
        self.following = False
        self.joined: int | None = None
        self.retry: RetriedBatch | None = None
        self.resume_at = 0.0
        self.worked_at = now()
        self.stop: StopMode | None = None
        self.drain_target: int | None = None
        # The view was emptied, and has not been flushed since.
        self.rebuilt = False
        # The drain is complete, and the loop waits at most until then for its predecessors, to flush.
        self.end_by: float | None = None
        self.finished = False

    @property
    def cursor(self) -> Cursor:
        """The position up to which the view is dispatched."""
        return self.position.cursor

    # Life.

    def do_work(self) -> int:
        """Do a piece of work; return the number of batches or changes, 0: there was nothing to do.

        Raises:
            Exception: the plugin raised an exception that `CommitLogDispatcher` does not name. The loop is over.
        """
        self.gathering.ms = 0
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
        """Renew the time limit of the current phase, and of a flush that is being prepared: the plugin is working."""
        self.cell.beat()
        self.flushing.alive()

    def request_stop(self, stop: StopMode) -> None:
        """Ask the loop to end; it then sets `finished`. A signal handler may call this."""
        self.stop = stop

    def start_when_due(self) -> int:
        """Start, unless a shortage still lasts. A drain does not wait for it to end; the loop then finishes."""
        if self.stop is StopMode.NOW or (self.stop is not None and self.shortage.reason is not None):
            self.finished = True
            return 1
        if self.now() < self.resume_at:
            self.cell.beat()
            return 0
        self.start()
        return 1

    def begin_again(self, reason: RetryLater) -> None:
        """Close the dispatcher; another one starts from the durable cursor after a pause."""
        delay = self.shortage.pause(reason)
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.dispatcher = None
        self.resume_at = self.now() + delay
        self.changes.expired_below = 0
        self.retry = None
        self.flushing.forget()
        self.leave_ring()
        self.log_feed.close()
        self.cell.set_phase(Phase.IDLE)

    def step(self, dispatcher: CommitLogDispatcher) -> int:
        if self.stop is StopMode.NOW:
            return self.finish(dispatcher)
        now = self.now()
        if self.end_by is not None:
            return self.finish_when_flushable(dispatcher, now, self.end_by)
        if self.flushing.is_due(now):
            self.flush(dispatcher)
        minimum = self.header.commit_log_offset_min
        if minimum is not None and minimum > self.changes.expired_below:
            self.expire(dispatcher, minimum)
        if self.replay.due_at is not None and now >= self.replay.due_at:
            if self.replay.run(dispatcher, self.cursor):
                # The replay does not move the view's position, so the flush need not wait for its predecessors.
                self.flushing.dirty = True
                self.force(dispatcher)
            return 1
        if self.retry is not None:
            work = self.dispatch_again(dispatcher, self.retry, now)
        elif now < self.reading.resume_at:
            work = 0
        elif self.following:
            work = self.follow(dispatcher)
        else:
            work = self.catch_up(dispatcher)
        if work:
            self.worked_at = now
            return work
        self.cell.beat()
        if self.stop is StopMode.DRAIN and self.drained():
            self.end_by = now + END_PATIENCE * self.flushing.interval_s
            return self.finish_when_flushable(dispatcher, now, self.end_by)
        if self.flushing.is_due_when_idle(now, self.worked_at):
            self.flush(dispatcher)
        return 0

    def is_current(self) -> bool:
        """Whether the loop has dispatched all frames read so far, so that it can wait for more."""
        return self.following and not self.pending.frames and self.retry is None and self.stop is None

    def waiting(self) -> Waiting:
        """Return what the loop waits for after `do_work` returned 0, or while it `is_current`."""
        now = self.now()
        timeout = self.flushing.timeout(now, PARK_S)
        resume_at = self.retry.at if self.retry else max(self.resume_at, self.reading.resume_at)
        if resume_at > now:
            return Waiting(min(timeout, resume_at - now), False, None, (), 0)
        if self.end_by is not None or self.flushing.holds():
            return Waiting(HOLD_S, False, None, (), 0)
        wanted = self.cursor.commit_log_offset + 1
        slots = self.predecessors.slots_behind(wanted)
        durable = wanted if self.durable_only else None
        # A durable reader wakes for the first frame behind its position, and asks the writer to make it durable.
        # Further frames do not wake it; it reads them together with the first.
        is_at_end = self.following and (self.header.appended or 0) < wanted
        return Waiting(timeout, not slots and (durable is None or is_at_end), durable, slots, wanted)

    def start(self) -> None:
        """Create the dispatcher, ask for its cursor, and bring it to the log's current history.

        Raises:
            StartRefused: its cursor belongs to another store.
        """
        self.cell.set_phase(Phase.START)
        durable = self.cell.durable_cursor
        # Before the plugin touches its view: readers must not trust parts that it may truncate.
        if durable is None:
            self.cell.forget_progress()
        else:
            self.cell.set_progress(durable.commit_log_offset, None)
        self.changes.load(Gaps(self.folders.root, self.name))
        self.error_line.find_damaged([*self.dead_letters.damaged_lines(), *self.changes.gaps.damaged_lines])
        self.folders.prepare()
        is_empty = self.folders.is_empty()
        try:
            if self.folders.is_stale(self.view_version):
                raise RebuildNeeded(self.folders.format_changed(self.view_version))
            if is_empty:
                self.folders.keep_version(self.view_version)
            self.dispatcher = self.create()
            cursor = returned_cursor(self.name, "start", self.dispatcher.start())
            check_started(
                self.name,
                cursor,
                is_empty=is_empty,
                builds_anew=self.builds_anew,
                came_to=self.came_to or 0,
                commit_log_offset_min=self.header.commit_log_offset_min or 0,
            )
            self.settle(self.dispatcher, cursor)
        except RebuildNeeded as error:
            self.rebuild(error)
        self.shortage.clear()
        self.error_line.show_start()
        self.cell.set_phase(Phase.IDLE)
        self.replay.look()

    def settle(self, dispatcher: CommitLogDispatcher, cursor: Cursor | None) -> None:
        """Continue from *cursor*, in the log's current history."""
        epochs = self.load_epochs()
        minimum = self.header.commit_log_offset_min or 0
        if cursor is not None:
            difference = history_difference(self.name, epochs, cursor, minimum, self.header.appended)
            if difference is not None:
                self.logger.warning(
                    "the log's history differs from the view's: commit_log_offset=%d view=%d epoch=%d",
                    difference.commit_log_offset,
                    cursor.commit_log_offset,
                    epochs.epoch,
                )
                dispatcher.truncate(difference)
                self.flushing.dirty = True
                cursor = difference
        self.position.begin(epochs, cursor, minimum)
        self.cell.set_durable_cursor(self.cursor.commit_log_offset, self.cursor.epoch, self.cursor.store_timestamp)
        self.leave_ring()
        self.flushing.flushed_at = self.now()
        # A view that was truncated, or that starts without a cursor, has other files: readers must reopen them.
        self.cell.raise_generation()
        self.position.publish()

    def rebuild(self, needed: RebuildNeeded) -> None:
        """Empty the view and rebuild it from the log. Until it has caught up, its status shows the reason.

        Raises:
            StartRefused: the view lies elsewhere, and the whole log would be sent there again.
            DispatcherError: the view was not flushed since the last rebuild, so rebuilds would never end.
        """
        if self.view_elsewhere:
            raise rebuild_refused(self.name, self.cursor.commit_log_offset, needed)
        if self.rebuilt:
            raise rebuilt_twice(self.name, self.cursor.commit_log_offset)
        self.rebuilt = True
        self.logger.warning("the view is emptied and rebuilt: commit_log_offset=%d", self.cursor.commit_log_offset)
        self.error_line.begin_rebuild(str(needed.__cause__ or needed))
        self.cell.set_phase(Phase.START)
        self.cell.forget_progress()
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.retry = None
        self.replay.give_up()
        self.folders.empty()
        self.folders.keep_version(self.view_version)
        self.dispatcher = self.create()
        try:
            cursor = returned_cursor(self.name, "start", self.dispatcher.start())
        except RebuildNeeded:
            raise rebuilt_twice(self.name, self.cursor.commit_log_offset) from None
        if cursor is not None:
            raise DispatcherError(
                f"the view was emptied, but the dispatcher still has a cursor: dispatcher={self.name} "
                f"commit_log_offset={cursor.commit_log_offset}"
            )
        self.settle(self.dispatcher, None)
        self.flushing.dirty = True
        self.error_line.show_start()
        self.cell.set_phase(Phase.IDLE)

    def drained(self) -> bool:
        """Whether the loop has dispatched, as far as it can, all that was there when the drain began."""
        if self.drain_target is None:
            self.drain_target = self.bound()
        return self.cursor.commit_log_offset >= min(self.drain_target, self.bound()) or self.reading.damage is not None

    def finish_when_flushable(self, dispatcher: CommitLogDispatcher, now: float, end_by: float) -> int:
        """Finish once the predecessors are durable as far as this view. They may still be running, as in a rebuild."""
        if self.flushing.dirty and now < end_by and not self.is_flushable():
            self.cell.beat()
            return 0
        return self.finish(dispatcher)

    def finish(self, dispatcher: CommitLogDispatcher) -> int:
        """Flush and close the dispatcher; the loop is finished."""
        self.flushing.preparing = False
        if self.flushing.dirty and self.is_flushable():
            self.force(dispatcher)
        dispatcher.close()
        self.log_feed.close()
        self.cell.set_phase(Phase.IDLE)
        self.finished = True
        return 1

    def is_flushable(self) -> bool:
        """Whether the predecessors are durable as far as this view."""
        return self.predecessors.are_durable(self.cursor.commit_log_offset)

    def flush(self, dispatcher: CommitLogDispatcher) -> None:
        """Take one step of a flush."""
        if self.flushing.step(dispatcher, self.cursor):
            self.on_flushed()

    def force(self, dispatcher: CommitLogDispatcher) -> None:
        """Flush the view in one go."""
        if self.flushing.force(dispatcher, self.cursor):
            self.on_flushed()

    def on_flushed(self) -> None:
        """Handle the end of a flush: the view is durable."""
        if self.retry is None:
            self.shortage.end()
        self.rebuilt = False
        self.replay.finish()

    # Where batches come from.

    def bound(self) -> int:
        """Return the commit-log offset up to which the loop may dispatch now."""
        bound = (self.header.durable if self.durable_only else self.header.appended) or 0
        if not self.predecessors.cells:
            return bound
        bound = self.predecessors.limit(bound)
        return min(bound, self.cursor.commit_log_offset) if self.flushing.holds() else bound

    def leave_ring(self) -> None:
        """Continue from the commit log."""
        self.following = False
        self.joined = None
        self.pending.clear()

    def catch_up(self, dispatcher: CommitLogDispatcher) -> int:
        """Dispatch a part of the commit log; join the ring when little is left."""
        begin = self.cursor.commit_log_offset
        if self.joined is None and (self.header.appended or 0) - begin <= JOIN_DISTANCE:
            self.joined = self.reader.join().appended
            if self.header.epoch not in (None, self.cursor.epoch):
                # The frame that announced the epoch was overwritten before it was read.
                self.settle(dispatcher, self.cursor)
                if self.header.epoch != self.cursor.epoch:
                    raise DispatcherError(
                        f"the epochs on disk are not those of the writer: dispatcher={self.name} "
                        f"epoch={self.cursor.epoch} writer={self.header.epoch}"
                    )
                return 1
        bound = self.bound()
        if self.joined is not None:
            # From there on frames carry everything, including topic deletions at their positions.
            bound = min(bound, self.joined)
        # Read deletions after the bound: a deletion is recorded before anything is appended behind it.
        deletions = self.log_feed.topic_deletions.following(begin)[self.position.deletions_here :]
        if deletions and deletions[0].commit_log_offset == begin:
            self.changes.delete_topic(dispatcher, deletions[0].topic)
            return 1
        if self.joined is not None and begin >= self.joined:
            self.following = True
            self.log_feed.close()
            self.error_line.caught_up()
            return self.follow(dispatcher)
        if deletions:
            bound = min(bound, deletions[0].commit_log_offset)
        if bound <= begin:
            return 0
        found = self.reading.read(begin, bound)
        if found is None:
            # If the log was trimmed, the next step tells the plugin.
            return 0 if self.now() < self.reading.resume_at else 1
        end = Cursor(
            self.cursor.store_id, self.cursor.epoch, found.end, found.store_timestamp or self.cursor.store_timestamp
        )
        batch = DispatchBatch(begin, end, found.parts)
        before = self.position.ordinal
        ordinal = None if before is None or self.positions_only else before + len(batch)
        self.dispatch(dispatcher, batch, ordinal)
        return 1

    def follow(self, dispatcher: CommitLogDispatcher) -> int:
        """Dispatch the available frames."""
        pending = self.pending
        if pending.has_room:
            try:
                frames = self.reader.read()
            except RingLapped:
                self.leave_ring()
                return 1
            except RingClosed:
                frames = []
            pending.add(frames, 0 if self.needs_properties else self.bound())
        if not pending.frames:
            return 0
        taken = pending.take(
            self.cursor, self.position.ordinal, self.bound(), self.batch_bound.record_count, self.batch_bound.size
        )
        if isinstance(taken, Frame):
            self.change(dispatcher, taken)
            return 1
        if taken is None:
            if pending.hole:
                self.leave_ring()
                return 1
            return 0
        self.dispatch(dispatcher, taken.batch, taken.ordinal)
        self.gathering.after(taken.row_count)
        return 1

    # Calls of the plugin.

    def dispatch(self, dispatcher: CommitLogDispatcher, batch: DispatchBatch, ordinal: int | None) -> None:
        """Bring the view up to the end of *batch*, and publish its progress."""
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
                self.shortage.shorten_pauses()
            self.retry = RetriedBatch(rest, ordinal, self.now() + self.shortage.pause(reason))
            if reason.until is not None:
                self.come_to(reason.until, None if ordinal is None else ordinal - len(rest))
            cell.set_phase(Phase.IDLE)
            return
        if self.retry is not None:
            self.retry = None
            self.shortage.end()
        self.batch_bound.took(size, self.now() - began)
        cell.add_batch()
        self.come_to(batch.end, ordinal)
        cell.set_phase(Phase.IDLE)

    def come_to(self, cursor: Cursor, ordinal: int | None) -> None:
        """Move the view's position to *cursor*."""
        self.position.move(cursor, ordinal)
        self.flushing.note_change()

    def dispatch_again(self, dispatcher: CommitLogDispatcher, retry: RetriedBatch, now: float) -> int:
        """Retry a batch after its pause. A drain does not wait for that; the next start dispatches the batch."""
        if self.stop is not None:
            return self.finish(dispatcher)
        if now < retry.at:
            return 0
        self.dispatch(dispatcher, retry.batch, retry.ordinal)
        return 1

    def expire(self, dispatcher: CommitLogDispatcher, minimum: int) -> None:
        """Tell the plugin that the log was trimmed; if records are lost, continue from the log."""
        if self.cursor.commit_log_offset < minimum:
            self.retry = None
            self.leave_ring()
        self.changes.expire(dispatcher, minimum)

    def change(self, dispatcher: CommitLogDispatcher, frame: Frame) -> None:
        """Pass on a change of the log's history."""
        if frame.kind == EXPIRE:
            if frame.end > self.changes.expired_below:
                self.expire(dispatcher, frame.end)
        elif frame.kind == DELETE_TOPIC:
            if frame.end == self.cursor.commit_log_offset:
                self.changes.delete_topic(dispatcher, frame.columns.queues[0][0])
        else:
            self.changes.begin_epoch(dispatcher, frame, self.header.commit_log_offset_min or 0)

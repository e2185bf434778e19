"""LetterReplay: passes dead letters to the plugin again when an operator has asked for that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from reput.errors import DamagedStore
from reput.process.dispatcher.batch_bound import BatchBound
from reput.process.dispatcher.shortage import RETRY_MAX_S, checked_delay
from reput.process.dispatcher.states import Phase
from reput.process.frames.log_feed import LogFeed
from reput.process.frames.protocols import LoopCell
from reput.process.views.dead_letters import DeadLetter, DeadLetters
from reput_hooks import CommitLogDispatcher, Cursor, DispatchBatch, DispatchColumns, RetryLater

__all__ = ["LetterReplay"]


class LetterReplay:
    """The replay of one dispatcher's dead letters. It does not move the position of the view.

    Args:
        now: monotonic seconds.

    Attributes:
        due_at: when the letters are handed out; None: no replay was asked for.
        handed_out: the letters that the plugin has, until the view is flushed; None: it has none.
    """

    def __init__(
        self,
        *,
        name: str,
        cell: LoopCell,
        dead_letters: DeadLetters,
        log_feed: LogFeed,
        batch_bound: BatchBound,
        logger: logging.Logger,
        now: Callable[[], float],
    ) -> None:
        self.name = name
        self.cell = cell
        self.dead_letters = dead_letters
        self.log_feed = log_feed
        self.batch_bound = batch_bound
        self.logger = logger
        self.now = now
        self.due_at: float | None = None
        self.handed_out: list[DeadLetter] | None = None

    def look(self) -> None:
        """Check whether a replay was requested; give up one during which the dispatcher ended."""
        if self.dead_letters.give_up_replay():
            self.logger.error("dead letters were being replayed when the dispatcher ended; they are left as they are")
        self.due_at = self.now() if self.dead_letters.replay_is_due() else None

    def give_up(self) -> None:
        """Leave the letters that were handed out as they are."""
        self.handed_out = None
        self.dead_letters.give_up_replay()

    def run(self, dispatcher: CommitLogDispatcher, cursor: Cursor) -> bool:
        """Hand out the letters whose records lie below *cursor*; return whether the plugin got any.

        If it did, they stay dead letters until the view is flushed; call `finish` then.
        """
        self.due_at = None
        try:
            letters = self.dead_letters.begin_replay()
        except DamagedStore as error:
            self.logger.error("%s", error)
            return False
        handed_out: list[DeadLetter] = []
        parts: list[DispatchColumns] = []
        for letter in letters:
            # Records behind the cursor are dispatched anyway.
            if letter.commit_log_offset < cursor.commit_log_offset:
                columns = self.log_feed.read_record(letter.commit_log_offset, letter.record)
                if columns is None:
                    self.logger.warning(
                        "the log does not hold a dead letter's record: commit_log_offset=%d", letter.commit_log_offset
                    )
                else:
                    handed_out.append(letter)
                    parts.append(columns)
        if not parts:
            self.handed_out = handed_out
            self.finish()
            return False
        try:
            for batch in self.batches(cursor, handed_out, parts):
                self.cell.set_phase(Phase.DISPATCH)
                dispatcher.replay(batch)
        except RetryLater as error:
            self.logger.info("dead letters are replayed later: reason=%s", error)
            self.dead_letters.postpone_replay()
            delay = RETRY_MAX_S if error.after is None else checked_delay(self.name, error.after)
            self.due_at = self.now() + delay
            self.cell.set_phase(Phase.IDLE)
            return False
        self.handed_out = handed_out
        return True

    def batches(
        self, cursor: Cursor, letters: Sequence[DeadLetter], parts: Sequence[DispatchColumns]
    ) -> Iterator[DispatchBatch]:
        """Yield *parts*, one request per letter, in batches within the usual bound."""
        batch: list[DispatchColumns] = []
        size = 0
        for number, (letter, part) in enumerate(zip(letters, parts, strict=True), 1):
            batch.append(part)
            size += len(letter.record)
            if len(batch) >= self.batch_bound.record_count or size >= self.batch_bound.size or number == len(parts):
                self.cell.set_batch(len(batch), size)
                yield DispatchBatch(cursor.commit_log_offset, cursor, batch)
                batch, size = [], 0

    def finish(self) -> None:
        """Remove the letters that were handed out: the view has them durably."""
        if self.handed_out is None:
            return
        handed_out, self.handed_out = self.handed_out, None
        self.dead_letters.finish_replay(handed_out)
        left = len(self.dead_letters)
        self.cell.set_rejected_count(left)
        self.logger.warning("dead letters replayed: handed_out=%d left=%d", len(handed_out), left)

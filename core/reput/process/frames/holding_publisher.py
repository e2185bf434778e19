"""HoldingPublisher: collects consecutive single puts into one frame while no dispatcher sleeps.

One frame per record costs the writer a sixth of a put, and each dispatcher as much as the record itself. So a record
put in the same millisecond as the previous one is held. Held records are published when there are `HELD_MAX` of them,
with the first record of another millisecond, or as soon as a dispatcher has nothing to do:

    put ──▶ held ── a dispatcher has parked ───────▶ one frame
              ▲                                       ▲
              │ HELD                                  │ put lock
    dispatcher that parks ── release eventfd ──▶ ReleaseService

A dead or paused dispatcher does not ask, so while records are held the service also checks by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from reput.process.frames.frame_publisher import FramePublisher
from reput.ring import RingWriter
from reput.store.writer.publisher import AppendedRecords, merge_appended
from reput_hooks.dispatch import ROW_SIZE

__all__ = ["HoldingPublisher"]

# In frames of this size a row costs its readers half as much as in a frame of its own. In larger frames it costs
# hardly less, and the put that publishes them takes longer than all others.
HELD_MAX = 8
# Puts between checks of the readers' flags; a check takes as long as holding a record. The kernel holds those between
# by itself.
LOOK_EVERY = 4
assert HELD_MAX % LOOK_EVERY == 0


class HoldingPublisher(FramePublisher):
    """A `FramePublisher` on a ring between processes.

    Attributes:
        is_watched: the `ReleaseService` checks by itself for held records.
        look_every: `LOOK_EVERY`, for the kernel.
    """

    look_every = LOOK_EVERY

    def __init__(
        self,
        writer: RingWriter,
        epoch: int,
        on_read_only: Callable[[str | None], None],
        watch: Callable[[], None],
        segment_size: int,
    ) -> None:
        """*watch* is called, under the put lock, when records become held while the service is not checking."""
        super().__init__(writer, epoch, on_read_only)
        self.ring = writer
        self.segment_size = segment_size
        self.watch = watch
        self.is_watched = False
        # Where the last record ends, and when it was stored.
        self.end = self.store_timestamp = -1
        # Only records whose rows have this many bytes are held: one row; -1 holds none.
        self.size_held = ROW_SIZE
        # Each entry is complete, since Ctrl-C may come between any two steps of a put: the next record then does not
        # begin where that one ended, and is not held behind it.
        self.held: list[AppendedRecords] = []

    def publish(self, records: AppendedRecords) -> None:
        """Hold a single record that begins where the last one ended, in the same millisecond; publish all others."""
        end, store_timestamp = records.end, records.store_timestamp
        if (
            store_timestamp == self.store_timestamp
            and records.begin == self.end
            and len(records.rows) == self.size_held
        ):
            held = self.held
            held.append(records)
            count = len(held)
            if count == 1:
                is_wanted = self.ring.begin_hold()
                if not is_wanted and not self.is_watched:
                    self.watch()
                    self.is_watched = True
            else:
                # A reader that parked meanwhile has already asked the service, but this is sooner.
                is_wanted = not count % LOOK_EVERY and (count == HELD_MAX or self.ring.has_parked())
            # Set only after the hold was announced: if Ctrl-C skips that, no record is held behind this one.
            self.end = end
            if is_wanted:
                self.release()
            return
        self.release()
        super().publish(records)
        self.end = end
        self.store_timestamp = store_timestamp

    def release(self) -> bool:
        """Publish held records, and return whether there were any. Under the put lock."""
        held = self.held
        if not held:
            return False
        end, self.end = self.end, -1
        self.ring.end_hold()
        # In one frame a blank may lie only before the first record. One check for all: segments end rarely.
        if held[0].begin // self.segment_size == (held[-1].end - 1) // self.segment_size:
            super().publish(merge_appended(held))
        else:
            for _, in_one_segment in groupby(held, lambda records: (records.end - 1) // self.segment_size):
                super().publish(merge_appended(list(in_one_segment)))
        # Last: if Ctrl-C interrupts here, the next put or the service publishes these records again, since their puts
        # have returned. Until then no record is held behind them, and readers skip duplicates.
        self.held = []
        self.end = end
        return True

    def hold_no_more(self) -> None:
        """Publish held records, and from now on each record at once. Under the put lock."""
        self.size_held = -1
        self.release()

    def truncate(self, epoch: int, commit_log_offset: int, store_timestamp: int, ordinal: int) -> None:
        """Publish held records, then the cut of the log."""
        self.release()
        super().truncate(epoch, commit_log_offset, store_timestamp, ordinal)

    def expire(self, commit_log_offset_min: int, appended: int, ordinal: int) -> None:
        """Publish held records, then the trimming of the log."""
        self.release()
        super().expire(commit_log_offset_min, appended, ordinal)

    def delete_topic(self, topic: str, appended: int, ordinal: int) -> None:
        """Publish held records, then the deletion of *topic*."""
        self.release()
        super().delete_topic(topic, appended, ordinal)

"""HoldingPublisher: collects consecutive single puts into one frame while no dispatcher sleeps.

One frame per record costs the writer a sixth of a put, and each dispatcher as much as the record itself. So a record
put in the same millisecond as the previous one is held, and if many are, those of the next milliseconds are, too. Held
records are published when there are `HELD_MAX` of them, with the first record that is not held, or as soon as a
dispatcher has nothing to do:

    put ──▶ held ── a dispatcher has parked ───────▶ one frame
              ▲                                       ▲
              │ HELD                                  │ put lock
    dispatcher that parks ── release eventfd ──▶ ReleaseService

A dead or paused dispatcher does not ask, so while records are held the service also checks by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reput.process.frames.frame_publisher import FramePublisher
from reput.process.frames.held_records import HeldRecords, held_records
from reput.ring import RingWriter
from reput.store.writer.publisher import AppendedRecords
from reput_hooks.dispatch import ROW_SIZE

if TYPE_CHECKING:
    from reput.kernel import KernelHeldRecords

__all__ = ["HoldingPublisher"]

# The put that publishes takes ten times as long as the others; with 32 these were 3 % of all puts.
HELD_MAX = 512
# Puts between checks of the readers' flags; a check takes as long as holding a record.
LOOK_EVERY = 4
assert HELD_MAX % LOOK_EVERY == 0


class HoldingPublisher(FramePublisher):
    """A `FramePublisher` on a ring between processes.

    Attributes:
        held: the held records. Each is complete, since Ctrl-C may come between any two steps of a put: the next record
            then does not begin where that one ended, and is not held behind it.
    """

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
        self.watch = watch
        self.held: HeldRecords | KernelHeldRecords = held_records(writer, segment_size, HELD_MAX, LOOK_EVERY)

    def publish(self, records: AppendedRecords) -> None:
        """Hold a single record that begins where the last one ended and follows soon; publish all others.

        The kernel does the same for its puts, from the second one that is held.
        """
        held = self.held
        end, store_timestamp = records.end, records.store_timestamp
        if (
            records.begin == held.end
            and held.may_follow(store_timestamp)
            and len(records.rows) == ROW_SIZE
            and held.is_open
        ):
            count = held.add(records)
            if count == 1:
                is_wanted = self.ring.begin_hold()
                if not is_wanted and not held.is_watched:
                    self.watch()
                    held.is_watched = True
            else:
                # A reader that parked meanwhile has already asked the service, but this is sooner.
                is_wanted = not count % LOOK_EVERY and (count >= HELD_MAX or self.ring.has_parked())
            # Set only after the hold was announced: if Ctrl-C skips that, no record is held behind this one.
            held.end = end
            if is_wanted:
                self.release()
            return
        self.release()
        super().publish(records)
        held.end = end
        held.store_timestamp = store_timestamp

    def release(self) -> bool:
        """Publish held records, and return whether there were any. Under the put lock."""
        held = self.held
        if not held:
            return False
        end, held.end = held.end, -1
        self.ring.end_hold()
        for records in held.pieces():
            super().publish(records)
        # Last: if Ctrl-C interrupts here, the next put or the service publishes these records again, since their puts
        # have returned. Until then no record is held behind them, and readers skip duplicates.
        held.clear()
        held.end = end
        return True

    def hold_no_more(self) -> None:
        """Publish held records, and from now on each record at once. Under the put lock."""
        self.held.is_open = False
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

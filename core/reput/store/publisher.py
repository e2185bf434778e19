"""Publisher: who is told what the writer does, so that views follow and readers see it.

With a transient pool a put returns before its record can be read, and with SYNC_FLUSH nothing is shown to anybody that
the disk may still lose. So what is told then waits in a `CommittedPublisher`, in order, until the files, or the disk,
have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from reput_hooks.dispatch import ROW_SIZE

__all__ = ["CommittedPublisher", "NobodyListens", "Publisher", "Told", "merged"]

# Of a row: its commit-log offset, which comes first, and where the number of its queue lies.
OFFSET_SIZE = 8
QUEUE_INDEX_AT, QUEUE_INDEX_SIZE = 44, 4
BEHIND_INDEX = QUEUE_INDEX_AT + QUEUE_INDEX_SIZE
# Messages that are told at once at most.
TOGETHER_MAX = 128

# What one `Publisher.publish` tells: its arguments.
Told = tuple[int, int, int, int, list[tuple[str, int]], bytes, bytes]


class Publisher(Protocol):
    """What the writer tells. `publish` comes under the put lock, the others from the flusher's thread."""

    def publish(
        self,
        begin: int,
        end: int,
        store_timestamp: int,
        ordinal: int,
        queues: list[tuple[str, int]],
        rows: bytes,
        texts: bytes,
    ) -> None:
        """The log has grown from *begin*, where it ended before, to *end*; *ordinal* counts the records up to there.

        Between *begin* and the first record may lie the blank at the end of a segment.
        """

    def durable(self, offset: int) -> None:
        """The log is forced to disk up to *offset*."""

    def read_only(self, reason: str | None) -> None:
        """The store takes nothing any more, and why; None: it takes messages again."""

    def expire(self, commit_log_offset_min: int, appended: int, ordinal: int) -> None:
        """The log begins at *commit_log_offset_min* now; it still ends at *appended*. Under the put lock."""

    def delete_topic(self, topic: str, appended: int, ordinal: int) -> None:
        """*topic* was deleted when the log ended at *appended*. Under the put lock."""


class NobodyListens:
    """The publisher of a store that has no process group."""

    def publish(self, *_: object) -> None:
        """Nobody is told."""

    def durable(self, offset: int) -> None:
        """Nobody is told."""

    def read_only(self, reason: str | None) -> None:
        """Nobody is told."""

    def expire(self, commit_log_offset_min: int, appended: int, ordinal: int) -> None:
        """Nobody is told."""

    def delete_topic(self, topic: str, appended: int, ordinal: int) -> None:
        """Nobody is told."""


class CommittedPublisher:
    """Tells *publisher* of what lies below the offset that `release` was given last, and keeps the rest.

    What waited together is told together. Calls come under the put lock, but for `durable`, whose offset is committed,
    and `read_only`, which has none.
    """

    def __init__(self, publisher: Publisher, appended: Callable[[int], None]) -> None:
        """*appended* is called with the log's new end at each `publish`."""
        self.publisher = publisher
        self.appended = appended
        # Where the log has to be committed up to, and what is told then.
        self.kept: deque[tuple[int, Told | Callable[[], None]]] = deque()

    def publish(
        self,
        begin: int,
        end: int,
        store_timestamp: int,
        ordinal: int,
        queues: list[tuple[str, int]],
        rows: bytes,
        texts: bytes,
    ) -> None:
        """Keep it until the log is committed up to *end*."""
        self.kept.append((end, (begin, end, store_timestamp, ordinal, queues, rows, texts)))
        self.appended(end)

    def expire(self, commit_log_offset_min: int, appended: int, ordinal: int) -> None:
        """Keep it until what was put before is known."""
        self.kept.append((appended, partial(self.publisher.expire, commit_log_offset_min, appended, ordinal)))

    def delete_topic(self, topic: str, appended: int, ordinal: int) -> None:
        """Keep it until what was put before is known."""
        self.kept.append((appended, partial(self.publisher.delete_topic, topic, appended, ordinal)))

    def durable(self, offset: int) -> None:
        """Tell it."""
        self.publisher.durable(offset)

    def read_only(self, reason: str | None) -> None:
        """Tell it."""
        self.publisher.read_only(reason)

    def release(self, committed: int) -> None:
        """Tell what was kept up to *committed*. Under the put lock."""
        kept = self.kept
        together: list[Told] = []
        while kept and kept[0][0] <= committed:
            _, told = kept.popleft()
            goes_on = isinstance(told, tuple) and len(together) < TOGETHER_MAX and follows(told, together)
            if together and not goes_on:
                self.publisher.publish(*merged(together))
                together.clear()
            if isinstance(told, tuple):
                together.append(told)
            else:
                told()
        if together:
            self.publisher.publish(*merged(together))

    def change(self, publisher: Publisher, committed: int) -> None:
        """Tell the one before what is committed, and *publisher* what is not yet. Under the put lock."""
        self.release(committed)
        self.publisher = publisher


def follows(told: Told, together: Sequence[Told]) -> bool:
    """Tell whether what is told can be told together with what was before, as one piece.

    A blank lies only before the first record of what is told at once. And it has to go on where the one before ended:
    of a put that Ctrl-C has ended between its record and its telling, nobody is told. That is to stay a hole, for which
    views turn to the log; told over, its record would be in no view.
    """
    begin, rows = told[0], told[5]
    starts = int.from_bytes(rows[:OFFSET_SIZE], "little")
    return starts == begin and (not together or together[-1][1] == begin)


def merged(growths: Sequence[Told]) -> Told:
    """Return what *growths*, each of which goes on where the one before ends, tell together."""
    begins, ends, store_timestamps, ordinals, queues, rows, texts = zip(*growths, strict=True)
    told = begins[0], ends[-1], store_timestamps[-1], ordinals[-1]
    if queues.count(queues[0]) == len(queues):
        # Mostly so: whoever puts in a row puts to one queue.
        return *told, queues[0], b"".join(rows), b"".join(texts)
    numbers: dict[tuple[str, int], int] = {}
    pieces: list[bytes] = []
    for named, data in zip(queues, rows, strict=True):
        own = [numbers.setdefault(queue, len(numbers)) for queue in named]
        pieces.append(data if own == list(range(len(own))) else renumbered(data, own))
    return *told, list(numbers), b"".join(pieces), b"".join(texts)


def renumbered(rows: bytes, numbers: list[int]) -> bytes:
    """Return *rows* with the number of each one's queue as *numbers* have it."""
    if len(rows) == ROW_SIZE and len(numbers) == 1:
        # A put of one message, as most are: half the price of doing it for any number of rows.
        return rows[:QUEUE_INDEX_AT] + numbers[0].to_bytes(QUEUE_INDEX_SIZE, "little") + rows[BEHIND_INDEX:]
    pieces: list[bytes] = []
    for at in range(0, len(rows), ROW_SIZE):
        number_at = at + QUEUE_INDEX_AT
        number = int.from_bytes(rows[number_at : number_at + QUEUE_INDEX_SIZE], "little")
        pieces += (
            rows[at:number_at],
            numbers[number].to_bytes(QUEUE_INDEX_SIZE, "little"),
            rows[number_at + QUEUE_INDEX_SIZE : at + ROW_SIZE],
        )
    return b"".join(pieces)

"""Publisher: who is told what the writer does, so that views follow and readers see it.

With a transient pool a put returns before its record can be read. So what is told then waits in a `CommittedPublisher`,
in order, until the files have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

__all__ = ["CommittedPublisher", "NobodyListens", "Publisher"]


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

    Calls come under the put lock, but for `durable`, whose offset is committed, and `read_only`, which has none.
    """

    def __init__(self, publisher: Publisher, appended: Callable[[int], None]) -> None:
        """*appended* is called with the log's new end at each `publish`."""
        self.publisher = publisher
        self.appended = appended
        # Where the log has to be committed up to, and what is told then.
        self.kept: deque[tuple[int, Callable[[], None]]] = deque()

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
        tell = partial(self.publisher.publish, begin, end, store_timestamp, ordinal, queues, rows, texts)
        self.kept.append((end, tell))
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
        while kept and kept[0][0] <= committed:
            kept.popleft()[1]()

    def change(self, publisher: Publisher, committed: int) -> None:
        """Tell the one before what is committed, and *publisher* what is not yet. Under the put lock."""
        self.release(committed)
        self.publisher = publisher

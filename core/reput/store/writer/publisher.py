"""Publisher: receives what the writer does, so that views follow and readers see it.

With a transient pool a put returns before its record can be read, and with SYNC_FLUSH nothing may be shown that the
disk can still lose. There a `CommittedPublisher` keeps records back, in order, until the files, or the disk, have them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from reput_hooks.dispatch import ROW_SIZE

__all__ = [
    "AppendedRecords",
    "CommittedPublisher",
    "ForwardingPublisher",
    "Publisher",
    "merge_appended",
    "renumber_rows",
]

# In a row: the commit-log offset comes first, and the queue index lies here.
OFFSET_SIZE = 8
QUEUE_INDEX_AT, QUEUE_INDEX_SIZE = 44, 4
QUEUE_INDEX_END = QUEUE_INDEX_AT + QUEUE_INDEX_SIZE
# Messages that are published at once at most, unless they were appended at once.
MERGED_MAX = 128


class AppendedRecords(msgspec.Struct, frozen=True, gc=False):
    """Records that were appended to the log one behind the other.

    Attributes:
        begin: commit-log offset at which the log ended before. The blank at the end of a segment may lie between it and
            the first record.
        end: commit-log offset at which the log ends now.
        store_timestamp: of the last record, ms.
        ordinal: records in the log up to *end*.
        queues: (topic, queue id) by the rows' queue index.
        rows, texts: what `DispatchColumns` take.
    """

    begin: int
    end: int
    store_timestamp: int
    ordinal: int
    queues: list[tuple[str, int]]
    rows: bytes
    texts: bytes


class Publisher:
    """Receives what the writer does. This one ignores it: the publisher of a store without dispatchers.

    The flusher's thread calls `durable` and `read_only`. All others come under the put lock.

    Attributes:
        held: where the kernel's puts hold their records, of `HoldingPublisher`; None: they call `publish`.
    """

    held: object = None

    def publish(self, records: AppendedRecords) -> None:
        """The log has grown."""

    def durable(self, offset: int) -> None:
        """The log is forced to disk up to *offset*."""

    def read_only(self, reason: str | None) -> None:
        """The store refuses messages, and why; None: it takes messages again."""

    def expire(self, commit_log_offset_min: int, appended: int, ordinal: int) -> None:
        """The log begins at *commit_log_offset_min* now; it still ends at *appended*."""

    def delete_topic(self, topic: str, appended: int, ordinal: int) -> None:
        """*topic* was deleted when the log ended at *appended*."""


class ForwardingPublisher(Publisher):
    """Passes everything on to *publisher*; subclasses change what they need to."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher

    def publish(self, records: AppendedRecords) -> None:
        """Pass it on."""
        self.publisher.publish(records)

    def durable(self, offset: int) -> None:
        """Pass it on."""
        self.publisher.durable(offset)

    def read_only(self, reason: str | None) -> None:
        """Pass it on."""
        self.publisher.read_only(reason)

    def expire(self, commit_log_offset_min: int, appended: int, ordinal: int) -> None:
        """Pass it on."""
        self.publisher.expire(commit_log_offset_min, appended, ordinal)

    def delete_topic(self, topic: str, appended: int, ordinal: int) -> None:
        """Pass it on."""
        self.publisher.delete_topic(topic, appended, ordinal)


class CommittedPublisher(ForwardingPublisher):
    """Publishes only records below the offset last given to `release`, and keeps the rest.

    Records that waited together are published together. Callers hold the put lock, except for `durable`, whose offset
    is committed already, and `read_only`, which has no offset.
    """

    def __init__(self, publisher: Publisher, appended: Callable[[int], None]) -> None:
        """*appended* is called with the log's new end at each `publish`."""
        super().__init__(publisher)
        self.appended = appended
        # (commit-log offset up to which the log must be committed, what to publish or call then).
        self.kept: deque[tuple[int, AppendedRecords | Callable[[], None]]] = deque()

    def publish(self, records: AppendedRecords) -> None:
        """Keep them until the log is committed up to their end."""
        self.kept.append((records.end, records))
        self.appended(records.end)

    def expire(self, commit_log_offset_min: int, appended: int, ordinal: int) -> None:
        """Keep it until earlier puts are published."""
        self.kept.append((appended, partial(self.publisher.expire, commit_log_offset_min, appended, ordinal)))

    def delete_topic(self, topic: str, appended: int, ordinal: int) -> None:
        """Keep it until earlier puts are published."""
        self.kept.append((appended, partial(self.publisher.delete_topic, topic, appended, ordinal)))

    def release(self, committed: int) -> None:
        """Publish what was kept up to *committed*. Under the put lock."""
        kept = self.kept
        together: list[AppendedRecords] = []
        while kept and kept[0][0] <= committed:
            _, entry = kept.popleft()
            records = entry if isinstance(entry, AppendedRecords) else None
            size = sum(len(part.rows) for part in together) + (len(records.rows) if records is not None else 0)
            is_next = records is not None and size <= MERGED_MAX * ROW_SIZE and follows(records, together)
            if together and not is_next:
                self.publisher.publish(merge_appended(together))
                together.clear()
            if records is not None:
                together.append(records)
            elif not isinstance(entry, AppendedRecords):
                entry()
        if together:
            self.publisher.publish(merge_appended(together))

    def change(self, publisher: Publisher, committed: int) -> None:
        """Publish committed records to the present publisher, and all others to *publisher*. Under the put lock."""
        self.release(committed)
        self.publisher = publisher


def follows(records: AppendedRecords, together: Sequence[AppendedRecords]) -> bool:
    """Tell whether *records* can be published as one piece with those before them.

    A blank may lie only before the first record of a piece. And the records must begin where the last ones ended: a put
    that Ctrl-C interrupts between its record and its publication leaves a hole, for which views read the log. Merged
    over, that record would be in no view.
    """
    starts = int.from_bytes(records.rows[:OFFSET_SIZE], "little")
    return starts == records.begin and (not together or together[-1].end == records.begin)


def merge_appended(parts: Sequence[AppendedRecords]) -> AppendedRecords:
    """Return *parts*, each of which begins where the one before it ends, as one piece."""
    last = parts[-1]
    queues = parts[0].queues
    texts = b"".join([part.texts for part in parts])
    if [part.queues for part in parts].count(queues) == len(parts):
        # The usual case: puts in a row go to one queue.
        rows = b"".join([part.rows for part in parts])
    else:
        numbers: dict[tuple[str, int], int] = {}
        pieces: list[bytes] = []
        for part in parts:
            own = [numbers.setdefault(queue, len(numbers)) for queue in part.queues]
            pieces.append(part.rows if own == list(range(len(own))) else renumber_rows(part.rows, own))
        queues, rows = list(numbers), b"".join(pieces)
    return AppendedRecords(parts[0].begin, last.end, last.store_timestamp, last.ordinal, queues, rows, texts)


def renumber_rows(rows: bytes, numbers: list[int]) -> bytes:
    """Return *rows* with other queue indexes: that of each row indexes *numbers*, which holds the new one."""
    if len(rows) == ROW_SIZE and len(numbers) == 1:
        # A put of one message, as most are: half the cost of the loop below.
        return rows[:QUEUE_INDEX_AT] + numbers[0].to_bytes(QUEUE_INDEX_SIZE, "little") + rows[QUEUE_INDEX_END:]
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

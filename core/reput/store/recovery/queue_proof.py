"""QueueProof: whether a consume queue continues behind its last unit that agrees with the log.

A damaged unit at the end of a queue looks like the queue's end. The queue's files alone cannot tell the two apart, but
these can:

    the view's cursor    how far each queue reached when it was made durable, and where its last record lies
    the log              the records of the queue behind that place, which name their queue offsets

If no dispatcher builds the queue, the cursor alone proves nothing, because RocketMQ may have cut the store since. Then
the log must have the record of the last message.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.store.disk.sealed_file import read_sealed
from reput.store.queue.batch_topics import BatchTopics
from reput.store.queue.consume_queue import UNIT_SIZE, holds_unit_of
from reput.store.queue.consume_queue_builder import LEFT_OUT
from reput.store.queue.consume_queue_files import QueueEnd
from reput.store.record.multi_dispatch import DISPATCH_NAMES, QUEUE_OFFSETS_NAME, further_queues
from reput.store.recovery.damage_list import accepted_damage
from reput.store.recovery.recreated_queues import read_recreated_queues, recreation_offsets
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import read_store_id
from reput.store.state.store_lock import is_claimed
from reput_hooks import Cursor

if TYPE_CHECKING:
    from reput.store.log.log_scan import LogScan
    from reput.store.record.record_columns import RecordColumns

__all__ = ["QueueProof"]

# More of the log than this is not walked for one queue: a RocketMQ's queue that has been still for long may have old
# units behind its end.
WALK_SIZE_MAX = 256 << 20
MULTI_DISPATCH = f"{DISPATCH_NAMES}\x01".encode()


class KeptEnds(msgspec.Struct, frozen=True):
    """Content of the view's cursor file: the cursor, and topic → queue id → the end of each queue there."""

    cursor: Cursor
    queues: dict[str, dict[int, QueueEnd]]


class QueueProof:
    """Answers for the queues of one store, from its files as they are now. One thread at a time."""

    def __init__(self, store_directory: Path) -> None:
        self.directory = store_directory
        self.path = store_directory / "reput" / "views" / "consume_queue" / "cursor"
        self.batch_topics = BatchTopics(store_directory)
        self.stamp: tuple[int, int] | None = None
        self.kept: KeptEnds | None = None

    def kept_ends(self) -> KeptEnds | None:
        """Return what the view's cursor says now, None where there is none that can be read."""
        try:
            found = os.stat(self.path)
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self.stamp:
                self.kept = None
                self.kept = read_sealed(self.path, KeptEnds)
                self.stamp = stamp
        except (OSError, DamagedStore):
            # The dispatcher finds that out, and builds the view again.
            return None
        return self.kept

    def kept_end(self, topic: str, queue_id: int, progress: int) -> QueueEnd | None:
        """Return how far a queue reached when it was last made durable, None where that is not known of this log."""
        kept = self.kept_ends()
        if kept is None or kept.cursor.commit_log_offset > progress:
            return None
        return kept.queues.get(topic, {}).get(queue_id)

    def end(
        self, topic: str, queue_id: int, end: int, begin: int, progress: int, at_rest: bool
    ) -> tuple[int, int | None]:
        """Return the queue offset behind the last message that the log has of a queue; *end* if it has none behind it.

        Return also from where on the log cannot be read; it may have lost further messages there. None: it can.

        Args:
            end: where the queue seems to end.
            begin: commit-log offset behind the record of the last unit before it, or where the log begins.
            progress: commit-log offset up to which the queue is built.
            at_rest: no dispatcher builds it, so the view's cursor may be of another log than this one.
        """
        if self.batch_topics.has(topic):
            return end, None
        known = self.kept_end(topic, queue_id, progress)
        if self.kept is not None and self.kept.cursor.commit_log_offset <= progress:
            if known is not None and known.end > end * UNIT_SIZE and known.last >= begin:
                end = self.proven(topic, queue_id, end, known) if at_rest else known.end // UNIT_SIZE
            begin = max(begin, self.kept.cursor.commit_log_offset)
        else:
            begin = max(begin, recreation_offsets(read_recreated_queues(self.directory)).get((topic, queue_id), 0))
        scan, until = self.scan(), min(progress, begin + WALK_SIZE_MAX)
        try:
            for columns in scan.pieces(begin, until):
                for queue_offset in queue_offsets(columns, topic, queue_id):
                    if queue_offset == end:
                        end += 1
                if len(columns):
                    begin = int(columns.header["commit_log_offset"][-1]) + int(columns.header["record_size"][-1])
        except (DamagedStore, OffsetOutOfRange):
            return end, begin
        finally:
            scan.close()
        return end, None

    def found_between(self, topic: str, queue_id: int, offsets: range, begin: int, until: int) -> int | None:
        """Return the first of these queue offsets that a record in [begin, until) of the log has.

        None: none is found, or the log cannot be read there.
        """
        scan = self.scan()
        try:
            for columns in scan.pieces(begin, min(until, begin + WALK_SIZE_MAX)):
                for queue_offset in queue_offsets(columns, topic, queue_id):
                    if queue_offset in offsets:
                        return queue_offset
        except (DamagedStore, OffsetOutOfRange):
            return None
        finally:
            scan.close()
        return None

    def proven(self, topic: str, queue_id: int, end: int, known: QueueEnd) -> int:
        """Return the end that the view's cursor says, if it is a cursor of this log; else *end*.

        It is if only reput has written since, or if the log has the last record there.
        """
        last = known.end // UNIT_SIZE - 1
        if self.is_of_this_log():
            return last + 1
        scan = self.scan()
        try:
            record = scan.read(known.last, known.max_physic_offset - known.last)
            return last + 1 if holds_unit_of(record, topic, queue_id, last) else end
        except (DamagedStore, OffsetOutOfRange):
            return end
        finally:
            scan.close()

    def is_of_this_log(self) -> bool:
        """Tell whether no other program has written the log since reput kept the view's cursor, and reput did not cut
        it."""
        if self.kept is None or not is_claimed(self.directory):
            return False
        cursor = self.kept.cursor
        return read_store_id(self.directory) == cursor.store_id and read_epochs(self.directory, cursor.store_id).holds(
            cursor
        )

    def scan(self) -> LogScan:
        """Return what reads the log."""
        # Here, because it loads numpy, and hardly any queue needs a proof.
        from reput.store.log.log_scan import LogScan

        return LogScan(self.directory, passed_over=accepted_damage(self.directory))

    def is_begin_of_record(self, commit_log_offset: int, begin: int) -> bool:
        """Tell whether the chain of records from *begin* on leads to this offset, or is broken before it."""
        scan = self.scan()
        at = begin
        try:
            while at < commit_log_offset:
                columns, following = scan.locate(at, scan.segments.offset_end)
                if following > commit_log_offset:
                    return bool((columns.position + at == commit_log_offset).any())
                at = following
        except (DamagedStore, OffsetOutOfRange):
            return True
        finally:
            scan.close()
        return True


def queue_offsets(columns: RecordColumns, topic: str, queue_id: int) -> Iterator[int]:
    """Yield the queue offsets that records have in one queue, by themselves or through multi-dispatch."""
    if not len(columns):
        return
    queues, queue_index = columns.queues()
    name = (topic.encode("utf-8", "replace"), queue_id)
    own = queues.index(name) if name in queues else -1
    is_multi_dispatched = MULTI_DISPATCH in bytes(columns.data)
    sys_flags, offsets = columns.header["sys_flag"].tolist(), columns.header["queue_offset"].tolist()
    for number, index in enumerate(queue_index.tolist()):
        if sys_flags[number] & LEFT_OUT:
            continue
        if index == own:
            yield offsets[number]
        elif is_multi_dispatched:
            properties = columns.properties(number)
            text = f"{properties.get(DISPATCH_NAMES, '')}\x02{properties.get(QUEUE_OFFSETS_NAME, '')}"
            record_topic, record_queue_id = queues[index]
            further = further_queues((record_topic.decode("utf-8", "replace"), record_queue_id), text.encode())
            yield from (queue_offset for queue, queue_offset in further if queue == (topic, queue_id))

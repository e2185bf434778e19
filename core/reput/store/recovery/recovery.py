"""Recovery: finds the state of a store's log, before its writer continues it.

closed by us and untouched since   → it ends where we left it; nothing is scanned, and numpy is not loaded
closed by us, then written by RocketMQ → a new epoch begins where its bytes differ from ours, or at the log's minimum
                                     if retention removed all evidence; everything behind is scanned
not closed                         → every record behind the last snapshot is checked as a whole; the log ends at
                                     the first that fails, unless it continues behind (see `log_walk`, and `log_tail`
                                     for what a power cut leaves), and a new epoch begins there, because views may
                                     have seen the lost records
never written by us                → scanned whole; the queues' files say where queues without records continue

If RocketMQ wrote, a queue that begins with 0 again was deleted in between, see `recreated_queues`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reput.errors import DamagedStore
from reput.store.disk.files import Clock
from reput.store.log.segment_reader import SegmentReader
from reput.store.log.segments import Segments
from reput.store.queue.consume_queue_builder import queue_directories
from reput.store.queue.queue_offsets import QueueOffsets, QueueOffsetsSnapshot, read_queue_offsets
from reput.store.recovery.damage_list import DamagedRange, DamageList, accepted_damage, accepted_end, read_damage
from reput.store.recovery.recreated_queues import (
    RecreatedQueue,
    find_recreated_queues,
    read_recreated_queues,
    recreated_up_to,
    recreation_offsets,
)
from reput.store.state.epochs import Epochs, mark_holds, read_epochs
from reput.store.state.store_lock import is_claimed
from reput.store.state.topic_deletions import TopicDeletion, TopicDeletions, last_deletions, move_deletion

if TYPE_CHECKING:
    from reput.store.log.bad_range import BadRange
    from reput.store.recovery.check_fields import FieldsCheck
    from reput.store.recovery.log_walk import Extent, LogWalk
    from reput.store.recovery.queue_spans import QueueSpan

__all__ = ["RecoveredLog", "present_recreated_queues", "recover"]

logger = logging.getLogger(__name__)


class RecoveredLog(msgspec.Struct):
    """The result of `recover`. All bytes after *end* are stale or torn.

    Attributes:
        common_end: up to here the log is as reput last wrote it.
        known_durable: up to here the log is known to be on disk; the bytes from here to *end* are only readable.
        lost: why the log ends before the last byte that is not zero; None: it does not.
        garbled: records with fields that their neighbours contradict. They are readable, and the log continues.
        found_queues: the span of each queue in the log of a store that reput never wrote.
        recreated_queues: where queues begin anew without a known deletion.
    """

    end: int
    known_durable: int
    lost: str | None
    queue_offsets: QueueOffsets
    store_timestamp: int
    ordinal: int
    epochs: Epochs
    damage: DamageList
    common_end: int
    garbled: list[BadRange] = []
    found_queues: dict[str, dict[int, QueueSpan]] | None = None
    recreated_queues: list[RecreatedQueue] = []


def recover(
    store_directory: Path,
    segments: Segments,
    store_id: str,
    now_ms: int,
    boot_id: str | None,
    *,
    demand_crc: bool = False,
) -> RecoveredLog:
    """Find where the log of a store ends and what its next queue offsets are. Reads only.

    Args:
        boot_id: of the machine's present boot.
        demand_crc: a record that does not carry a CRC of the whole record is invalid.

    Raises:
        DamagedStore: bytes before the end are no records, and no operator has accepted the damage.
    """
    epochs = read_epochs(store_directory, store_id)
    accepted = accepted_damage(store_directory)
    lacks_files = any((accepted_end(accepted, low) or low) < high for low, high in segments.missing())
    # If a segment is missing or was cut short, the whole log is read: that is damage, wherever the log ends.
    snapshot = None if lacks_files else read_queue_offsets(store_directory)
    untouched = as_it_was_closed(store_directory, segments, epochs, snapshot)
    if untouched is not None:
        return untouched
    # A log with records is walked with numpy, which takes longer to load than recovering an empty log.
    from reput.store.recovery.check_fields import FieldsCheck
    from reput.store.recovery.log_tail import find_unforced, judge_tail, known_durable
    from reput.store.recovery.log_walk import LogWalk
    from reput.store.recovery.queue_spans import QueueSpans

    ours_before = (store_directory / "reput" / "epochs").exists()
    aborted = (store_directory / "abort").exists()
    begin: int | None = None
    # If another program wrote, deletions behind the common part would affect its records. If none did, changed bytes
    # are damage, and deletions stay in force.
    held = [mark.offset for mark in epochs.marks if mark_holds(segments, mark)]
    claimed = is_claimed(store_directory)
    common = None if claimed else max(held, default=segments.offset_min)
    deletions = TopicDeletions(store_directory).following(segments.offset_min)
    recreated = [
        part for part in read_recreated_queues(store_directory) if part.commit_log_offset >= segments.offset_min
    ]
    if common is not None:
        deletions = [move_deletion(deletion, common) for deletion in deletions]
        recreated = recreated_up_to(recreated, common)
    in_order: list[TopicDeletion | RecreatedQueue] = [*deletions, *recreated]
    in_order.sort(key=attrgetter("commit_log_offset"))
    unforced_from = find_unforced(store_directory, boot_id)
    # reput records its deletions; RocketMQ does not.
    walk = LogWalk(
        segments,
        unclean=aborted,
        deletions=in_order,
        unforced_from=unforced_from,
        demand_crc=demand_crc,
        finds_restarts=not claimed,
    )
    if snapshot is not None and snapshot.epoch == epochs.epoch:
        mark = next((mark for mark in epochs.marks if mark.offset == snapshot.commit_log_offset), None)
        if mark is not None and mark_holds(segments, mark):
            begin = snapshot.commit_log_offset
            walk = LogWalk(
                segments,
                queue_offsets=QueueOffsets(snapshot.queues),
                store_timestamp=snapshot.store_timestamp,
                record_count=snapshot.ordinal,
                unclean=aborted,
                deletions=[part for part in in_order if part.commit_log_offset >= snapshot.commit_log_offset],
                unforced_from=unforced_from,
                demand_crc=demand_crc,
                finds_restarts=not claimed,
            )
    known = {(damaged.begin, damaged.end): damaged for damaged in read_damage(store_directory).ranges}
    damage = [damaged for damaged in known.values() if begin is not None and damaged.end <= begin]
    tail: Extent | None = None
    fields = FieldsCheck(segments.offset_min if begin is None else begin, now_ms, walk.queue_offsets.queues)
    # A repair may have left files of ours; the store is so only once it has a name.
    is_new = begin is None and not (store_directory / "reput" / "store.json").exists()
    spans = QueueSpans() if is_new else None
    for extent in walk.walk(begin):
        if extent.columns is not None:
            fields.take(extent.columns)
            if spans is not None:
                spans.take(extent.columns)
        elif extent.kind == "damage":
            fields.pass_damage(extent.end)
            damage.append(
                known.get((extent.begin, extent.end)) or DamagedRange(extent.begin, extent.end, extent.reason)
            )
        elif extent.kind in ("tail", "stale"):
            tail = extent
    end = walk.log_end
    judged = judge_tail(store_directory, walk, tail)
    if judged is not None and judged.kind == "damage":
        damage.append(DamagedRange(judged.begin, judged.end, judged.reason))
    refuse_unaccepted(damage, end, store_directory)
    walk.delete_the_rest()
    garbled = fields.finish()
    recreated = recreated_by_walk(store_directory, walk, fields, recreated, garbled)
    for queue in recreated:
        if spans is not None and not walk.queue_offsets.next_offset(queue.topic, queue.queue_id):
            # Nothing was put to it since its topic was deleted.
            spans.queues[queue.topic].pop(queue.queue_id, None)
    if begin is None:
        gone = [(0, segments.offset_min), *((damaged.begin, damaged.end) for damaged in damage)]
        raise_from_queue_files(store_directory, walk.queue_offsets, gone, last_deletions(deletions))
    durable = known_durable(epochs) if ours_before and claimed else 0
    if ours_before:
        if aborted and claimed:
            epochs = epochs.begin(end, now_ms)
        elif begin is None or end != epochs.clean_end or aborted:
            epochs = epochs.begin(max(held, default=segments.offset_min), now_ms, located=bool(held))
            if not held:
                logger.warning(
                    "nothing identifies the log any more, so the history before its beginning is unknown: "
                    "commit_log_offset_min=%d epoch=%d store=%s",
                    segments.offset_min,
                    epochs.epoch,
                    store_directory,
                )
    return RecoveredLog(
        end,
        durable if aborted else end,
        tail.reason if tail is not None else None,
        walk.queue_offsets,
        walk.store_timestamp,
        walk.record_count,
        epochs,
        DamageList(damage),
        end if common is None else min(end, common),
        garbled,
        spans.queues if spans is not None else None,
        recreated_up_to(recreated, end),
    )


def recreated_by_walk(
    store_directory: Path, walk: LogWalk, fields: FieldsCheck, known: list[RecreatedQueue], garbled: list[BadRange]
) -> list[RecreatedQueue]:
    """Return the *known* recreated queues and those that *walk* found, the last recreation of each queue.

    A refuted restart is added to *garbled*, and its queue continues at the next queue offset it had before.
    """
    from reput.store.recovery.check_fields import out_of_sequence

    # The other restarts only break the sequence of their queue, and are in *garbled* already.
    restarts = [
        restart._replace(goes_on=fields.restarts[restart.commit_log_offset])
        for restart in walk.restarts
        if restart.commit_log_offset in fields.restarts
    ]
    queue_offsets = walk.queue_offsets
    last_records = {
        (topic.decode("utf-8", "replace"), queue_id): offset for (topic, queue_id), offset in fields.met_at.items()
    }
    found, refuted = find_recreated_queues(store_directory, restarts, queue_offsets.queues, last_records)
    born_at = recreation_offsets(found)
    for restart in walk.restarts:
        if born_at.get((restart.topic, restart.queue_id), -1) < restart.commit_log_offset:
            queue_offsets.raise_to(restart.topic, restart.queue_id, restart.next_before)
    garbled += [
        out_of_sequence(part.commit_log_offset, part.end, part.topic, part.queue_id, 0, part.next_before)
        for part in refuted
    ]
    garbled.sort(key=attrgetter("begin"))
    for queue in found:
        if last_records.get((queue.topic, queue.queue_id), -1) < queue.commit_log_offset:
            queue_offsets.forget_queue(queue.topic, queue.queue_id)
    for queue in known:
        born_at.setdefault((queue.topic, queue.queue_id), queue.commit_log_offset)
    return sorted(RecreatedQueue(offset, topic, queue_id) for (topic, queue_id), offset in born_at.items())


def present_recreated_queues(store_directory: Path, segments: Segments, store_id: str) -> list[RecreatedQueue]:
    """Return the recreated queues of a store, for building its queues without opening it. Reads only.

    They are recorded, unless RocketMQ has written since, or reput never did: then the log is read for them.
    """
    if is_claimed(store_directory):
        return read_recreated_queues(store_directory)
    clock = Clock()
    try:
        return recover(store_directory, segments, store_id, clock.now_ms(), clock.boot_id()).recreated_queues
    except DamagedStore:
        # Building the queues meets the damage, too, and reports it.
        return read_recreated_queues(store_directory)


def as_it_was_closed(
    store_directory: Path, segments: Segments, epochs: Epochs, snapshot: QueueOffsetsSnapshot | None
) -> RecoveredLog | None:
    """Return the log as the last writer left it, None if the log must be read.

    Conditions: reput closed it, its end and the bytes before its end are the same as then, only zeros follow, no damage
    is known, and no topic was deleted at or behind the end.
    """
    if snapshot is None or snapshot.epoch != epochs.epoch or (store_directory / "abort").exists():
        return None
    end = snapshot.commit_log_offset
    held = [mark.offset for mark in epochs.marks if mark_holds(segments, mark)]
    if epochs.clean_end != end or end not in held or max(mark.offset for mark in epochs.marks) != end:
        return None
    if read_damage(store_directory).ranges:
        return None
    deletions = TopicDeletions(store_directory).following(segments.offset_min)
    if any(deletion.commit_log_offset >= end for deletion in deletions):
        return None
    reader = SegmentReader(segments)
    try:
        if reader.last_data(end) > end:
            return None
    finally:
        reader.close()
    return RecoveredLog(
        end=end,
        known_durable=end,
        lost=None,
        queue_offsets=QueueOffsets(snapshot.queues),
        store_timestamp=snapshot.store_timestamp,
        ordinal=snapshot.ordinal,
        epochs=epochs,
        damage=DamageList(),
        common_end=end,
        recreated_queues=read_recreated_queues(store_directory),
    )


def refuse_unaccepted(damage: list[DamagedRange], log_end: int, store_directory: Path) -> None:
    """Leave the decision about damage to the operator."""
    for damaged in damage:
        if not damaged.accepted:
            advice = f"See `reput check`; then `reput repair --cut-at {damaged.begin}` to continue before it"
            if damaged.end <= log_end:
                advice += f", or `--accept {damaged.begin}..{damaged.end}` to continue after the last record"
            raise DamagedStore(
                f"the log is damaged: from={damaged.begin} until={damaged.end} reason={damaged.reason!r} "
                f"log_end={log_end} store={store_directory}",
                f"{advice}.",
            )


def raise_from_queue_files(
    store_directory: Path, queue_offsets: QueueOffsets, gone: list[tuple[int, int]], deleted: Collection[str]
) -> None:
    """Continue queues without a record in the log where their files end; the log may have been trimmed.

    Only units of records that are *gone* count. Other units would point at records of the queue, and the log has none:
    they belong to a history that was cut, and their dispatcher has not removed them yet. Topics that were *deleted*
    since the log's beginning are left out: their files may just not be removed yet.
    """
    from reput.store.recovery.queue_file_ends import next_offset_of_files

    for topic, queue_id, directory in queue_directories(store_directory / "consumequeue"):
        if topic not in deleted and queue_offsets.next_offset(topic, queue_id) == 0:
            next_offset = next_offset_of_files(directory, gone)
            if next_offset:
                queue_offsets.raise_to(topic, queue_id, next_offset)

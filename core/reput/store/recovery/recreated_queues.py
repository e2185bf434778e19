"""RecreatedQueues: where in the log the queues begin that RocketMQ recreated, in ``reput/queue_births``.

When RocketMQ deletes a topic, it removes the topic's queues and restarts each of them at queue offset 0. The records of
the deleted topic stay in the log, and the log does not record the deletion: only the queue offsets show it.

    log      0  1  2  3  4  0  1  2         queue offsets of one queue, in the order of the log
                            └ recreated     the records before it no longer belong to the queue

If RocketMQ loses its queue files, it rebuilds them from the records of both topics: the old records take the first
places and the new ones are skipped because their places are taken. After a kill it also restores the old records of a
queue that received none since. reput begins a recreated queue with its first new record.

reput finds recreated queues when it opens a store that RocketMQ has written in the meantime, and stores them at once,
because the queue files that prove them change later. reput's own deletions are in ``reput/topic_deletions.jsonl``.

Source: RocketMQ store, DefaultMessageStore.cleanUnusedTopic and deleteTopics, CommitLog.removeQueueFromTopicQueueTable,
ConsumeQueue.putMessagePositionInfo.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from reput.store.disk.file_name import file_name
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE

__all__ = [
    "RECREATED_QUEUES",
    "RecreatedQueue",
    "Restart",
    "find_recreated_queues",
    "first_unit",
    "read_recreated_queues",
    "recreated_up_to",
    "recreation_offsets",
    "recreation_offsets_for_view",
    "seal_recreated_queues",
]

RECREATED_QUEUES = "queue_births"


class RecreatedQueue(msgspec.Struct, frozen=True, order=True):
    """The queue (*topic*, *queue_id*) has no record below *commit_log_offset*."""

    commit_log_offset: int
    topic: str
    queue_id: int

    def concerns(self, topic: str, queue_id: int) -> bool:
        """Tell whether this is the queue (*topic*, *queue_id*)."""
        return (self.topic, self.queue_id) == (topic, queue_id)


class Restart(NamedTuple):
    """A record with queue offset 0 in a queue that had records before it.

    Attributes:
        commit_log_offset, end: the bytes of the record.
        next_before: the queue offset that was expected.
        goes_on: the next record of the queue has queue offset 1.
    """

    topic: str
    queue_id: int
    commit_log_offset: int
    end: int
    next_before: int
    goes_on: bool = False


def read_recreated_queues(store_directory: Path) -> list[RecreatedQueue]:
    """Return the recreated queues that are known of a store, in the order of the log."""
    return read_sealed(store_directory / "reput" / RECREATED_QUEUES, list[RecreatedQueue]) or []


def seal_recreated_queues(recreated: Sequence[RecreatedQueue]) -> bytes:
    """Return the bytes of ``reput/queue_births``."""
    return seal(list(recreated))


def recreated_up_to(recreated: Iterable[RecreatedQueue], commit_log_offset: int) -> list[RecreatedQueue]:
    """Return *recreated* with those behind *commit_log_offset* moved there.

    The log was cut at that offset and continues with other records.
    """
    return [
        queue
        if queue.commit_log_offset <= commit_log_offset
        else msgspec.structs.replace(queue, commit_log_offset=commit_log_offset)
        for queue in recreated
    ]


def recreation_offsets_for_view(folder: Path, store_directory: Path) -> dict[tuple[str, int], int]:
    """Return `recreation_offsets` for the view in *folder*, which may be built for a store in another directory."""
    return recreation_offsets(read_recreated_queues(folder.parent) or read_recreated_queues(store_directory))


def recreation_offsets(recreated: Iterable[RecreatedQueue]) -> dict[tuple[str, int], int]:
    """Return (topic, queue id) → commit-log offset at which each was recreated last."""
    return {(queue.topic, queue.queue_id): queue.commit_log_offset for queue in sorted(recreated)}


def first_unit(store_directory: Path, topic: str, queue_id: int) -> int | None:
    """Return the commit-log offset that the queue's files give for queue offset 0, None without a unit there."""
    try:
        with (store_directory / "consumequeue" / topic / str(queue_id) / file_name(0)).open("rb") as file:
            data = file.read(UNIT_SIZE)
    except (OSError, ValueError):
        return None
    if len(data) < UNIT_SIZE:
        return None
    commit_log_offset, record_size, _ = UNIT.unpack(data)
    return int(commit_log_offset) if 0 < record_size < PRE_BLANK_SIZE and commit_log_offset >= 0 else None


def find_recreated_queues(
    store_directory: Path,
    restarts: Iterable[Restart],
    next_offsets: Mapping[str, Mapping[int, int]],
    last_records: Mapping[tuple[str, int], int],
) -> tuple[list[RecreatedQueue], list[Restart]]:
    """Return the queues that *restarts* prove to be recreated, and the restarts that prove nothing.

    No CRC covers the queue offset. If a restart is the last record of its queue, its queue offset may therefore be
    damaged. It is damaged if the queue's files hold an older record at queue offset 0: RocketMQ would have removed the
    files with the topic.

    RocketMQ deletes all queues of a topic. A queue without a later message was therefore recreated at the same place,
    unless it still has files: then its topic was not deleted.

    Args:
        restarts: in the order of the log; nothing contradicts those with *goes_on*.
        next_offsets: topic → queue id → next queue offset, of all queues.
        last_records: (topic, queue id) → commit-log offset of the last record; without an entry if that record is
            before the part of the log that was read.
    """
    found: dict[tuple[str, int], RecreatedQueue] = {}
    refuted: list[Restart] = []
    for restart in restarts:
        first = None if restart.goes_on else first_unit(store_directory, restart.topic, restart.queue_id)
        if first is not None and first < restart.commit_log_offset:
            refuted.append(restart)
        else:
            queue = RecreatedQueue(restart.commit_log_offset, restart.topic, restart.queue_id)
            found[restart.topic, restart.queue_id] = queue
    deleted_at: dict[str, int] = {}
    for queue in found.values():
        deleted_at[queue.topic] = min(queue.commit_log_offset, deleted_at.get(queue.topic, queue.commit_log_offset))
    for topic, commit_log_offset in deleted_at.items():
        for queue_id, next_offset in next_offsets.get(topic, {}).items():
            name = (topic, queue_id)
            is_behind = last_records.get(name, -1) >= commit_log_offset
            if next_offset and name not in found and not is_behind and not has_files(store_directory, topic, queue_id):
                found[name] = RecreatedQueue(commit_log_offset, topic, queue_id)
    return sorted(found.values()), refuted


def has_files(store_directory: Path, topic: str, queue_id: int) -> bool:
    """Tell whether a queue has files; RocketMQ removes them with the topic."""
    try:
        return any((store_directory / "consumequeue" / topic / str(queue_id)).iterdir())
    except (OSError, ValueError):
        return False

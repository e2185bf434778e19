"""QueueBirths: where queues begin in the log that RocketMQ made anew, in ``reput/queue_births``.

A RocketMQ that deletes a topic removes its queues, and gives the next message of each of them the queue offset 0 again.
The records of the former life stay in the log, which says nothing of the deletion: only the queue offsets tell it.

    log      0  1  2  3  4  0  1  2         queue offsets of one queue, in the order of the log
                            └ birth         what lies before has no place in the queue any more

Where RocketMQ's own queues are lost it builds them from both lives: the old records stand at the first places, and
the new ones are passed over, for their places are taken; and a kill brings back the old records of a queue that got
none since. Here a queue begins with its birth, whoever builds it.

Found when reput opens a store that a RocketMQ has written since, and kept then: the queues' files, which bear it out,
change later. reput's own deletions stand in ``reput/topic_deletions.jsonl``, each at its place.

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
    "QUEUE_BIRTHS",
    "QueueBirth",
    "Restart",
    "births_before",
    "births_by_queue",
    "births_for_view",
    "births_of_restarts",
    "first_unit",
    "read_queue_births",
    "seal_queue_births",
]

QUEUE_BIRTHS = "queue_births"


class QueueBirth(msgspec.Struct, frozen=True, order=True):
    """The queue (*topic*, *queue_id*) has no record that lies below *commit_log_offset*."""

    commit_log_offset: int
    topic: str
    queue_id: int

    def concerns(self, topic: str, queue_id: int) -> bool:
        """Tell whether the queue begins anew."""
        return (self.topic, self.queue_id) == (topic, queue_id)


class Restart(NamedTuple):
    """A record with the queue offset 0, of a queue that had records before.

    Attributes:
        commit_log_offset, end: where the record lies.
        next_before: the queue offset that was due.
        goes_on: the next record of the queue has the queue offset 1.
    """

    topic: str
    queue_id: int
    commit_log_offset: int
    end: int
    next_before: int
    goes_on: bool = False


def read_queue_births(store_directory: Path) -> list[QueueBirth]:
    """Return the births that are known of a store, in the order of the log."""
    return read_sealed(store_directory / "reput" / QUEUE_BIRTHS, list[QueueBirth]) or []


def seal_queue_births(births: Sequence[QueueBirth]) -> bytes:
    """Return the bytes of ``reput/queue_births``."""
    return seal(list(births))


def births_before(births: Iterable[QueueBirth], commit_log_offset: int) -> list[QueueBirth]:
    """Return *births* with those behind *commit_log_offset* there: the log was cut, and goes on with other records."""
    return [
        birth
        if birth.commit_log_offset <= commit_log_offset
        else msgspec.structs.replace(birth, commit_log_offset=commit_log_offset)
        for birth in births
    ]


def births_for_view(folder: Path, store_directory: Path) -> dict[tuple[str, int], int]:
    """Return `births_by_queue` for the view in *folder* of a store: as it is known of the store or, where the view is
    built into another directory, there."""
    return births_by_queue(read_queue_births(folder.parent) or read_queue_births(store_directory))


def births_by_queue(births: Iterable[QueueBirth]) -> dict[tuple[str, int], int]:
    """Return (topic, queue id) → commit-log offset of the last birth."""
    return {(birth.topic, birth.queue_id): birth.commit_log_offset for birth in sorted(births)}


def first_unit(store_directory: Path, topic: str, queue_id: int) -> int | None:
    """Return the commit-log offset in the unit at queue offset 0, as the files say, None if there is none."""
    try:
        with (store_directory / "consumequeue" / topic / str(queue_id) / file_name(0)).open("rb") as file:
            data = file.read(UNIT_SIZE)
    except (OSError, ValueError):
        return None
    if len(data) < UNIT_SIZE:
        return None
    commit_log_offset, record_size, _ = UNIT.unpack(data)
    return int(commit_log_offset) if 0 < record_size < PRE_BLANK_SIZE and commit_log_offset >= 0 else None


def births_of_restarts(
    store_directory: Path,
    restarts: Iterable[Restart],
    next_offsets: Mapping[str, Mapping[int, int]],
    last_records: Mapping[tuple[str, int], int],
) -> tuple[list[QueueBirth], list[Restart]]:
    """Return the births that *restarts* tell of, and the restarts that are none.

    A record that nothing of its queue follows might have lost its queue offset, which no CRC covers. If the queue's
    files have an older record at the place 0, it has: they would be gone with the topic.

    RocketMQ deletes all queues of a topic. One that got no message since has its birth, too, unless its files are
    there, which is to say that the topic was not deleted.

    Args:
        restarts: in the order of the log; nothing contradicts those that go on.
        next_offsets: topic → queue id → next queue offset, of all queues.
        last_records: (topic, queue id) → commit-log offset of the last record; none where that lies before the part of
            the log that was read.
    """
    found: dict[tuple[str, int], QueueBirth] = {}
    refuted: list[Restart] = []
    for restart in restarts:
        first = None if restart.goes_on else first_unit(store_directory, restart.topic, restart.queue_id)
        if first is not None and first < restart.commit_log_offset:
            refuted.append(restart)
        else:
            birth = QueueBirth(restart.commit_log_offset, restart.topic, restart.queue_id)
            found[restart.topic, restart.queue_id] = birth
    deleted_at: dict[str, int] = {}
    for birth in found.values():
        deleted_at[birth.topic] = min(birth.commit_log_offset, deleted_at.get(birth.topic, birth.commit_log_offset))
    for topic, commit_log_offset in deleted_at.items():
        for queue_id, next_offset in next_offsets.get(topic, {}).items():
            name = (topic, queue_id)
            is_behind = last_records.get(name, -1) >= commit_log_offset
            if next_offset and name not in found and not is_behind and not has_files(store_directory, topic, queue_id):
                found[name] = QueueBirth(commit_log_offset, topic, queue_id)
    return sorted(found.values()), refuted


def has_files(store_directory: Path, topic: str, queue_id: int) -> bool:
    """Tell whether a queue has files; RocketMQ removes those of a topic that is deleted."""
    try:
        return any((store_directory / "consumequeue" / topic / str(queue_id)).iterdir())
    except (OSError, ValueError):
        return False

"""StoreFigures: what there is to say about a store in figures, read in one go: status, lags of groups, disk, ring."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

import msgspec

from reput.consume.administration.stored_queues import GroupProgress, StoredQueues
from reput.embedded.read_administration import ReadAdministration
from reput.embedded.read_only_engine import ReadOnlyEngine
from reput.embedded.reading_engine import ReadingEngine
from reput.embedded.store_engine import StoreEngine
from reput.process.control.dispatcher_row import store_timestamp_at
from reput.process.control.group_status import GroupStatus
from reput.ring import RingMemory
from reput.store.log.segments import Segments

__all__ = ["ConnectionCount", "GroupLag", "StoreFigures", "group_lags", "read_figures"]


class ConnectionCount(msgspec.Struct, frozen=True):
    """Connections of one kind to the broker of a store.

    Attributes:
        consumer_group: None: they are producers'.
        consume_mode: ``push`` or ``pull``; empty for producers.
    """

    consumer_group: str | None
    language: str
    version: str
    consume_mode: str
    count: int


class GroupLag(msgspec.Struct, frozen=True):
    """How far a group is behind in a topic.

    Attributes:
        lag: existing messages that it has not acknowledged.
        waiting_since: store time of the oldest of them, ms since 1970; None: there is none, or it is damaged.
    """

    group: str
    topic: str
    lag: int
    waiting_since: int | None


class StoreFigures(msgspec.Struct, frozen=True):
    """One reading of a store. Unknown values are None.

    Attributes:
        disk_used, disk_free: bytes of the file system that holds the store.
        first_timestamp: store time of the oldest message, ms since 1970.
        ring_size, ring_published: bytes of the ring, and bytes published through it since the store was opened.
    """

    status: GroupStatus
    lags: list[GroupLag]
    topic_nums: int
    group_nums: int
    segment_nums: int
    disk_used: int
    disk_free: int
    first_timestamp: int | None
    ring_size: int | None
    ring_published: int | None


def read_figures(engine: ReadingEngine) -> StoreFigures:
    """Return the figures of an open store.

    Raises:
        StoreError: a file cannot be read.
    """
    status = engine.status()
    consuming = engine.consuming if isinstance(engine, StoreEngine) else None
    if consuming is None:
        # Never the services of a store: once they are made, each put tells them that a message has come.
        read = ReadAdministration(engine)
        administration, queues = read.administration, read.queues
    else:
        administration, queues = consuming.administration, consuming.stored_queues
    progress = administration.progress_of_groups()
    begin = status.writer.commit_log_offset_min
    usage = shutil.disk_usage(engine.directory)
    ring = ring_of(engine)
    return StoreFigures(
        status=status,
        lags=group_lags(progress, queues),
        topic_nums=len(administration.topic_names()),
        group_nums=len(progress),
        segment_nums=len(Segments(engine.directory / "commitlog").list),
        disk_used=usage.used,
        disk_free=usage.free,
        first_timestamp=None if begin is None else store_timestamp_at(engine.directory, begin),
        ring_size=None if ring is None else engine.settings.ring_size,
        ring_published=None if ring is None else ring.header.tail,
    )


def ring_of(engine: ReadingEngine) -> RingMemory | None:
    """Return the ring of a store whose dispatchers run in processes of their own; None: they do not, or are unknown."""
    if isinstance(engine, StoreEngine):
        return None if engine.views.ring is None else engine.views.ring.memory
    if isinstance(engine, ReadOnlyEngine) and engine.observed is not None:
        return engine.observed.memory
    return None


def group_lags(progress: Mapping[str, Sequence[GroupProgress]], queues: StoredQueues) -> list[GroupLag]:
    """Return the lag of each group in each topic; reads one message of each queue that has a lag."""
    found: list[GroupLag] = []
    for group, rows in progress.items():
        for topic in dict.fromkeys(row.topic for row in rows):
            lag = 0
            times = []
            for row in rows:
                if row.topic == topic and row.lag:
                    lag += row.lag
                    # Behind the messages that retention has removed.
                    times.append(queues.readable_timestamp(topic, row.queue_id, row.broker_offset - row.lag))
            waiting_since = min((time for time in times if time is not None), default=None)
            found.append(GroupLag(group, topic, lag, waiting_since))
    return found

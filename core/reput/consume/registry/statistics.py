"""Statistics: messages put and consumed since the store was opened, by topic and group.

An unmeasured value is None, never 0.

Source of the names: RocketMQ broker, BrokerStatsManager (GROUP_GET_NUMS, GROUP_GET_SIZE, SNDBCK_PUT_NUMS, …), and
store, StoreStatsService.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from reput.store.log.force_times import ForceTotals
from reput.store.state.lease_row import LeaseRow
from reput.store.writer.put_statistics import PutTotals

__all__ = ["GroupRow", "GroupStatistics", "Statistics", "StoreStatistics", "TopicRow", "within"]


Row = TypeVar("Row", bound=msgspec.Struct)


class GroupStatistics(msgspec.Struct):
    """One group on one topic.

    Attributes:
        get_nums, get_size: messages delivered to the group, and bytes of their records.
        send_back_nums: messages that it sent back.
        dead_letter_nums: those of them that went to the dead letters.
        latency_ms: from storing to delivery, measured with the first message of each read; None: not measured yet.
        latency_max_ms: the longest.
        latency_count, latency_total_ms: number of measurements, and their sum.
    """

    get_nums: int = 0
    get_size: int = 0
    send_back_nums: int = 0
    dead_letter_nums: int = 0
    latency_ms: int | None = None
    latency_max_ms: int | None = None
    latency_count: int = 0
    latency_total_ms: int = 0

    @property
    def latency_average_ms(self) -> float | None:
        """The mean of the measurements; None: there are none yet."""
        return round(self.latency_total_ms / self.latency_count, 3) if self.latency_count else None

    def look(self, store_timestamp: int) -> None:
        """Measure the latency of a message about to be delivered; it was stored at *store_timestamp*, ms since 1970."""
        latency = self.latency_ms = max(0, time.time_ns() // 1_000_000 - store_timestamp)
        self.latency_max_ms = max(latency, self.latency_max_ms or 0)
        self.latency_count += 1
        self.latency_total_ms += latency


class GroupRow(msgspec.Struct, frozen=True):
    """What one group was given of one topic.

    Attributes:
        get_nums, get_size: messages, and bytes of their records.
        send_back_nums, dead_letter_nums: messages that were sent back, and that became dead letters.
        latency_ms: time between the storing of a message and its delivery, of the last read; None: no read yet.
    """

    group: str
    topic: str
    get_nums: int
    get_size: int
    send_back_nums: int
    dead_letter_nums: int
    latency_ms: int | None
    latency_max_ms: int | None
    latency_average_ms: float | None


class TopicRow(msgspec.Struct, frozen=True):
    """One topic.

    Attributes:
        put_nums: messages put to its queues, including those that name it as a further queue (multi-dispatch).
        put_size: bytes of its own records; None: it has only multi-dispatch messages.
    """

    topic: str
    put_nums: int
    put_size: int | None


class StoreStatistics(msgspec.Struct, frozen=True):
    """One store since it was opened.

    Attributes:
        topics: the topics that got messages, by name.
        groups: the groups of this program's consumers, by name and topic.
        waiting_delays: delayed messages not delivered yet, by delay level; None: not known (yet).
        half_messages: half messages of unsettled transactions; None: not counted.
        topics_left_out, groups_left_out: how many are missing above: another process is told of the busiest only.
        forces: the forces of the log; None: an older reput writes the store, which does not count them.
        lease: None: no lease decides whether this store is the master.
    """

    started: int
    put: PutTotals
    topics: list[TopicRow]
    groups: list[GroupRow]
    waiting_delays: dict[int, int] | None
    half_messages: int | None
    topics_left_out: int = 0
    groups_left_out: int = 0
    forces: ForceTotals | None = None
    lease: LeaseRow | None = None


def within(statistics: StoreStatistics, size_max: int) -> StoreStatistics:
    """Return *statistics* with as many of the busiest topics and groups as fit into *size_max* bytes of JSON each."""
    topics = busiest(statistics.topics, lambda row: row.put_nums, size_max)
    groups = busiest(statistics.groups, lambda row: row.get_nums, size_max)
    return msgspec.structs.replace(
        statistics,
        topics=topics,
        groups=groups,
        topics_left_out=len(statistics.topics) - len(topics),
        groups_left_out=len(statistics.groups) - len(groups),
    )


def busiest(rows: list[Row], weight: Callable[[Row], int], size_max: int) -> list[Row]:
    """Return, in their order, the rows with the largest *weight* that fit into *size_max* bytes of JSON."""
    sizes = [len(msgspec.json.encode(row)) + 1 for row in rows]
    if sum(sizes) <= size_max:
        return rows
    kept = set()
    for at in sorted(range(len(rows)), key=lambda at: -weight(rows[at])):
        size_max -= sizes[at]
        if size_max < 0:
            break
        kept.add(at)
    return [row for at, row in enumerate(rows) if at in kept]


class Statistics:
    """The counts of one store. Any thread may call.

    Args:
        put_nums: returns the number of messages put to a topic since the store was opened; None: no such topic.
    """

    def __init__(self, put_nums: Callable[[str], int | None]) -> None:
        self.put_nums = put_nums
        self.lock = threading.Lock()
        self.groups: dict[tuple[str, str], GroupStatistics] = {}

    def of_group(self, group: str, topic: str) -> GroupStatistics:
        """Return the live counts of a group on a topic."""
        found = self.groups.get((group, topic))
        if found is None:
            with self.lock:
                found = self.groups.setdefault((group, topic), GroupStatistics())
        return found

    def group_rows(self) -> list[GroupRow]:
        """Return a snapshot of all groups."""
        with self.lock:
            found = sorted(self.groups.items())
        return [
            GroupRow(
                group,
                topic,
                counts.get_nums,
                counts.get_size,
                counts.send_back_nums,
                counts.dead_letter_nums,
                counts.latency_ms,
                counts.latency_max_ms,
                counts.latency_average_ms,
            )
            for (group, topic), counts in found
        ]

    def sent_back(self, group: str, topic: str, *, dead: bool) -> None:
        """Count a message that a group has sent back; *dead*: it is a dead letter now."""
        found = self.of_group(group, topic)
        with self.lock:
            found.send_back_nums += 1
            found.dead_letter_nums += dead
